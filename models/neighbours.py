"""How many nodes this machine serves now, so that they can share its cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from .cache import cache_folder


@contextmanager
def counted() -> Iterator[None]:
    """Count this process as a node while the context lasts."""
    mark = cache_folder("running") / str(os.getpid())
    mark.touch()
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def count() -> int:
    """Nodes of this user that run now; marks of processes that died are cleared away."""
    alive = 0
    for mark in _marks():
        if psutil.pid_exists(int(mark.name)):
            alive += 1
        else:
            mark.unlink(missing_ok=True)
    return alive


def _marks() -> list[Path]:
    return [mark for mark in cache_folder("running").iterdir() if mark.name.isdecimal()]
