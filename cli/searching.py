"""The search for a subnet as a command does it: goes on where it was cut off, files and a table.

search.json  every subnet that was scored, after each of them
subnet.json  the best one's widths by module, and what it costs
pareto.svg   cost against held-out loss
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from fedlora.adapters.errors import RunError
from fedlora.models.pareto import plot
from fedlora.models.search import Point, SearchResult, search
from fedlora.models.widths import mean_width

from .progress import size

UNITS = {"bits": "mean bits per weight", "bytes": "bytes"}


@dataclass(frozen=True)
class Supernet:
    """A run's head of which every assignment of widths is a model.

    Attributes:
        subject: names the head and the held-out data: losses of another subject don't compare.
        modules: size of each module, in weights.
        widths: bits that there are.
        nbytes: memory of a subnet's weights; does not fall where a module gets wider.
        loss: of a subnet, on the held-out data, in nats.
        seed: of the run.
    """

    subject: str
    modules: Mapping[str, int]
    widths: tuple[int, ...]
    nbytes: Callable[[Mapping[str, int]], float]
    loss: Callable[[Mapping[str, int]], float]
    seed: int


@dataclass(frozen=True)
class Budget:
    """What a subnet may cost: bits per weight on average, or bytes."""

    limit: float
    unit: Literal["bits", "bytes"]

    def __str__(self) -> str:
        """As in `3.5 bits` or `2.6 GB`."""
        return f"{self.limit:g} bits" if self.unit == "bits" else size(self.limit)


def find(
    supernet: Supernet,
    budget: Budget,
    evaluations: int,
    folder: Path,
    progress: Callable[[SearchResult], None],
) -> SearchResult:
    """Search, and leave the files in a folder; what an earlier search left there is gone on with.

    Args:
        supernet: what to search in.
        budget: of a subnet.
        evaluations: how many subnets to score at most, with those that are known already.
        folder: made if need be.
        progress: is told the result so far after each subnet.

    Raises:
        RecipeError: if no subnet is within the budget.
        RunError: if the folder holds a search of another head or other data, or can't be written.
    """

    def cost(assignment: Mapping[str, int]) -> float:
        if budget.unit == "bytes":
            return supernet.nbytes(assignment)
        return mean_width(supernet.modules, assignment)

    def keep(result: SearchResult) -> None:
        if len(result.points) > len(known):
            _write(folder / "search.json", result.to_json())
        progress(result)

    known = _known(folder / "search.json", supernet)
    result = search(
        supernet.modules,
        supernet.widths,
        cost,
        budget.limit,
        supernet.loss,
        supernet.seed,
        evaluations,
        supernet.subject,
        keep,
        known,
    )
    _write(folder / "search.json", result.to_json())
    _write(folder / "subnet.json", json.dumps(summary(supernet, result.best), indent=1) + "\n")
    plot(result.points, budget.limit, UNITS[budget.unit], folder / "pareto.svg")
    return result


def summary(supernet: Supernet, point: Point) -> dict[str, object]:
    """What `subnet.json` says of a subnet."""
    return {
        "subject": supernet.subject,
        "loss": point.loss,
        "bits": mean_width(supernet.modules, point.assignment),
        "bytes": supernet.nbytes(point.assignment),
        "widths": dict(point.assignment),
    }


def table(supernet: Supernet, result: SearchResult, budget: Budget) -> Table:
    """The subnet that was found beside those of one width."""
    shown = Table()
    shown.add_column("subnet")
    for column in ("mean bits", "size", "held-out loss"):
        shown.add_column(column, justify="right")
    uniform = (point for point in result.points if point.stage == "uniform")
    for point in (*uniform, result.best):
        over = f", over {budget}" if point.cost > budget.limit else ""
        name = f"best within {budget}" if point is result.best else "uniform"
        shown.add_row(
            f"{name}: {describe(point.assignment.values())}{over}",
            f"{mean_width(supernet.modules, point.assignment):.3g}",
            size(supernet.nbytes(point.assignment)),
            f"{point.loss:.4f}",
            style="bold" if point is result.best else None,
        )
    return shown


def describe(widths: Iterable[int]) -> str:
    """As in `12 modules at 8 bits, 198 at 4`."""
    (first, count), *others = sorted(Counter(widths).items(), reverse=True)
    return ", ".join([f"{count} modules at {first} bits", *(f"{n} at {b}" for b, n in others)])


def read_subnet(path: Path) -> dict[str, int]:
    """The widths by module in a `subnet.json`.

    Raises:
        RunError: if it is none.
    """
    try:
        widths = json.loads(path.read_text(encoding="utf-8"))["widths"]
        return {str(name): int(bits) for name, bits in widths.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is no subnet of `fedlora subnet search`: {error}") from None


def _known(path: Path, supernet: Supernet) -> tuple[Point, ...]:
    if not path.exists():
        return ()
    try:
        earlier = SearchResult.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {error}; remove it, or name another folder with --out") from None
    if earlier.subject != supernet.subject or earlier.points[0].assignment.keys() != set(
        supernet.modules
    ):
        raise RunError(
            f"{path} is of {earlier.subject or 'another model'}, not of {supernet.subject}: "
            "name another folder with --out"
        )
    return earlier.points


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from None
