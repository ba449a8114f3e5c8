"""The strategies against a dense float64 reference, over rounds, orders and absences."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedlora.adapters import Adapter
from fedlora.strategies import FedExLoRA, FedIT, InProcessGrid, Participation
from fedlora.strategies.federated_lora import FederatedLoRA

from .conftest import app, initial, moved, run


def reference(nodes: Sequence[int], rounds: int) -> dict[str, torch.Tensor]:
    """Dense effective change of the weights after `rounds`, from the nodes' own models.

    A node's model is the frozen part so far plus its adapter; the next frozen part is whatever
    makes frozen part plus mean factors equal to the weighted mean of the nodes' models.
    """
    adapter = initial()
    frozen = {name: torch.zeros(one.shape).double() for name, one in adapter.factors.items()}
    total = sum(10 + node for node in nodes)
    for round in range(1, rounds + 1):
        updates = [(moved(adapter, node, round), (10 + node) / total) for node in nodes]
        factors = {}
        for name, one in adapter.factors.items():
            b = sum(w * update.factors[name].b.double() for update, w in updates)
            a = sum(w * update.factors[name].a.double() for update, w in updates)
            mean = sum(w * update.factors[name].matrix() for update, w in updates)
            frozen[name] += mean - one.scale * b @ a
            factors[name] = type(one)(b.float(), a.float(), one.scale)
        full = {
            name: sum(w * update.full[name].double() for update, w in updates).float()
            for name in adapter.full
        }
        adapter = Adapter(factors, full)
    return {name: frozen[name] + one.matrix() for name, one in adapter.factors.items()}


def effective(strategy: FederatedLoRA) -> dict[str, torch.Tensor]:
    record = strategy.heads.record()
    total = {n: one.matrix() for n, one in strategy.heads.adapter(record.round).factors.items()}
    for residuals in map(strategy.heads.residuals, record.history):
        for name, residual in residuals.items():
            total[name] = total[name] + residual.matrix()
    return total


def error(strategy: FederatedLoRA, nodes: Sequence[int], rounds: int) -> float:
    exact, made = reference(nodes, rounds), effective(strategy)
    return max(float((made[n] - exact[n]).norm() / exact[n].norm()) for n in exact)


def test_fedex_lora_equals_the_dense_mean_over_rounds(heads_dir: Path) -> None:
    strategy = FedExLoRA(heads_dir)
    run(strategy, InProcessGrid(app(), 3), rounds=4)
    assert error(strategy, (0, 1, 2), 4) < 1e-6
    assert all(report.receipt.worst < 1e-6 for report in strategy.observer.reports)


def test_fedit_does_not_and_its_receipt_says_so(heads_dir: Path) -> None:
    strategy = FedIT(heads_dir)
    run(strategy, InProcessGrid(app(), 3), rounds=1)
    assert error(strategy, (0, 1, 2), 1) > 1e-3
    assert strategy.observer.reports[0].receipt.worst > 1e-3
    assert strategy.heads.record().history == ()


def test_the_fully_trained_parameters_are_the_weighted_mean(heads_dir: Path) -> None:
    strategy = FedExLoRA(heads_dir)
    run(strategy, InProcessGrid(app(), 2), rounds=1)
    first, second = (moved(initial(), node, 1).full["score.weight"] for node in (0, 1))
    expected = (10 * first.double() + 11 * second.double()) / 21
    torch.testing.assert_close(strategy.heads.adapter(1).full["score.weight"], expected.float())


def test_T11_a_node_that_fails_leaves_the_mean_of_the_rest(heads_dir: Path) -> None:
    def fails(message: object, node: int) -> None:
        raise RuntimeError("no more memory")

    strategy = FedExLoRA(heads_dir)
    run(strategy, InProcessGrid(app({1: fails}), 3), rounds=1)  # type: ignore[dict-item]
    assert error(strategy, (0, 2), 1) < 1e-6
    report = strategy.observer.reports[0]
    assert set(report.nodes) == {"n0", "n2"}
    assert "no more memory" in " ".join(report.refused.values())
    assert sum(node.weight for node in report.nodes.values()) == pytest.approx(1)


class Reversed(InProcessGrid):
    def order(self, message_ids: Sequence[str]) -> Sequence[str]:
        return message_ids[::-1]


def test_T13_nodes_that_answer_in_another_order_make_the_same_bytes(tmp_path: Path) -> None:
    one, other = FedExLoRA(tmp_path / "one"), FedExLoRA(tmp_path / "other")
    run(one, InProcessGrid(app(), 4), rounds=3)
    run(other, Reversed(app(), 4), rounds=3)
    for round in one.heads.rounds():
        assert one.heads.record(round) == other.heads.record(round)
        assert one.heads.record(round).adapter == other.heads.record(round).adapter


def test_T14_one_node_is_local_training_to_the_byte(heads_dir: Path) -> None:
    strategy = FedExLoRA(heads_dir, Participation(min_nodes=1))
    run(strategy, InProcessGrid(app(), 1), rounds=3)
    local = initial()
    for round in (1, 2, 3):
        local = moved(local, 0, round)
    federated = strategy.heads.adapter(3)
    assert strategy.heads.record().history == ()
    for name, factors in local.factors.items():
        assert torch.equal(federated.factors[name].b, factors.b)
        assert torch.equal(federated.factors[name].a, factors.a)
    assert torch.equal(federated.full["score.weight"], local.full["score.weight"])
