"""What a teacher is worth to a student cut out of it, at equal steps and data.

    python benchmarks/distillation.py [--data ../shared/data] [--seeds 3] [--steps 100]

The teacher is SmolLM2-135M, tuned by a federated run of three nodes on E2E restaurant descriptions.
The student is pruned from it to 0.4 of its parameters, which is what the law of capacity gap names
(Zhang et al., 2025), and trained on the same text: by cross entropy alone, and by cross entropy and
the divergence from the teacher, half and half. Each seed has its own calibration text, order and
test sample. Beside that: bytes of the weights and tokens per second of teacher and student, which
take turns. Writes results/distillation.json after each seed.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from common import machine, median_ratio, record
from learning import e2e

from fedlora.cli import engines
from fedlora.cli.tuned import write_merged
from fedlora.client.distillation.lessons import CALIBRATION, count
from fedlora.client.distillation.loss import Objective
from fedlora.client.distillation.pruning import importance, prune
from fedlora.client.distillation.shapes import shape_for
from fedlora.client.distillation.teachers import ModelTeacher
from fedlora.client.distillation.training import Plan, Step, distil
from fedlora.models.batches import generator
from fedlora.models.evaluation import evaluate
from fedlora.models.examples import Example, encode
from fedlora.models.files import read_rows
from fedlora.models.loading import load_base, load_tokenizer
from fedlora.models.threads import set_threads
from fedlora.recipes.schema import DataSection, ModelSection, Recipe, TrainSection

RATIO, BATCH, LENGTH, RATE = 0.4, 8, 192, 5e-4
WAYS: Mapping[str, float] = {"cross entropy": 0.0, "cross entropy + divergence": 0.5}
DECODED, TURNS = 64, 3  # tokens, and how often each model writes them


def tuned(data: Path, scratch: Path) -> tuple[Path, Path]:
    """The teacher's folder, and one file with the text of all nodes."""
    problem = e2e(data, 0)
    files = {}
    for name, rows in problem.nodes.items():
        files[name] = scratch / f"{name}.jsonl"
        files[name].write_text("\n".join(map(json.dumps, rows)))
    recipe = Recipe.model_validate(
        {
            "name": "teacher",
            **problem.sections,
            "federation": {**problem.sections["federation"], "min_nodes": len(files)},
            "node": [{"name": name, "data": str(path)} for name, path in files.items()],
        }
    )
    run = engines.simulate(recipe, scratch / "run", "inprocess", lambda event: None)
    write_merged(run, None, scratch / "teacher")
    whole = scratch / "all.jsonl"
    whole.write_text("\n".join(path.read_text() for path in files.values()))
    return scratch / "teacher", whole


def examples(rows: Path, folder: Path) -> Sequence[Example]:
    read = read_rows(rows, DataSection())
    return encode(read, load_tokenizer(folder), LENGTH).examples


def students(
    teacher: Any, train: Sequence[Example], test: Sequence[Example], seed: int, steps: int
) -> dict[str, float]:
    """Held-out loss of each way to train the same pruned student."""
    order = torch.randperm(len(train), generator=generator(seed, "calibration")).tolist()
    calibration = [train[i] for i in order[:CALIBRATION]]
    shape = shape_for(teacher.config, round(RATIO * count(teacher)))
    start = prune(teacher, importance(teacher, calibration), shape)
    losses = {
        "teacher": evaluate(teacher, test, BATCH).loss,
        "pruned, untrained": evaluate(start, test, BATCH).loss,
    }
    for name, share in WAYS.items():
        student = copy.deepcopy(start)
        section = TrainSection(steps=steps, batch_size=BATCH, learning_rate=RATE)
        plan = Plan(section, Objective(share), seed=seed)
        began = time.perf_counter()
        distil(student, [ModelTeacher(teacher)], train, plan, on_step=_said)
        losses[name] = evaluate(student, test, BATCH).loss
        print(f"seed {seed}: {name} {losses[name]:.4f} in {time.perf_counter() - began:.0f} s")
    return losses


def use(teacher: Any, student: Any, prompt: Sequence[int]) -> dict[str, Any]:
    """Size and speed of both, taking turns."""
    ids = torch.tensor([prompt])
    seconds: dict[str, list[float]] = {"teacher": [], "student": []}
    for turn in range(TURNS + 1):
        for name, model in (("teacher", teacher), ("student", student)):
            began = time.perf_counter()
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=DECODED,
                max_new_tokens=DECODED,
            )
            if turn:  # the first is slow
                seconds[name].append(time.perf_counter() - began)
    return {
        "parameters": {"teacher": count(teacher), "student": count(student)},
        "weights_mb": {"teacher": 4e-6 * count(teacher), "student": 4e-6 * count(student)},
        "tokens_per_second": {
            name: DECODED / statistics.median(times) for name, times in seconds.items()
        },
        "student_to_teacher_speed": median_ratio(seconds["student"], seconds["teacher"]),
    }


def _said(step: Step) -> None:
    if step.step % 20 == 0:
        print(
            f"  step {step.step}: CE {step.cross_entropy:.3f}, KL {step.divergence:.3f}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"{options.data} is no folder; name the one with the data sets by --data")
    set_threads(None)
    header = machine()
    with tempfile.TemporaryDirectory() as scratch:
        folder, text = tuned(options.data, Path(scratch))
        teacher = load_base(folder, ModelSection(source=str(folder)))
        train = examples(text, folder)
        shape = shape_for(teacher.config, round(RATIO * count(teacher)))
        sized = prune(teacher, importance(teacher, train[:2]), shape)
        results: dict[str, Any] = {
            "steps": options.steps,
            "shape": str(shape),
            "use": use(teacher, sized, train[0].input_ids[:32]),
            "losses": [],
        }
        for seed in range(options.seeds):
            rows = Path(scratch) / "test.jsonl"
            rows.write_text("\n".join(map(json.dumps, e2e(options.data, seed).test)))
            found = students(teacher, train, examples(rows, folder), seed, options.steps)
            results["losses"].append(found)
            record("distillation", header, 0, results)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
