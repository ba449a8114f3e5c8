"""`fedlora coordinator` and `fedlora join` as a user starts them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch

from fedlora.adapters import BaseMismatchError
from fedlora.cli.processes import free_port
from fedlora.models.fingerprint import fingerprint
from fedlora.recipes.loading import dump
from fedlora.server.rundir import RunDirectory

from .conftest import RecipeOf

FEDLORA = str(Path(sys.executable).parent / "fedlora")


@pytest.fixture
def another_base(tiny_causal: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(tiny_causal, tmp_path / "another")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors[min(tensors)][0] += 1
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def start(*arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [FEDLORA, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_finish_a_run_and_one_with_another_base_is_turned_away(
    recipe_of: RecipeOf, tmp_path: Path, tiny_causal: Path, another_base: Path
) -> None:
    recipe = recipe_of(federation={"rounds": 2, "min_nodes": 2})
    file = tmp_path / "recipe.toml"
    file.write_text(dump(recipe.model_copy(update={"node": ()})))
    port = free_port()
    coordinator = start("coordinator", file, "--port", port, "--run-dir", tmp_path / "run")
    nodes = {}
    for section in recipe.node:
        options = ["--name", section.name, "--data", section.data, "--threads", 1]
        options += ["--state-dir", tmp_path / section.name]
        options += ["--model", another_base if section.name == "cedar" else tiny_causal]
        nodes[section.name] = start("join", f"127.0.0.1:{port}", *options)
    texts = {name: process.communicate(timeout=500)[0] for name, process in nodes.items()}
    said = coordinator.communicate(timeout=60)[0]
    assert coordinator.returncode == 0, said
    assert (nodes["anchor"].returncode, nodes["birch"].returncode) == (0, 0), texts
    assert "cedar" in said
    assert nodes["cedar"].returncode == BaseMismatchError.exit_code
    for folder in (tiny_causal, another_base):
        assert fingerprint(folder) in texts["cedar"]
    assert "Traceback" not in said + "".join(texts.values())
    assert RunDirectory.open(tmp_path / "run").heads.rounds() == [0, 1, 2]
