"""The student's own samples as transfer text: what it will have to go on from when it writes.

On text that others wrote a student is never shown how to recover from its own mistakes; a share of
batches that it wrote itself, judged by the teacher alone, does that (GKD, Agarwal et al., 2024).
"""

from collections.abc import Sequence
from typing import Any

import torch

from fedlora.models.examples import IGNORED, Example
from fedlora.models.losses import pad_id


def sampled(student: Any, examples: Sequence[Example], tokens: int) -> list[Example]:
    """The prompts of examples, each gone on with by the student, drawn at temperature 1.

    Draws from the global generator, as transformers does: seed it before. The model's mode is left
    as it was.

    Args:
        student: a causal language model.
        examples: whose tokens before the first label are the prompt.
        tokens: drawn at most for each.
    """
    training = student.training
    student.eval()
    made = []
    with torch.no_grad():
        for example in examples:
            prompt = example.input_ids[: _prompt_length(example)]
            ids = torch.tensor([prompt], device=student.device)
            drawn = student.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=tokens,
                pad_token_id=pad_id(student),
            )[0, len(prompt) :].tolist()
            made.append(Example((*prompt, *drawn), (*[IGNORED] * len(prompt), *drawn)))
    student.train(training)
    return made


def _prompt_length(example: Example) -> int:
    assert not isinstance(example.labels, int)
    return next(i for i, label in enumerate(example.labels) if label != IGNORED)
