"""Where the residual of exact aggregation goes on quantized nodes, and what gets lost elsewhere.

    python benchmarks/precision.py [--rounds 10]

One federation of a float32, an 8-bit and a 4-bit node on the demo's text (SmolLM2-135M), once with
plain and once with pooled adapters. Then, for each width, the model that a node has in each way of
keeping the residuals, against the exact one: dequantized weights plus the whole residual, dense.

Weight error: of the change that was achieved, relative to the residual. KL: mean over the tokens of
the demo's questions, in nats, from the exact model. Writes results/precision.json.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from common import machine, record
from torch import Tensor
from torch.nn import functional as F

from fedlora.adapters import Residual, spread_adapter, spread_residual
from fedlora.cli import engines
from fedlora.models.examples import encode
from fedlora.models.files import read_rows
from fedlora.models.grids import round_to_nearest
from fedlora.models.loading import load_base, load_tokenizer
from fedlora.models.nested import NestedLinear
from fedlora.models.quantized_model import QuantizedModel
from fedlora.models.quantizers import nested_layers
from fedlora.models.source import resolve
from fedlora.models.threads import set_threads
from fedlora.recipes.loading import load_recipe
from fedlora.recipes.schema import Recipe
from fedlora.server.rundir import RunDirectory

WIDTHS = (8, 4)
Weights = Mapping[str, Tensor]


def recipe(kind: str, rounds: int) -> Recipe:
    sections = load_recipe("demo").model_dump()
    sections["federation"] |= {"rounds": rounds}
    sections["train"] |= {"steps": 2, "learning_rate": 3e-3 if kind == "plain" else 9e-3}
    sections["lora"] |= {"rank": 8, "alpha": 16.0, "kind": kind}
    sections["quantize"] |= {"side_rank": 16}
    for node, precision in zip(sections["node"], ("fp32", "int8", "int4"), strict=True):
        node["precision"] = precision
    return Recipe.model_validate(sections)


def requantized(weight: Tensor, bits: int, group: int) -> Tensor:
    """The weight, rounded to a new grid of its own."""
    groups = weight.view(len(weight), -1, group)
    grid = round_to_nearest(groups)
    scale, zero = grid.scale.squeeze(-1).half(), grid.zero.squeeze(-1).half()
    return NestedLinear(grid.codes(groups).to(torch.uint8), scale, zero, group).dense(bits)


def residuals(run: RunDirectory) -> list[dict[str, Residual]]:
    pooling = run.recipe.lora.pooling
    return [
        {n: spread_residual(one, pooling) for n, one in run.heads.residuals(digest).items()}
        for digest in run.heads.record().history
    ]


def ways(run: RunDirectory, bits: int, frozen: Weights) -> dict[str, Weights]:
    """Frozen weights by the way in which the residuals are kept; "exact" is what all aim at."""
    rounds, group = residuals(run), run.recipe.quantize.group
    total = {n: sum(one[n].matrix() for one in rounds if n in one) for n in frozen}
    made = {
        "exact": {n: frozen[n] + total[n] for n in frozen},
        "dropped": dict(frozen),
        "bf16 weights": {n: (frozen[n].bfloat16() + total[n].bfloat16()).double() for n in frozen},
    }
    codes = {n: weight.float() for n, weight in frozen.items()}
    for one in rounds:
        for name, residual in one.items():
            changed = codes[name] + residual.matrix().float()
            codes[name] = requantized(changed, bits, group)
    made["into the codes, each round"] = {n: weight.double() for n, weight in codes.items()}
    if run.recipe.lora.kind == "plain":
        for rank in (4, 16, None):
            cut = {n: Residual(total[n]).recompressed(rank)[0].matrix() for n in frozen}
            name = f"side path, rank {rank}" if rank else "side path, whole"
            made[name] = {n: frozen[n] + cut[n].float().double() for n in frozen}
    return made


def logits(run: RunDirectory, weights: Weights) -> Tensor:
    """Of the head on these frozen weights, for every token of the demo's questions."""
    section, head = run.recipe.model, run.heads.record()
    folder = resolve(section.source)
    adapter = spread_adapter(run.heads.adapter(head.round), run.recipe.lora.pooling)
    base = load_base(folder, section)
    rows = [row for node in run.recipe.node for row in read_rows(Path(node.data), run.recipe.data)]
    examples = encode(rows[::6], load_tokenizer(folder), 96, ()).examples
    with torch.no_grad():
        for name, weight in weights.items():
            changed = weight + adapter.factors[name].matrix()
            base.get_parameter(f"{name}.weight").copy_(changed)
        return torch.cat([base(torch.tensor([one.input_ids])).logits[0] for one in examples])


def as_nodes_do(run: RunDirectory, bits: int) -> tuple[Weights, float]:
    """Dequantized weights of a node, and how far its offsets are from the residuals they hold."""
    parts = run.recipe
    model = QuantizedModel(parts.model.source, parts.model, parts.lora, parts.quantize, bits)
    layers = nested_layers(model.model)
    frozen = {name: layer.dense(bits).double() for name, layer in layers.items()}
    if parts.lora.kind == "plain":
        return frozen, 0.0
    head = run.heads.record()
    subnet = dict.fromkeys(layers, bits)
    adapter = run.heads.adapter(head.round)
    model.become(adapter, subnet, head.history, run.heads.residuals, {})
    rounds = residuals(run)
    error = size = 0.0
    for name, layer in layers.items():
        total = sum(one[name].matrix() for one in rounds if name in one)
        error += float((layer.dense(bits).double() - frozen[name] - total).square().sum())
        size += float(total.square().sum())
    return frozen, (error / size) ** 0.5


def compare(run: RunDirectory, bits: int) -> dict[str, dict[str, float]]:
    frozen, offset_error = as_nodes_do(run, bits)
    made = ways(run, bits, frozen)
    exact = made.pop("exact")
    reference = F.log_softmax(logits(run, exact).double(), dim=-1)
    size = sum(float((exact[n] - frozen[n]).square().sum()) for n in frozen) ** 0.5
    found = {}
    for name, weights in made.items():
        error = sum(float((weights[n] - exact[n]).square().sum()) for n in frozen) ** 0.5
        scored = F.log_softmax(logits(run, weights).double(), dim=-1)
        kl = float((reference.exp() * (reference - scored)).sum(-1).mean())
        found[name] = {"weight_error": error / size, "kl": kl}
    if run.recipe.lora.kind == "pooled":
        found["group offsets"] = {"weight_error": offset_error, "kl": 0.0}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    set_threads(None)
    header, results = machine(), {}
    for kind in ("plain", "pooled"):
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch) / "run"
            run = engines.simulate(
                recipe(kind, options.rounds), place, "inprocess", lambda event: None
            )
            records = [run.heads.record(round) for round in run.heads.rounds()]
            told = [line["metrics"] for line in run.metrics() if "metrics" in line]
            results[kind] = {
                "rounds": options.rounds,
                "worst_receipt": max(one.proceedings.worst_receipt for one in records),
                "side_dropped": [one.get("side_dropped", 0.0) for one in told],
                "train_loss": [one["train_loss"] for one in told],
                "by_width": {str(bits): compare(run, bits) for bits in WIDTHS},
            }
        print(json.dumps({kind: results[kind]}, indent=1), flush=True)
        record("precision", header, 0, results)


if __name__ == "__main__":
    main()
