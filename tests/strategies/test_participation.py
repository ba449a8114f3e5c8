"""Waiting has an end, sampling a seed, and whoever is missing a name."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message

from fedlora.adapters import QuorumError
from fedlora.strategies import FedExLoRA, InProcessGrid, Participation, collect, pack

from .conftest import app, honest, initial, run

NODES = {id: f"node-{id}" for id in range(10)}


def test_sampling_is_seeded_by_name_round_and_attempt() -> None:
    plan = Participation(min_nodes=2, sample=0.4, seed=5)
    other_ids = {100 - id: name for id, name in NODES.items()}
    drawn = plan.draw(NODES, 1, 0)
    assert len(drawn) == 4
    assert list(drawn.values()) == list(plan.draw(other_ids, 1, 0).values())
    draws = {
        tuple(plan.draw(NODES, round, attempt).values()) for round in (1, 2) for attempt in (0, 1)
    }
    assert len(draws) == 4
    assert Participation(min_nodes=2, sample=0.4, seed=6).draw(NODES, 1, 0) != drawn


def test_never_fewer_than_the_minimum_nor_more_than_there_are() -> None:
    assert len(Participation(min_nodes=3, sample=0.1).draw(NODES, 1, 0)) == 3
    assert len(Participation(min_nodes=20).draw(NODES, 1, 0)) == 10


class Expecting:
    def names(self, grid: object) -> Mapping[int, str]:
        return {1: "anchor"}

    def is_called(self, node_id: int, name: str) -> bool:
        return True

    def absent(self) -> str:
        return "missing: birch"


def test_F3_waiting_for_nodes_ends_with_the_names_of_the_missing() -> None:
    plan = Participation(min_nodes=2, wait=0.2, poll=0.05)
    began = time.monotonic()
    with pytest.raises(QuorumError, match=r"1 of at least 2 nodes .*anchor.*missing: birch"):
        plan.gather(InProcessGrid(app(), 1), Expecting())
    assert time.monotonic() - began < 5


def test_F3_a_round_without_quorum_is_tried_again_and_then_the_run_stops(heads_dir: Path) -> None:
    calls = []

    def fails(message: Message, node: int) -> Message:
        calls.append(node)
        raise RuntimeError("disk full")

    strategy = FedExLoRA(heads_dir, Participation(min_nodes=2, retries=2))
    with pytest.raises(QuorumError, match=r"round 1 .* 3 attempts; .*disk full"):
        run(strategy, InProcessGrid(app({1: fails}), 2), rounds=1)
    assert calls == [1, 1, 1]
    assert strategy.heads.rounds() == [0]


class Silent(InProcessGrid):
    """Node 2 never answers."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        waiting = [one for one in message_ids if not one.startswith("1/")]
        return super().pull_messages(waiting)


def test_F4_a_node_that_never_answers_is_named_and_the_round_goes_on(heads_dir: Path) -> None:
    strategy = FedExLoRA(heads_dir, Participation(min_nodes=2, poll=0.05))
    strategy.start(Silent(app(), 3), pack(initial()), num_rounds=1, timeout=0.5)
    report = strategy.observer.reports[0]
    assert set(report.nodes) == {"n0", "n2"}
    assert report.refused == {"2": "no reply within the deadline"}


def test_no_second_reply_is_made_before_the_first_is_taken(heads_dir: Path) -> None:
    made: list[int] = []

    def notes(message: Message, node: int) -> Message:
        made.append(node)
        return honest(message, node)

    grid = InProcessGrid(app(dict.fromkeys(range(3), notes)), 3)
    strategy = FedExLoRA(heads_dir, Participation(min_nodes=3))
    run(strategy, InProcessGrid(app(), 3), rounds=1)
    arrays = pack(strategy.heads.adapter(1))
    messages = strategy.configure_train(2, arrays, ConfigRecord(), grid)
    for count, _ in enumerate(collect(grid, messages, 5, 0.0), start=1):
        assert len(made) == count
    assert made == [0, 1, 2]
