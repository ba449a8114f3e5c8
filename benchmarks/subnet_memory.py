"""Peak memory of one training step at each precision, against the prediction.

    python benchmarks/subnet_memory.py

Each precision runs in a fresh process: SmolLM2-135M, rank 8 on all linear layers, one sequence of
256 tokens, all learned, two steps (the second with the optimizer's moments). What is measured is
the growth of resident memory over the process before the model, at its peak: opening, from a store
that was made before, and both steps. Writes results/subnet_memory.json.
"""

import copy
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
from common import machine, record
from transformers import AutoModelForCausalLM, PreTrainedModel

from fedlora.models.batches import Batch
from fedlora.models.loading import empty_base, load_base
from fedlora.models.lora import attach, initial_adapter, write_adapter
from fedlora.models.losses import loss_sum
from fedlora.models.memory import predict_memory
from fedlora.models.quantized_base import open_quantized, quantized_base
from fedlora.models.source import resolve
from fedlora.models.subnet import FLOAT, Subnet
from fedlora.models.threads import set_threads
from fedlora.recipes.schema import LoraSection, ModelSection, QuantizeSection

WIDTHS = (FLOAT, 8, 4)
RANK, BATCH, LENGTH, GROUP = 8, 1, 256, 64
MODEL = ModelSection(source="smollm2-135m")


def measured(bits: int, store: Path) -> dict[str, Any]:
    """Predicted and measured bytes at one precision, in this process."""
    set_threads(None)
    folder = resolve(MODEL.source)
    empty = empty_base(folder, MODEL)
    need = predict_memory(empty, Subnet.uniform(linears(empty), bits), RANK, BATCH, LENGTH, GROUP)
    warm_up(empty)
    before = psutil.Process().memory_info().rss
    base = load_base(folder, MODEL) if bits == FLOAT else open_quantized(store, folder, MODEL)
    model = attach(base, LoraSection(rank=RANK), MODEL)
    write_adapter(model, initial_adapter(model, seed=0))
    train(model)
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {
        "predicted": {**vars(need), "total": need.total},
        "measured": growth,
        "predicted_to_measured": need.total / growth,
    }


def linears(base: PreTrainedModel) -> list[str]:
    modules = base.named_modules()
    return [n for n, m in modules if isinstance(m, torch.nn.Linear) and n != "lm_head"]


def warm_up(empty: PreTrainedModel) -> None:
    """A step of a model of the same kind and no size, so that the libraries are all there."""
    config = copy.deepcopy(empty.config)
    config.update({"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1})
    config.update({"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64})
    train(attach(AutoModelForCausalLM.from_config(config), LoraSection(rank=1), MODEL))


def train(model: torch.nn.Module, steps: int = 2) -> None:
    ids = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) + 1000
    batch = Batch(ids, torch.ones_like(ids), ids)
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    model.train()
    for _ in range(steps):
        loss_sum(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measured(int(sys.argv[1]), Path(sys.argv[2]))))
        return
    header = machine()
    results, folder = {}, resolve(MODEL.source)
    for bits in WIDTHS:
        section = QuantizeSection(method="rtn", group=GROUP)
        parts = folder, MODEL, LoraSection(), section, bits
        store = folder if bits == FLOAT else quantized_base(*parts)
        command = [sys.executable, __file__, str(bits), str(store)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results[str(bits)] = json.loads(out.splitlines()[-1])
    ratio = results["4"]["measured"] / results[str(FLOAT)]["measured"]
    record("subnet_memory", header, 0, {**results, "ratio_4_to_float32": ratio})
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
