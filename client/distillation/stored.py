"""A teacher that was asked beforehand: its likeliest tokens for each label of the transfer set.

Then teacher and student need not be in memory together. Truncated distributions alone make a
student repeat itself, so these are for use with cross entropy (Busbridge et al., 2025).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fedlora.models.batches import Batch, collate
from fedlora.models.examples import Example
from fedlora.models.losses import pad_id

from .hidden import label_hidden, label_targets, output_head
from .loss import TopK, label_losses

FILE = "teacher.safetensors"


class StoredTeacher:
    """Reads what `store` wrote."""

    def __init__(self, folder: Path) -> None:
        """Open the file of a folder; rows are read when they are asked for."""
        self._file = safe_open(str(folder / FILE), framework="pt")

    def soft(self, batch: Batch, picks: Sequence[int]) -> TopK:
        """See `teachers.Teacher`; the batch must be these examples as they are."""
        read = [
            torch.cat([self._file.get_tensor(f"{one}.{what}") for one in picks])
            for what in ("tokens", "values", "gold")
        ]
        tokens, values, gold = (tensor.to(batch.input_ids.device) for tensor in read)
        return TopK(tokens, values, gold)


def store(
    model: Any,
    examples: Sequence[Example],
    k: int,
    chunk: int,
    folder: Path,
    on_example: Callable[[int], None] = lambda done: None,
) -> None:
    """Write a model's k likeliest tokens for each label: 8 k + 4 bytes a label.

    Args:
        model: a causal language model, in evaluation mode.
        examples: of the transfer set.
        k: tokens kept.
        chunk: labels whose logits stand in memory at once.
        folder: where the file is made; it appears when it is complete.
        on_example: told how many are done.
    """
    found = {}
    head = output_head(model)
    with torch.no_grad():
        for number, example in enumerate(examples):
            batch = collate([example], pad_id(model)).to(model.device)
            hidden = label_hidden(model, batch)
            gold = label_losses(hidden, head, label_targets(batch), chunk)
            likeliest = [
                head(hidden[start : start + chunk]).float().log_softmax(-1).topk(k)
                for start in range(0, len(hidden), chunk)
            ]
            found[f"{number}.tokens"] = torch.cat([one.indices.int() for one in likeliest]).cpu()
            found[f"{number}.values"] = torch.cat([one.values for one in likeliest]).cpu()
            found[f"{number}.gold"] = gold.cpu()
            on_example(number + 1)
    partial = folder / f".{FILE}"
    save_file(found, partial)
    partial.replace(folder / FILE)
