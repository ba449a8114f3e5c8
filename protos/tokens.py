"""Bearer tokens: who calls, where certificates for all would be too much.

The hub has a file with a line `NAME TOKEN` for each party; each party has its own TOKEN in a file.
They travel over TLS alone.
"""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from fedlora.adapters.errors import IdentityError

from .keyfiles import read, require_private
from .keys import NAME

SHORTEST = 32  # characters; `openssl rand -hex 32` gives 64

_MAKE = "make one with `openssl rand -hex 32`"


class Tokens:
    """The parties that may call, each known by its token."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        """Let in the owner of each of `tokens`, by name."""
        self._digests = {name: _digest(token) for name, token in tokens.items()}

    @classmethod
    def load(cls, path: Path) -> "Tokens":
        """Read the hub's file; empty lines and lines that begin with # don't count.

        Raises:
            IdentityError: if others can read it, or a line is wrong; it is named, not quoted.
        """
        tokens: dict[str, str] = {}
        for number, line in enumerate(_private_lines(path), start=1):
            if not line or line.startswith("#"):
                continue
            name, _, token = line.partition(" ")
            place = f"{path}, line {number}"
            if not NAME.fullmatch(name) or name in tokens:
                raise IdentityError(f"{place}: expected NAME TOKEN, with a name of its own")
            tokens[name] = _checked(token.strip(), place)
        if len(set(tokens.values())) < len(tokens):
            raise IdentityError(f"{path}: two parties have the same token")
        if not tokens:
            raise IdentityError(f"{path} names nobody; expected lines NAME TOKEN")
        return cls(tokens)

    def owner(self, token: str) -> str:
        """The name of the party that showed this token; takes as long whoever it is.

        Raises:
            IdentityError: if it is nobody's.
        """
        shown, found = _digest(token), ""
        for name, digest in self._digests.items():
            if hmac.compare_digest(digest, shown):
                found = name
        if not found:
            raise IdentityError(
                "the hub does not know this token: ask its operator for one, and name its file "
                "with --token-file"
            )
        return found


def load_token(path: Path) -> str:
    """Read a party's own file.

    Raises:
        IdentityError: if others can read it, or it holds no token.
    """
    return _checked("\n".join(_private_lines(path)).strip(), str(path))


def _private_lines(path: Path) -> list[str]:
    require_private([path])
    try:
        return [line.strip() for line in read(path).decode("ascii").splitlines()]
    except UnicodeDecodeError:
        raise IdentityError(f"{path}: expected plain ASCII text") from None


def _checked(token: str, place: str) -> str:
    if len(token) < SHORTEST or not token.isprintable() or " " in token:
        raise IdentityError(
            f"{place}: expected a token of at least {SHORTEST} characters without spaces: {_MAKE}"
        )
    return token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
