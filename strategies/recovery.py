"""A ledger after a crash or a bad disk: what still holds is kept, what doesn't is set aside.

Nothing is deleted. A round that can't be trusted is renamed, with all that were built on it; the
run goes on from the last one that can.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from fedlora.adapters import RunError

from .heads import ADAPTER, RESIDUAL, HeadStore, checked


def verify(store: HeadStore, told: Callable[[int], None] = lambda round: None) -> None:
    """Check every record, its link to the one before, and every tensor file.

    Args:
        store: the ledger.
        told: of each round that holds.

    Raises:
        RunError: naming the first round that does not hold, and why.
    """
    parent, history = "", tuple[str, ...]()
    for expected, round in enumerate(store.rounds()):
        if round != expected:
            raise RunError(f"round {expected} is missing in {store.directory}")
        record = store.record(round)
        if record.round != round or record.parent != parent:
            raise RunError(f"round {round} in {store.directory} does not follow the one before it")
        folder = store.folder(round)
        checked(folder / ADAPTER, record.adapter)
        folded = record.history[len(history) :]
        if record.history[: len(history)] != history or len(folded) > 1:
            raise RunError(f"round {round} in {store.directory} rewrites what was folded before it")
        if folded:
            checked(folder / RESIDUAL, folded[0])
        parent, history = record.digest, record.history
        told(round)


def recover(store: HeadStore) -> str:
    """Clear what a crash left, and set aside rounds that do not hold.

    Returns:
        What was set aside and why, for the log; empty if everything holds.
    """
    for scratch in store.directory.glob(".new-*"):
        shutil.rmtree(scratch, ignore_errors=True)
    for snapshot in store.directory.glob("*/.snapshot.new"):
        snapshot.unlink()
    sound: list[int] = []
    try:
        verify(store, sound.append)
    except RunError as error:
        aside = [round for round in store.rounds() if round not in sound]
        for round in reversed(aside):
            folder = store.folder(round)
            folder.rename(_free(folder.with_name(f"damaged-{folder.name}")))
        return (
            f"{error}; set aside round(s) {', '.join(map(str, aside))} as damaged-*, "
            f"going on from round {sound[-1] if sound else 'none'}"
        )
    return _without_snapshot(store)


def _without_snapshot(store: HeadStore) -> str:
    """Set the snapshot aside if it does not hold; the residuals that it stands for are there."""
    last = store.snapshot(store.record().history) if store.rounds() else None
    if last is None:
        return ""
    try:
        checked(last.path, last.digest)
    except RunError as error:
        last.path.rename(_free(last.path.with_name(f"damaged-{last.path.name}")))
        return f"{error}; set aside, the residuals are sent instead"
    return ""


def _free(path: Path) -> Path:
    """The path, or the first numbered one that is not taken."""
    taken = 0
    while path.exists():
        taken += 1
        path = path.with_name(f"{path.name.partition('.')[0]}.{taken}")
    return path
