"""A large head on its way down: to 1, 2 and 8 nodes, and from the hub; against plain Flower.

    python benchmarks/transport.py [--megabytes 500] [--nodes 1,2,8] [--turns 3]

Real processes on loopback, without TLS, started anew each time, the kinds in turn:
- "fedlora": the messages, SuperNodes and workers of `fedlora join`. Each node checks the head,
  keeps it on its disk, and reads it back.
- "plain Flower": the messages of its FedAvg, one array a tensor, and its own SuperNodes. Each node
  makes a state dict of them.
- "hub": `fedlora hub`, and as many `fedlora pull` at once; their starting counts.
Replies are small. Counted are the seconds from sending to the last reply, and peak memory
(proportional set size) of the coordinator's side and of the node that held most; for an empty head
too, which is what waiting and starting cost. An eighth of the size, sent first to 1 and 2 nodes,
says what more of both would hold; what would not fit in this machine's memory is left out, and
everything is compared at half the size instead. Writes results/transport.json.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import machine, median_ratio, record
from transport_kinds import Delivery, fedlora, hub, plain, reachable, recipe
from transport_memory import OutOfRoom, available

from fedlora.adapters import Adapter, Factors, Residual
from fedlora.server.rundir import RunDirectory

KINDS = {"fedlora": fedlora, "plain Flower": plain, "hub": hub}
SEED, MODULES, RANK = 0, 225, 16  # two tensors a module
PILOT = 8  # times smaller


def make_heads(folder: Path, megabytes: int) -> Path:
    """Ledgers "empty", and "whole" with a residual of so many megabytes, of noise."""
    generator = torch.Generator().manual_seed(SEED)
    width = megabytes * 10**6 // (MODULES * 2 * RANK * 4)
    adapter = Adapter({"q": Factors(torch.zeros(8, 2), torch.ones(2, 8), 1.0)}, {})
    shapes = (width, RANK), (RANK, width)
    residuals = {
        f"layers.{i}.q": Residual(*(torch.randn(shape, generator=generator) for shape in shapes))
        for i in range(MODULES)
    }
    for name, folded in (("empty", [{}]), ("whole", [{}, residuals])):
        run = RunDirectory.create(folder / name, recipe())
        for one in folded:
            run.heads.commit("transport", "b" * 64, adapter, one)
    return folder


@dataclass
class Case:
    """One size for so many nodes: what each kind took, turn by turn."""

    nodes: int
    megabytes: int
    loads: list[float] = field(default_factory=list)
    taken: dict[str, list[tuple[Delivery, Delivery]]] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)

    def measure(self, kind: str, heads: Path) -> None:
        """One turn: an empty head, and the whole."""
        self.loads.append(round(os.getloadavg()[0], 2))
        with tempfile.TemporaryDirectory() as scratch:
            empty, whole = KINDS[kind](Path(scratch), heads, self.nodes)
        self.taken.setdefault(kind, []).append((empty, whole))
        print(self.nodes, self.megabytes, kind, empty, whole, flush=True)

    def together(self, kind: str) -> tuple[float, float]:
        """MB of all processes, with an empty head and with the whole."""
        empty, whole = self.taken[kind][0]
        return empty.peaks.together, whole.peaks.together

    def result(self) -> dict[str, Any]:
        kinds = {kind: _summary(taken) for kind, taken in self.taken.items()}
        result = {"nodes": self.nodes, "megabytes": self.megabytes, "loads": self.loads}
        seconds = {kind: found["seconds"] for kind, found in kinds.items()}
        if {"fedlora", "plain Flower"} <= kinds.keys():
            ratio = median_ratio(seconds["fedlora"], seconds["plain Flower"])
            result["plain_to_fedlora"] = round(ratio, 2)
        return {**result, "kinds": kinds, "did_not_fit": self.unfit}


def _summary(taken: Sequence[tuple[Delivery, Delivery]]) -> dict[str, Any]:
    summary: dict[str, Any] = {"seconds": [round(whole.seconds, 2) for _, whole in taken]}
    for index, name in enumerate(("empty", "whole")):
        times = [turn[index].seconds for turn in taken]
        peaks = [asdict(turn[index].peaks) for turn in taken]
        medians = {key: round(statistics.median(one[key] for one in peaks)) for key in peaks[0]}
        summary[name] = {"median_seconds": round(statistics.median(times), 2), "peak_mb": medians}
    return summary


def estimate(kind: str, nodes: int, megabytes: int, known: Sequence[Case]) -> float:
    """MB that all processes would hold: drawn on from 1 and 2 nodes of the largest known size."""
    cases = {(case.megabytes, case.nodes): case for case in known if kind in case.taken}
    size = max(size for size, count in cases if count == 1 and (size, 2) in cases)
    one, two = (cases[size, count].together(kind) for count in (1, 2))

    def at(first: float, second: float) -> float:
        return first + (nodes - 1) * max(0.0, second - first)

    return at(one[0], two[0]) + at(one[1] - one[0], two[1] - two[0]) * megabytes / size


def take_turn(case: Case, known: Sequence[Case], heads: Path) -> None:
    """Each kind once, if it fits; what doesn't is left out from then on."""
    for kind in [one for one in KINDS if one not in case.unfit]:
        needed, free = estimate(kind, case.nodes, case.megabytes, known), available()
        said = f"about {needed:.0f} MB would be needed, of {free:.0f} MB that can be had"
        print(case.nodes, case.megabytes, kind, said, flush=True)
        try:
            if needed > free:
                raise OutOfRoom(said)
            case.measure(kind, heads)
        except OutOfRoom as reason:
            case.unfit[kind] = str(reason)
            case.taken.pop(kind, None)


def measure(
    megabytes: int,
    counts: Sequence[int],
    turns: int,
    folder: Path,
    done: Callable[[list[Case]], None],
) -> None:
    """All cases, after their pilots; `done` is told of them after each."""
    made: dict[int, Path] = {}

    def heads(size: int) -> Path:
        if size not in made:
            made[size] = make_heads(folder / str(size), size)
        return made[size]

    pilots = [Case(nodes, max(1, megabytes // PILOT)) for nodes in (1, 2)]
    for case in pilots:
        for kind in KINDS:
            case.measure(kind, heads(case.megabytes))
    cases = [Case(nodes, megabytes) for nodes in counts]
    for case in cases:
        take_turn(case, [*pilots, *cases], heads(case.megabytes))
        if case.unfit and case.megabytes > megabytes // PILOT:
            cases.append(Case(case.nodes, case.megabytes // 2))
        done(cases)
    for _ in range(turns - 1):
        for case in cases:
            take_turn(case, [*pilots, *cases], heads(case.megabytes))
            done(cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--nodes", default="1,2,8", help="how many, separated by commas")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    header, counts = machine(), [int(one) for one in options.nodes.split(",")]

    def done(cases: list[Case]) -> None:
        found = [
            case.result() for case in sorted(cases, key=lambda one: (one.nodes, -one.megabytes))
        ]
        measured = [one for one in found if one["kinds"] or one["did_not_fit"]]
        record("transport", header, SEED, {"tensors": 2 * MODULES, "cases": measured})

    reachable()
    with tempfile.TemporaryDirectory() as folder:
        measure(options.megabytes, counts, options.turns, Path(folder), done)


if __name__ == "__main__":
    main()
