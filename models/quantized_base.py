"""Quantized bases on disk: made once for a base, and opened without its float32 weights.

Rounding needs the float32 weights for a moment, and what a process has once used it rarely gives
back. So a store is made in a process of its own and kept in the cache; whoever opens it holds codes
and scales alone. Where even that moment is too much, make the store on another machine.
"""

import hashlib
import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from pydantic import BaseModel
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from fedlora.adapters import FedloraError, ModelError
from fedlora.recipes.schema import LoraSection, ModelSection, QuantizeSection

from .cache import cache_folder, published
from .fingerprint import fingerprint
from .loading import empty_base, load_base, weightless
from .lora import attach, lora_layers, weight_count
from .nested import BUFFERS, STORED
from .quantizers import quantize
from .store import load_store, save_store

WAIT = 3600.0  # seconds; another process may be quantizing a large model
REFUSED = 3  # exit code
STORE, REST = "layers.safetensors", "rest.safetensors"
FORM = 1  # of the folder; another number makes every store anew


@lru_cache(maxsize=8)
def targets(folder: Path, model: ModelSection, lora: LoraSection) -> dict[str, int]:
    """The modules that are quantized, those of the adapter, and how many weights each has."""
    empty = attach(empty_base(folder, model), lora.model_copy(update={"kind": "plain"}), model)
    layers = lora_layers(empty)
    return {name: weight_count(layer) for name, layer in layers.items()}


def quantized_base(
    folder: Path,
    model: ModelSection,
    lora: LoraSection,
    section: QuantizeSection,
    bits: int,
    calibration: tuple[tuple[int, ...], ...] = (),
) -> Path:
    """The folder with the quantized base, made if it isn't there.

    Args:
        folder: the base, as `source.resolve` returns it.
        model: the task.
        lora: whose targets are quantized.
        section: how.
        bits: the widest that a weight shall be read at.
        calibration: token ids of equal length, for GPTQ.

    Raises:
        ModelError: if the base can't be quantized so.
    """
    stored = min(one for one in STORED if one >= bits)
    text = calibration if section.method == "gptq" else ()
    names = tuple(sorted(targets(folder, model, lora)))
    facts = [FORM, fingerprint(folder), model.task, model.labels, names]
    facts += [section.method, section.group, stored, text]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    name = f"{section.method}-g{section.group}-b{stored}-{digest[:32]}"
    place = cache_folder("quantized") / name
    try:
        with FileLock(f"{place}.lock", timeout=WAIT):
            if not place.is_dir():
                _apart(
                    _Order(
                        folder=folder,
                        model=model,
                        names=names,
                        section=section,
                        stored=stored,
                        calibration=text,
                        place=place,
                    )
                )
    except Timeout:
        raise ModelError(
            f"another process has been quantizing {folder} for {WAIT / 60:.0f} minutes; if none "
            f"is, delete {place}.lock"
        ) from None
    return place


def open_quantized(place: Path, folder: Path, model: ModelSection) -> PreTrainedModel:
    """The quantized base, in evaluation mode, on the CPU."""
    base = weightless(folder, model)
    load_store(base, place / STORE)
    base.load_state_dict(load_file(place / REST), assign=True, strict=False)
    base.tie_weights()
    left = [name for name, tensor in base.state_dict().items() if tensor.is_meta]
    if left:
        raise ModelError(f"{place} lacks {left[0]}; delete it, and it is made again")
    return base


class _Order(BaseModel):
    """What a process is to make, and where; it travels as JSON."""

    folder: Path
    model: ModelSection
    names: tuple[str, ...]
    section: QuantizeSection
    stored: int
    calibration: tuple[tuple[int, ...], ...]
    place: Path


def _apart(order: _Order) -> None:
    """Make a store in a process of its own, whose memory goes with it."""
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(
        command, input=order.model_dump_json(), capture_output=True, text=True, check=False
    )
    if done.returncode == REFUSED:
        raise ModelError(done.stderr.strip())
    if done.returncode:
        raise ModelError(
            f"quantizing {order.folder} ended with exit code {done.returncode}; it needs the "
            "float32 weights once: if memory was short, make the store on another machine and "
            f"copy {order.place} from there. It said: {done.stderr[-500:].strip()}"
        )


def _make(order: _Order) -> None:
    base = load_base(order.folder, order.model)
    section = order.section
    text = torch.tensor(order.calibration) if order.calibration else None
    quantize(base, order.names, section.method, section.group, order.stored, text)
    own = tuple(f"{name}.{buffer}" for name in order.names for buffer in BUFFERS)
    rest: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in base.state_dict().items():
        if name not in own and tensor.data_ptr() not in seen:  # tied weights are stored once
            seen.add(tensor.data_ptr())
            rest[name] = tensor.contiguous()
    with published(order.place) as fresh:
        save_store(base, fresh / STORE)
        save_file(rest, fresh / REST)


if __name__ == "__main__":
    try:
        _make(_Order.model_validate_json(sys.stdin.read()))
    except FedloraError as problem:
        print(problem, file=sys.stderr)
        sys.exit(REFUSED)
