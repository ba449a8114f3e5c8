"""One tokenizer's words in another's: nearest tokens, and positions that begin at the same place.

Two models with different tokenizers cut a text differently, and number its parts differently. What
one predicts helps the other where both have read the same text so far, once its tokens are named in
the other's vocabulary: by the same bytes, or else by those nearest in edit distance (MinED, as in
FuseLLM and FedMKT).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .pieces import Vocabulary

Numbers = NDArray[np.int32]

CELLS = 1 << 25  # of an edit table; what differs over a longer stretch is left unmatched


class TokenMap:
    """The own token for any piece of another tokenizer; see `nearest_token`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Map into `vocabulary`."""
        self._pieces = vocabulary.pieces
        self._own: dict[bytes, int] = {}
        self._alike: dict[bytes, list[int]] = {}
        self._found: dict[bytes, int] = {}
        for token, piece in enumerate(self._pieces):
            self._own.setdefault(piece, token)
            self._alike.setdefault(beginning(piece), []).append(token)

    def __getitem__(self, piece: bytes) -> int:
        """The token of the same bytes, or the nearest of those that begin alike.

        Of equally near ones it is that with the longest common beginning, then the lowest id.
        Where none begins alike, all are candidates.
        """
        if piece in self._own:
            return self._own[piece]
        if piece not in self._found:
            self._found[piece] = self._nearest(piece)
        return self._found[piece]

    def _nearest(self, piece: bytes) -> int:
        alike = self._alike.get(beginning(piece), range(len(self._pieces)))
        # An own token that is the piece's beginning lacks the rest: none farther need be looked at.
        lengths = range(len(piece) - 1, 0, -1)
        bound = next((len(piece) - n for n in lengths if piece[:n] in self._own), None)
        near = [
            token
            for token in alike
            if bound is None or abs(len(self._pieces[token]) - len(piece)) <= bound
        ]
        tokens = near or alike
        distances = edit_distances(piece, [self._pieces[token] for token in tokens])
        least = distances.min()
        tied = [token for token, one in zip(tokens, distances, strict=True) if one == least]
        return max(tied, key=lambda one: (shared(piece, self._pieces[one]), -one))


@lru_cache(maxsize=4)
def token_map(vocabulary: Vocabulary) -> TokenMap:
    """The map into a vocabulary, with all that was looked up before."""
    return TokenMap(vocabulary)


def beginning(piece: bytes) -> bytes:
    """What pieces must share to be compared: the first byte; the second too behind a space."""
    return piece[: 2 if piece.startswith(b" ") else 1]


def shared(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def edit_distances(piece: bytes, others: Sequence[bytes]) -> Numbers:
    """Levenshtein distances in bytes from `piece` to each of `others`, (others,)."""
    lengths = np.array([len(other) for other in others])
    padded = np.full((len(others), int(lengths.max())), -1, dtype=np.int16)
    for row, other in enumerate(others):
        padded[row, : len(other)] = np.frombuffer(other, np.uint8)
    *_, last = _rows(piece, padded)
    found: Numbers = last[np.arange(len(others)), lengths]
    return found


def anchors(own: Sequence[bytes], source: Sequence[bytes]) -> list[int]:
    """For each own piece the piece of `source` that begins at the same place of the text, or -1.

    Args:
        own: the text, cut by one tokenizer.
        source: the same text, cut by another; it may begin earlier, end later, or be normalized
            otherwise: then what counts are the places that a shortest edit leaves alone.
    """
    begins: dict[int, int] = {}
    offset = 0
    for index, piece in enumerate(source):
        begins.setdefault(offset, index)
        offset += len(piece)
    where = [*matches(b"".join(own), b"".join(source)), -1]
    found, offset = [], 0
    for piece in own:
        found.append(begins.get(where[offset], -1) if piece else -1)
        offset += len(piece)
    return found


def matches(one: bytes, other: bytes) -> list[int]:
    """For each byte of `one` the place of the byte of `other` that a shortest edit keeps, or -1."""
    start = shared(one, other)
    end = shared(one[start:][::-1], other[start:][::-1])
    middle = _matches(one[start : len(one) - end], other[start : len(other) - end])
    inner = [-1 if place < 0 else start + place for place in middle]
    return [*range(start), *inner, *range(len(other) - end, len(other))]


def _matches(one: bytes, other: bytes) -> list[int]:
    where = [-1] * len(one)
    if len(one) * len(other) > CELLS:
        return where
    table = np.stack(list(_rows(one, np.frombuffer(other, np.uint8))))  # (one + 1, other + 1)
    i, j = len(one), len(other)
    while i and j:
        if one[i - 1] == other[j - 1]:
            where[i - 1] = j - 1
            i, j = i - 1, j - 1
        elif table[i, j] == table[i - 1, j - 1] + 1:
            i, j = i - 1, j - 1
        elif table[i, j] == table[i - 1, j] + 1:
            i -= 1
        else:
            j -= 1
    return where


def _rows(one: bytes, other: NDArray[np.integer]) -> Iterator[Numbers]:
    """The rows of the edit table of `one` against each of `other` (..., n): (..., n + 1)."""
    columns = np.arange(other.shape[-1] + 1, dtype=np.int32)
    row: Numbers = np.broadcast_to(columns, (*other.shape[:-1], len(columns)))
    yield row
    for byte in one:
        step = row + 1
        step[..., 1:] = np.minimum(step[..., 1:], row[..., :-1] + (other != byte))
        # An insertion costs 1 a column: the least over all columns to the left, in one pass.
        row = np.minimum.accumulate(step - columns, axis=-1) + columns
        yield row
