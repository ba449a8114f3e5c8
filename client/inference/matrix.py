"""The recycling matrix: for every token, what the model thought most likely to follow it.

Every forward pass yields candidates for each of its tokens, accepted or not, and plain decoding
throws all but one away. Kept in a matrix, they are the drafts of later steps (Luo et al., 2024,
"Turning Trash into Treasure"). Beside the ids stand the probabilities that the model gave them.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Chances = npt.NDArray[np.float16]

WIDTH, PAIR_WIDTH = 8, 4  # candidates of a row
SLOTS = 1 << 16  # rows of pairs
EMPTY = -1


class Matrix:
    """Rows by last token.

    Attributes:
        ids: (vocabulary, width), likeliest first; `EMPTY` where nothing was seen yet.
        chances: (vocabulary, width).
    """

    def __init__(self, vocabulary: int, width: int = WIDTH) -> None:
        """An empty matrix; 6 bytes an entry, 1.6 MB for 32,000 tokens."""
        self.ids: Ids = np.full((vocabulary, width), EMPTY, dtype=np.int32)
        self.chances: Chances = np.zeros((vocabulary, width), dtype=np.float16)

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self.ids.nbytes + self.chances.nbytes

    def row(self, token: int) -> list[tuple[int, float]]:
        """Candidates to follow a token, with their probabilities, likeliest first."""
        ids = self.ids[token].tolist()
        if ids[0] == EMPTY:
            return []
        return list(zip(ids, self.chances[token].tolist(), strict=True))

    def write(self, tokens: Sequence[int], ids: Ids, chances: Chances) -> None:
        """Set rows, of which later ones win: ids and chances are (len(tokens), width)."""
        self.ids[tokens], self.chances[tokens] = ids, chances


class Pairs:
    """Rows by the last two tokens, in a table of fixed size in which a newcomer displaces.

    Attributes:
        keys: (slots,), the pair that has the slot, or `EMPTY`.
        ids: (slots, width).
        chances: (slots, width).
    """

    def __init__(self, slots: int = SLOTS, width: int = PAIR_WIDTH) -> None:
        """An empty table; 32 bytes a slot, 2.1 MB in all."""
        self.keys: npt.NDArray[np.int64] = np.full(slots, EMPTY, dtype=np.int64)
        self.ids: Ids = np.zeros((slots, width), dtype=np.int32)
        self.chances: Chances = np.zeros((slots, width), dtype=np.float16)

    def row(self, before: int, token: int) -> list[tuple[int, float]]:
        """Candidates to follow two tokens, with their probabilities, likeliest first."""
        key = before << 32 | token
        slot = _slot(key, len(self.keys))
        if self.keys[slot] != key:
            return []
        return list(zip(self.ids[slot].tolist(), self.chances[slot].tolist(), strict=True))

    def write(self, pairs: Sequence[tuple[int, int]], ids: Ids, chances: Chances) -> None:
        """Set rows, of which later ones win; ids and chances may be wider than the table."""
        keys = [before << 32 | token for before, token in pairs]
        slots = [_slot(key, len(self.keys)) for key in keys]
        width = self.ids.shape[1]
        self.keys[slots] = keys
        self.ids[slots], self.chances[slots] = ids[:, :width], chances[:, :width]


def _slot(key: int, slots: int) -> int:
    """Fibonacci hashing: neighbouring keys fall far from one another."""
    return ((key * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF) * slots >> 64
