"""Key files on disk: a private one is its owner's alone, and none is ever written over."""

import os
from collections.abc import Iterable
from pathlib import Path

from fedlora.adapters.errors import IdentityError

_PRIVATE, _PUBLIC = 0o600, 0o644
_OTHERS = 0o077


def read(path: Path) -> bytes:
    """The content of a key or certificate file.

    Raises:
        IdentityError: if it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}") from None


def write_private(path: Path, content: bytes) -> None:
    """Make a file that its owner alone can read.

    Raises:
        IdentityError: if there is one already, or it can't be written.
    """
    _write(path, content, _PRIVATE)


def write_public(path: Path, content: bytes) -> None:
    """Make a file that all may read; the same content twice is no error.

    Raises:
        IdentityError: if there is one with another content, or it can't be written.
    """
    if not path.exists() or read(path) != content:
        _write(path, content, _PUBLIC)


def require_private(paths: Iterable[Path]) -> None:
    """See that nobody but their owner can read these files.

    Raises:
        IdentityError: naming those that others can read, or that are missing.
    """
    exposed = []
    for path in paths:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise IdentityError(f"cannot read {path}: {error.strerror}") from None
        if mode & _OTHERS:
            exposed.append(str(path))
    if exposed:
        names = " ".join(exposed)
        raise IdentityError(f"others than their owner can read or change {names}: chmod 600 them")


def require_absent(*paths: Path) -> None:
    """See that no key would be written over.

    Raises:
        IdentityError: naming those that are there.
    """
    if found := " and ".join(str(path) for path in paths if path.exists()):
        raise IdentityError(
            f"{found} there already, and keys are not written over: name another folder, or remove "
            "what nobody needs any more"
        )


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except OSError as error:
        raise IdentityError(f"cannot write {path}: {error.strerror}") from None
