"""The folder beside the student-to-be: what a distillation that was cut off is gone on from."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedlora.adapters import RunError
from fedlora.models.cache import published

PLAN, LOCK = "plan.json", ".lock"


@contextmanager
def workplace(destination: Path, facts: Mapping[str, str]) -> Iterator[Path]:
    """`DESTINATION.partial`, made, or taken up again if it was begun with the same facts.

    It is deleted once `destination` is there, or if an error comes before anything is.

    Raises:
        RunError: if `destination` is taken, someone else works there, or the facts differ.
    """
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        raise RunError(f"{destination} exists already: name a new or empty folder for the student")
    work = destination.with_name(f"{destination.name}.partial")
    try:
        work.mkdir(parents=True, exist_ok=True)
        with FileLock(work / LOCK, timeout=0):
            _same(work, facts)
            try:
                yield work
            finally:
                done = destination.exists() and any(destination.iterdir())
                if done or {one.name for one in work.iterdir()} <= {PLAN, LOCK}:
                    shutil.rmtree(work)
    except Timeout:
        raise RunError(
            f"another process distils into {work}; let it end, or name another folder"
        ) from None
    except OSError as error:
        raise RunError(f"cannot write to {work}: {error.strerror or error}") from error


@contextmanager
def step(place: Path) -> Iterator[Path | None]:
    """A folder to fill that appears when it is complete; None if it is there already."""
    if place.is_dir():
        yield None
    else:
        with published(place) as fresh:
            yield fresh


def _same(work: Path, facts: Mapping[str, str]) -> None:
    """Write the facts down, or compare them with those that were."""
    plan = work / PLAN
    if not plan.is_file():
        fresh = work / f".{PLAN}"
        fresh.write_text(json.dumps(dict(facts), indent=1) + "\n", encoding="utf-8")
        fresh.replace(plan)
        return
    begun = json.loads(plan.read_text("utf-8"))
    different = [
        f"{name} was {begun.get(name, 'unset')}, now {facts.get(name, 'unset')}"
        for name in sorted(begun.keys() | facts.keys())
        if begun.get(name) != facts.get(name)
    ]
    if different:
        raise RunError(
            f"{work} holds a distillation that was begun otherwise: {'; '.join(different)}. Give "
            "the same again to go on with it, delete it, or name another folder"
        )
