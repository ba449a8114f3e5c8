"""T12: whoever comes late, stays away or loses its disk ends with everyone's base, bit for bit."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from flwr.app import Context

from fedlora.client.handlers import make_app
from fedlora.client.node import Node
from fedlora.client.place import NodePlace
from fedlora.models.tuned import shared
from fedlora.recipes.schema import Recipe
from fedlora.server.coordinator import coordinate
from fedlora.server.rundir import RunDirectory
from fedlora.server.snapshots import Snapshots
from fedlora.strategies import InProcessGrid

from .conftest import RecipeOf

ROUNDS = 6
Absences = Mapping[str, Iterable[int]]  # rounds in which a node isn't there


class Comings(InProcessGrid):
    """Every node keeps a folder of its own, and a model of its own in each message."""

    def __init__(self, run: RunDirectory, absences: Absences, wiped: str | None) -> None:
        self.run_directory, self.absences, self.wiped = run, absences, wiped
        self.nodes = [
            Node(
                NodePlace(
                    section.name,
                    Path(section.data),
                    None,
                    run.path / "nodes" / section.name,
                    model=run.recipe.model.source,
                )
            )
            for section in run.recipe.node
        ]
        super().__init__(make_app(self.node_of), len(self.nodes))

    def node_of(self, context: Context) -> Node:
        shared.cache_clear()
        return self.nodes[int(str(context.node_config["partition-id"]))]

    def get_node_ids(self) -> Iterable[int]:
        rounds = self.run_directory.heads.rounds()
        coming = rounds[-1] + 1 if rounds else 1
        if coming == 5 and self.wiped:
            shutil.rmtree(self.run_directory.path / "nodes" / self.wiped, ignore_errors=True)
        return [
            number
            for number, node in enumerate(self.nodes, start=1)
            if coming not in self.absences.get(node.place.name, ())
        ]


def lead(recipe: Recipe, path: Path, absences: Absences, wiped: str | None = None) -> RunDirectory:
    run = RunDirectory.create(path, recipe)
    coordinate(Comings(run, absences, wiped), run, lambda event: None, wait=5.0, poll=0.01)
    return run


def all_agree(run: RunDirectory, round: int, names: set[str]) -> None:
    admitted = run.heads.record(round).proceedings.admitted
    assert set(admitted) == names
    assert len({one.folded for one in admitted.values()}) == 1
    assert max(run.heads.record(round).proceedings.receipt.values()) <= 1e-6


@pytest.fixture
def recipe(recipe_of: RecipeOf) -> Recipe:
    return recipe_of(federation={"rounds": ROUNDS, "min_nodes": 2}, train={"steps": 1})


@pytest.mark.parametrize("log_is_cheaper", [True, False])
def test_T12_a_late_joiner_and_an_absentee_hold_everyones_base(
    recipe: Recipe, tmp_path: Path, log_is_cheaper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if log_is_cheaper:
        monkeypatch.setattr(Snapshots, "after", lambda snapshots, round: None)
    run = lead(recipe, tmp_path / "run", {"cedar": (1, 2, 3, 4), "birch": (5,)})
    snapshot = run.heads.snapshot(run.heads.record().history)
    assert (snapshot is None) == log_is_cheaper
    all_agree(run, 4, {"anchor", "birch"})
    all_agree(run, 5, {"anchor", "cedar"})
    all_agree(run, 6, {"anchor", "birch", "cedar"})


def test_the_way_to_the_base_does_not_change_the_head(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absences = {"cedar": (1, 2, 3, 4)}
    by_snapshot = lead(recipe, tmp_path / "snapshot", absences)
    monkeypatch.setattr(Snapshots, "after", lambda snapshots, round: None)
    by_log = lead(recipe, tmp_path / "log", absences)
    assert by_snapshot.heads.record().hash == by_log.heads.record().hash


def test_T12_a_node_that_lost_its_disk_is_sent_everything_again(
    recipe: Recipe, tmp_path: Path
) -> None:
    run = lead(recipe, tmp_path / "run", {}, wiped="cedar")
    all_agree(run, ROUNDS, {"anchor", "birch", "cedar"})


def test_a_snapshot_is_taken_when_the_log_has_outgrown_it_and_the_old_one_goes(
    recipe: Recipe, tmp_path: Path
) -> None:
    run = lead(recipe, tmp_path / "run", {})
    kept = list(run.heads.directory.glob("*/snapshot-*.safetensors"))
    assert len(kept) == 1
    history = run.heads.record().history
    snapshot = run.heads.snapshot(history)
    assert snapshot is not None
    log = [run.heads.residual_file(one).stat().st_size for one in history]
    assert sum(log[: snapshot.covers]) > snapshot.size
    assert run.heads.snapshot(()) is None
    assert run.heads.snapshot(("f" * 64, *history[1:])) is None
