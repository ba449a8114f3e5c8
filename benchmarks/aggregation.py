"""Aggregation: time, memory, error and bytes of the exact mean, against the other ways to it.

`python benchmarks/aggregation.py`, on a quiet machine, writes `results/aggregation.json` and prints
it as tables. The package chorus-fl takes part with ten nodes, if it is installed. It decomposes
dense matrices, which would take hours for a whole set: there it is one square module's, times 224.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from aggregation_methods import (
    RANK,
    Aggregated,
    FedExLoRA,
    chorus,
    dense,
    dense_at_once,
    factors,
    qr_svd,
    read,
    recompressed,
    shares,
)
from common import interleaved, machine, median_ratio, record

from fedlora.adapters import Factors, aggregation_error, exact_mean

SEED = 2
NODES = (3, 10, 30)
SQUARE, TALL, WIDE = (4096, 4096), (11008, 4096), (4096, 11008)
LLAMA_7B = (SQUARE,) * 4 + (TALL, TALL, WIDE)  # a layer's q, k, v, o; gate, up; down
LAYERS = 32
REPEATS = 7
DENSE_LAYERS = 2  # methods of the other kind run on so many of the 32 equal layers
CHORUS, DENSE, READ = "chorus-fl", "dense difference", "read"
CHORUS_NODES = 10  # its decomposition takes minutes, and as long for any number of nodes
OURS = {"exact mean": exact_mean, "exact mean, recompressed": recompressed}
METHODS: dict[str, Callable[[list[Factors], list[float]], Aggregated]] = {
    **OURS,
    DENSE: dense,
    "dense, one product": dense_at_once,
    "QR + SVD": qr_svd,
    CHORUS: chorus,
}


@dataclass(frozen=True)
class Trial:
    """One cold call in a fresh process."""

    seconds: float
    peak_over_input: float  # peak memory beyond the input, in sizes of the input
    error: float  # of mean and residual together, against float64
    bytes_to_send: int


@dataclass(frozen=True)
class Row:
    """What the tables say of one method: medians of times and of ratios.

    The error is relative: the true one for one module, the worst receipt for a whole set.
    """

    method: str
    seconds: float
    times_reading: float
    faster_than_dense: float
    peak_over_input: float
    error: float
    megabytes_to_send: float
    measured: str


def trial(job: tuple[str, tuple[int, int], int]) -> Trial:
    """Run one method on one module and look at everything but a fair time."""
    name, shape, nodes = job
    generator = torch.Generator().manual_seed(SEED)
    METHODS[name](factors((96, 64), 3, generator), shares(3))  # loads what a first call loads
    updates, weights = factors(shape, nodes, generator), shares(nodes)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, began = memory("VmRSS"), time.perf_counter()
    mean, residual = METHODS[name](updates, weights)
    seconds, peak = time.perf_counter() - began, memory("VmHWM") - before
    size = sum(one.b.nbytes + one.a.nbytes for one in updates)
    exact = torch.zeros(shape, dtype=torch.float64)
    for one, weight in zip(updates, weights, strict=True):
        exact.addmm_(one.b.double(), one.a.double(), alpha=weight * one.scale)
    made = mean.matrix().add_(residual.matrix())
    error = float(made.sub_(exact).norm() / exact.norm())
    return Trial(seconds, peak / size, error, bytes_of((mean, residual)))


def bytes_of(made: Aggregated) -> int:
    """What every node has to be sent."""
    mean, residual = made
    return mean.b.nbytes + mean.a.nbytes + residual.nbytes


def memory(field: str) -> int:
    """Bytes resident now (VmRSS) or at most so far (VmHWM), as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def in_fresh_process(name: str, shape: tuple[int, int], nodes: int) -> Trial:
    """A trial in a process that returns each large block at once, so that its peak is true."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        made = pool.apply(trial, ((name, shape, nodes),))
    del os.environ["MALLOC_MMAP_THRESHOLD_"]
    return made


def takes_part(name: str, nodes: int) -> bool:
    return name != CHORUS or (FedExLoRA is not None and nodes == CHORUS_NODES)


def one_module(nodes: int) -> list[Row]:
    """Every method on one 4096 x 4096 module."""
    updates, weights = factors(SQUARE, nodes, torch.Generator().manual_seed(SEED)), shares(nodes)
    timed = {READ: read} | {name: run for name, run in METHODS.items() if name != CHORUS}
    seconds = interleaved(
        {name: lambda run=run: run(updates, weights) for name, run in timed.items()}, REPEATS
    )
    rows = []
    for name in (name for name in METHODS if takes_part(name, nodes)):
        cold = in_fresh_process(name, SQUARE, nodes)
        times = seconds.get(name, [cold.seconds] * REPEATS)
        rows.append(
            Row(
                method=name,
                seconds=statistics.median(times),
                times_reading=median_ratio(seconds[READ], times),
                faster_than_dense=median_ratio(times, seconds[DENSE]),
                peak_over_input=cold.peak_over_input,
                error=cold.error,
                megabytes_to_send=cold.bytes_to_send / 1e6,
                measured=f"{REPEATS} times" if name in seconds else "once",
            )
        )
    return rows


def whole_set(nodes: int) -> list[Row]:
    """Every method on the 224 modules of a Llama-7B, whose factors are made layer by layer."""
    generator, weights = torch.Generator().manual_seed(SEED), shares(nodes)
    names = [name for name in (READ, *METHODS) if name != CHORUS]
    seconds: dict[str, list[float]] = {name: [] for name in names}  # by layer
    worst, sent = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for layer in range(LAYERS):
        running = names if layer < DENSE_LAYERS else [READ, *OURS]
        for name in running:
            seconds[name].append(0.0)
        for updates in (factors(shape, nodes, generator) for shape in LLAMA_7B):
            for name in running:
                began = time.perf_counter()
                made = (METHODS | {READ: read})[name](updates, weights)
                seconds[name][layer] += time.perf_counter() - began
                if name != READ:
                    receipt = aggregation_error(updates, weights, *made, generator)
                    worst[name] = max(worst[name], receipt)
                    sent[name] += bytes_of(made)
    total = {name: statistics.mean(of_layer) * LAYERS for name, of_layer in seconds.items()}
    rows = [
        Row(
            method=name,
            seconds=total[name],
            times_reading=total[name] / total[READ],
            faster_than_dense=total[DENSE] / total[name],
            peak_over_input=in_fresh_process(name, TALL, nodes).peak_over_input,
            error=worst[name],
            megabytes_to_send=sent[name] * LAYERS / len(seconds[name]) / 1e6,
            measured=f"{len(seconds[name])} of {LAYERS} layers",
        )
        for name in names
        if name != READ
    ]
    if takes_part(CHORUS, nodes):
        rows.append(chorus_set(nodes, total))
    return rows


def chorus_set(nodes: int, total: Mapping[str, float]) -> Row:
    """What chorus-fl would need at least: one square module, times the number of all modules."""
    square, modules = in_fresh_process(CHORUS, SQUARE, nodes), len(LLAMA_7B) * LAYERS
    return Row(
        method=CHORUS,
        seconds=modules * square.seconds,
        times_reading=modules * square.seconds / total[READ],
        faster_than_dense=total[DENSE] / (modules * square.seconds),
        peak_over_input=square.peak_over_input,
        error=square.error,
        megabytes_to_send=modules * square.bytes_to_send / 1e6,
        measured=f"1 of {modules} modules",
    )


def table(title: str, rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        f"\n**{title}**\n",
        "| method | time | x reading | faster than dense | peak / input | error | MB sent | runs |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {row.method} | {row.seconds:.4g} s | {row.times_reading:.1f} "
        f"| {row.faster_than_dense:.3g} | {row.peak_over_input:.2f} | {row.error:.1e} "
        f"| {row.megabytes_to_send:.2f} | {row.measured} |"
        for row in rows
    ]
    if FedExLoRA is None:
        lines.append(f"| {CHORUS} | not installed: pip install chorus-fl ||||||")
    return "\n".join(lines)


def main() -> None:
    header = machine()
    results: dict[str, list[dict[str, object]]] = {}
    for kind, title, measure in (
        ("one_module", "One module, 4096 x 4096", one_module),
        ("llama_7b", "A Llama-7B: 224 modules", whole_set),
    ):
        for nodes in NODES:
            rows = measure(nodes)
            results[f"{kind}_{nodes}_nodes"] = [asdict(row) for row in rows]
            print(table(f"{title}, rank {RANK}, {nodes} nodes", rows), flush=True)
            print(f"\nwritten: {record('aggregation', header, SEED, results)}", flush=True)


if __name__ == "__main__":
    main()
