"""The loss where labels are is the loss: against logits everywhere, and in the gradients."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

from fedlora.models.batches import Batch, collate
from fedlora.models.examples import IGNORED, Example
from fedlora.models.losses import label_count, label_logits, loss_sum

EXAMPLES = [
    Example((1, 7, 9, 30, 41, 2), (IGNORED, IGNORED, IGNORED, 30, 41, 2)),
    Example((1, 8, 50, 2), (IGNORED, IGNORED, IGNORED, 2)),
    Example((1, 90, 91, 92, 93, 94, 95, 2, 12), (IGNORED, 90, *[IGNORED] * 7)),
]


@pytest.fixture(params=["tiny_causal", "tiny_gpt2"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    folder: Path = request.getfixturevalue(request.param)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture
def batch() -> Batch:
    return collate(EXAMPLES, pad_id=0)


def reference(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """The sum over single tokens, each example alone and without padding."""
    total = torch.zeros(())
    for ids, mask, labels in zip(batch.input_ids, batch.attention_mask, batch.labels, strict=True):
        length = int(mask.sum())
        logits = model(input_ids=ids[None, :length]).logits[0]
        for position in range(1, length):
            if labels[position] != IGNORED:
                total = total - F.log_softmax(logits[position - 1], dim=-1)[ids[position]]
    return total


def test_the_sum_is_that_of_single_tokens(model: PreTrainedModel, batch: Batch) -> None:
    assert label_count(batch) == 5
    torch.testing.assert_close(loss_sum(model, batch), reference(model, batch))
    # And what transformers itself computes, as a mean.
    own = model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels
    ).loss
    torch.testing.assert_close(loss_sum(model, batch) / 5, own)


def test_the_gradient_too(model: PreTrainedModel, batch: Batch) -> None:
    loss_sum(model, batch).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    reference(model, batch).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)


def test_only_some_positions_reach_the_last_layer(model: PreTrainedModel, batch: Batch) -> None:
    seen: list[int] = []
    model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(output.shape[1])
    )
    label_logits(model, batch)
    assert seen == [4]  # positions 0, 2, 3 and 4, of nine


def test_a_model_that_cannot_keep(
    model: PreTrainedModel, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = label_logits(model, batch)
    monkeypatch.setattr("fedlora.models.losses._can_keep", lambda model: False)
    for found, kept in zip(label_logits(model, batch), expected, strict=True):
        torch.testing.assert_close(found, kept)
