"""What a model has in hand before its vocabulary: hidden states, and the layer that reads them.

Logits of a batch over the whole vocabulary are the largest tensor of distillation, and there are
two models' worth of them. Whoever has hidden states and output layer can make a few at a time.
"""

from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn

from fedlora.adapters import ModelError
from fedlora.models.batches import Batch
from fedlora.models.examples import IGNORED
from fedlora.models.losses import label_logits

PROBED = 16  # tokens of a batch on which `check_head` looks
TOLERANCE = 1e-4  # relative to the largest logit


def label_hidden(model: Any, batch: Batch) -> Tensor:
    """Hidden states (labels, width) of a causal language model where it predicts a label."""
    decoder = _causal(model).get_decoder()
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    hidden: Tensor = decoder(**inputs, use_cache=False).last_hidden_state
    return hidden[:, :-1][batch.labels[:, 1:] != IGNORED]


def label_targets(batch: Batch) -> Tensor:
    """The labels (labels,), in the order of `label_hidden`."""
    targets = batch.labels[:, 1:]
    return targets[targets != IGNORED]


def output_head(model: Any) -> nn.Module:
    """From hidden states to logits: the module, with a LoRA on it if there is one.

    Never its `weight`, which knows nothing of that LoRA.
    """
    head = _causal(model).get_output_embeddings()
    if not isinstance(head, nn.Module):
        raise ModelError(f"{type(_causal(model)).__name__} has no output layer to read logits from")
    return head


def check_head(model: Any, batch: Batch) -> None:
    """See that the model's logits are what its output layer makes of its hidden states.

    Raises:
        ModelError: if it does more, as models do that cap or scale their logits.
    """
    few = Batch(
        batch.input_ids[:1, : PROBED + 1], batch.attention_mask[:1, : PROBED + 1], _all(batch)
    )
    with torch.no_grad():
        expected, _ = label_logits(model, few)
        found = output_head(model)(label_hidden(model, few)).float()
    if (found - expected).abs().max() > TOLERANCE * expected.abs().max():
        raise ModelError(
            f"{type(_causal(model)).__name__} changes its logits after the output layer (a cap or "
            "a scale), which distillation does not follow; use a model without that"
        )


def _all(batch: Batch) -> Tensor:
    """Labels at every place, so that any batch can be looked at."""
    ids = batch.input_ids[:1, : PROBED + 1]
    return ids.where(batch.attention_mask[:1, : PROBED + 1] == 1, IGNORED)


def _causal(model: Any) -> Any:
    return model.get_base_model() if isinstance(model, PeftModel) else model
