"""A run's directory: the resolved recipe, versions, metrics by round, and each round's head.

recipe.toml     what was asked for, with every default and override written out
versions.json   of Python, fedlora and what it stands on
metrics.jsonl   one line a round: receipt by module, nodes, weights, metrics, bytes
events.jsonl    what happened, in order
ledger/NNNN/    record.json, adapter.safetensors, residual.safetensors, see fedlora.strategies.heads
"""

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock, Timeout

from fedlora.adapters import Adapter, Residual, RunError
from fedlora.recipes.identity import differences
from fedlora.recipes.loading import dump, load_recipe
from fedlora.recipes.schema import Recipe
from fedlora.strategies.heads import HeadStore, Snapshot

from .events import Event, to_line

PACKAGES = ("fedlora", "flwr", "torch", "transformers", "peft", "accelerate", "safetensors")


@dataclass(frozen=True)
class Head:
    """A head to use.

    Attributes:
        round: whose it is.
        base: fingerprint of the frozen weights that it is for.
        adapter: the adapter.
        residuals: all up to its round, oldest first; those after the snapshot, if there is one.
        snapshot: stands for the residuals that aren't here, in a directory that was pulled so.
    """

    round: int
    base: str
    adapter: Adapter
    residuals: tuple[Mapping[str, Residual], ...]
    snapshot: Snapshot | None = None


class RunDirectory:
    """Reads and writes one run's directory."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        """See `create` and `open`."""
        self.path = path
        self.recipe = recipe
        self.heads = HeadStore(path / "ledger")

    @classmethod
    def begin(cls, path: Path, recipe: Recipe) -> "RunDirectory":
        """The directory of a run: a new one, or one that was begun with this recipe.

        Raises:
            RunError: as `create` and `resume`.
        """
        return (cls.resume if (path / "recipe.toml").is_file() else cls.create)(path, recipe)

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "RunDirectory":
        """Make the directory of a new run.

        Raises:
            RunError: if it holds something already, or can't be made.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise RunError(f"{path} is not empty; name a new folder with --run-dir")
            (path / "recipe.toml").write_text(dump(recipe), encoding="utf-8")
            versions = {"python": platform.python_version()}
            versions |= {package: version(package) for package in PACKAGES}
            (path / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
        except OSError as error:
            raise RunError(f"cannot write to {path}: {error}") from None
        return cls(path, recipe)

    @classmethod
    def resume(cls, path: Path, recipe: Recipe) -> "RunDirectory":
        """The directory of a run that was begun with this recipe.

        How long anyone is waited for may have changed; the new times count from now on.

        Raises:
            RunError: if it holds no run, or one of another recipe, naming each difference.
        """
        begun = cls.open(path).recipe
        if different := differences(begun, recipe):
            raise RunError(
                f"{path} holds a run of another recipe, and can't be gone on with as this one: "
                + "; ".join(different)
            )
        fresh = path / ".recipe.new"
        fresh.write_text(dump(recipe), encoding="utf-8")
        fresh.replace(path / "recipe.toml")
        return cls(path, recipe)

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """The directory of an existing run.

        Raises:
            RunError: if there is none.
        """
        if not (path / "recipe.toml").is_file():
            raise RunError(f"{path} is no run directory: it has no recipe.toml")
        return cls(path, load_recipe(path / "recipe.toml"))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep every other coordinator off this run.

        Raises:
            RunError: if one leads it already.
        """
        try:
            with FileLock(self.path / ".coordinator.lock", timeout=0):
                yield
        except Timeout:
            raise RunError(
                f"another coordinator leads the run in {self.path}; stop it first, or give this "
                "run a folder of its own with --run-dir"
            ) from None

    def head(self, round: int | None = None) -> Head:
        """A round's head; the latest if none is given.

        Raises:
            RunError: if there is no such head, or a file was altered.
        """
        record = self.heads.record(round)
        adapter, history, snapshot = self.heads.adapter(record.round), record.history, None
        if not self.heads.holds(history) and (snapshot := self.heads.snapshot(history)):
            history = history[snapshot.covers :]
        residuals = tuple(self.heads.residuals(digest) for digest in history)
        return Head(record.round, record.base, adapter, residuals, snapshot)

    def log(self, event: Event) -> None:
        """Append an event."""
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(to_line(event) + "\n")

    def add_metrics(self, record: Mapping[str, object]) -> None:
        """Append a round's metrics."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, object]]:
        """What `add_metrics` wrote, in order; empty before the first round."""
        return list(self._lines("metrics.jsonl"))

    def _lines(self, name: str) -> Iterator[dict[str, object]]:
        path = self.path / name
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)
