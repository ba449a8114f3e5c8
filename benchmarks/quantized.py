"""Quality, size and speed of quantized bases: one nested store against copies and other libraries.

    python benchmarks/quantized.py [quality | speed]

Perplexity of SmolLM2-135M on the first 1,024 tokens of the GNU GPL version 3, as Debian installs it
(/usr/share/common-licenses/GPL-3), in windows of 512. The checkpoint itself lies on a 4-bit grid of
groups of 32 (Q4_1), so groups of 64 are compared and nothing else. Calibration: Dolly questions and
answers, if FEDLORA_CALIBRATION names a JSON file of them. What is not installed is reported as
"unrun". Writes results/quantized.json; `quality` or `speed` alone keep the other half of it.
"""

import gc
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import RESULTS, interleaved, machine, record
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fedlora.adapters import ModelError
from fedlora.models.loading import load_base, load_tokenizer
from fedlora.models.lora import attach, initial_adapter, write_adapter
from fedlora.models.nested import WIDTHS
from fedlora.models.optional import int8_weight_only, nf4
from fedlora.models.quantizers import nested_layers, quantize
from fedlora.models.source import resolve
from fedlora.models.subnet import Subnet, apply
from fedlora.models.threads import set_threads
from fedlora.recipes.schema import LoraSection, ModelSection

TEXT = Path("/usr/share/common-licenses/GPL-3")
MODEL = ModelSection(source="smollm2-135m")
TOKENS, WINDOW, GROUP = 1024, 512, 64
CALIBRATION = (20, 256)  # sequences, tokens
STEP_TOKENS, REPEATS = 256, 7
MIB = 2**20


def main() -> None:
    set_threads(None)
    header = machine()
    path = RESULTS / "quantized.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    wanted = sys.argv[1:] or ["quality", "speed"]
    if "quality" in wanted:
        results["quality"] = quality()
    if "speed" in wanted:
        results["speed"] = speed()
    print(json.dumps(results, indent=1))
    print(record("quantized", header, 0, results))


def quality() -> dict[str, Any]:
    """Perplexity, and size of the linear layers in MiB, by variant."""
    ids = tokenizer()(TEXT.read_text(encoding="utf-8"), verbose=False)["input_ids"][:TOKENS]
    text = torch.tensor(ids)
    found: dict[str, Any] = {}
    for name, variant in variants():
        base = opened()
        try:
            variant(base)
        except Exception as error:  # a library that is missing or doesn't work here costs one row
            found[name] = f"unrun: {error}"
            continue
        rows = {name: None} if not nested_layers(base) else {f"{name} {b}": b for b in WIDTHS}
        for row, bits in rows.items():
            if bits is not None:
                apply(base, Subnet.uniform(list(nested_layers(base)), bits))
            found[row] = {"perplexity": perplexity(base, text), "mib": size(base) / MIB}
            print(row, found[row], flush=True)
        del base
        gc.collect()
    return found


def variants() -> Iterator[tuple[str, Callable[[PreTrainedModel], None]]]:
    """Each a function that quantizes a base in place."""
    yield "float32", lambda base: None
    for method in ("rtn", "hqq", "gptq"):
        yield f"nested {method}", lambda base, m=method: nested(base, m)  # type: ignore[misc]
    for bits in WIDTHS:
        yield f"rtn copy {bits}", lambda base, b=bits: copy_of(base, b, 0)  # type: ignore[misc]
        yield f"hqq copy {bits}", lambda base, b=bits: copy_of(base, b, 20)  # type: ignore[misc]
    yield "bitsandbytes nf4", lambda base: nf4(base, linears(base), GROUP)
    yield "torchao int8", lambda base: int8_weight_only(base, linears(base))
    yield "optimum-quanto int4", quanto


def nested(base: PreTrainedModel, method: str) -> None:
    quantize(base, linears(base), method, GROUP, 8, calibration() if method == "gptq" else None)  # type: ignore[arg-type]


def copy_of(base: PreTrainedModel, bits: int, steps: int) -> None:
    """A grid of its own for one width, min-max or with its zero moved; held as dense float32."""
    top = 2**bits - 1
    for name in linears(base):
        weight = base.get_submodule(name).weight.data
        for part in weight.view(-1, GROUP).split(2048):
            least, greatest = part.amin(-1, keepdim=True), part.amax(-1, keepdim=True)
            scale = (greatest - least).clamp(min=1e-30) / top
            zero, best, error = least, least, torch.full_like(least, torch.inf)
            for _ in range(steps + 1):
                codes = ((part - zero) / scale).round().clamp(0, top)
                left = part - (codes * scale + zero)
                now = left.abs().mean(-1, keepdim=True)
                best = torch.where(now < error, zero, best)
                error = torch.minimum(now, error)
                zero = zero + left.mean(-1, keepdim=True)
            scale, best = scale.half().float(), best.half().float()
            part.copy_(
                ((part - best) / scale.clamp(min=1e-30)).round().clamp(0, top) * scale + best
            )


def quanto(base: PreTrainedModel) -> None:
    from optimum.quanto import freeze, qint4
    from optimum.quanto import quantize as quantize_modules

    quantize_modules(base, weights=qint4, exclude=["lm_head", "*embed_tokens"])
    freeze(base)


def perplexity(base: PreTrainedModel, text: Tensor) -> float:
    total, count = 0.0, 0
    with torch.inference_mode():
        for window in text.split(WINDOW):
            logits = base(input_ids=window[None]).logits[0, :-1].float()
            total += F.cross_entropy(logits, window[1:], reduction="sum").item()
            count += len(window) - 1
    return math.exp(total / count)


def size(base: PreTrainedModel) -> int:
    """Bytes of the linear layers' weights: codes and scales, whoever keeps them."""
    layers = nested_layers(base).values()
    if layers:
        return sum(layer.store_bytes for layer in layers)
    return sum(held(base.get_submodule(name).weight) for name in linears(base))


def held(tensor: Any) -> int:
    if hasattr(tensor, "__tensor_flatten__"):  # torchao, quanto
        return sum(held(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    state = getattr(tensor, "quant_state", None)  # bitsandbytes
    return int(tensor.nbytes + (state.absmax.nbytes if state else 0))


def speed() -> dict[str, Any]:
    """Seconds of a training step of 256 tokens and of decoding one token, and ratios to float32."""
    models = dict(trainables())
    ids = torch.arange(STEP_TOKENS)[None] + 1000
    results: dict[str, Any] = {"threads": torch.get_num_threads()}
    for kind, run in {"train": train_step, "decode": decode}.items():
        runs = {name: (lambda m=model, r=run: r(m, ids)) for name, model in models.items()}
        seconds = interleaved(runs, REPEATS)
        results[kind] = {
            name: {
                "seconds": median(times),
                "to_float32": median(a / b for a, b in zip(times, seconds["float32"], strict=True)),
            }
            for name, times in seconds.items()
        }
    return results


def trainables() -> Iterator[tuple[str, nn.Module]]:
    """Models with an adapter of rank 8 on all linear layers."""
    for name in ("float32", "bfloat16", "nested 8", "nested 4", "nested 4 of 8"):
        base = opened()
        if name == "bfloat16":
            base = base.to(torch.bfloat16)
        if name.startswith("nested"):
            quantize(base, linears(base), "rtn", GROUP, 4 if name == "nested 4" else 8)
            apply(base, Subnet.uniform(linears(base), int(name.split()[1])))
        model = attach(base, LoraSection(rank=8), MODEL)
        write_adapter(model, initial_adapter(model, seed=0))
        yield name, model


def train_step(model: nn.Module, ids: Tensor) -> None:
    model.train()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    model.zero_grad()


def decode(model: nn.Module, ids: Tensor) -> None:
    """One token on its own: what the weights cost, without a cache's share."""
    model.eval()
    with torch.inference_mode():
        model(input_ids=ids[:, :1], use_cache=False)


def calibration() -> Tensor:
    path = os.environ.get("FEDLORA_CALIBRATION")
    if path is None:
        raise ModelError("FEDLORA_CALIBRATION names no file of questions and answers")
    rows = json.loads(Path(path).read_text(encoding="utf-8"))
    texts = ("\n".join(str(value) for value in row.values() if value) for row in rows)
    ids = tokenizer()("\n\n".join(texts), verbose=False)["input_ids"]
    return torch.tensor(ids[: math.prod(CALIBRATION)]).view(CALIBRATION)


def opened() -> PreTrainedModel:
    return load_base(resolve(MODEL.source), MODEL)


def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(resolve(MODEL.source))


def linears(base: PreTrainedModel) -> list[str]:
    modules = base.named_modules()
    return [n for n, m in modules if isinstance(m, nn.Linear) and n != "lm_head"]


if __name__ == "__main__":
    main()
