"""Which teacher speaks on which sample."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlora.client.distillation.gate import equal_weights, gated_weights
from fedlora.models.batches import collate
from fedlora.models.examples import Example


@dataclass(frozen=True)
class Says:
    """A teacher by its losses on the gold tokens alone."""

    losses: Tensor

    def divergence(self, log_q: Tensor, part: slice, temperature: float) -> Tensor:
        return torch.zeros(len(log_q))

    def cross_entropy(self, targets: Tensor, chunk: int) -> Tensor:
        return self.losses


BATCH = collate([Example((1, 4, 5, 6), (-100, -100, 5, 6)), Example((1, 7, 8), (-100, 7, 8))], 0)
TARGETS = torch.tensor([5, 6, 7, 8])


def test_a_teacher_speaks_where_it_is_better_on_the_mean_of_the_sample() -> None:
    own = torch.tensor([1.0, 3.0, 2.0, 2.0])
    better_first = Says(torch.tensor([2.0, 1.0, 9.0, 9.0]))  # worse on one token, better in all
    better_both = Says(torch.tensor([1.0, 1.0, 1.0, 1.0]))
    as_good = Says(own)
    first, both, none = gated_weights(
        [better_first, better_both, as_good], own, TARGETS, BATCH, chunk=2
    )
    assert first.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert both.tolist() == [0.5, 0.5, 1.0, 1.0]
    assert none.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_without_a_gate_all_speak_alike() -> None:
    softs = [Says(TARGETS.float())] * 4
    assert [one.tolist() for one in equal_weights(softs, TARGETS)] == [[0.25] * 4] * 4
