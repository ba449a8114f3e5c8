"""One once-for-all federation against one federation per width, and mixed nodes against none.

    python benchmarks/subnets.py [--data ../shared/data] [--seeds 3] [--rounds 6]

E2E restaurant descriptions over three nodes, on SmolLM2-135M, widths 8, 4 and 3 (see learning.py
for the data). At equal steps of all nodes together:

(a) one once-for-all run (balanced draws), one with uniform draws, and a run for each width that has
    a third of the rounds: held-out loss with all modules at each width;
(b) the same figures say what balanced draws are worth at the extremes, 8 and 3 bits;
(c) shared adapters, one node in float32, one at 8 bits and one at 4: the mixed federation, the two
    wide nodes alone (the weak one dropped), and all three at 4 bits; held-out loss at 4 bits and in
    float32.

Writes results/subnets.json after each seed.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, machine, record
from learning import Row, _write, e2e

from fedlora.cli import engines
from fedlora.models.evaluation import evaluate
from fedlora.models.examples import Example, encode
from fedlora.models.files import read_rows
from fedlora.models.quantized_model import quantized
from fedlora.models.threads import set_threads
from fedlora.models.tuned import shared
from fedlora.protos import decode
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory
from fedlora.server.supernets import Supernet
from fedlora.strategies.payloads import read_residual_tensors
from fedlora.strategies.sides import Sides

WIDTHS = (8, 4, 3)
Score = Callable[[RunDirectory, Sequence[Example]], dict[str, float]]


def at_each_width(run: RunDirectory, examples: Sequence[Example]) -> dict[str, float]:
    """Of a once-for-all run."""
    supernet = Supernet(run)
    return {
        f"{bits} bit": evaluate(
            supernet.at(dict.fromkeys(supernet.modules, bits)), examples, 16
        ).loss
        for bits in supernet.widths
    }


def shared_at(*widths: int) -> Score:
    """Of a run with one adapter: as a node of these widths would have it; 32 is float32."""

    def score(run: RunDirectory, examples: Sequence[Example]) -> dict[str, float]:
        recipe, head, found = run.recipe, run.heads.record(), {}
        adapter = run.heads.adapter(head.round)
        made = Sides(run.heads, recipe.quantize.side_rank).of(head)
        side = read_residual_tensors(decode(made.payload, made.proto.manifest))
        parts = recipe.model.source, recipe.model, recipe.lora
        for bits in widths:
            if bits == 32:
                tuned = shared(*parts)
                tuned.become(adapter, head.history, run.heads.residuals)
                found["float32"] = evaluate(tuned.model, examples, 16).loss
                continue
            held = quantized(*parts, recipe.quantize, bits)
            subnet = dict.fromkeys(adapter.factors, bits)
            held.become(adapter, subnet, head.history, run.heads.residuals, side)
            found[f"{bits} bit"] = evaluate(held.model, examples, 16).loss
        return found

    return score


def runs(rounds: int) -> dict[str, tuple[Mapping[str, Any], Sequence[str], int, Score]]:
    """By name: the quantize section, each node's precision, rounds, and how it is scored."""
    every, low = ("int8",) * 3, {8: "int8", 4: "int4", 3: "int3"}
    per_width = {"adapters": "per-width", "widths": list(WIDTHS)}
    found: dict[str, tuple[Mapping[str, Any], Sequence[str], int, Score]] = {
        "once for all, balanced": (per_width, every, rounds, at_each_width),
        "once for all, uniform": (
            {**per_width, "schedule": "uniform"},
            every,
            rounds,
            at_each_width,
        ),
    }
    for bits in WIDTHS:
        third = max(1, rounds // len(WIDTHS))
        found[f"{bits} bit alone"] = ({}, (low[bits],) * 3, third, shared_at(bits))
    found["mixed nodes"] = ({}, ("fp32", "int8", "int4"), rounds, shared_at(32, 8, 4))
    found["weak node dropped"] = ({}, ("fp32", "int8"), rounds, shared_at(32, 8, 4))
    found["all at 4 bit"] = ({}, ("int4",) * 3, rounds, shared_at(32, 8, 4))
    return found


def measure(data: Path, seed: int, rounds: int) -> dict[str, dict[str, float]]:
    problem, found = e2e(data, seed), {}
    for name, (quantize, precisions, count, score) in runs(rounds).items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            nodes = [
                {
                    "name": node,
                    "data": _write(folder / f"{node}.jsonl", problem.nodes[node]),
                    "precision": precision,
                }
                for node, precision in zip(problem.nodes, precisions, strict=False)
            ]
            content = {
                "name": "subnets",
                "seed": seed,
                **problem.sections,
                "quantize": {"method": "hqq", **quantize},
                "federation": {"rounds": count, "min_nodes": len(nodes)},
                "node": nodes,
            }
            recipe = Recipe.model_validate(content)
            run = engines.simulate(recipe, folder / "run", "inprocess", lambda event: None)
            found[name] = score(run, _encoded(folder, problem.test, recipe))
            print(f"seed {seed} {name}: {found[name]}", flush=True)
    return found


def _encoded(folder: Path, test: Sequence[Row], recipe: Recipe) -> Sequence[Example]:
    tokenizer = shared(recipe.model.source, recipe.model, recipe.lora).tokenizer
    rows = read_rows(Path(_write(folder / "test.jsonl", test)), recipe.data)
    return encode(rows, tokenizer, recipe.train.max_length, ()).examples


def table(seeds: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    """Markdown: mean and standard deviation of the loss over the seeds."""
    columns = ("float32", *(f"{bits} bit" for bits in WIDTHS))
    lines = ["| " + " | ".join(["run", *columns]) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in seeds[0]:
        cells = []
        for column in columns:
            values = [one[name][column] for one in seeds if column in one[name]]
            spread = f" ± {statistics.pstdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}" if values else "")
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"{options.data} is no folder; name the one with the data sets by --data")
    set_threads(None)
    header, seeds = machine(), []
    for seed in range(options.seeds):
        seeds.append(measure(options.data, seed, options.rounds))
        record("subnets", header, 0, {"rounds": options.rounds, "by_seed": seeds})
    print(table(seeds))
    print(json.dumps({"written": str(RESULTS / "subnets.json")}))


if __name__ == "__main__":
    main()
