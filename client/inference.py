"""Plain generation from the model that a node holds, and whether an answer is right."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from fedlora.models.batches import derived_seed
from fedlora.models.examples import encode_prompt
from fedlora.models.quiet import quiet

BATCH = 16  # prompts in one pass


def generate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    data_format: str = "instruction",
) -> list[str]:
    """Continue prompts, each in the form that the model was trained on.

    Args:
        model: a causal language model of transformers, or PEFT's wrapper.
        tokenizer: the model's.
        prompts: a user's turns; for the format "text", beginnings of texts.
        max_new_tokens: where to stop at the latest.
        temperature: 0 takes the likeliest token; above, tokens are drawn.
        seed: of the drawing.
        data_format: the recipe's `data.format`.

    Returns:
        The answers alone, without special tokens, in the order of the prompts.
    """
    encoded = [encode_prompt(tokenizer, prompt, data_format) for prompt in prompts]
    texts: list[str] = []
    was_training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(derived_seed(seed, "generate"))
            for start in range(0, len(encoded), BATCH):
                texts += _continued(
                    model, tokenizer, encoded[start : start + BATCH], max_new_tokens, temperature
                )
    finally:
        model.train(was_training)
    return texts


def answered(text: str, answers: Sequence[str]) -> bool:
    """Whether one of the answers stands in the text as words of their own, in any case."""
    return any(
        re.search(rf"(?<!\w){re.escape(answer.casefold())}(?!\w)", text.casefold())
        for answer in answers
    )


def _continued(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    temperature: float,
) -> list[str]:
    ends = _ends(model, tokenizer)
    width = max(map(len, prompts))
    # Padding on the left, so that all prompts end where generation begins.
    ids = torch.full((len(prompts), width), ends[0])
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    drawn: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    with quiet():  # it warns of sampling defaults of the model that greedy decoding leaves unused
        output = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max_new_tokens,
            eos_token_id=ends,
            pad_token_id=ends[0],
            **drawn,
        )
    return [
        text.strip() for text in tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
    ]


def _ends(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end an answer: the tokenizer's, and those that the model names besides."""
    named = model.generation_config.eos_token_id
    extra = named if isinstance(named, list) else [named]
    found = dict.fromkeys([tokenizer.eos_token_id, *extra])
    return [token for token in found if token is not None]
