"""Peak memory of an in-process simulation: twelve nodes against three.

    python benchmarks/memory.py

Each count runs in a fresh process: SmolLM2-135M, rank 8 on all linear layers, two rounds of two
steps, every node with the same examples under another name. Writes results/memory.json.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, record

COUNTS = (3, 12)
DATA = Path(__file__).parents[1] / "recipes" / "data" / "demo" / "clinic.jsonl"


def peak(nodes: int) -> float:
    """Run a simulation of so many nodes in this process; peak resident memory in MB."""
    from fedlora.cli import engines
    from fedlora.recipes.schema import Recipe

    recipe = Recipe.model_validate(
        {
            "name": "memory",
            "model": {"source": "smollm2-135m"},
            "train": {"steps": 2, "batch_size": 4},
            "data": {"heldout": 0.0},
            "federation": {"rounds": 2, "min_nodes": nodes},
            "node": [{"name": f"node-{i:02d}", "data": str(DATA)} for i in range(nodes)],
        }
    )
    with tempfile.TemporaryDirectory() as scratch:
        engines.simulate(recipe, Path(scratch) / "run", "inprocess", lambda event: None)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    if len(sys.argv) > 1:
        print(peak(int(sys.argv[1])))
        return
    header = machine()
    peaks = {
        count: float(
            subprocess.run(
                [sys.executable, __file__, str(count)], check=True, capture_output=True, text=True
            ).stdout.split()[-1]
        )
        for count in COUNTS
    }
    few, many = peaks[COUNTS[0]], peaks[COUNTS[1]]
    results = {"peak_mb": peaks, "ratio_12_to_3": many / few}
    record("memory", header, 0, results)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
