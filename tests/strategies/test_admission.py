"""An update that isn't what it should be is refused alone, with a reason; the round goes on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Message

from fedlora.adapters import Adapter, Factors, QuorumError
from fedlora.protos import SigningKey, VerifyingKey
from fedlora.strategies import (
    FedExLoRA,
    InProcessGrid,
    Participation,
    open_head,
    reply_update,
)
from fedlora.strategies.messages import open_update
from fedlora.strategies.participation import AnyNode

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


def key_pair(path: Path) -> SigningKey:
    """A new key."""
    private = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return SigningKey.load(path)


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
        (with_factors(lambda f: replace(f, b=f.b * 1e-41)), "subnormal"),
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


class Registered(AnyNode):
    """Every node has said that it has 11 examples."""

    def examples(self, node_id: int) -> int:
        return 11


def test_S5_more_examples_than_the_node_registered(heads_dir: Path) -> None:
    strategy = FedExLoRA(heads_dir, roster=Registered())
    run(strategy, InProcessGrid(app(), 3), rounds=1)
    report = strategy.observer.reports[0]
    assert report.refused == {"3": "the update claims 12 examples, the node has 11"}


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_an_update_that_goes_much_further_than_its_peers(heads_dir: Path, nodes: int) -> None:
    def boosted(message: Message, node: int) -> Message:
        head = open_head(message).adapter
        honest_one = moved(head, node, 1)
        factors = {
            name: replace(one, b=head.factors[name].b + 100 * (one.b - head.factors[name].b))
            for name, one in honest_one.factors.items()
        }
        return reply_update(
            message, Adapter(factors, honest_one.full), node=f"n{node}", examples=5, metrics={}
        )

    strategy = FedExLoRA(heads_dir, Participation(min_nodes=1))
    run(strategy, InProcessGrid(app({1: boosted}), nodes), rounds=1)
    report = strategy.observer.reports[0]
    assert "times the median of its peers" in report.refused["n1"]
    assert set(report.nodes) == {f"n{node}" for node in range(nodes) if node != 1}
    record = strategy.heads.record().proceedings
    assert "times the median" in record.refused["n1"]  # it is in the ledger too


@pytest.mark.parametrize("nodes", [1, 3])
def test_S3_a_scale_that_no_number_can_hold_is_refused(heads_dir: Path, nodes: int) -> None:
    def boundless(message: Message, node: int) -> Message:
        adapter = moved(open_head(message).adapter, node, 1)
        factors = {name: replace(one, scale=1e308) for name, one in adapter.factors.items()}
        made = Adapter(factors, adapter.full)
        return reply_update(message, made, node=f"n{node}", examples=5, metrics={})

    strategy = FedExLoRA(heads_dir, Participation(min_nodes=1, retries=0))
    grid = InProcessGrid(app({0: boundless}), nodes)
    if nodes == 1:
        with pytest.raises(QuorumError, match="beyond all numbers"):
            run(strategy, grid, rounds=1)
        return
    run(strategy, grid, rounds=1)
    assert "beyond all numbers" in strategy.observer.reports[0].refused["n0"]
    made = strategy.heads.adapter(1).factors
    assert all(bool(torch.isfinite(one.b).all()) for one in made.values())


def test_S8_an_update_under_another_nodes_signature(heads_dir: Path, tmp_path: Path) -> None:
    keys = {f"n{node}": key_pair(tmp_path / f"n{node}") for node in range(3)}

    class Signed(AnyNode):
        def key(self, node_id: int) -> VerifyingKey:
            return keys[f"n{node_id - 1}"].verifying

    def signed(name: str) -> Callable[[Message, int], Message]:
        def work(message: Message, node: int) -> Message:
            adapter = moved(open_head(message).adapter, node, 1)
            return reply_update(
                message, adapter, node=f"n{node}", examples=5, metrics={}, key=keys[name]
            )

        return work

    strategy = FedExLoRA(heads_dir, roster=Signed())
    works = {0: signed("n0"), 1: signed("n0"), 2: signed("n2")}
    run(strategy, InProcessGrid(app(works), 3), rounds=1)
    report = strategy.observer.reports[0]
    assert set(report.nodes) == {"n0", "n2"}
    assert "signature" in report.refused["2"]


def test_S9_a_byte_of_a_signed_update_altered_on_the_way(heads_dir: Path, tmp_path: Path) -> None:
    key = key_pair(tmp_path / "n")

    class Signed(AnyNode):
        def key(self, node_id: int) -> VerifyingKey:
            return key.verifying

    def work(message: Message, node: int) -> Message:
        adapter = moved(open_head(message).adapter, node, 1)
        reply = reply_update(message, adapter, node=f"n{node}", examples=5, metrics={}, key=key)
        if node == 1:
            update, _ = open_update(reply)
            update.examples = 500
            reply.content["fedlora"]["update"] = update.SerializeToString()  # type: ignore[index]
        return reply

    strategy = FedExLoRA(heads_dir, roster=Signed())
    run(strategy, InProcessGrid(app(dict.fromkeys(range(3), work)), 3), rounds=1)
    assert "altered on its way" in strategy.observer.reports[0].refused["2"]


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
