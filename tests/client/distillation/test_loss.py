"""The chunked objective against the plain one, over whole logits."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Gemma2Config, Gemma2ForCausalLM

from fedlora.adapters import ModelError
from fedlora.client.distillation.hidden import check_head, label_hidden, label_targets, output_head
from fedlora.client.distillation.loss import Dense, Objective, Terms, TopK, backward, label_losses
from fedlora.models.batches import Batch, collate
from fedlora.models.examples import Example
from fedlora.models.losses import label_logits

from .conftest import small


def plain(student: Any, teacher: Any, batch: Batch, share: float, temperature: float) -> Tensor:
    """The formula, with all logits of both models in memory."""
    logits, targets = label_logits(student, batch)
    with torch.no_grad():
        taught, _ = label_logits(teacher, batch)
    p = (taught / temperature).softmax(-1)
    log_p, log_q = p.log(), (logits / temperature).log_softmax(-1)
    divergence = temperature**2 * (p * (log_p - log_q)).sum(-1).mean()
    return share * divergence + (1 - share) * F.cross_entropy(logits, targets)


def chunked(student: Any, teacher: Any, batch: Batch, objective: Objective) -> Terms:
    with torch.no_grad():
        soft = Dense(label_hidden(teacher, batch), output_head(teacher))
    hidden, targets = label_hidden(student, batch), label_targets(batch)
    weights = torch.ones(len(targets))
    head = output_head(student)
    return backward(hidden, head, targets, [(soft, weights)], objective, len(targets))


@pytest.mark.parametrize(("share", "temperature"), [(0.5, 1.0), (0.9, 2.0), (0.0, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_chunks_give_the_loss_and_gradients_of_whole_logits(
    examples: list[Example], share: float, temperature: float, tied: bool, chunk: int
) -> None:
    batch = collate(examples, 0)
    student, teacher = small(1, tied=tied), small(2, hidden=48)
    rival = copy.deepcopy(student)
    expected = plain(rival, teacher, batch, share, temperature)
    expected.backward()
    terms = chunked(student, teacher, batch, Objective(share, temperature, chunk))
    both = share * terms.divergence + (1 - share) * terms.cross_entropy
    assert both / terms.labels == pytest.approx(expected.item(), rel=1e-5)
    for (name, own), (_, other) in zip(
        student.named_parameters(), rival.named_parameters(), strict=True
    ):
        assert own.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_a_teacher_equal_to_the_student_teaches_nothing(examples: list[Example]) -> None:
    batch = collate(examples, 0)
    terms = chunked(small(1), small(1), batch, Objective(1.0))
    assert terms.divergence == pytest.approx(0.0, abs=1e-4)
    assert terms.cross_entropy > 1


def top_k(teacher: Any, batch: Batch, k: int) -> TopK:
    with torch.no_grad():
        logits, targets = label_logits(teacher, batch)
        log_p = logits.log_softmax(-1)
        values, tokens = log_p.topk(k)
        return TopK(tokens, values, F.nll_loss(log_p, targets, reduction="none"))


def test_top_k_grows_into_the_whole_divergence(examples: list[Example]) -> None:
    batch, student, teacher = collate(examples, 0), small(1), small(2)
    with torch.no_grad():
        logits, _ = label_logits(student, batch)
        whole = Dense(label_hidden(teacher, batch), output_head(teacher))
        log_q = logits.log_softmax(-1)
        exact = whole.divergence(log_q, slice(None), 1.0)
        near = [
            top_k(teacher, batch, k).divergence(log_q, slice(None), 1.0) for k in (1, 8, 64, 399)
        ]
    for less, more in itertools.pairwise(near):
        assert bool((less <= more + 1e-4).all())  # a finer partition tells more
    torch.testing.assert_close(near[-1], exact, rtol=1e-3, atol=1e-3)
    assert bool((near[0] >= -1e-5).all())


def test_losses_of_labels_are_those_of_whole_logits(examples: list[Example]) -> None:
    batch, model = collate(examples, 0), small(1)
    with torch.no_grad():
        logits, targets = label_logits(model, batch)
        expected = F.cross_entropy(logits, targets, reduction="none")
        found = label_losses(label_hidden(model, batch), output_head(model), targets, 5)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_model_that_caps_its_logits_is_refused(examples: list[Example]) -> None:
    config = Gemma2Config(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=1.0,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Gemma2ForCausalLM(config).eval()
    with pytest.raises(ModelError, match="Gemma2ForCausalLM changes its logits"):
        check_head(model, collate(examples[:1], 0))
    check_head(small(1), collate(examples[:1], 0))
