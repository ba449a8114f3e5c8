"""The wheel holds `fedlora/...` alone, and works without the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOP = ("adapters", "cli", "client", "models", "protos", "recipes", "server", "strategies")

IMPORT_ALL = """
import importlib, pkgutil, sys
packages = [importlib.import_module(f"fedlora.{name}") for name in sys.argv[2:]]
names = [m.name for p in packages for m in pkgutil.walk_packages(p.__path__, p.__name__ + ".")]
for name in names:
    module = importlib.import_module(name)
    assert module.__file__.startswith(sys.argv[1]), f"{name} comes from {module.__file__}"
print(len(names))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no stale build folder of the checkout gets in."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*TOP, "pyproject.toml", "README.md", "LICENSE"):
        source, copy = ROOT / name, folder / "source" / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(folder / "source")], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_installs_fedlora_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"fedlora", wheel.name[:13] + ".dist-info"}
    assert {name.split("/")[1] for name in names if name.startswith("fedlora/")} == set(TOP)
    assert "fedlora/recipes/demo.toml" in names
    assert "fedlora/recipes/data/demo/clinic.jsonl" in names
    parts = {part for name in names for part in name.split("/")}
    assert not [part for part in parts if part == "tests" or part.startswith("test_")]


def test_every_module_imports_in_an_environment_without_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    paths = {"base": str(tmp_path / "env"), "platbase": str(tmp_path / "env")}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Dependencies are lent by this environment; an installed fedlora there comes second.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-c", IMPORT_ALL, str(site), *TOP],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
