"""Which token follows, given the model's logits: the likeliest, or one that is drawn.

To draw is to add noise and take the largest (Gumbel-max). The noise belongs to the seed and the
position alone, so it does not matter in which order positions are looked at, or how often: a text
drawn along draft trees is the text that drawing one token after the other gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fedlora.models.batches import generator


@dataclass(frozen=True)
class Choice:
    """A token.

    Attributes:
        token: its id.
        gap: by how much it surpassed the second best, in logits (after warping and noise).
    """

    token: int
    gap: float


class Chooser:
    """Chooses the token of each position of one text."""

    def __init__(
        self,
        start: int,
        temperature: float = 0.0,
        seed: int = 0,
        top_k: int = 0,
        top_p: float = 1.0,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        """A chooser for the text that begins after `start` tokens of prompt.

        Args:
            start: length of the prompt.
            temperature: 0 takes the likeliest; above, tokens are drawn.
            seed: of the drawing.
            top_k: draw from so many likeliest tokens; 0 for all.
            top_p: draw from the likeliest tokens that have this much probability together.
            processors: of transformers, applied first, to the text and its logits.
        """
        self._start, self._seed = start, seed
        self._drawn = temperature > 0
        self._processors = LogitsProcessorList(processors)
        if self._drawn:
            self._processors += warpers(temperature, top_k, top_p)

    @property
    def plain(self) -> bool:
        """Whether the choice is the likeliest token whatever stands before."""
        return not self._processors

    def choose(self, logits: Tensor, text: Sequence[int]) -> Choice:
        """Choose what follows a text, prompt included, from logits (vocabulary,)."""
        scores = logits.float()
        if self._processors:
            ids: Any = torch.tensor([text], device=logits.device)
            scores = self._processors(ids, scores[None])[0]
        if self._drawn:
            noise = gumbel(self._seed, len(text) - self._start, len(scores))
            scores = scores + noise.to(scores.device)
        first, second = scores.topk(2).values.tolist()
        return Choice(int(scores.argmax()), first - second)


class PositionNoise(LogitsProcessor):
    """The noise for transformers' own `generate(do_sample=False)`, which so draws the same text."""

    def __init__(self, seed: int, start: int) -> None:
        """Noise of a seed for texts that begin after `start` tokens."""
        self._seed, self._start = seed, start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Logits with the noise of the position that comes next."""
        noise = gumbel(self._seed, input_ids.shape[1] - self._start, scores.shape[-1])
        return scores.float() + noise.to(scores.device)


def warpers(temperature: float, top_k: int = 0, top_p: float = 1.0) -> LogitsProcessorList:
    """What makes the distribution that is drawn from, in transformers' order."""
    chosen = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k > 0:
        chosen.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        chosen.append(TopPLogitsWarper(top_p))
    return chosen


def gumbel(seed: int, position: int, count: int) -> Tensor:
    """Standard Gumbel noise of a position, (count,)."""
    drawn = torch.empty(count).exponential_(generator=generator(seed, "position", position))
    return -drawn.clamp_min_(torch.finfo(drawn.dtype).tiny).log_()
