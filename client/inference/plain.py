"""Decoding without drafts, by transformers itself: for batches, and for models that refuse trees.

What is drawn is drawn with the same noise, so it is the same text.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList

from fedlora.models.quiet import quiet

from .request import Request
from .sampling import PositionNoise, warpers


def plainly(model: Any, prompts: Sequence[Sequence[int]], request: Request) -> list[list[int]]:
    """The tokens that follow each prompt, the ending one included.

    Args:
        model: a causal language model of transformers, or PEFT's wrapper.
        prompts: as token ids, padded here on the left to end at the same place.
        request: how to go on.
    """
    ends = sorted(request.ends)
    pad = ends[0] if ends else 0
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), pad)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    processors = LogitsProcessorList(request.processors)
    if request.temperature > 0:
        processors += warpers(request.temperature, request.top_k, request.top_p)
        processors.append(PositionNoise(request.seed, width))
    with quiet():  # it warns of the model's sampling defaults, which are unused
        output = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=request.max_new_tokens,
            eos_token_id=ends or None,
            pad_token_id=pad,
            do_sample=False,
            logits_processor=processors,
            stopping_criteria=list(request.stopping),
        )
    return [_until(row, request.ends) for row in output[:, width:].tolist()]


def _until(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """The tokens up to the first ending one; what comes after it is padding."""
    for place, token in enumerate(tokens):
        if token in ends:
            return tokens[: place + 1]
    return tokens
