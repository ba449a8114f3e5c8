"""Which teacher is listened to, sample by sample.

A teacher that predicts a sample worse than the student does has nothing to teach about it: the
rule of FedMKT (Fan et al., 2025), and the first to try before anything learned (RL-KD, Yuan et
al., 2021).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedlora.models.batches import Batch
from fedlora.models.examples import IGNORED

from .loss import Soft


def equal_weights(softs: Sequence[Soft], labels: Tensor) -> list[Tensor]:
    """Every teacher on every label (labels,), alike; the weights of a label sum to 1."""
    return [labels.new_full(labels.shape, 1 / len(softs), dtype=torch.float32) for _ in softs]


def gated_weights(
    softs: Sequence[Soft], own: Tensor, targets: Tensor, batch: Batch, chunk: int
) -> list[Tensor]:
    """Only teachers whose mean loss on a sample's gold tokens is below the student's, alike.

    Args:
        softs: what each teacher says.
        own: (labels,), the student's loss on the gold tokens.
        targets: (labels,).
        batch: whose rows are the samples.
        chunk: labels whose logits stand in memory at once.

    Returns:
        By teacher (labels,); all zero where no teacher is better.
    """
    sample = _sample_of_label(batch)
    better = torch.stack(
        [_means(soft.cross_entropy(targets, chunk), sample) < _means(own, sample) for soft in softs]
    )  # (teachers, samples)
    shares = better / better.sum(0).clamp_min(1)
    return [share[sample].float() for share in shares]


def _sample_of_label(batch: Batch) -> Tensor:
    """The row (labels,) that each label is from."""
    return (batch.labels[:, 1:] != IGNORED).nonzero()[:, 0]


def _means(losses: Tensor, sample: Tensor) -> Tensor:
    count = int(sample.max()) + 1
    total = torch.zeros(count, device=losses.device).index_add(0, sample, losses)
    return total / torch.bincount(sample, minlength=count).clamp_min(1)
