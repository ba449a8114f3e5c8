"""Warm nodes against cold ones: seconds of a round beyond training.

    python benchmarks/warm.py

SmolLM2-135M, two nodes behind a SuperLink on loopback, rounds of one step. Cold nodes load libraries,
model, data and residuals anew for each message, warm ones keep them in a worker. The two take turns.
Counted is a round's time less the training of its slowest node; each run's first round, in which warm
nodes load the model too, is told apart. Writes results/warm.json.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import machine, record

from fedlora.cli.processes import free_port
from fedlora.cli.superlink import follow, submit, superlink
from fedlora.cli.supernode import supernode, warm, worker
from fedlora.client.place import NodePlace
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory

ROUNDS, TURNS = 5, 2
DATA = Path(__file__).parents[1] / "recipes" / "data" / "demo" / "clinic.jsonl"


def recipe() -> Recipe:
    return Recipe.model_validate(
        {
            "name": "warm",
            "model": {"source": "smollm2-135m"},
            "train": {"steps": 1, "batch_size": 4, "threads": 1},
            "data": {"heldout": 0.0},
            "federation": {"rounds": ROUNDS, "min_nodes": 2},
            "node": [{"name": name, "data": str(DATA)} for name in ("anchor", "birch")],
        }
    )


def rounds(kind: str) -> list[float]:
    """Seconds beyond training of each round of one run."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as nodes:
        run = RunDirectory.create(Path(scratch) / "run", recipe())
        port = free_port()
        child = nodes.enter_context(superlink(run, "127.0.0.1", port, simulation=False))
        for section in run.recipe.node:
            place = NodePlace(section.name, DATA, None, run.path / "nodes" / section.name, 1)
            if kind == "warm":
                nodes.enter_context(worker(place))
            config = warm(place) if kind == "warm" else place.config()
            nodes.enter_context(supernode(place, f"127.0.0.1:{port}", config))
        follow(run, submit(run), child, lambda event: print(time.time(), event, file=sys.stderr))
        return [beyond(line) for line in run.metrics() if "nodes" in line and "seconds" in line]


def beyond(line: dict[str, Any]) -> float:
    """A round's seconds, less the training of its slowest node."""
    trained = max(node["metrics"]["train_seconds"] for node in line["nodes"].values())
    return float(line["seconds"] - trained)


def main() -> None:
    header = machine()
    print(rounds(sys.argv[1]))


if __name__ == "__main__":
    main()
