import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fedlora.recipes import bundled
from fedlora.recipes.loading import data_files, load_recipe

Call = Callable[..., Result]


@pytest.fixture
def library(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of bundled recipes with one in it, whose data lies deeper."""
    folder = tmp_path / "library"
    (folder / "data" / "ferry").mkdir(parents=True)
    (folder / "data" / "ferry" / "north.jsonl").write_text("{}\n")
    text = recipe.read_text().replace("north.jsonl", "data/ferry/north.jsonl")
    (folder / "ferry.toml").write_text(f"# Two islands, one model.\n\n{text}")
    monkeypatch.setattr(bundled, "FOLDER", folder)
    return folder


def test_list(call: Call, library: Path) -> None:
    assert call("recipes", "list").stdout == "ferry  Two islands, one model.\n"
    assert json.loads(call("recipes", "list", "--json").stdout) == {
        "ferry": "Two islands, one model."
    }


def test_show_prints_the_file_as_it_is(call: Call, library: Path) -> None:
    assert call("recipes", "show", "ferry").stdout == (library / "ferry.toml").read_text()


def test_a_copy_runs_without_the_original(call: Call, library: Path, tmp_path: Path) -> None:
    done = call("recipes", "copy", "ferry", tmp_path / "mine")
    assert done.exit_code == 0, done.stderr
    copied = Path(done.stdout.strip())
    assert copied == tmp_path / "mine" / "ferry.toml"
    for _, path in data_files(load_recipe(copied)):
        assert path.is_relative_to(tmp_path / "mine")
        assert path.read_text() == "{}\n"


def test_a_copy_overwrites_nothing(call: Call, library: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    call("recipes", "copy", "ferry", mine)
    (mine / "ferry.toml").write_text("changed")
    done = call("recipes", "copy", "ferry", mine)
    assert done.exit_code == 11
    assert f"{mine / 'ferry.toml'} exists already" in done.stderr
    assert (mine / "ferry.toml").read_text() == "changed"


def test_a_copy_into_a_place_that_cannot_be(call: Call, library: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = call("recipes", "copy", "ferry", tmp_path / "file" / "mine")
    assert done.exit_code == 11
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", bundled.names())
def test_bundled_recipes_can_be_copied(call: Call, name: str, tmp_path: Path) -> None:
    assert call("recipes", "copy", name, tmp_path).exit_code == 0
    assert call("config", "validate", tmp_path / f"{name}.toml").exit_code == 0
