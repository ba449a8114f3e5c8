"""Files on their way, kept under their digest until they are whole: a pull can be broken off.

A part is a file whose name says what it is to become; its size says where to go on.
"""

import hashlib
from pathlib import Path
from typing import BinaryIO

from fedlora.adapters.errors import WireError


class Parts:
    """The parts in one folder: begun ones are called DIGEST.part, whole and sound ones DIGEST."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, and make it."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._digest = ""  # of the part that is open
        self._file: BinaryIO | None = None
        self._hasher = hashlib.sha256()

    def sizes(self) -> dict[str, int]:
        """Bytes that are there, by digest in hex."""
        self.close()
        return {path.stem: path.stat().st_size for path in self._folder.iterdir()}

    def whole(self, digest: str) -> Path | None:
        """The file, if it is whole and sound."""
        path = self._folder / digest
        return path if path.exists() else None

    def add(self, digest: str, offset: int, content: bytes, size: int) -> bool:
        """Write the next piece of a part; without content, only look whether it is whole.

        Args:
            digest: SHA-256 of the whole, in hex.
            offset: where the piece belongs.
            content: the piece.
            size: of the whole.

        Returns:
            Whether the part is whole now, and sound.

        Raises:
            WireError: if the piece belongs elsewhere, or the whole is not what it should be; then
                it is thrown away.
        """
        file = self._opened(digest)
        if offset != file.tell() or offset + len(content) > size:
            raise WireError(
                f"the hub sent bytes {offset} to {offset + len(content)} of a file of {size}, "
                f"where byte {file.tell()} was to come next"
            )
        file.write(content)
        self._hasher.update(content)
        if offset + len(content) < size:
            return False
        self.close()
        begun = self._begun(digest)
        if self._hasher.hexdigest() != digest:
            begun.unlink()
            raise WireError(
                f"a file was altered on its way: its SHA-256 is not {digest[:12]}..., which was "
                "offered. It is thrown away; pull again"
            )
        begun.replace(self._folder / digest)
        return True

    def clear(self) -> None:
        """Throw away what is left of other pulls, when one has come to its end."""
        self.close()
        for path in self._folder.iterdir():
            path.unlink()

    def close(self) -> None:
        """Leave the part that is being written for later."""
        if self._file is not None:
            self._file.close()
        self._file, self._digest = None, ""

    def _begun(self, digest: str) -> Path:
        return self._folder / f"{digest}.part"

    def _opened(self, digest: str) -> BinaryIO:
        if self._file is None or self._digest != digest:
            self.close()
            self._file, self._digest = self._begun(digest).open("a+b"), digest
            self._file.seek(0)
            self._hasher = hashlib.sha256()
            while block := self._file.read(1 << 20):
                self._hasher.update(block)
        return self._file
