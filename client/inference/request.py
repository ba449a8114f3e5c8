"""What is wanted of a text."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import LogitsProcessor, StoppingCriteria


@dataclass(frozen=True)
class Request:
    """Where a text ends, and how its tokens are chosen.

    Attributes:
        max_new_tokens: where it ends at the latest.
        ends: tokens with which it ends.
        temperature: 0 for the likeliest token; above, tokens are drawn.
        seed: of the drawing.
        top_k: draw from so many likeliest tokens; 0 for all.
        top_p: draw from the likeliest tokens with this much probability together.
        processors: transformers' logits processors, e.g. for penalties.
        stopping: transformers' stopping criteria, e.g. for strings.
    """

    max_new_tokens: int
    ends: frozenset[int] = frozenset()
    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    processors: Sequence[LogitsProcessor] = ()
    stopping: Sequence[StoppingCriteria] = ()
