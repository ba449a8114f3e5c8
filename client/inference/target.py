"""The model whose text is wanted, and what of that text it has seen.

It answers three questions: what follows a prompt, what follows each node of a draft tree, and what
follows one more token. Which masks it wants is read from its configuration, and checked by
`selftest`.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

from .cache import TreeCache
from .tree import Tree, mask

FULL, SLIDING = "full_attention", "sliding_attention"


class Target:
    """A causal language model with a cache of its own.

    Attributes:
        model: transformers' own model; of PEFT's wrapper what is inside, adapters included.
        length: tokens that the model has seen and kept.
    """

    def __init__(self, model: Any) -> None:
        """A target that has seen nothing."""
        self.model = bare(model)
        self.length = 0
        self._cache = TreeCache()
        signature = inspect.signature(type(self.model).forward).parameters
        self._cache_name = "cache" if "cache" in signature else "past_key_values"
        self._keeps = "logits_to_keep" in signature

    def begin(self, prompt: Sequence[int]) -> Tensor:
        """Forget everything and read a prompt; returns what follows it, (vocabulary,)."""
        self._cache.reset()
        self.length = 0
        logits = self._forward(list(prompt), list(range(len(prompt))), None, last=True)
        self.length = len(prompt)
        return logits[-1]

    def step(self, tree: Tree) -> Tensor:
        """What follows each node of a tree, (nodes, vocabulary); then `keep` has to be called."""
        positions = [self.length + depth for depth in tree.depths()]
        masks = self._masks(tree) if len(tree) > 1 else None
        return self._forward(list(tree.tokens), positions, masks, last=False)

    def keep(self, path: Sequence[int]) -> None:
        """Keep the nodes of a path from the root, as part of the text, and forget the others."""
        self._cache.keep(self.length, path)
        self.length += len(path)

    def _masks(self, tree: Tree) -> Any:
        windows = windows_of(self.model.config)
        dtype, device = self.model.dtype, self.model.device
        made = {
            kind: mask(tree, self.length, dtype, window).to(device)
            for kind, window in windows.items()
        }
        return made if len(made) > 1 else next(iter(made.values()))

    def _forward(self, tokens: list[int], positions: list[int], masks: Any, last: bool) -> Tensor:
        device = self.model.device
        output = self.model(
            input_ids=torch.tensor([tokens], device=device),
            attention_mask=masks,
            position_ids=torch.tensor([positions], device=device),
            use_cache=True,
            **{self._cache_name: self._cache},
            **({"logits_to_keep": 1} if last and self._keeps else {}),
        )
        logits: Tensor = output.logits[0]
        return logits


def bare(model: Any) -> Any:
    """The model without PEFT's wrapper, if that only adds layers and no virtual tokens."""
    if isinstance(model, PeftModel) and not model.active_peft_config.is_prompt_learning:
        return model.get_base_model()
    return model


def windows_of(config: Any) -> dict[str, int | None]:
    """The kinds of attention of a model, each with its window (None: everything before)."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if SLIDING in kinds and window is not None:
        # A model that mixes kinds takes one mask for each, whether or not a layer uses it.
        return {FULL: None, SLIDING: window}
    if kinds or window is None or not getattr(config, "use_sliding_window", True):
        return {FULL: None}
    return {SLIDING: window}
