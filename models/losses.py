"""The loss, over labels only.

With a large vocabulary most of a small model's work is the last layer, and most of a batch's
positions have no label: prompts and padding. So logits are computed where some row of the batch
has a label, and nowhere else, if the model can (`logits_to_keep`). The loss is the same.
"""

import inspect
from typing import Any

from peft import PeftModel
from torch import Tensor
from torch.nn import functional as F

from .batches import Batch
from .examples import IGNORED


def label_logits(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Predictions where there are labels.

    Args:
        model: a causal language model or sequence classifier of transformers, or PEFT's wrapper.
        batch: with labels (n, length) or (n,).

    Returns:
        Logits (labels, classes) in float32 and their targets (labels,).
    """
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if batch.labels.ndim == 1:
        return model(**inputs).logits.float(), batch.labels
    targets = batch.labels[:, 1:]  # position p predicts token p + 1
    learned = targets != IGNORED
    kept = learned.any(dim=0).nonzero().squeeze(1)  # (k,) positions with a label in some row
    if _can_keep(model):
        logits = model(**inputs, logits_to_keep=kept, use_cache=False).logits  # (n, k, vocabulary)
    else:
        logits = model(**inputs, use_cache=False).logits[:, kept]
    targets, learned = targets[:, kept], learned[:, kept]
    return logits[learned].float(), targets[learned]


def loss_sum(model: Any, batch: Batch) -> Tensor:
    """Cross entropy in nats, summed over the labels of the batch."""
    logits, targets = label_logits(model, batch)
    return F.cross_entropy(logits, targets, reduction="sum")


def label_count(batch: Batch) -> int:
    """How many predictions `loss_sum` sums."""
    if batch.labels.ndim == 1:
        return len(batch.labels)
    return int((batch.labels[:, 1:] != IGNORED).sum())


def pad_id(model: Any) -> int:
    """The id that fills a batch: the model's own, which a classifier looks for, or any other."""
    return model.config.pad_token_id or 0


def _can_keep(model: Any) -> bool:
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    return "logits_to_keep" in inspect.signature(base.forward).parameters
