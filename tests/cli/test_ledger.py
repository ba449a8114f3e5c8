"""`fedlora ledger` on a run that was made."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fedlora.adapters import Adapter, Factors, Residual
from fedlora.recipes.loading import load_recipe
from fedlora.server.rundir import RunDirectory
from fedlora.strategies.records import AdmittedUpdate, Proceedings

Call = Callable[..., Result]


@pytest.fixture
def run(recipe: Path, tmp_path: Path) -> Path:
    """Two rounds; in the second, one update was refused."""
    import torch

    made = RunDirectory.create(tmp_path / "run", load_recipe(recipe))
    adapter = Adapter({"q": Factors(torch.ones(4, 2), torch.ones(2, 3), 1.0)}, {})
    residual = {"q": Residual(torch.ones(4, 1), torch.ones(1, 3))}
    made.heads.commit("ferry", "base", adapter, {})
    update = AdmittedUpdate(12, 1.0, "d" * 64, 0.5, "f" * 64)
    for refused in ({}, {"south": "NaN or infinite values"}):
        how = Proceedings(
            "r" * 64,
            0,
            ("north", "south"),
            {"north": update},
            refused,
            {"q": 3e-8},
            {"eval_loss": 2},
        )
        made.heads.commit("ferry", "base", adapter, residual, how)
    return made.path


def test_verify_says_what_holds(call: Call, run: Path) -> None:
    done = call("ledger", "verify", run)
    assert done.exit_code == 0, done.stderr
    assert "3 records hold" in done.stdout
    assert json.loads(call("ledger", "verify", run, "--json").stdout)["rounds"] == [0, 1, 2]


def test_F6_verify_names_a_round_that_does_not(call: Call, run: Path) -> None:
    path = run / "ledger" / "0001" / "residual.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    done = call("ledger", "verify", run)
    assert done.exit_code == 11
    assert "0001" in done.stderr
    assert "was altered" in done.stderr


def test_log_has_a_line_for_each_round(call: Call, run: Path) -> None:
    lines = call("ledger", "log", run).stdout.splitlines()
    assert [line.partition(";")[0] for line in lines] == ["round 0", "round 1", "round 2"]
    assert "refused south: NaN or infinite values" in lines[2]
    assert "receipt 3.0e-08" in lines[2]
    first, *_ = map(json.loads, call("ledger", "log", run, "--json").stdout.splitlines())
    assert first["admitted"] == []


def test_show_tells_all_of_a_round(call: Call, run: Path) -> None:
    text = call("ledger", "show", run, "--round", 1).stdout
    assert "north: 12 examples, weight 1.000" in text
    assert "refused" not in text
    record = json.loads(call("ledger", "show", run, "--json").stdout)
    assert record["proceedings"]["refused"] == {"south": "NaN or infinite values"}


def test_a_folder_that_is_no_run(call: Call, tmp_path: Path) -> None:
    done = call("ledger", "log", tmp_path)
    assert done.exit_code == 11
    assert "no run directory" in done.stderr
