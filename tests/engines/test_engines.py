"""One run, three engines: the same recipe, seed and threads give the same head."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from fedlora.cli import engines
from fedlora.server.events import Event, NodeReplied, RoundDone, RunDone
from fedlora.server.rundir import RunDirectory

from .conftest import RecipeOf


def heads(run: RunDirectory) -> list[str]:
    return [run.heads.record(round).hash for round in run.heads.rounds()]


def test_a_simulation_in_process_leaves_a_whole_run_directory(
    recipe_of: RecipeOf, tmp_path: Path
) -> None:
    events: list[Event] = []
    run = engines.simulate(recipe_of(), tmp_path / "run", "inprocess", events.append)
    assert run.heads.rounds() == [0, 1, 2, 3]
    rounds = [event for event in events if isinstance(event, RoundDone)]
    assert [event.round for event in rounds] == [1, 2, 3]
    assert all(event.receipt <= 1e-6 for event in rounds)
    assert isinstance(events[-1], RunDone)
    assert events[-1].head == heads(run)[-1]
    replies = [event for event in events if isinstance(event, NodeReplied)]
    assert max(reply.metrics["fold_error"] for reply in replies) <= 1e-6
    reopened = RunDirectory.open(run.path)
    assert reopened.recipe == run.recipe
    assert len(reopened.head().residuals) == 3
    assert (run.path / "versions.json").exists()
    assert {line["round"] for line in reopened.metrics()} == {1, 2, 3}


@pytest.mark.timeout(600)  # Flower starts a process for each of the messages
def test_processes_over_superlink_make_the_same_heads_as_one_process(
    recipe_of: RecipeOf, tmp_path: Path
) -> None:
    recipe = recipe_of(federation={"rounds": 2})
    ours = engines.simulate(recipe, tmp_path / "one", "inprocess", lambda event: None)
    theirs = engines.simulate(recipe, tmp_path / "many", "flower", lambda event: None)
    assert heads(ours) == heads(theirs)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install .[ray]")
def test_ray_actors_make_the_same_heads_as_one_process(recipe_of: RecipeOf, tmp_path: Path) -> None:
    ours = engines.simulate(recipe_of(), tmp_path / "one", "inprocess", lambda event: None)
    theirs = engines.simulate(recipe_of(), tmp_path / "ray", "ray", lambda event: None)
    assert heads(ours) == heads(theirs)


def test_a_base_that_differs_stops_the_run_at_once_and_names_both_fingerprints(
    recipe_of: RecipeOf, tmp_path: Path, tiny_causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's own source is another folder with other weights."""
    import shutil

    import safetensors.torch

    from fedlora.adapters import QuorumError
    from fedlora.client.place import NodePlace
    from fedlora.models.fingerprint import fingerprint

    other = shutil.copytree(tiny_causal, tmp_path / "other")
    tensors = safetensors.torch.load_file(other / "model.safetensors")
    tensors[sorted(tensors)[0]][0, 0] += 1
    safetensors.torch.save_file(tensors, other / "model.safetensors", {"format": "pt"})
    own_source = NodePlace.source
    monkeypatch.setattr(
        NodePlace,
        "source",
        lambda place, task: str(other) if place.name == "birch" else own_source(place, task),
    )
    with pytest.raises(QuorumError, match="2 of at least 3 nodes") as caught:
        engines.simulate(recipe_of(), tmp_path / "run", "inprocess", lambda event: None)
    assert fingerprint(other) in str(caught.value)
    assert fingerprint(tiny_causal) in str(caught.value)
