"""Answers to prompts, in the form that the model was trained on, and whether they are right."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, StopStringCriteria

from fedlora.models.examples import encode_prompt
from fedlora.models.quiet import quiet

from .custom import recycling
from .engine import Decoder
from .plain import plainly
from .request import Request
from .tables import Tables, table_file

BATCH = 16  # prompts in one pass
ALONE = 3  # up to so many prompts, drafting for each is faster than padding them to a batch


def generate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    data_format: str = "instruction",
    stop: Sequence[str] = (),
    memory: Path | None = None,
    strict: bool = False,
    on_text: Callable[[str], None] | None = None,
) -> list[str]:
    """Continue prompts, each in the form that the model was trained on.

    A few prompts are answered one after the other along draft trees, many in batches. Either way
    the text is the model's own, and a drawn one the same for the same seed.

    Args:
        model: a causal language model of transformers, or PEFT's wrapper.
        tokenizer: the model's.
        prompts: a user's turns; for the format "text", beginnings of texts.
        max_new_tokens: where to stop at the latest.
        temperature: 0 takes the likeliest token; above, tokens are drawn.
        seed: of the drawing.
        data_format: the recipe's `data.format`.
        stop: strings at which an answer ends; they are part of it.
        memory: a folder of this machine in which drafts are remembered between calls; see
            `tables`.
        strict: decide near ties as plain decoding would; see `engine`.
        on_text: is given each answer piece by piece as it comes, where prompts are few.

    Returns:
        The answers alone, without special tokens, in the order of the prompts.
    """
    encoded = [encode_prompt(tokenizer, prompt, data_format) for prompt in prompts]
    request = Request(
        max_new_tokens,
        frozenset(ends(model, tokenizer)),
        temperature,
        seed,
        stopping=[StopStringCriteria(tokenizer, list(stop))] if stop else [],
    )
    with _evaluating(model):
        if len(encoded) <= ALONE:
            texts = _drafted(model, tokenizer, encoded, request, memory, strict, on_text)
        else:
            texts = []
            for start in range(0, len(encoded), BATCH):
                found = plainly(model, encoded[start : start + BATCH], request)
                texts += tokenizer.batch_decode(found, skip_special_tokens=True)
    return [text.strip() for text in texts]


def answered(text: str, answers: Sequence[str]) -> bool:
    """Whether one of the answers stands in the text as words of their own, in any case."""
    return any(
        re.search(rf"(?<!\w){re.escape(answer.casefold())}(?!\w)", text.casefold())
        for answer in answers
    )


def ends(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end an answer: the tokenizer's, and those that the model names besides."""
    named = model.generation_config.eos_token_id
    extra = named if isinstance(named, list) else [named]
    found = dict.fromkeys([tokenizer.eos_token_id, *extra])
    return [token for token in found if token is not None]


def _drafted(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    request: Request,
    memory: Path | None,
    strict: bool,
    on_text: Callable[[str], None] | None,
) -> list[str]:
    """One after the other, along draft trees that go on growing from text to text."""
    file = table_file(memory, tokenizer) if memory else None
    vocabulary = int(model.config.get_text_config().vocab_size)
    tables = Tables.load(file, vocabulary) if file else Tables(vocabulary)
    sampling: dict[str, Any] = {"do_sample": False}
    if request.temperature > 0:
        sampling = {"do_sample": True, "temperature": request.temperature, "top_k": 0, "top_p": 1.0}
    texts = []
    with Decoder(model, tables, strict=strict) as decoder:
        for prompt in prompts:
            pieces = _Pieces(tokenizer, on_text)
            with quiet():  # it warns of the model's sampling defaults, which are unused
                model.generate(
                    input_ids=torch.tensor([prompt], device=model.device),
                    custom_generate=recycling,
                    decoder=decoder,
                    on_tokens=pieces.add,
                    max_new_tokens=request.max_new_tokens,
                    eos_token_id=sorted(request.ends),
                    pad_token_id=min(request.ends),
                    stopping_criteria=list(request.stopping),
                    seed=request.seed,
                    **sampling,
                )
            texts.append(pieces.end())
    if file:
        tables.save(file)
    return texts


class _Pieces:
    """A text that grows by tokens, handed on as soon as they are whole characters."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, on_text: Callable[[str], None] | None
    ) -> None:
        self._tokenizer, self._on_text = tokenizer, on_text
        self._tokens: list[int] = []
        self._given = ""

    def add(self, tokens: list[int]) -> None:
        self._tokens += tokens
        if self._on_text and not (text := self._text()).endswith("\ufffd"):
            self._give(text)

    def end(self) -> str:
        text = self._text()
        if self._on_text:
            self._give(text)
        return text

    def _give(self, text: str) -> None:
        if self._on_text and text.startswith(self._given) and text != self._given:
            self._on_text(text[len(self._given) :])
            self._given = text

    def _text(self) -> str:
        return str(self._tokenizer.decode(self._tokens, skip_special_tokens=True))


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
