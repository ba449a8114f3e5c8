"""What drafters remember, against dictionaries; and its file."""

import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from fedlora.client.inference.acceptance import Acceptance
from fedlora.client.inference.drafts import Drafter
from fedlora.client.inference.matrix import Matrix, Pairs
from fedlora.client.inference.suffixes import LENGTHS, LONGEST, Suffixes
from fedlora.client.inference.tables import Tables, table_file
from fedlora.client.inference.tree import Tree


def rows(count: int, width: int, start: int = 0) -> "tuple[np.ndarray, np.ndarray]":  # type: ignore[type-arg]
    ids = np.arange(start, start + count * width, dtype=np.int32).reshape(count, width)
    return ids, np.full((count, width), 0.1, dtype=np.float16)


def test_later_rows_win() -> None:
    matrix, pairs = Matrix(50, 4), Pairs(64, 4)
    assert matrix.row(7) == pairs.row(1, 7) == []
    ids, chances = rows(3, 4)
    matrix.write([7, 8, 7], ids, chances)
    pairs.write([(1, 7), (2, 7), (1, 7)], ids, chances)
    assert [token for token, _ in matrix.row(7)] == [8, 9, 10, 11]
    assert [token for token, _ in pairs.row(1, 7)] == [8, 9, 10, 11]
    assert [token for token, _ in pairs.row(2, 7)] == [4, 5, 6, 7]
    assert pairs.row(7, 1) == []


def test_a_full_table_of_pairs_forgets_and_never_lies() -> None:
    pairs = Pairs(16, 4)
    for before in range(200):
        ids, chances = rows(1, 4, before)
        pairs.write([(before, 3)], ids, chances)
    held = [before for before in range(200) if pairs.row(before, 3)]
    assert 0 < len(held) <= 16
    assert all(pairs.row(before, 3)[0][0] == before for before in held)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=5))
def test_a_match_is_the_last_place_where_the_suffix_stood(texts: list[list[int]]) -> None:
    suffixes, history = Suffixes(256), []
    for text in texts:
        suffixes.extend(text, ())
        history.append(text)
    tail = texts[-1]
    whole = [token for text in history for token in text]
    last = tail[-2:]
    if last in [tail[place : place + 2] for place in range(len(tail) - 2)]:
        assert list(suffixes.continuations(tail))
    for token, matched in suffixes.continuations(tail):
        places = [
            end
            for end in range(matched - 1, len(whole) - 1)
            if whole[end - matched + 1 : end + 1] == tail[-matched:] and whole[end + 1] == token
        ]
        assert places
        assert min(LENGTHS) <= matched <= LONGEST


def test_a_long_history_is_forgotten_at_the_far_end() -> None:
    suffixes = Suffixes(64)
    suffixes.extend([1, 2, 3, 4, 5], ())
    assert next(suffixes.continuations([2, 3, 4])) == (5, 3)
    before = suffixes.nbytes
    suffixes.extend([token % 7 + 10 for token in range(1000)], ())
    assert list(suffixes.continuations([2, 3, 4])) == []
    assert suffixes.nbytes == before


def test_acceptance_is_learned_and_stays_bounded() -> None:
    acceptance = Acceptance()
    good, bad = acceptance.clue(6, 0.4, 0.0), acceptance.clue(0, 0.0, 0.3)
    assert good != bad
    for _ in range(2000):
        acceptance.learn(good, True)
        acceptance.learn(bad, False)
    assert acceptance.chance(good) > 0.95
    assert acceptance.chance(bad) < 0.01
    assert acceptance.trials.max() <= 400


def test_trees_grow_best_first_and_no_deeper_than_allowed() -> None:
    tables = Tables(30)
    drafter = Drafter(tables)
    drafter.begin([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    tree = drafter.grow([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], 5, 9)
    assert tree.tokens == [3, 4, 5, 6, 7]
    assert list(tree.scores) == sorted(tree.scores, reverse=True)
    assert len(drafter.grow([1, 2, 3], 30, 2)) == 3
    ids, chances = rows(5, 8)
    drafter.learn(tree, 2, (ids, chances), [0, 1])
    assert [token for token, _ in tables.matrix.row(7)] == list(range(32, 40))


def test_the_accepted_row_wins_among_nodes_of_one_token() -> None:
    tables = Tables(90)
    ids, chances = rows(3, 8)
    Drafter(tables).learn(Tree([5, 5, 5], [-1, 0, 0]), 5, (ids, chances), [0, 1])
    assert [token for token, _ in tables.matrix.row(5)] == list(range(8, 16))


def test_tables_come_back_from_disk_and_are_private(tmp_path: Path) -> None:
    tables = Tables(40)
    ids, chances = rows(1, 8)
    tables.matrix.write([3], ids, chances)
    tables.pairs.write([(2, 3)], ids, chances)
    tables.acceptance.learn(9, True)
    file = tmp_path / "memory" / "drafts.safetensors"
    tables.save(file)
    back = Tables.load(file, 40)
    assert back.matrix.row(3) == tables.matrix.row(3) != []
    assert back.pairs.row(2, 3) == tables.pairs.row(2, 3) != []
    assert back.acceptance.chance(9) == tables.acceptance.chance(9)
    back.matrix.write([4], ids, chances)  # not a view of the file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [one.name for one in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("harm", ["cut", "garbage", "vocabulary", "ids"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, harm: str) -> None:
    file = tmp_path / "drafts.safetensors"
    tables = Tables(40)
    if harm == "ids":
        tables.matrix.ids[3, 1] = 40
    tables.save(file)
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    if harm == "garbage":
        file.write_bytes(b"nothing of the kind")
    loaded = Tables.load(file, 41 if harm == "vocabulary" else 40)
    assert loaded.matrix.row(3) == []
    assert not file.exists()
    assert file.with_suffix(".damaged").exists()


def test_another_vocabulary_has_another_file(
    tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    first = table_file(tmp_path, tiny_tokenizer)
    assert first == table_file(tmp_path, tiny_tokenizer)

    class Other:
        def get_vocab(self) -> dict[str, int]:
            return {**tiny_tokenizer.get_vocab(), "more": 400}

    assert first != table_file(tmp_path, Other())  # type: ignore[arg-type]
