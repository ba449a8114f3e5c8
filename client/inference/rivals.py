"""Ways to decode the same text, side by side, for those who want to see what drafts bring.

transformers' greedy decoding, its prompt lookup, a loop of one token at a time on our layers, the
published tree, and ours. They take turns within each prompt, so that what disturbs one disturbs
all alike.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fedlora.models.quiet import quiet

from .engine import Decoder
from .forms import Precision
from .kernels import Kernels
from .request import Request
from .target import bare

GREEDY, LOOKUP, LOOP = "transformers greedy", "transformers prompt lookup", "one at a time"
PAPER, OURS = "published tree", "fedlora"


@dataclass(frozen=True)
class Timed:
    """One text by one way.

    Attributes:
        tokens: generated.
        seconds: that it took, the prompt included.
        passes: forward passes, that of the prompt included.
        near_ties: positions where rounding may have decided, as far as known.
    """

    tokens: Sequence[int]
    seconds: float
    passes: int
    near_ties: int = 0


@dataclass(frozen=True)
class Row:
    """One way over all prompts.

    Attributes:
        way: its name.
        tokens_per_pass: mean, over all texts.
        tokens_per_second: median over prompts.
        ratio: of tokens per second to those of the first way, over all texts together.
        lower: quartile of that ratio over prompts.
        upper: likewise.
        identical: share of texts that are the first way's.
        near_ties: in all texts.
    """

    way: str
    tokens_per_pass: float
    tokens_per_second: float
    ratio: float
    lower: float
    upper: float
    identical: float
    near_ties: int


Way = Callable[[Sequence[int], Request], Timed]


@contextmanager
def ways(model: Any, precision: Precision | None = None) -> Iterator[dict[str, Way]]:
    """The ways to decode with a model; inside the block they may be called in any order."""
    with Decoder(model, precision=precision) as ours, ours.kernels.paused():
        kernels = ours.kernels
        loop = Decoder(model, tree="none", packed=False)
        paper = Decoder(model, tree="paper", packed=False)
        yield {
            GREEDY: partial(transformers, model),
            LOOKUP: partial(transformers, model, prompt_lookup_num_tokens=10),
            LOOP: partial(decoded, loop, kernels),
            PAPER: partial(decoded, paper, None),
            OURS: partial(decoded, ours, kernels),
        }


def decoded(
    decoder: Decoder, kernels: Kernels | None, prompt: Sequence[int], request: Request
) -> Timed:
    """A decoder's text, with the model's layers replaced for as long as it takes, or not."""
    with kernels.resumed() if kernels else nullcontext():
        began = time.perf_counter()
        tokens = decoder.generate(prompt, request)
        seconds = time.perf_counter() - began
    account = decoder.account
    return Timed(tokens, seconds, account.steps + account.replayed + 1, account.near_ties)


def transformers(model: Any, prompt: Sequence[int], request: Request, **settings: Any) -> Timed:
    """transformers' `generate`, greedy, with the settings given."""
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    hook = bare(model).register_forward_pre_hook(count)
    ids = torch.tensor([prompt], device=model.device)
    ends = sorted(request.ends)
    try:
        with quiet(), torch.inference_mode():
            began = time.perf_counter()
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.max_new_tokens,
                do_sample=False,
                eos_token_id=ends or None,
                pad_token_id=ends[0] if ends else 0,
                **settings,
            )
            seconds = time.perf_counter() - began
    finally:
        hook.remove()
    return Timed(output[0, ids.shape[1] :].tolist(), seconds, passes)


def table(runs: Mapping[str, Sequence[Timed]]) -> list[Row]:
    """Rows of what was timed, each way against the first; one entry a prompt."""
    first = next(iter(runs.values()))
    rows = []
    for way, texts in runs.items():
        ratios = [_pace(ours) / _pace(theirs) for ours, theirs in zip(texts, first, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        same = [
            list(ours.tokens) == list(theirs.tokens)
            for ours, theirs in zip(texts, first, strict=True)
        ]
        rows.append(
            Row(
                way,
                sum(len(one.tokens) for one in texts) / sum(one.passes for one in texts),
                statistics.median(map(_pace, texts)),
                _together(texts) / _together(first),
                low,
                high,
                sum(same) / len(same),
                sum(one.near_ties for one in texts),
            )
        )
    return rows


def _pace(text: Timed) -> float:
    return len(text.tokens) / text.seconds


def _together(texts: Sequence[Timed]) -> float:
    return sum(len(one.tokens) for one in texts) / sum(one.seconds for one in texts)
