"""A node's data: what is held out, and what is counted."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from fedlora.adapters.errors import DataError
from fedlora.client.data import NodeData, split
from fedlora.models.examples import Counts, Example
from fedlora.recipes.schema import Task


def task(heldout: float = 0.25, seed: int = 0, max_length: int = 64) -> Task:
    return Task.model_validate(
        {
            "name": "t",
            "seed": seed,
            "rounds": 1,
            "model": {"source": "x"},
            "train": {"max_length": max_length},
            "data": {"format": "text", "heldout": heldout},
        }
    )


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "own.jsonl", [f"fact number {i}" for i in range(12)])


def test_a_share_is_held_out(path: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    data = NodeData.load(path, None, task(), tiny_tokenizer, "north")
    whole = NodeData.load(path, None, task(heldout=0), tiny_tokenizer, "north")
    assert whole.heldout == ()
    assert len(data.heldout) == 3
    assert sorted(data.train + data.heldout, key=whole.train.index) == list(whole.train)
    assert not set(data.train) & set(data.heldout)
    assert data.counts == Counts(rows=12)


def test_the_split_depends_on_seed_and_node_alone(
    path: Path, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    def heldout(seed: int, node: str) -> tuple[Example, ...]:
        return NodeData.load(path, None, task(seed=seed), tiny_tokenizer, node).heldout

    assert heldout(0, "north") == heldout(0, "north")
    assert len({heldout(0, "north"), heldout(1, "north"), heldout(0, "south")}) == 3


def test_a_file_of_its_own(path: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    other = write(path.with_name("other.jsonl"), ["one", "a text of very many words " * 9])
    data = NodeData.load(path, other, task(max_length=16), tiny_tokenizer, "north")
    assert (len(data.train), len(data.heldout)) == (12, 2)
    assert (data.counts.rows, data.counts.truncated, data.counts.dropped) == (14, 1, 0)
    assert data.counts.tokens_cut > 0


@pytest.mark.parametrize(("count", "share", "held"), [(10, 0.1, 1), (3, 0.01, 1), (4, 0.5, 2)])
def test_how_many_are_held_out(count: int, share: float, held: int) -> None:
    examples = tuple(Example((i,), (i,)) for i in range(count))
    train, heldout = split(examples, share, 0, "a")
    assert (len(train), len(heldout)) == (count - held, held)
    assert list(train) == sorted(train, key=examples.index)


def test_too_few_examples(tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    path = write(tmp_path / "one.jsonl", ["only one"])
    with pytest.raises(DataError, match=r"one\.jsonl: 1 example is too few to hold out"):
        NodeData.load(path, None, task(), tiny_tokenizer, "north")
    assert len(NodeData.load(path, None, task(heldout=0), tiny_tokenizer, "north").train) == 1
