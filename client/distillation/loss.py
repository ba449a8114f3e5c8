"""The objective: share * KL(teacher || student) + (1 - share) * cross entropy, on label tokens.

Both terms are means over the same tokens, so that the share is what it says. The divergence is the
forward one (Busbridge et al., 2025, find it ahead of the reverse for language models), times the
square of the temperature, which keeps its gradients' size (Hinton et al., 2015, section 2).

Logits are made, used and dropped for a few tokens at a time: what stands in memory is
`chunk * vocabulary` numbers a model, not `tokens * vocabulary`; loss and gradients are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Objective:
    """What a student is taught by.

    Attributes:
        share: of the divergence from the teacher, from 0 (labels alone) to 1.
        temperature: that both models' logits are divided by, in the divergence.
        chunk: tokens whose logits stand in memory at once.
    """

    share: float = 0.5
    temperature: float = 1.0
    chunk: int = 64


@dataclass(frozen=True)
class Terms:
    """The two terms of a batch, each summed over its labels, in nats.

    Attributes:
        cross_entropy: of the student and the labels.
        divergence: of teacher and student, with the square of the temperature.
        labels: how many.
    """

    cross_entropy: float
    divergence: float
    labels: int

    def __add__(self, other: "Terms") -> "Terms":
        """Of both batches."""
        return Terms(
            self.cross_entropy + other.cross_entropy,
            self.divergence + other.divergence,
            self.labels + other.labels,
        )


class Soft(Protocol):
    """What a teacher says of the labels of one batch."""

    def divergence(self, log_q: Tensor, part: slice, temperature: float) -> Tensor:
        """KL(teacher || student) of each label of a part.

        Args:
            log_q: (part, vocabulary), the student's log-probabilities at the temperature.
            part: of the batch's labels.
            temperature: that logits are divided by.
        """
        ...

    def cross_entropy(self, targets: Tensor, chunk: int) -> Tensor:
        """The teacher's own loss (labels,) on the gold tokens (labels,)."""
        ...


@dataclass(frozen=True, eq=False)
class Dense:
    """A teacher's whole distribution, made from hidden states where it is asked for.

    Attributes:
        hidden: (labels, width).
        head: the teacher's output layer.
    """

    hidden: Tensor
    head: nn.Module

    def divergence(self, log_q: Tensor, part: slice, temperature: float) -> Tensor:
        """See `Soft`. Products are summed as they are made: none stands in memory."""
        with torch.no_grad():
            log_p = log_softmax(self.head(self.hidden[part]).float(), temperature)
            p = log_p.exp()
            negative_entropy = torch.einsum("nv,nv->n", p, log_p)
        return negative_entropy - torch.einsum("nv,nv->n", p, log_q)

    def cross_entropy(self, targets: Tensor, chunk: int) -> Tensor:
        """See `Soft`."""
        return label_losses(self.hidden, self.head, targets, chunk)


@dataclass(frozen=True, eq=False)
class TopK:
    """A teacher's k likeliest tokens, and all others as one.

    The divergence is that of the distributions over these k + 1 events. It knows nothing of how
    the rest is spread, so it is for use together with cross entropy.

    Attributes:
        tokens: (labels, k).
        log_probabilities: (labels, k), at temperature 1.
        gold: (labels,), the loss on the gold tokens.
    """

    tokens: Tensor
    log_probabilities: Tensor
    gold: Tensor

    def divergence(self, log_q: Tensor, part: slice, temperature: float) -> Tensor:
        """See `Soft`; the temperature must be 1, at which the teacher was asked."""
        if temperature != 1.0:
            raise ValueError("stored logits are at temperature 1")
        log_p = self.log_probabilities[part].float()
        own = _with_rest(log_q.gather(-1, self.tokens[part].long()))
        other = _with_rest(log_p)
        return F.kl_div(own, other, reduction="none", log_target=True).sum(-1)

    def cross_entropy(self, targets: Tensor, chunk: int) -> Tensor:
        """See `Soft`."""
        return self.gold


def backward(
    hidden: Tensor,
    head: nn.Module,
    targets: Tensor,
    teachers: Sequence[tuple[Soft, Tensor]],
    objective: Objective,
    labels: int,
) -> Terms:
    """Add the gradients of the objective to the student, a chunk of tokens at a time.

    Args:
        hidden: (n, width), the student's, with its graph.
        head: the student's output layer.
        targets: (n,).
        teachers: what each says, and the weight (n,) of that for each label.
        objective: the shares, temperature, and size of the chunks.
        labels: that the sums are divided by: those of the whole optimizer step.
    """
    gradients, total = [], Terms(0.0, 0.0, 0)
    for start in range(0, len(targets), objective.chunk):
        part = slice(start, start + objective.chunk)
        inputs = hidden[part].detach().requires_grad_()
        logits = head(inputs).float()
        log_q = log_softmax(logits, objective.temperature)
        plain = log_q if objective.temperature == 1 else logits.log_softmax(-1)
        entropy = F.nll_loss(plain, targets[part], reduction="sum")
        divergence = entropy.new_zeros(())
        if objective.share:
            for soft, weights in teachers:
                each = soft.divergence(log_q, part, objective.temperature)
                divergence = divergence + (weights[part] * each).sum()
            divergence = divergence * objective.temperature**2
        loss = (1 - objective.share) * entropy + objective.share * divergence
        del logits, log_q, plain
        (loss / labels).backward()
        assert inputs.grad is not None
        gradients.append(inputs.grad)
        total += Terms(entropy.item(), divergence.item(), len(inputs))
    hidden.backward(torch.cat(gradients))
    return total


def label_losses(hidden: Tensor, head: nn.Module, targets: Tensor, chunk: int) -> Tensor:
    """Cross entropy (n,) of each label, without gradients, a chunk at a time."""
    with torch.no_grad():
        parts = [slice(start, start + chunk) for start in range(0, len(targets), chunk)]
        losses = [
            F.cross_entropy(head(hidden[part]).float(), targets[part], reduction="none")
            for part in parts
        ]
        return torch.cat(losses)


def log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of logits (n, vocabulary) at a temperature."""
    return F.log_softmax(logits if temperature == 1 else logits / temperature, -1)


def _with_rest(log_probabilities: Tensor) -> Tensor:
    """Append the logarithm of what the probabilities leave to one, in float32's reach."""
    rest = 1 - log_probabilities.exp().sum(-1, keepdim=True)
    return torch.cat([log_probabilities, rest.clamp_min(1e-7).log()], dim=-1)
