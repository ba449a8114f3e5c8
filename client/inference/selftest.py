"""Whether a model can verify a draft tree: asked of the model itself before it is used.

Recurrent layers pass state from one sibling to the next, some models ignore a mask, others count
positions by place. Most of them run without an error, and are wrong. So a small tree's logits are
held against those of its branches, read as plain texts without mask, cache or positions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .target import FULL, SLIDING, Target, bare, windows_of
from .tree import Tree

PROMPT = 12  # tokens before the tree
WINDOW = 8  # of sliding attention during the test, so that it ends inside the prompt
BRANCHES = ((0, 1, 3), (0, 2, 4))  # of the tree below, by node
PARENTS = (-1, 0, 0, 1, 2)
# Of the logits' deviation. Rounding gives about 1e-5 in float32, and 0.15 in bfloat16.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
COARSE = 0.4


def refusal(model: Any) -> str | None:
    """Why a model cannot verify draft trees; None if it can."""
    inner = bare(model)
    name = type(inner).__name__
    kinds = set(getattr(inner.config, "layer_types", None) or ())
    if foreign := sorted(kinds - {FULL, SLIDING}):
        return f"{name} has layers of {', '.join(foreign)}, which see the siblings of a draft tree"
    try:
        with torch.inference_mode(), _small_window(inner.config):
            difference, scale = compare(inner)
    except Exception as error:  # a model may raise anything where it is asked for the unusual
        first = (str(error).splitlines() or [""])[0]
        return f"{name} does not take a draft tree: {type(error).__name__}: {first}"
    allowed = TOLERANCE.get(inner.dtype, COARSE) * scale
    if not difference <= allowed:
        return (
            f"{name} sees a draft tree differently from its branches: logits differ by "
            f"{difference:.1e}, and by {allowed:.1e} at most would be rounding"
        )
    return None


def compare(model: Any) -> tuple[float, float]:
    """Largest difference of a tree's logits from those of its branches, and their deviation."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    drawn = torch.randperm(min(vocabulary, 1000), generator=torch.Generator().manual_seed(0))
    ids = drawn.repeat(1 + (PROMPT + len(PARENTS)) // len(drawn)).tolist()
    prompt, tokens = ids[:PROMPT], ids[PROMPT : PROMPT + len(PARENTS)]
    target = Target(model)
    target.begin(prompt)
    found = target.step(Tree(tokens, PARENTS))
    texts = torch.tensor([prompt + [tokens[node] for node in branch] for branch in BRANCHES])
    plain: Tensor = model(input_ids=texts.to(found.device), use_cache=False).logits
    difference = 0.0
    for row, branch in enumerate(BRANCHES):
        gap = (found[list(branch)] - plain[row, PROMPT:]).abs().max()
        difference = max(difference, float(gap))
    return difference, float(plain[:, PROMPT:].float().std())


@contextmanager
def _small_window(config: Any) -> Iterator[None]:
    """Let sliding windows be shorter than the test's text."""
    window = windows_of(config).get(SLIDING)
    if window is None:
        yield
        return
    config.sliding_window = min(window, WINDOW)
    try:
        yield
    finally:
        config.sliding_window = window
