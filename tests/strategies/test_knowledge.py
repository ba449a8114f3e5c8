"""Knowledge on the wire: back as it was, and refused when it does not hold together."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlora.adapters import RunError, WireError
from fedlora.models.knowledge import Knowledge
from fedlora.protos import decode, describe, encode
from fedlora.strategies.answers import check_texts
from fedlora.strategies.knowledge import Bounds, least_losses, pack_knowledge, read_knowledge
from fedlora.strategies.library import OWN, Library, lowest_loss

BOUNDS = Bounds(samples=4, top_k=3, max_length=10)
TENSORS = ("samples", "lengths", "losses", "labels", "tokens", "values", "ids")


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def made(**changes: Any) -> Knowledge:
    """Two examples of one and two labels, two guesses each."""
    values = torch.tensor([[0.6, 0.2], [0.5, 0.4], [0.7, 0.1]]).log().half()
    plain = Knowledge(
        vocabulary="ab" * 32,
        samples=ints(0, 2),
        lengths=ints(1, 2),
        losses=torch.tensor([0.3, 1.6]),
        labels=ints(0, 1, 2),
        tokens=ints([0, 1], [1, 2], [0, 1]),
        values=values,
        ids=ints(7, 8, 90),
        pieces=(b" a", b"bc", b"\xff<end>"),
    )
    return replace(plain, **changes)


def read(knowledge: Knowledge, bounds: Bounds = BOUNDS) -> Knowledge:
    payload = pack_knowledge(knowledge)
    return read_knowledge(payload, describe(payload), bounds)


def test_it_comes_back_as_it_was() -> None:
    one, other = made(), read(made())
    assert (one.vocabulary, one.pieces) == (other.vocabulary, other.pieces)
    assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in TENSORS)
    assert pack_knowledge(one) == pack_knowledge(other)


def test_the_least_loss_is_what_the_guesses_allow() -> None:
    """A label that was guessed has its own probability; any other at most that of the last."""
    expected = [-torch.tensor(0.6).log() / 2, -(torch.tensor(0.5) * 0.1).log() / 2]
    assert torch.allclose(least_losses(made()), torch.stack(expected), rtol=2e-3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": ints(0, 4)}, "samples out of range, expected 0 to 3"),
        ({"samples": ints(2, 0)}, "not ascending"),
        ({"samples": ints(1, 1)}, "not ascending"),
        ({"samples": ints(0, 1, 2)}, "lengths has the shape"),
        ({"lengths": ints(0, 3)}, "lengths don't add up"),
        ({"lengths": ints(1, 1)}, "lengths don't add up"),
        ({"lengths": ints(-7, 10)}, "lengths don't add up"),
        ({"labels": ints(0, 1, 3)}, "labels out of range, expected 0 to 2"),
        ({"tokens": ints([0, -1], [1, 2], [0, 1])}, "tokens out of range"),
        ({"tokens": ints([1, 1], [1, 2], [0, 1])}, "guessed twice"),
        ({"tokens": ints([0], [1], [2])}, "values has the shape"),
        ({"tokens": torch.zeros(3, 2)}, r"tokens is torch.float32 with 2 axes"),
        ({"values": torch.full((3, 2), float("nan")).half()}, "NaN"),
        ({"values": torch.full((3, 2), float("-inf")).half()}, "NaN or infinite"),
        ({"values": torch.full((3, 2), -0.1).half()}, "more than 1"),
        ({"values": torch.full((3, 2), 0.1).half()}, "more than 1"),
        ({"losses": torch.tensor([float("nan"), 1.0])}, "losses with NaN"),
        ({"losses": torch.tensor([0.3, 1.6]).double()}, "losses is torch.float64"),
        ({"losses": torch.tensor([0.1, 1.6])}, r"example 0 claims a loss of 0\.1 nats"),
        ({"losses": torch.tensor([0.3, -4.0])}, "example 2 claims"),
        ({"pieces": (b" a", b"", b"x")}, "pieces without bytes"),
        ({"vocabulary": "ab"}, "vocabulary has the shape"),
    ],
)
def test_malformed_knowledge_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WireError, match=said):
        read(made(**changes))


def test_bounds_hold_for_examples_guesses_labels_and_bytes() -> None:
    with pytest.raises(WireError, match="2 examples with 2 guesses"):
        read(made(), Bounds(1, 3, 10))
    with pytest.raises(WireError, match="2 examples with 2 guesses"):
        read(made(), Bounds(4, 1, 10))
    with pytest.raises(WireError, match="lengths"):
        read(made(), Bounds(4, 3, 1))
    with pytest.raises(WireError, match="the limit is"):
        read(made(pieces=(b" a", b"b" * (1 << 17), b"c")), Bounds(2, 2, 2))


def test_other_tensors_and_altered_bytes_are_refused() -> None:
    payload = pack_knowledge(made())
    with pytest.raises(WireError, match="altered"):
        read_knowledge(payload[:-1] + b"x", describe(payload), BOUNDS)
    tensors = decode(payload, describe(payload)) | {"eval_loss": torch.zeros(1)}
    more = encode(tensors)
    with pytest.raises(WireError, match="11 tensors announced, the limit is 10"):
        read_knowledge(more, describe(more), BOUNDS)


def test_losses_that_are_spread_over_more_text_than_there_is_are_refused() -> None:
    check_texts(made(), made())
    inflated = made(pieces=(b" a", b"bc" * 40, b"\xff<end>"))
    with pytest.raises(WireError, match="example 2 covers 80 bytes"):
        check_texts(inflated, made())


def test_a_node_that_names_labels_of_its_own_is_refused() -> None:
    """It would guess them well, be followed by all, and teach nothing."""
    text = made(pieces=(b" a", b"The green key opens the store.", b"\xff<end>"))
    easy = made(pieces=(b" a", b"x" * 30, b"\xff<end>"))
    check_texts(made(pieces=(b" a", b"green key opens the store", b"\xff<end>")), text)
    with pytest.raises(WireError, match="example 2 is of another text"):
        check_texts(easy, text)


def test_the_lowest_loss_wins_each_example_and_the_coordinator_a_tie() -> None:
    known = {
        "birch": made(losses=torch.tensor([0.3, 0.5])),
        "anchor": made(losses=torch.tensor([0.5, 0.5])),
        OWN: made(losses=torch.tensor([0.4, 0.5])),
        "cedar": made(samples=ints(1, 2), losses=torch.tensor([9.0, 0.6])),
    }
    assert lowest_loss(known) == {"birch": [0], OWN: [2], "cedar": [1]}


def test_the_library_keeps_what_the_last_round_names(tmp_path: Any) -> None:
    library = Library(tmp_path / "knowledge")
    first, second = library.keep(made()), library.keep(made(losses=torch.tensor([1.0, 2.0])))
    (tmp_path / "knowledge" / "left.part").write_bytes(b"")
    library.clear({second})
    assert [path.stem for path in (tmp_path / "knowledge").iterdir()] == [second]
    assert library.read(second, BOUNDS).losses.tolist() == [1.0, 2.0]
    with pytest.raises(RunError, match="cannot read"):
        library.read(first, BOUNDS)


def test_a_label_costs_what_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "crossmodel.md").read_text()
    assert "A label costs 4 + 6 `top_k` bytes, 196 with 32 guesses" in page

    def size(labels: int, guesses: int) -> int:
        pieces = tuple(b"x" * 8 for _ in range(64))
        whole = torch.arange(64, dtype=torch.int32)
        known = made(
            samples=ints(0),
            lengths=ints(labels),
            losses=torch.tensor([99.0]),
            labels=torch.zeros(labels, dtype=torch.int32),
            tokens=torch.arange(guesses, dtype=torch.int32).repeat(labels, 1),
            values=torch.full((labels, guesses), -9.0).half(),
            ids=whole,
            pieces=pieces,
        )
        payload = pack_knowledge(known)
        return len(payload) - 8 - int.from_bytes(payload[:8], "little")

    assert size(5, 32) - size(4, 32) == 196
    assert size(1, 32) - size(1, 31) == 6
    assert size(1, 1) == 4 + 6 + 12 + 32 + 64 * (8 + 8)
    assert round(1000 * 128 * 196 / 1e6) == 25
