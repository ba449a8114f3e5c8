"""Plain decoding beside the fast one, asked only where rounding might decide.

It reads the same text one token at a time with the model's untouched layers, as any greedy loop
does, and only as far as it is asked to: each token at most once. So `strict` adds at most the cost
of plain decoding, and usually none.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .kernels import Kernels
from .target import Target
from .tree import Tree


class Plain:
    """A second reader of the text with a cache of its own."""

    def __init__(self, model: Any, kernels: Kernels) -> None:
        """A reader that has read nothing."""
        self._target = Target(model)
        self._kernels = kernels
        self._prompt: Sequence[int] = ()
        self._logits: Tensor | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        """Note a prompt; it is read when first needed."""
        self._prompt, self._logits = prompt, None

    def after(self, text: Sequence[int]) -> tuple[Tensor, int]:
        """What follows a text that begins with the prompt and all that was asked for before.

        Returns:
            The logits, (vocabulary,), and how many forward passes that took.
        """
        passes = 0
        with self._kernels.paused():
            if self._logits is None:
                self._logits = self._target.begin(self._prompt)
                passes += 1
            for token in text[self._target.length :]:
                self._logits = self._target.step(Tree([token], [-1]))[0]
                self._target.keep([0])
                passes += 1
        return self._logits, passes
