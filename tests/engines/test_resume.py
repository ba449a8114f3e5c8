"""F1, F8, F10, F11: killed at any point, a run goes on and ends as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedlora.adapters import RunError
from fedlora.cli import engines
from fedlora.recipes.loading import dump
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory

from .conftest import RecipeOf

# Runs a simulation in a process that kills itself outright when a function is called the n-th time.
SUICIDAL = """
import os, signal, sys
from importlib import import_module
from pathlib import Path

def kill_at(place, calls):
    module, _, names = place.partition(":")
    *owners, name = names.split(".")
    owner = import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    original, seen = getattr(owner, name), 0
    def deadly(*arguments, **options):
        nonlocal seen
        seen += 1
        if seen == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)
    setattr(owner, name, deadly)

recipe, run_dir, place, calls = sys.argv[1:]
kill_at(place, int(calls))
from fedlora.cli import engines
from fedlora.recipes.loading import load_recipe
engines.simulate(load_recipe(recipe), Path(run_dir), "inprocess", lambda event: None)
"""

PHASES = [
    ("fedlora.strategies.exchange:Exchange.messages", 1),  # before anything is sent
    ("fedlora.strategies.intake:Intake._admitted", 2),  # one update is in
    ("fedlora.strategies.federated_lora:aggregate", 1),  # all are in
    ("fedlora.strategies.aggregate:aggregation_error", 3),  # in the middle of the mean
    ("fedlora.strategies.heads:_write_through", 1),  # the record isn't written yet
    ("fedlora.strategies.heads:_flush_directory", 1),  # committed, but nobody knows
    ("fedlora.server.snapshots:Snapshots.after", 2),
    ("fedlora.server.rundir:RunDirectory.add_metrics", 2),
]


@pytest.fixture
def recipe(recipe_of: RecipeOf) -> Recipe:
    return recipe_of(federation={"rounds": 6}, train={"steps": 1})


def python(*arguments: object) -> Sequence[str]:
    return [sys.executable, "-c", SUICIDAL, *map(str, arguments)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_F1_F6_killed_in_every_phase_a_run_ends_with_the_same_head(
    recipe: Recipe, tmp_path: Path
) -> None:
    undisturbed = engines.simulate(recipe, tmp_path / "whole", "inprocess", lambda event: None)
    (tmp_path / "recipe.toml").write_text(dump(recipe))
    committed = []
    for place, calls in PHASES:
        run = subprocess.run(
            python(tmp_path / "recipe.toml", tmp_path / "run", place, calls),
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == -signal.SIGKILL, run.stderr
        committed.append(RunDirectory.open(tmp_path / "run").heads.rounds()[-1])
    assert committed == sorted(committed)
    assert committed[-1] < 6, "some were killed after the end"
    finished = engines.simulate(recipe, tmp_path / "run", "inprocess", lambda event: None)
    assert finished.heads.record().hash == undisturbed.heads.record().hash
    assert not list(finished.heads.directory.glob(".new-*"))


def test_F8_another_recipe_is_refused_with_the_difference(
    recipe: Recipe, recipe_of: RecipeOf, tmp_path: Path
) -> None:
    engines.simulate(recipe, tmp_path / "run", "inprocess", lambda event: None)
    other = recipe_of(federation={"rounds": 6}, train={"steps": 2})
    with pytest.raises(RunError, match=r"train\.steps: was 1, is 2"):
        engines.simulate(other, tmp_path / "run", "inprocess", lambda event: None)


def test_a_run_that_is_over_stays_as_it_is(recipe: Recipe, tmp_path: Path) -> None:
    once = engines.simulate(recipe, tmp_path / "run", "inprocess", lambda event: None)
    head = once.heads.record()
    again = engines.simulate(recipe, tmp_path / "run", "inprocess", lambda event: None)
    assert again.heads.record() == head


@pytest.mark.timeout(300)
def test_F10_F11_a_second_coordinator_is_refused_and_ctrl_c_leaves_a_run_to_resume(
    recipe_of: RecipeOf, tmp_path: Path
) -> None:
    recipe = recipe_of(federation={"rounds": 500}, train={"steps": 1})
    (tmp_path / "recipe.toml").write_text(dump(recipe))
    command = [str(Path(sys.executable).parent / "fedlora"), "simulate"]
    command += [str(tmp_path / "recipe.toml"), "--run-dir", str(tmp_path / "run")]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not (tmp_path / "run" / "ledger" / "0001").exists():
        assert first.poll() is None, first.stdout.read() if first.stdout else ""
        time.sleep(0.05)
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == RunError.exit_code
    assert "another coordinator" in second.stderr
    os.kill(first.pid, signal.SIGINT)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 130, said
    assert "Traceback" not in said
    rounds = RunDirectory.open(tmp_path / "run").heads.rounds()
    third = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    while not (tmp_path / "run" / "ledger" / f"{rounds[-1] + 1:04d}").exists():
        assert third.poll() is None
        time.sleep(0.05)
    third.kill()
    third.wait()
