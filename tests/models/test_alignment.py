"""Alignment against slow, obvious references, and its laws on any text and any cut of it."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fedlora.models.alignment import TokenMap, anchors, beginning, edit_distances, matches
from fedlora.models.pieces import Vocabulary

TEXTS = st.binary(max_size=12) | st.text("ab c", max_size=14).map(str.encode)
WORDS = st.text("ab c", min_size=1, max_size=5).map(str.encode)


def distance(one: bytes, other: bytes) -> int:
    """Levenshtein's definition, as it stands in a textbook."""

    @cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        replaced = between(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        return min(replaced, between(i - 1, j) + 1, between(i, j - 1) + 1)

    return between(len(one), len(other))


def cut(text: bytes, places: Sequence[int]) -> list[bytes]:
    """The text in pieces that end at these places."""
    ends = sorted({place % len(text) for place in places} - {0}) if text else []
    edges = [0, *ends, len(text)]
    return [text[start:end] for start, end in pairwise(edges) if start < end]


def starts(pieces: Sequence[bytes]) -> list[int]:
    return [sum(map(len, pieces[:index])) for index in range(len(pieces))]


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=5))
def test_edit_distances_are_levenshteins(one: bytes, others: list[bytes]) -> None:
    assert list(edit_distances(one, others)) == [distance(one, other) for other in others]


@given(st.lists(WORDS, min_size=1, max_size=30, unique=True), WORDS)
def test_the_nearest_token_is_that_of_a_full_search(own: list[bytes], piece: bytes) -> None:
    found = TokenMap(Vocabulary("", tuple(own)))[piece]
    if piece in own:
        assert found == own.index(piece)
        return
    alike = [one for one in own if beginning(one) == beginning(piece)] or own
    assert distance(piece, own[found]) == min(distance(piece, one) for one in alike)
    assert own[found] in alike


@given(st.lists(WORDS, min_size=1, max_size=30))
def test_a_vocabulary_maps_to_itself(own: list[bytes]) -> None:
    """Of two tokens with the same bytes the first is taken, for both."""
    words = TokenMap(Vocabulary("", tuple(own)))
    assert [own[words[piece]] for piece in own] == own


@given(TEXTS, TEXTS)
def test_matched_bytes_are_kept_by_a_shortest_edit(one: bytes, other: bytes) -> None:
    where = matches(one, other)
    pairs = [(place, there) for place, there in enumerate(where) if there >= 0]
    assert len(where) == len(one)
    assert all(one[place] == other[there] for place, there in pairs)
    assert all(a < b for (_, a), (_, b) in pairwise(pairs))
    cost, last = 0, (-1, -1)
    for place, there in [*pairs, (len(one), len(other))]:  # what lies between is rewritten
        cost += max(place - last[0], there - last[1]) - 1
        last = place, there
    assert cost == distance(one, other)


@given(TEXTS, st.lists(st.integers(0, 50)), st.lists(st.integers(0, 50)))
def test_pieces_of_one_text_are_anchored_where_both_begin(
    text: bytes, mine: list[int], theirs: list[int]
) -> None:
    own, source = cut(text, mine), cut(text, theirs)
    begins = starts(source)
    expected = [begins.index(start) if start in begins else -1 for start in starts(own)]
    assert anchors(own, source) == expected


@given(TEXTS, st.lists(st.integers(0, 50)))
def test_the_same_cut_is_anchored_one_to_one(text: bytes, places: list[int]) -> None:
    pieces = cut(text, places)
    assert anchors(pieces, pieces) == list(range(len(pieces)))


def test_a_text_that_begins_earlier_or_ends_sooner_keeps_its_anchors() -> None:
    own = [b" key", b" of", b" room", b" 7"]
    assert anchors(own, [b"The", b" key", b" o", b"f", b" room"]) == [1, 2, 4, -1]
    assert anchors(own, [b"\x20", b"key of", b" room", b" 7"]) == [0, -1, 2, 3]
