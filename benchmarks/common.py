"""What every benchmark shares: fair timing, and a record that says where it was made."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

from fedlora.models.threads import cores

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("fedlora", "torch", "transformers", "peft", "accelerate", "flwr")


def interleaved(
    runs: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of each run, `repeats` times, in turn: what disturbs one disturbs all alike.

    The first `warmup` turns are not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warmup + repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median, over turns, of how many times faster `ours` was than `theirs`."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def machine() -> dict[str, Any]:
    """Hardware and software of this run."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def record(name: str, header: Mapping[str, Any], seed: int, results: Mapping[str, Any]) -> Path:
    """Write `results/NAME.json`: the machine (as it was before the run), the seed, the results."""
    path = RESULTS / f"{name}.json"
    content = {"benchmark": name, "machine": header, "seed": seed, "results": results}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
