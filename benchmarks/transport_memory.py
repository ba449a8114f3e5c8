"""Peak memory of groups of processes, while they run, for `transport.py`.

Counted is the proportional set size: pages that several processes share, as forks do, count once.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedlora.cli.processes import Child

PAUSE = 0.05  # seconds between two looks
MUSTER = 0.5  # seconds between two looks for new processes
STEP = 1.02  # times what was the most, so that it is worth a close look
PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes
RESERVE = 1500.0  # MB of this machine's memory that are left alone


class OutOfRoom(Exception):
    """It would not fit, or did not."""


@dataclass
class Peaks:
    """Most memory at once, in MB.

    Attributes:
        coordinator: of all processes on the coordinator's side.
        node: of all processes of the node that held most.
        together: of everything.
    """

    coordinator: float = 0.0
    node: float = 0.0
    together: float = 0.0


class Watcher:
    """Looks closely where a cheap look finds more than ever before.

    Reading the proportional size takes long enough to miss what lasts for a tenth of a second; the
    kernel's own counters of private pages cost next to nothing.
    """

    def __init__(self, groups: Mapping[str, Sequence[Child]]) -> None:
        """Watch groups of processes: that named "coordinator", and the nodes."""
        self.peaks, self._groups = Peaks(), groups
        self._members: dict[str, list[int]] = {}
        self._highest: dict[str, float] = {}
        self._due = 0.0

    def look(self) -> None:
        """Note what is held now."""
        if time.monotonic() >= self._due:
            self._members, self._due = _members(self._groups), time.monotonic() + MUSTER
        cheap = {name: sum(map(_private, pids)) for name, pids in self._members.items()}
        peaks, risen = self.peaks, {name for name, now in cheap.items() if self._rises(name, now)}
        if self._rises("", sum(cheap.values())):
            risen = set(cheap)
        found = {name: sum(map(_held, self._members[name])) for name in risen}
        if found.keys() == cheap.keys():
            peaks.together = max(peaks.together, sum(found.values()))
        peaks.coordinator = max(peaks.coordinator, found.pop("coordinator", 0.0))
        peaks.node = max(peaks.node, *found.values(), 0.0)

    def _rises(self, name: str, now: float) -> bool:
        rises = now > STEP * self._highest.get(name, 0.0)
        if rises:
            self._highest[name] = now
        return rises


def _members(groups: Mapping[str, Sequence[Child]]) -> dict[str, list[int]]:
    """The processes of each group, with all below them."""
    below: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        below.setdefault(process.info["ppid"], []).append(process.pid)

    def tree(pid: int) -> list[int]:
        return [pid, *(one for child in below.get(pid, []) for one in tree(child))]

    return {
        name: [pid for child in children for pid in tree(child.pid)]
        for name, children in groups.items()
    }


def _private(pid: int) -> float:
    """MB of a process that no file holds; forks count what they share."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:  # it has ended
        return 0.0
    return (int(resident) - int(shared)) * PAGE / 1e6


def _held(pid: int) -> float:
    """MB of a process, its share of what it shares."""
    try:
        return float(psutil.Process(pid).memory_full_info().pss) / 1e6
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0


def available() -> float:
    """MB that this machine has to give."""
    return psutil.virtual_memory().available / 1e6 - RESERVE


def watch(groups: Mapping[str, Sequence[Child]], done: Callable[[], bool], seconds: float) -> Peaks:
    """Look until it is done.

    Raises:
        OutOfRoom: before the machine's memory is used up.
        TimeoutError: after `seconds`.
    """
    watcher, limit = Watcher(groups), time.monotonic() + seconds
    while not done():
        if time.monotonic() > limit:
            raise TimeoutError(f"not done after {seconds:g} s")
        watcher.look()
        if available() < 0:
            raise OutOfRoom(f"stopped at {watcher.peaks.together:.0f} MB")
        time.sleep(PAUSE)
    return watcher.peaks
