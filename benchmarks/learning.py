"""What exact aggregation is worth on real text, at the same budget for everyone.

    python benchmarks/learning.py [--data ../shared/data] [--problem clinc150|e2e] [--seeds 3]

Compared, with the same steps and examples for each node: FedEx-LoRA, FedIT (A and B averaged
separately), every node alone, and one model on all the data (same steps, batches as large as all
nodes' together). Two problems: CLINC150 intents cut by domain over five nodes, on a MiniLM encoder,
where each node sees 30 of 150 classes; and E2E restaurant descriptions cut by restaurant over three
nodes, on SmolLM2-135M. Every model is measured on the same sample of the common test set. Writes
results/learning.json after each seed, and prints it as a table. Seeds that are recorded there are
not run again: delete the file to begin anew.
"""

import argparse
import csv
import json
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import RESULTS, machine, record

from fedlora.cli import engines
from fedlora.models.evaluation import evaluate
from fedlora.models.examples import encode
from fedlora.models.files import read_rows
from fedlora.models.threads import set_threads
from fedlora.models.tuned import shared
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory

Row = dict[str, str]
METRICS = ("eval_loss", "eval_accuracy")


@dataclass(frozen=True)
class Problem:
    """A data set cut over nodes.

    Attributes:
        sections: of the recipe: model, lora, train, data, federation.
        nodes: private rows by node.
        test: common test rows.
    """

    name: str
    sections: Mapping[str, Mapping[str, Any]]
    nodes: Mapping[str, Sequence[Row]]
    test: Sequence[Row]


def clinc150(data: Path, seed: int) -> Problem:
    """Intents: two domains a node, so that most classes are unknown to each."""
    content = json.loads((data / "clinc150" / "data_full.json").read_text())
    domains = json.loads((data / "clinc150" / "domains.json").read_text())
    names = sorted(domains)
    node_of = {
        intent: f"node-{position // 2}"
        for position, name in enumerate(names)
        for intent in domains[name]
    }
    nodes: dict[str, list[Row]] = {f"node-{i}": [] for i in range(len(names) // 2)}
    for text, intent in content["train"]:
        nodes[node_of[intent]].append({"text": text, "label": intent})
    rows = [{"text": text, "label": intent} for text, intent in content["test"]]
    return Problem(
        "clinc150",
        {
            "model": {
                "source": "minilm-l6",
                "task": "sequence-classification",
                "labels": sorted(node_of),
            },
            "lora": {"rank": 8, "alpha": 16.0},
            "train": {"steps": 8, "batch_size": 16, "learning_rate": 5e-3, "max_length": 64},
            "data": {"format": "classification", "heldout": 0.0},
            "federation": {"rounds": 20},
        },
        nodes,
        random.Random(seed).sample(rows, 500),
    )


def e2e(data: Path, seed: int) -> Problem:
    """Table to text: every restaurant belongs to one node."""
    folder = data / "e2e_nlg"
    train, test = (_e2e_rows(folder / f"{name}.csv") for name in ("devset", "testset_w_refs"))
    restaurants = sorted({row["restaurant"] for row in train})
    nodes: dict[str, list[Row]] = {f"node-{i}": [] for i in range(3)}
    for row in train:
        nodes[f"node-{restaurants.index(row['restaurant']) % 3}"].append(row)
    return Problem(
        "e2e",
        {
            "model": {"source": "smollm2-135m"},
            "lora": {"rank": 8, "alpha": 16.0},
            "train": {"steps": 4, "batch_size": 4, "learning_rate": 1e-3, "max_length": 192},
            "data": {"format": "instruction", "heldout": 0.0},
            "federation": {"rounds": 4},
        },
        nodes,
        random.Random(seed).sample(test, 60),
    )


def _e2e_rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {
                "instruction": row["mr"],
                "response": row["ref"],
                "restaurant": row["mr"].partition("name[")[2].partition("]")[0],
            }
            for row in csv.DictReader(file)
        ]


def runs(problem: Problem, seed: int) -> Iterator[tuple[str, Mapping[str, Sequence[Row]], Recipe]]:
    """Method, data by node, and recipe of each run."""
    train, rounds = problem.sections["train"], problem.sections["federation"]["rounds"]
    for strategy in ("fedex-lora", "fedit"):
        federation = {"strategy": strategy, "min_nodes": len(problem.nodes), "rounds": rounds}
        yield strategy, problem.nodes, _recipe(problem, seed, federation, train)
    alone = {"min_nodes": 1, "rounds": 1}
    steps = rounds * train["steps"]
    pooled = {"all": [row for rows in problem.nodes.values() for row in rows]}
    large = {**train, "steps": steps, "batch_size": train["batch_size"] * len(problem.nodes)}
    yield "centralized", pooled, _recipe(problem, seed, alone, large)
    for name, rows in problem.nodes.items():
        yield "local", {name: rows}, _recipe(problem, seed, alone, {**train, "steps": steps})


def _recipe(
    problem: Problem, seed: int, federation: Mapping[str, Any], train: Mapping[str, Any]
) -> Recipe:
    sections = {**problem.sections, "federation": federation, "train": train}
    return Recipe.model_validate({"name": problem.name, "seed": seed, **sections})


def score(
    nodes: Mapping[str, Sequence[Row]], test: Sequence[Row], recipe: Recipe
) -> dict[str, float]:
    """Run it, and measure its last head on the common test rows."""
    with tempfile.TemporaryDirectory() as scratch:
        places = {name: _write(Path(scratch) / f"{name}.jsonl", nodes[name]) for name in nodes}
        content = recipe.model_dump()
        content["node"] = [{"name": name, "data": place} for name, place in places.items()]
        full = Recipe.model_validate(content)
        run = engines.simulate(full, Path(scratch) / "run", "inprocess", lambda event: None)
        common = Path(_write(Path(scratch) / "test.jsonl", test))
        return last_head(run, read_rows(common, full.data))


def last_head(run: RunDirectory, rows: Sequence[Any]) -> dict[str, float]:
    """Measured once, at the end: on a small model, evaluating costs more than training."""
    recipe, record = run.recipe, run.heads.record()
    tuned = shared(recipe.model.source, recipe.model, recipe.lora)
    tuned.become(run.heads.adapter(record.round), record.history, run.heads.residuals)
    encoded = encode(rows, tuned.tokenizer, recipe.train.max_length, recipe.model.labels)
    report = evaluate(tuned.model, encoded.examples, 32)
    return {"eval_loss": report.loss, "eval_accuracy": report.accuracy}


def _write(path: Path, rows: Sequence[Row]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def measure(
    problem_of: Any, data: Path, seeds: int, found: dict[str, dict[str, list[float]]]
) -> Iterator[dict[str, dict[str, list[float]]]]:
    """Metrics by method, one value a seed; a method of several runs counts with their mean.

    Goes on from what was found before, and yields what is known after each seed.
    """
    before = [values for metrics in found.values() for values in metrics.values()]
    for seed in range(min(map(len, before), default=0), seeds):
        problem = problem_of(data, seed)
        scores: dict[str, list[dict[str, float]]] = {}
        for method, nodes, recipe in runs(problem, seed):
            scores.setdefault(method, []).append(score(nodes, problem.test, recipe))
            print(f"{problem.name} seed {seed} {method}: {scores[method][-1]}", flush=True)
        for method, several in scores.items():
            for metric in METRICS:
                mean = statistics.mean(one[metric] for one in several)
                found.setdefault(method, {}).setdefault(metric, []).append(mean)
        yield found


def table(name: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Markdown: mean and standard deviation over the seeds."""
    lines = [f"{name} | " + " | ".join(METRICS), "--- | --- | ---"]
    for method, metrics in found.items():
        cells = [
            f"{statistics.mean(metrics[m]):.4f} ± {statistics.pstdev(metrics[m]):.4f}"
            for m in METRICS
        ]
        lines.append(f"{method} | " + " | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


PROBLEMS = {"clinc150": clinc150, "e2e": e2e}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--problem", choices=PROBLEMS, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"{options.data} is no folder; name the one with the data sets by --data")
    set_threads(None)
    header = machine()
    for name in options.problem or PROBLEMS:
        for found in measure(PROBLEMS[name], options.data, options.seeds, recorded().get(name, {})):
            record("learning", header, 0, {**recorded(), name: found})
        print(table(name, recorded()[name]))


def recorded() -> dict[str, Any]:
    """The results by problem; read anew each time, since two problems may run side by side."""
    path = RESULTS / "learning.json"
    return dict(json.loads(path.read_text())["results"]) if path.exists() else {}


if __name__ == "__main__":
    main()
