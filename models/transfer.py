"""From another model's knowledge to targets in the own vocabulary, and the loss that follows them.

FedMKT's objective (Fan et al., COLING 2025): 0.9 of the language-model loss, 0.1 of following the
best source. Only the top guesses travel, so the rest of the distribution is unknown: they are taken
as a whole, and always together with the gold tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlora.adapters.errors import WireError

from .alignment import anchors, token_map
from .batches import Batch
from .knowledge import Knowledge
from .losses import label_logits
from .pieces import Vocabulary


@dataclass(frozen=True, eq=False)
class SoftTargets:
    """What a source expects at each of the own labels.

    Attributes:
        ids: (labels, k) own tokens.
        shares: (labels, k) their probabilities; a row of zeros where the source says nothing.
    """

    ids: Tensor
    shares: Tensor

    @classmethod
    def none(cls, labels: int, k: int) -> "SoftTargets":
        """Nothing known of any label."""
        return cls(torch.zeros(labels, k, dtype=torch.long), torch.zeros(labels, k))

    @classmethod
    def joined(cls, parts: Sequence["SoftTargets"]) -> "SoftTargets":
        """Those of several examples, one after the other."""
        ids, shares = ([getattr(part, name) for part in parts] for name in ("ids", "shares"))
        return cls(torch.cat(ids), torch.cat(shares))


def own_ids(source: Knowledge, own: Vocabulary) -> Tensor:
    """(pieces,) the own token for each of the source's pieces.

    Raises:
        WireError: if a source of the own vocabulary names a token that isn't in it.
    """
    if source.vocabulary != own.digest:
        words = token_map(own)
        return torch.tensor([words[piece] for piece in source.pieces])
    if int(source.ids.min()) < 0 or int(source.ids.max()) >= len(own.pieces):
        raise WireError(f"a source names token {int(source.ids.max())} of {len(own.pieces)}")
    return source.ids.long()


def soft_targets(
    source: Knowledge, sample: int, labels: Sequence[int], own: Vocabulary, words: Tensor, k: int
) -> SoftTargets:
    """A source's guesses at one example, in the own vocabulary, at the own labels.

    Only where both tokenizers cut the same token at the same place, as in FuseLLM: elsewhere the
    source speaks of a part of a word or of several, and its other guesses would too. Guesses that
    fall on one own token are added up, so that no probability is lost.

    Args:
        source: knows the example.
        sample: its number.
        labels: the own tokens to predict.
        own: the own vocabulary.
        words: as `own_ids` gives them.
        k: columns, at least as many as the source has guesses.
    """
    made = SoftTargets.none(len(labels), k)
    span = source.positions()[sample]
    places = source.labels[span].long()
    said = [source.pieces[place] for place in places.tolist()]
    pairs = torch.tensor(anchors([own.pieces[label] for label in labels], said))
    same_token = words[places][pairs] == torch.tensor(labels)  # (labels,)
    mine = ((pairs >= 0) & same_token).nonzero().squeeze(1)
    theirs = pairs[mine]
    ids = words[source.tokens[span][theirs].long()]  # (pairs, guesses)
    shares = source.values[span][theirs].float().exp()
    same = ids[:, :, None] == ids[:, None, :]
    first = same.int().argmax(-1) == torch.arange(ids.shape[1])
    made.ids[mine, : ids.shape[1]] = ids
    made.shares[mine, : ids.shape[1]] = (same * shares[:, None, :]).sum(-1) * first
    return made


def transfer_loss(model: Any, batch: Batch, soft: SoftTargets, share: float) -> Tensor:
    """Mean over labels: (1 - share) CE + share KL(source, model) where there is one, else CE.

    Args:
        model: a causal language model, or PEFT's wrapper.
        batch: of examples.
        soft: targets at the labels of the batch, example by example.
        share: of the source.
    """
    logits, targets = label_logits(model, batch)  # (labels, vocabulary)
    scores = logits.log_softmax(-1)
    surprise = -scores.gather(1, targets[:, None])[:, 0]
    shares, ids = soft.shares.to(scores.device), soft.ids.to(scores.device)
    mass = shares.sum(-1, keepdim=True)
    whole = shares / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    followed = (torch.xlogy(whole, whole) - whole * scores.gather(1, ids)).sum(-1)
    weight = share * (mass[:, 0] > 0)
    return ((1 - weight) * surprise + weight * followed).mean()
