"""Where the last tokens stood before: in the prompt, in this text, or in earlier ones.

What followed there is the best draft there is, the better the longer the match.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

LENGTHS = (6, 4, 3, 2, 1)  # of the beginnings that are looked up, longest first
SIZE = 1 << 15  # tokens of history
LONGEST = 16  # how far a match is followed back


class Suffixes:
    """The last `SIZE` tokens, and for each short sequence of tokens where it ended last.

    A ring and five tables of fixed size, 0.8 MB in all. Collisions of hashes and overwritten
    places do no harm: what is found is compared.
    """

    def __init__(self, size: int = SIZE) -> None:
        """Nothing seen yet; `size` is a power of two."""
        self._size = size
        self._ring: npt.NDArray[np.int32] = np.full(size, -1, dtype=np.int32)
        self._ends = {length: np.full(size, -1, dtype=np.int32) for length in LENGTHS}
        self._count = 0

    @property
    def nbytes(self) -> int:
        """Memory of ring and tables, in bytes; it does not grow."""
        return self._ring.nbytes + sum(ends.nbytes for ends in self._ends.values())

    def extend(self, tokens: Sequence[int], before: Sequence[int]) -> None:
        """Take in tokens that follow `before`, of which the last few matter."""
        tail = list(before[-max(LENGTHS) :])
        for token in tokens:
            # Noted only now that something follows: the end of the text must not find itself.
            for length in LENGTHS:
                if len(tail) >= length:
                    key = hash(tuple(tail[-length:])) & (self._size - 1)
                    self._ends[length][key] = self._count - 1
            self._ring[self._count % self._size] = token
            self._count += 1
            tail.append(token)
            del tail[: -max(LENGTHS)]

    def continuations(self, tail: Sequence[int]) -> Iterator[tuple[int, int]]:
        """What followed the tail of a text before, with the length of the match; longest first.

        At most one for each of `LENGTHS`; a token may come twice.
        """
        for length in LENGTHS:
            if len(tail) < length:
                continue
            key = hash(tuple(tail[-length:])) & (self._size - 1)
            end = int(self._ends[length][key])
            if end < 0 or self._count - end >= self._size - LONGEST:
                continue
            matched = self._matched(end, tail)
            if matched >= length:
                yield int(self._ring[(end + 1) % self._size]), matched

    def _matched(self, end: int, tail: Sequence[int]) -> int:
        """How many tokens before and at `end` agree with the end of the tail."""
        longest = min(LONGEST, len(tail), end + 1)
        for back in range(longest):
            if self._ring[(end - back) % self._size] != tail[-1 - back]:
                return back
        return longest
