"""Once-for-all rounds: each width of a module is averaged over the nodes that trained it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from flwr.app import Message

from fedlora.adapters import Adapter, change_norm, names_at, repeated, returned, taken
from fedlora.strategies import FedExLoRA, InProcessGrid, Participation, open_head, pack
from fedlora.strategies.messages import reply_update

from .conftest import SHAPES, app, initial, moved

SUBNETS = {0: {"layer.q": 8, "layer.v": 4}, 1: {"layer.q": 4, "layer.v": 4}}


class Given:
    """Node 0 and node 1 have subnets of their own; no one trains v at 8 bits."""

    def draw(self, round: int, nodes: Mapping[int, str]) -> Mapping[int, Mapping[str, int]]:
        return {one: SUBNETS[index] for index, one in enumerate(sorted(nodes))}


def trained(adapter: Adapter, subnet: Mapping[str, int], node: int, round: int) -> Adapter:
    names = names_at(subnet)
    return returned(moved(taken(adapter, names), node, round), names)


def honest(message: Message, node: int) -> Message:
    head = open_head(message)
    adapter = trained(head.adapter, head.proto.subnet, node, head.proto.round + 1)
    return reply_update(message, adapter, node=f"n{node}", examples=10 + node, metrics={})


def start() -> Adapter:
    return repeated(initial(), (8, 4))


def run(strategy: FedExLoRA, grid: InProcessGrid, rounds: int) -> None:
    strategy.start(grid, pack(start()), num_rounds=rounds, timeout=30)


def test_T7_a_node_does_not_dilute_a_width_that_it_did_not_train(heads_dir: Path) -> None:
    strategy = FedExLoRA(heads_dir, missing="skip", subnets=Given(), side_rank=0)
    run(strategy, InProcessGrid(app({0: honest, 1: honest}), 2), rounds=1)
    record = strategy.heads.record()
    made = strategy.heads.adapter(1)
    residuals = strategy.heads.residuals(record.history[-1])
    updates = [trained(start(), SUBNETS[node], node, 1) for node in (0, 1)]
    # alone in its width: local training to the byte
    for name, node in (("layer.q@8", 0), ("layer.q@4", 1)):
        assert torch.equal(made.factors[name].a, updates[node].factors[name].a)
        assert name not in residuals
    # trained by no one: as it was
    assert torch.equal(made.factors["layer.v@8"].b, start().factors["layer.v@8"].b)
    assert "layer.v@8" not in record.proceedings.receipt
    # trained by both: the exact mean
    mean = sum(
        w / 21 * one.factors["layer.v@4"].matrix() for w, one in zip((10, 11), updates, strict=True)
    )
    whole = made.factors["layer.v@4"].matrix() + residuals["layer.v@4"].matrix()
    assert float((whole - mean).norm() / mean.norm()) < 1e-6
    assert record.proceedings.worst_receipt < 1e-6
    assert set(made.factors) == {f"{name}@{bits}" for name in SHAPES for bits in (8, 4)}


@pytest.mark.parametrize("extra", [True, False])
def test_S4_a_width_that_was_not_asked_for_is_refused(heads_dir: Path, extra: bool) -> None:
    def greedy(message: Message, node: int) -> Message:
        head = open_head(message)
        subnet = dict(head.proto.subnet)
        adapter = trained(head.adapter, subnet, node, 1)
        factors = dict(adapter.factors)
        if extra:
            factors["layer.v@8"] = head.adapter.factors["layer.v@8"]
        else:
            del factors["layer.v@4"]
        sent = Adapter(factors, adapter.full)
        return reply_update(message, sent, node=f"n{node}", examples=10, metrics={})

    plan = Participation(min_nodes=1)
    strategy = FedExLoRA(heads_dir, plan, missing="skip", subnets=Given(), side_rank=0)
    run(strategy, InProcessGrid(app({0: honest, 1: greedy}), 2), rounds=1)
    (reason,) = strategy.heads.record().proceedings.refused.values()
    assert "was not asked to train" in reason


def test_the_change_of_a_subnet_is_measured_on_what_it_trained() -> None:
    head, update = start(), trained(start(), SUBNETS[0], 0, 1)
    squares = [
        float((update.factors[n].matrix() - head.factors[n].matrix()).square().sum())
        for n in update.factors
    ]
    squares += [float((update.full[n] - head.full[n]).square().sum()) for n in head.full]
    assert change_norm(update, head, "skip") == pytest.approx(sum(squares) ** 0.5, rel=1e-6)
    assert change_norm(update, head, "zero") > change_norm(update, head, "skip")
