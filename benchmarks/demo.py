"""The demo, timed: what `make demo` shows, kept as a record.

    python benchmarks/demo.py

Runs `fedlora simulate demo --compare` as a user does. Writes results/demo.json.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import machine, record


def main() -> None:
    header = machine()
    fedlora = Path(sys.executable).parent / "fedlora"
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "demo"
        began = time.perf_counter()
        subprocess.run([fedlora, "simulate", "demo", "--compare", "--run-dir", run], check=True)
        minutes = (time.perf_counter() - began) / 60
        compared = json.loads((run / "compare.json").read_text())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    del compared["example"]
    results = {"minutes": minutes, "peak_mb_of_a_process": peak, **compared}
    print(record("demo", header, 0, results))


if __name__ == "__main__":
    main()
