"""The cache: what is computed once from a model and kept between runs.

It lies in `FEDLORA_CACHE`, or else in `~/.cache/fedlora`, and may be deleted at any time.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlora.adapters import ModelError


def cache_folder(kind: str) -> Path:
    """The folder for one kind of entry, made if need be.

    Raises:
        ModelError: if it cannot be made.
    """
    root = os.environ.get("FEDLORA_CACHE") or "~/.cache/fedlora"
    folder = Path(root).expanduser() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"cannot make the cache folder {folder}: {error.strerror}; set FEDLORA_CACHE to a "
            "folder that you may write to"
        ) from None
    return folder


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of `folder` once the block has succeeded.

    Whoever looks sees the whole folder or none, even if the process dies half way; what is left
    then is hidden beside it, as `leftovers` finds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    fresh = hidden / folder.name  # not `hidden` itself, which only its owner may read
    try:
        fresh.mkdir()
        yield fresh
        fresh.replace(folder)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def leftovers(folder: Path) -> Iterator[Path]:
    """What processes left that died while publishing `folder`."""
    return folder.parent.glob(f".{folder.name}.*")
