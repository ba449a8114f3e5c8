"""Folders that a command may write to: new ones, and those of a run that is gone on with."""

from datetime import UTC, datetime
from pathlib import Path

from fedlora.adapters.errors import RunError

RECIPE = "recipe.toml"  # what makes a folder a run's


def run_directory(recipe: str, given: Path | None, resume: bool) -> Path:
    """The folder for a run of the recipe of that name; new, or one that is gone on with.

    Args:
        recipe: its name.
        given: the folder that was asked for.
        resume: whether the latest run is meant if no folder was given.

    Raises:
        RunError: if there is no run to resume, or something else than a run.
    """
    if given is None and resume:
        runs = [one for one in Path("runs").glob(f"{recipe}-*") if (one / RECIPE).is_file()]
        if not runs:
            raise RunError(f"no run of {recipe} in {Path('runs').absolute()}: name it by --run-dir")
        given = max(runs, key=lambda one: one.name)
    if given is not None and (given.expanduser() / RECIPE).is_file():
        return given.expanduser().absolute()
    if resume:
        raise RunError(f"{given} holds no run to resume")
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return fresh(given or Path("runs") / f"{recipe}-{started}")


def anchored(model: str | None) -> str | None:
    """A model's source; if it is a place here, as it can be found from anywhere."""
    return str(Path(model).absolute()) if model and Path(model).exists() else model


def fresh(folder: Path) -> Path:
    """The path, absolute, if nothing would be overwritten there.

    Raises:
        RunError: if there is something already.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists already; nothing is overwritten: name another folder")
    return folder
