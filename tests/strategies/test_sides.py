"""Side paths for nodes that take no residuals, against dense sums and their singular values."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from flwr.app import Message

from fedlora.adapters import Residual
from fedlora.strategies import FedExLoRA, HeadStore, InProcessGrid, open_head
from fedlora.strategies.participation import AnyNode
from fedlora.strategies.sides import Sides, squared_norm

from .conftest import app, honest, run


class OneFolds(AnyNode):
    """Only node 0 holds float32 weights."""

    def __init__(self, folding: int) -> None:
        self.folding = folding

    def takes_residuals(self, node_id: int) -> bool:
        return node_id == self.folding


def sums(heads: HeadStore, round: int) -> dict[str, torch.Tensor]:
    total: dict[str, torch.Tensor] = {}
    for digest in heads.record(round).history:
        for name, residual in heads.residuals(digest).items():
            total[name] = total.get(name, torch.zeros(residual.shape).double()) + residual.matrix()
    return total


def of(heads: HeadStore, round: int, rank: int) -> tuple[Mapping[str, Residual], float]:
    from fedlora.protos import decode
    from fedlora.strategies.payloads import read_residual_tensors

    made = Sides(heads, rank).of(heads.record(round))
    return read_residual_tensors(decode(made.payload, made.proto.manifest)), made.proto.dropped


@pytest.fixture
def heads(heads_dir: Path) -> HeadStore:
    strategy = FedExLoRA(heads_dir)
    run(strategy, InProcessGrid(app(), 3), rounds=4)
    return strategy.heads


@pytest.mark.parametrize("rank", [1, 2, 5, 0])
def test_T10_the_side_is_the_best_cut_of_the_sum_of_all_residuals(
    heads: HeadStore, rank: int
) -> None:
    side, dropped = of(heads, 4, rank)
    lost = whole = 0.0
    for name, dense in sums(heads, 4).items():
        values = torch.linalg.svdvals(dense)
        best = float(values[rank:].square().sum()) if rank else 0.0
        assert side[name].rank <= (rank or min(dense.shape))
        error = float((dense - side[name].matrix()).square().sum())
        assert error == pytest.approx(best, rel=1e-4, abs=1e-10)
        lost, whole = lost + error, whole + float(dense.square().sum())
    assert dropped == pytest.approx(lost / whole, rel=1e-4, abs=1e-9)  # what is said is so
    assert (dropped > 1e-3) == (rank > 0)


def test_what_is_cut_off_does_not_accumulate(heads: HeadStore) -> None:
    fresh, walked = Sides(heads, 2), Sides(heads, 2)
    for round in range(1, 4):
        walked.of(heads.record(round))
    # float32 sums in the same order: to the byte
    assert walked.of(heads.record(4)) == fresh.of(heads.record(4))
    # an earlier head after a later one starts the sum again
    assert walked.of(heads.record(2)) == Sides(heads, 2).of(heads.record(2))


def test_before_any_residual_the_side_is_empty(heads: HeadStore) -> None:
    side, dropped = of(heads, 0, 2)
    assert (side, dropped) == ({}, 0.0)


def test_each_node_is_sent_what_it_can_use(heads_dir: Path) -> None:
    received: dict[int, list[tuple[int, bool, float]]] = {}

    def remember(message: Message, node: int) -> Message:
        head = open_head(message)
        held = bool(head.side) if head.proto.round else False
        residuals = len(head.proto.residuals)
        received.setdefault(node, []).append((residuals, held, head.proto.side.dropped))
        return honest(message, node)

    grid = InProcessGrid(app({0: remember, 1: remember}), 2)
    folding = next(iter(grid.get_node_ids()))
    strategy = FedExLoRA(heads_dir, roster=OneFolds(folding), side_rank=1, full_history=False)
    run(strategy, grid, rounds=3)
    counts, held, dropped = zip(*received[0], strict=True)
    assert (counts, held, dropped) == ((0, 1, 1), (False,) * 3, (0.0,) * 3)
    counts, held, dropped = zip(*received[1], strict=True)
    assert (counts, held) == ((0, 0, 0), (False, True, True))
    assert all(0 < share < 1 for share in dropped[1:])


def test_the_norm_needs_no_product() -> None:
    u, v = torch.randn(7, 3), torch.randn(3, 5)
    assert squared_norm(Residual(u, v)) == pytest.approx(float((u @ v).square().sum()), rel=1e-5)
    assert squared_norm(Residual(u)) == pytest.approx(float(u.square().sum()), rel=1e-5)
