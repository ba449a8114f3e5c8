"""Draft trees within transformers' `generate`, which brings its own ways to say what is wanted.

    model.generate(**inputs, custom_generate=recycling, decoder=decoder, max_new_tokens=128)

Penalties, stop strings and sampling are then given as to any `generate`, and those of the model's
generation configuration hold. transformers hands no streamer to functions like this one: pass
`on_tokens` instead.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from .engine import Decoder
from .request import Request


def recycling(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    decoder: Decoder | None = None,
    seed: int = 0,
    on_tokens: Callable[[list[int]], None] | None = None,
    **unused: Any,
) -> Tensor:
    """What `generate` calls instead of its own loop; one text at a time.

    Args:
        model: on which `generate` was called.
        input_ids: (1, length).
        logits_processor: as `generate` prepared them, warpers included.
        stopping_criteria: likewise, the longest length and the ending tokens included.
        generation_config: says whether to draw.
        decoder: to go on with; otherwise one is made for this text.
        seed: of the drawing.
        on_tokens: is given the tokens as they come.
        unused: masks and caches, which the decoder makes itself.

    Returns:
        (1, length + generated).
    """
    if len(input_ids) != 1:
        raise ValueError("draft trees are for one text at a time; leave custom_generate out")
    start = input_ids.shape[1]
    ends = generation_config.eos_token_id
    request = Request(
        max_new_tokens=generation_config.max_length - start,
        ends=frozenset([ends] if isinstance(ends, int) else ends or ()),
        temperature=1.0 if generation_config.do_sample else 0.0,
        seed=seed,
        processors=list(logits_processor),
        stopping=[] if _only_lengths(stopping_criteria) else list(stopping_criteria),
    )
    used = decoder or Decoder(model)
    tokens: list[int] = []
    try:
        for piece in used.stream(input_ids[0].tolist(), request):
            tokens += piece
            if on_tokens:
                on_tokens(piece)
    finally:
        if decoder is None:
            used.close()
    return torch.cat([input_ids, torch.tensor([tokens], device=input_ids.device)], dim=1)


def _only_lengths(criteria: StoppingCriteriaList) -> bool:
    """Whether the criteria are those that every `generate` has, which a request says by itself."""
    return {type(rule).__name__ for rule in criteria} <= {"MaxLengthCriteria", "EosTokenCriteria"}
