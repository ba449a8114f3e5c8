"""Folders that a command may write to: only new ones."""

from datetime import UTC, datetime
from pathlib import Path

from fedlora.adapters.errors import RunError


def new_run_directory(recipe: str, given: Path | None) -> Path:
    """The folder for a new run of the recipe of that name, not made yet.

    Raises:
        RunError: if there is something already.
    """
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return fresh(given or Path("runs") / f"{recipe}-{started}")


def fresh(folder: Path) -> Path:
    """The path, absolute, if nothing would be overwritten there.

    Raises:
        RunError: if there is something already.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists already; nothing is overwritten: name another folder")
    return folder
