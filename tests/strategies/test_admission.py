"""An update that isn't what it should be is refused alone, with a reason; the round goes on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Message

from fedlora.adapters import Adapter, Factors
from fedlora.strategies import FedExLoRA, InProcessGrid, open_head, reply_update
from fedlora.strategies.messages import open_update

from .conftest import app, honest, moved, run

Spoil = Callable[[Adapter], Adapter]


def spoiled(spoil: Spoil) -> Callable[[Message, int], Message]:
    def work(message: Message, node: int) -> Message:
        adapter = spoil(moved(open_head(message).adapter, node, 1))
        return reply_update(message, adapter, node=f"n{node}", examples=5, metrics={})

    return work


def with_factors(change: Callable[[Factors], Factors]) -> Spoil:
    def spoil(adapter: Adapter) -> Adapter:
        factors = dict(adapter.factors)
        factors["layer.q"] = change(factors["layer.q"])
        return replace(adapter, factors=factors)

    return spoil


def refusal(strategy: FedExLoRA, work: Callable[[Message, int], Message]) -> str:
    run(strategy, InProcessGrid(app({1: work}), 3), rounds=1)
    report = strategy.observer.reports[0]
    assert set(report.nodes) == {"n0", "n2"}
    (reason,) = report.refused.values()
    return reason


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (with_factors(lambda f: replace(f, b=f.b * float("nan"))), "NaN or infinite"),
        (with_factors(lambda f: replace(f, a=f.a / 0)), "NaN or infinite"),
        (with_factors(lambda f: Factors(f.b[:5], f.a, f.scale)), "expected (12, 8)"),
        (with_factors(lambda f: Factors(f.b.to(int), f.a.to(int), f.scale)), "floating point"),
        (with_factors(lambda f: replace(f, scale=-1.0)), "scale -1.0"),
        (lambda a: replace(a, factors={**a.factors, "layer.x": a.factors["layer.q"]}), "layer.x"),
        (lambda a: replace(a, factors={"layer.q": a.factors["layer.q"]}), "layer.v"),
        (lambda a: replace(a, full={}), "trained in full"),
        (lambda a: replace(a, full={"score.weight": torch.zeros(3, 4)}), "score.weight"),
    ],
)
def test_S3_S4_numbers_shapes_and_names(heads_dir: Path, spoil: Spoil, reason: str) -> None:
    assert reason in refusal(FedExLoRA(heads_dir), spoiled(spoil))


@pytest.mark.parametrize("examples", [0, 1 << 40])
def test_S5_example_counts_without_sense(heads_dir: Path, examples: int) -> None:
    def work(message: Message, node: int) -> Message:
        adapter = moved(open_head(message).adapter, node, 1)
        return reply_update(message, adapter, node="n1", examples=examples, metrics={})

    assert "examples" in refusal(FedExLoRA(heads_dir), work)


def test_S6_two_updates_under_one_name(heads_dir: Path) -> None:
    def work(message: Message, node: int) -> Message:
        return honest(message, 0)

    assert "second update of node n0" in refusal(FedExLoRA(heads_dir), work)


@pytest.mark.parametrize(
    ("field", "value"), [("run", "other"), ("round", 7), ("base", "b" * 64), ("head", "0" * 64)]
)
def test_S7_an_update_of_another_run_round_base_or_head(
    heads_dir: Path, field: str, value: object
) -> None:
    def work(message: Message, node: int) -> Message:
        reply = honest(message, node)
        update, _ = open_update(reply)
        setattr(update, field, value)
        reply.content["fedlora"]["update"] = update.SerializeToString()  # type: ignore[index]
        return reply

    assert f"is for {field} {value}" in refusal(FedExLoRA(heads_dir), work)


def test_S9_a_byte_altered_on_the_way(heads_dir: Path) -> None:
    def work(message: Message, node: int) -> Message:
        reply = honest(message, node)
        array = reply.content.array_records["tensors"]["adapter"]
        array.data = array.data[:-1] + bytes([array.data[-1] ^ 1])
        return reply

    assert "altered on its way" in refusal(FedExLoRA(heads_dir), work)


def test_a_reply_that_is_none_of_ours(heads_dir: Path) -> None:
    def work(message: Message, node: int) -> Message:
        return Message(message.content, reply_to=message)

    assert "carries no update" in refusal(FedExLoRA(heads_dir), work)


def test_T7_a_module_that_a_node_lacks_counts_as_no_change_if_declared(heads_dir: Path) -> None:
    strategy = FedExLoRA(heads_dir, missing="zero")
    only_q = spoiled(lambda a: replace(a, factors={"layer.q": a.factors["layer.q"]}))
    run(strategy, InProcessGrid(app({1: only_q}), 2), rounds=1)
    node, weight = moved(strategy.heads.adapter(0), 0, 1), 10 / 15
    residuals = strategy.heads.residuals(strategy.heads.record().history[0])
    made = strategy.heads.adapter(1).factors["layer.v"].matrix() + residuals["layer.v"].matrix()
    torch.testing.assert_close(made, weight * node.factors["layer.v"].matrix())
