"""`fedlora subnet`: sizes, budgets, the files of a search, and how it is gone on with."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from fedlora.adapters import ModelError, RunError
from fedlora.cli.searching import Budget, Supernet, describe, find, table
from fedlora.cli.subnet import app, budget_of
from fedlora.models.search import SearchResult
from fedlora.recipes.loading import load_recipe
from fedlora.recipes.sizes import parse_size
from fedlora.server.rundir import RunDirectory

MODULES = {f"m{index}": 1000 * (1 + index % 2) for index in range(8)}


def supernet(subject: str = "head abc on text def", calls: list[object] | None = None) -> Supernet:
    def loss(assignment: Mapping[str, int]) -> float:
        if calls is not None:
            calls.append(assignment)
        return 2 + sum(2.0 ** -assignment[name] * (1 + index) for index, name in enumerate(MODULES))

    def nbytes(assignment: Mapping[str, int]) -> float:
        return sum(size * (assignment[name] + 0.5) / 8 for name, size in MODULES.items())

    return Supernet(subject, MODULES, (3, 4, 8), nbytes, loss, seed=4)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2.6GB", 2_600_000_000),
        ("900 MiB", 900 << 20),
        ("1.5gb", 1_500_000_000),
        (" 10 kB ", 10_000),
        ("2GiB", 2 << 30),
        ("3g", 3_000_000_000),
        ("1500000", 1_500_000),
        ("12B", 12),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "0.2B", "2.6 TB", "1e9", "nan", "2,6GB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no size: .* 2\.6GB"):
        parse_size(text)


def test_a_budget_is_bits_or_bytes() -> None:
    assert budget_of(3.5, None) == Budget(3.5, "bits")
    assert budget_of(None, "2.6GB") == Budget(2.6e9, "bytes")
    assert (str(Budget(3.5, "bits")), str(Budget(2.6e9, "bytes"))) == ("3.5 bits", "2.6 GB")
    for given in ((None, None), (3.5, "2.6GB")):
        with pytest.raises(click.UsageError, match="either --bits or --budget"):
            budget_of(*given)


def test_a_search_leaves_its_files_and_a_table(tmp_path: Path) -> None:
    folder, told = tmp_path / "found", []
    budget = Budget(9000.0, "bytes")
    result = find(supernet(), budget, 40, folder, told.append)
    assert len(told) == len(result.points) == 40
    assert sorted(path.name for path in folder.iterdir()) == [
        "pareto.svg",
        "search.json",
        "subnet.json",
    ]
    assert SearchResult.from_json((folder / "search.json").read_text()) == result
    said = json.loads((folder / "subnet.json").read_text())
    assert said["widths"] == result.best.assignment
    assert said["bytes"] <= 9000
    assert said["loss"] == result.best.loss
    assert said["bits"] == pytest.approx(said["bytes"] * 8 / 12000 - 0.5)
    assert "bytes" in (folder / "pareto.svg").read_text()

    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table(supernet(), result, budget))
    lines = console.export_text().splitlines()
    assert [line for line in lines if "uniform: 8 modules at 8 bits, over 9 kB" in line]
    assert [line for line in lines if "uniform: 8 modules at 3 bits " in line]
    assert [line for line in lines if "best within 9 kB" in line and f"{said['loss']:.4f}" in line]
    assert describe([4, 8, 4, 3, 8, 4]) == "2 modules at 8 bits, 3 at 4, 1 at 3"


def test_a_search_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    whole = find(supernet(), Budget(5, "bits"), 40, tmp_path / "whole", lambda result: None)

    def stop(result: SearchResult) -> None:
        if len(result.points) == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find(supernet(), Budget(5, "bits"), 40, tmp_path / "cut", stop)
    kept = SearchResult.from_json((tmp_path / "cut" / "search.json").read_text())
    assert kept.points == whole.points[:25]
    calls: list[object] = []
    again = find(supernet(calls=calls), Budget(5, "bits"), 40, tmp_path / "cut", lambda r: None)
    assert again == whole
    assert len(calls) == 15


def test_a_search_of_something_else_is_not_gone_on_with(tmp_path: Path) -> None:
    find(supernet(), Budget(5, "bits"), 8, tmp_path, lambda result: None)
    with pytest.raises(RunError, match=r"is of head abc on text def, not of head xyz.* --out"):
        find(supernet("head xyz"), Budget(5, "bits"), 8, tmp_path, lambda result: None)
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(RunError, match=r"not the result of a search.*--out"):
        find(supernet(), Budget(5, "bits"), 8, tmp_path, lambda result: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        find(supernet(), Budget(5, "bits"), 8, tmp_path / "file", lambda result: None)


def test_a_run_at_one_precision_has_no_subnets(recipe: Path, tmp_path: Path) -> None:
    root = typer.Typer()
    root.add_typer(app, name="subnet")
    RunDirectory.create(tmp_path / "run", load_recipe(recipe))
    called = CliRunner().invoke(root, ["subnet", "search", str(tmp_path / "run"), "--bits", "3.5"])
    assert isinstance(called.exception, ModelError)
    assert "one adapter for all widths" in str(called.exception)
    missing = CliRunner().invoke(
        root, ["subnet", "search", str(tmp_path / "none"), "--bits", "3.5"]
    )
    assert isinstance(missing.exception, RunError)
    assert CliRunner().invoke(root, ["subnet", "search", str(tmp_path)]).exit_code == 2
