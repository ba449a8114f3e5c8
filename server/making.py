"""Makes what the hub gives out and the ledger does not hold: a merged model, or folded weights.

`python -m fedlora.server.making RUN ROUND FORM` works in a process of its own, so that the memory
of a whole model is gone when it is done. Both forms are the same bytes whenever they are made.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from fedlora.adapters import FedloraError, RunError

from .rundir import RunDirectory
from .shelf import ShelfFile

KEEP = 2  # of each form, the latest made
MERGED, SNAPSHOT = "merged", "snapshot"
FILES, CONTENT = "files.json", "files"


def place(run: RunDirectory, round: int, form: str) -> Path:
    """The folder for a round's `form`; another one if the round was committed anew."""
    return run.path / "hub" / f"{form}-{round:04d}-{run.heads.record(round).digest[:12]}"


def made(folder: Path) -> list[ShelfFile] | None:
    """What was made there; None if nothing was."""
    try:
        listed = json.loads((folder / FILES).read_text())
    except FileNotFoundError:
        return None
    return [ShelfFile(path=folder / CONTENT / one["name"], **one) for one in listed]


def make(run: RunDirectory, round: int, form: str) -> None:
    """Make a round's `form`, if no other process has, and clear away older ones.

    Raises:
        FedloraError: if the ledger or the base model is not as it should be.
    """
    from fedlora.models.cache import published

    if run.recipe.quantize.per_width:
        raise RunError(
            f"the run {run.recipe.name} has an adapter for each width, and so no single model: "
            "pull the log, and export a subnet of it"
        )
    folder = place(run, round, form)
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.parent / ".lock"):
        if made(folder) is not None:
            return
        earlier = sorted(folder.parent.glob(f"{form}-*"), key=lambda one: one.stat().st_mtime)
        unfinished = folder.parent.glob(f".{form}-*")  # by processes that were killed
        for stale in (*earlier[: 1 - KEEP], *unfinished):
            shutil.rmtree(stale)
        with published(folder) as fresh:
            {MERGED: _merge, SNAPSHOT: _fold}[form](run, round, fresh / CONTENT)
            (fresh / FILES).write_text(json.dumps(list(_listed(fresh / CONTENT))))


def _merge(run: RunDirectory, round: int, folder: Path) -> None:
    from fedlora.models.export import export_merged
    from fedlora.models.source import resolve

    from .snapshots import opened

    head, recipe = run.head(round), run.recipe
    base = resolve(recipe.model.source)
    parts = base, recipe.model, head.adapter, head.residuals, recipe.lora, folder
    export_merged(*parts, opened(head.snapshot) if head.snapshot else None)


def _fold(run: RunDirectory, round: int, folder: Path) -> None:
    from fedlora.models.tuned import TunedModel
    from fedlora.protos.codec import write

    from .snapshots import opened

    recipe, record = run.recipe, run.heads.record(round)
    last = run.heads.snapshot(record.history)
    tuned = TunedModel(recipe.model.source, recipe.model, recipe.lora)
    adapter, start = run.heads.adapter(round), opened(last) if last else None
    tuned.become(adapter, record.history, run.heads.residuals, start)
    folder.mkdir()
    digest = write(tuned.frozen_weights(), folder / "weights")
    (folder / "weights").rename(folder / f"snapshot-{digest}.safetensors")


def _listed(folder: Path) -> Iterator[dict[str, object]]:
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        name = path.relative_to(folder).as_posix()
        yield {"name": name, "size": path.stat().st_size, "digest": digest}


if __name__ == "__main__":
    try:
        make(RunDirectory.open(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
    except FedloraError as problem:
        sys.exit(str(problem))
