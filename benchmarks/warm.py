"""Warm nodes against cold ones: seconds of a round beyond training.

    python benchmarks/warm.py

SmolLM2-135M, two nodes behind a SuperLink on loopback, rounds of one step. Cold nodes are what
Flower makes of a ClientApp by itself: its own SuperNode, and a new process for each message, which
loads libraries, model, data and all residuals anew. Warm nodes are those of `fedlora join`: a
worker keeps all that, and Flower's SuperNode and launcher run without their pauses. "Worker alone"
has the worker, but Flower's own SuperNode: what the rest is worth.

The kinds take turns. Counted is a round's time less the training of its slowest node; the first
round of each run, in which a worker loads the model too, stands apart. Writes results/warm.json.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import machine, record

from fedlora.cli.processes import FLOWER_ENVIRONMENT, Child, free_port
from fedlora.cli.superlink import lead, superlink
from fedlora.cli.supernode import supernode, warm, worker
from fedlora.client.place import NodePlace
from fedlora.models.threads import thread_environment
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory

ROUNDS, TURNS, SEED = 6, 2, 0
KINDS = ("cold", "worker alone", "warm")
DATA = Path(__file__).parents[1] / "recipes" / "data" / "demo" / "clinic.jsonl"


def recipe() -> Recipe:
    return Recipe.model_validate(
        {
            "name": "warm",
            "seed": SEED,
            "model": {"source": "smollm2-135m"},
            "train": {"steps": 1, "batch_size": 4, "threads": 1},
            "data": {"heldout": 0.0},
            "federation": {"rounds": ROUNDS, "min_nodes": 2},
            "node": [{"name": name, "data": str(DATA)} for name in ("anchor", "birch")],
        }
    )


def flowers_own(place: NodePlace, address: str, config: Mapping[str, str]) -> Child:
    """A SuperNode as Flower installs it."""
    values = [f"{key}={json.dumps(value)}" for key, value in config.items()]
    command = ["flower-supernode", "--insecure", "--superlink", address]
    command += ["--port", str(free_port()), "--node-config", " ".join(values)]
    environment = {
        **FLOWER_ENVIRONMENT,
        **thread_environment(1),
        "FLWR_HOME": str(place.state / "flower"),
    }
    del environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]
    return Child(command, environment, place.state / "node.log")


def run(kind: str) -> dict[str, Any]:
    """Seconds beyond training of each round of one run, and its last head."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        made = RunDirectory.create(Path(scratch) / "run", recipe())
        port = free_port()
        address = f"127.0.0.1:{port}"
        link = stack.enter_context(superlink(made, "127.0.0.1", port, simulation=False))
        for section in made.recipe.node:
            place = NodePlace(section.name, DATA, None, made.path / "nodes" / section.name, 1)
            if kind != "cold":
                stack.enter_context(worker(place))
            config = place.config() if kind == "cold" else warm(place)
            start = supernode if kind == "warm" else flowers_own
            stack.enter_context(start(place, address, config))
        lead(made, link, lambda event: None)
        lines = [line for line in made.metrics() if "seconds" in line]
        seconds = [beyond(line) for line in lines]
        return {
            "load": round(load, 2),
            "seconds": [round(one, 2) for one in seconds],
            "head": made.heads.record().hash,
        }


def beyond(line: Mapping[str, Any]) -> float:
    """A round's seconds, less the training of its slowest node."""
    trained = max(node["metrics"]["train_seconds"] for node in line["nodes"].values())
    return float(line["seconds"] - trained)


def main() -> None:
    header = machine()
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(TURNS):
        for kind in KINDS:
            runs[kind].append(run(kind))
            print(kind, runs[kind][-1], flush=True)
    assert len({one["head"] for made in runs.values() for one in made}) == 1
    later = {kind: [s for one in made for s in one["seconds"][1:]] for kind, made in runs.items()}
    medians = {kind: round(statistics.median(values), 2) for kind, values in later.items()}
    results = {
        "rounds": ROUNDS,
        "runs": runs,
        "median_seconds": medians,
        "cold_to_warm": round(medians["cold"] / medians["warm"], 2),
        "cold_to_worker_alone": round(medians["cold"] / medians["worker alone"], 2),
    }
    record("warm", header, SEED, results)
    print(json.dumps({name: results[name] for name in results if name != "runs"}))


if __name__ == "__main__":
    main()
