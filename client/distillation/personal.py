"""A student that costs no weights: a second adapter on the model that was received.

It begins as the head's adapter, or as the nearest one of another rank, and learns this node's own
text while the head's adapter holds it to what the federation knows.
"""

import copy

import torch
from peft import LoraConfig, PeftModel

from fedlora.adapters import Residual
from fedlora.models.batches import derived_seed
from fedlora.models.lora import NAME, lora_layers
from fedlora.models.quiet import quiet

from .teachers import STUDENT, train_only_student


def add_student(model: PeftModel, rank: int, dropout: float, seed: int) -> None:
    """Put the student's adapter beside the head's, in place, and make it what trains.

    Its update is the head's, or of lower rank the best approximation of that (Eckart and Young,
    1936). What a higher rank adds begins at zero, with A drawn as PEFT draws it.

    Args:
        model: with the head's adapter.
        rank: of the student.
        dropout: before its factors.
        seed: of the draws.
    """
    config = copy.deepcopy(lora_config(model))
    config.r, config.lora_dropout, config.inference_mode = rank, dropout, False
    divisor = rank**0.5 if config.use_rslora else rank
    config.lora_alpha = divisor * _scale(model)  # type: ignore[assignment]  # a float will do
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derived_seed(seed, STUDENT))
        model.add_adapter(STUDENT, config)
    with torch.no_grad():
        for layer in lora_layers(model).values():
            b, a = layer.lora_B[NAME].weight, layer.lora_A[NAME].weight
            own_b, own_a = layer.lora_B[STUDENT].weight, layer.lora_A[STUDENT].weight
            if len(a) > rank:
                nearest, _ = Residual(b.double(), a.double()).recompressed(rank)
                assert nearest.v is not None
                even = (nearest.v.norm(dim=1) / nearest.u.norm(dim=0).clamp_min(1e-30)).sqrt()
                b, a = nearest.u * even, nearest.v / even.clamp_min(1e-30)[:, None]
            own_b.zero_()
            own_b[:, : len(a)] = b
            own_a[: len(a)] = a
    train_only_student(model)


def merge_student(model: PeftModel) -> torch.nn.Module:
    """The base with the student's update in its weights; the PEFT model is used up."""
    model.delete_adapter(NAME)
    model.set_adapter(STUDENT)
    merged: torch.nn.Module = model.merge_and_unload(adapter_names=[STUDENT])
    return merged


def lora_config(model: PeftModel) -> LoraConfig:
    """How the head's adapter is made."""
    config = model.peft_config[NAME]
    assert isinstance(config, LoraConfig)
    return config


def _scale(model: PeftModel) -> float:
    return float(next(iter(lora_layers(model).values())).scaling[NAME])
