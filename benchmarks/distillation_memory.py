"""Peak memory of a distillation step: a few logits at a time, against whole logits.

    python benchmarks/distillation_memory.py

Every kind runs in a fresh process and is measured over two steps: resident memory at its peak, and
what of that the steps brought: gradients, moments, activations and logits, not the weights. All
kinds have the allocator's setting of `fedlora distill`.

- chunked, whole: a student of 54 million parameters under SmolLM2-135M, 8 texts of 256 tokens, all
  learned, a vocabulary of 49,152. Both compute one loss; the tests hold its gradients equal.
- LoRA, LoRA student: the 135M model itself, plain training of an adapter of rank 8, and the same
  adapter taught by another one on the same weights; one text of 256 tokens.

Writes results/distillation_memory.json.
"""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from common import machine, record
from torch.nn import functional as F

from fedlora.client.distillation.hidden import label_hidden, label_targets, output_head
from fedlora.client.distillation.loss import Objective, backward
from fedlora.client.distillation.personal import add_student
from fedlora.client.distillation.pruning import importance, prune
from fedlora.client.distillation.shapes import shape_for
from fedlora.client.distillation.teachers import AdapterTeacher, ModelTeacher
from fedlora.models.allocator import map_tensors
from fedlora.models.batches import Batch
from fedlora.models.examples import Example
from fedlora.models.loading import load_base
from fedlora.models.lora import attach, initial_adapter, write_adapter
from fedlora.models.losses import label_logits, loss_sum
from fedlora.models.source import resolve
from fedlora.models.threads import set_threads
from fedlora.recipes.schema import LoraSection, ModelSection

RATIO, RANK, LENGTH, ROWS = 0.4, 8, 256, 8
MODEL = ModelSection(source="smollm2-135m")

Step = Callable[[], None]


def text(rows: int) -> Batch:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 40_000, (rows, LENGTH + 1), generator=draw)
    return Batch(ids, torch.ones_like(ids), ids)


def own_student(chunked: bool) -> tuple[Any, Step]:
    """A smaller student under a whole teacher."""
    teacher, batch = load_base(resolve(MODEL.source), MODEL), text(ROWS)
    size = sum(parameter.numel() for parameter in teacher.parameters())
    sample = [Example(tuple(row), tuple(row)) for row in text(1).input_ids[:, :33].tolist()]
    shape = shape_for(teacher.config, round(RATIO * size))
    student = prune(teacher, importance(teacher, sample), shape).train()
    speaks = ModelTeacher(teacher)

    def few() -> None:
        soft, targets = speaks.soft(batch, []), label_targets(batch)
        hidden, weights = label_hidden(student, batch), torch.ones(len(targets))
        head = output_head(student)
        backward(hidden, head, targets, [(soft, weights)], Objective(), len(targets))

    def whole() -> None:
        with torch.no_grad():
            taught, _ = label_logits(teacher, batch)
        logits, targets = label_logits(student, batch)
        divergence = F.kl_div(
            logits.log_softmax(-1), taught.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        (0.5 * divergence + 0.5 * F.cross_entropy(logits, targets)).backward()

    return student, few if chunked else whole


def own_adapter(taught: bool) -> tuple[Any, Step]:
    """One model: an adapter that learns, alone or from another one."""
    base = load_base(resolve(MODEL.source), MODEL)
    model = attach(base, LoraSection(rank=RANK), MODEL)
    write_adapter(model, initial_adapter(model, seed=0))
    batch = text(1)

    def alone() -> None:
        (loss_sum(model, batch) / LENGTH).backward()

    if not taught:
        return model.train(), alone
    add_student(model, RANK, 0.0, seed=0)
    speaks = AdapterTeacher(model.train())

    def held() -> None:
        soft, targets = speaks.soft(batch, []), label_targets(batch)
        hidden, weights = label_hidden(model, batch), torch.ones(len(targets))
        head = output_head(model)
        backward(hidden, head, targets, [(soft, weights)], Objective(), len(targets))

    return model, held


KINDS: dict[str, Callable[[], tuple[Any, Step]]] = {
    "chunked": lambda: own_student(True),
    "whole": lambda: own_student(False),
    "LoRA": lambda: own_adapter(False),
    "LoRA student": lambda: own_adapter(True),
}


def measured(kind: str) -> dict[str, float]:
    """Megabytes of one kind, in this process."""
    set_threads(None)
    map_tensors()
    model, step = KINDS[kind]()
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    gc.collect()
    opened = psutil.Process().memory_info().rss / 1e6
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of opening
    for _ in range(2):  # the second has the optimizer's moments
        step()
        optimizer.step()
        optimizer.zero_grad()
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = 1.024e-3 * next(float(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return {"peak_mb": peak, "step_mb": peak - opened}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1])))
        return
    header, results = machine(), {}
    for kind in KINDS:
        command = [sys.executable, __file__, kind]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results[kind] = json.loads(out.splitlines()[-1])
        print(kind, results[kind], flush=True)
    ratios = {
        f"{one} to {other}, {what}": results[one][what] / results[other][what]
        for one, other in (("chunked", "whole"), ("LoRA student", "LoRA"))
        for what in ("peak_mb", "step_mb")
    }
    record("distillation_memory", header, 0, {"kinds": results, "ratios": ratios})
    print(json.dumps(ratios, indent=1))


if __name__ == "__main__":
    main()
