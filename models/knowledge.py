"""What a model knows of public examples: its best guesses at each label, and how well it did.

It speaks in pieces (bytes), not in ids alone, so that a model with any other tokenizer can read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedlora.adapters.errors import DataError

from .batches import collate
from .examples import Example
from .losses import label_logits, pad_id
from .pieces import Vocabulary, text_bytes

LEAST = -6e4  # the least logarithm that float16 holds


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Predictions of some of a batch's examples, by one model.

    Attributes:
        vocabulary: digest of the model's; see `Vocabulary`.
        samples: (n,) int32, which examples of the batch, ascending.
        lengths: (n,) int32, labels of each.
        losses: (n,) float32, cross entropy of each in nats per byte of its text, which compares
            across tokenizers.
        labels: (positions,) int32, places in `pieces` of what the examples say.
        tokens: (positions, k) int32, places in `pieces` of the k best guesses.
        values: (positions, k) float16, their logarithms of probability.
        ids: (pieces,) int32, the model's own numbers of the pieces.
        pieces: the bytes of every token that occurs.
    """

    vocabulary: str
    samples: Tensor
    lengths: Tensor
    losses: Tensor
    labels: Tensor
    tokens: Tensor
    values: Tensor
    ids: Tensor
    pieces: tuple[bytes, ...]

    def loss_of(self) -> dict[int, float]:
        """The loss of each example."""
        return dict(zip(self.samples.tolist(), self.losses.tolist(), strict=True))

    def positions(self) -> dict[int, slice]:
        """Where the labels of each example stand."""
        ends = self.lengths.cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        spans = (slice(start, end) for start, end in zip(starts, ends, strict=True))
        return dict(zip(self.samples.tolist(), spans, strict=True))

    def text_bytes(self) -> Tensor:
        """(n,) bytes of text that each example's labels stand for, at least 1."""
        sizes = torch.tensor([text_bytes(piece) for piece in self.pieces])
        return summed(sizes[self.labels.long()], self.lengths).clamp_min(1)

    def texts(self) -> dict[int, bytes]:
        """What the labels of each example say, without marks."""
        said = {
            sample: [self.pieces[place] for place in self.labels[span].tolist()]
            for sample, span in self.positions().items()
        }
        return {
            sample: b"".join(piece for piece in pieces if text_bytes(piece))
            for sample, pieces in said.items()
        }

    def subset(self, samples: Sequence[int]) -> "Knowledge":
        """The same for some of its examples alone, at least one."""
        spans, wanted = self.positions(), set(samples)
        kept = [place for place, one in enumerate(self.samples.tolist()) if one in wanted]
        labels = torch.cat([self.labels[spans[int(self.samples[place])]] for place in kept])
        tokens = torch.cat([self.tokens[spans[int(self.samples[place])]] for place in kept])
        values = torch.cat([self.values[spans[int(self.samples[place])]] for place in kept])
        used, labels, tokens = _renumbered(labels, tokens)
        return Knowledge(
            self.vocabulary,
            self.samples[kept],
            self.lengths[kept],
            self.losses[kept],
            labels,
            tokens,
            values,
            self.ids[used],
            tuple(self.pieces[place] for place in used.tolist()),
        )


def summed(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums over consecutive stretches of these lengths, (stretches,)."""
    return torch.stack([part.sum() for part in values.split(lengths.tolist())])


def predict(
    model: Any,
    examples: Sequence[tuple[int, Example]],
    vocabulary: Vocabulary,
    top_k: int,
    batch_size: int,
) -> Knowledge:
    """What a model knows of examples; the model is left in evaluation mode.

    Args:
        model: a causal language model, or PEFT's wrapper.
        examples: each with its number in the batch, ascending; at least one.
        vocabulary: of the model's tokenizer.
        top_k: guesses for each label.
        batch_size: examples in one forward pass.

    Raises:
        DataError: without examples.
    """
    if not examples:
        raise DataError("no public example has anything to learn within train.max_length tokens")
    known = len(vocabulary.pieces)
    labels, tokens, values, surprise = [], [], [], []
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(examples), batch_size):
            batch = collate(
                [one for _, one in examples[start : start + batch_size]], pad_id(model)
            ).to(model.device)
            logits, targets = label_logits(model, batch)
            scores = logits.log_softmax(-1)[:, :known]  # rows beyond are padding, and no tokens
            best = scores.topk(min(top_k, scores.shape[-1]))
            surprise.append(-scores.gather(1, targets[:, None])[:, 0].cpu())
            labels.append(targets.cpu())
            tokens.append(best.indices.cpu())
            values.append(best.values.clamp_min(LEAST).half().cpu())
    lengths = torch.tensor([one.label_count for _, one in examples], dtype=torch.int32)
    used, label_places, token_places = _renumbered(torch.cat(labels), torch.cat(tokens))
    made = Knowledge(
        vocabulary.digest,
        torch.tensor([number for number, _ in examples], dtype=torch.int32),
        lengths,
        summed(torch.cat(surprise), lengths),
        label_places,
        token_places,
        torch.cat(values),
        used.int(),
        tuple(vocabulary.pieces[token] for token in used.tolist()),
    )
    return replace(made, losses=made.losses / made.text_bytes())


def _renumbered(labels: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers that occur, ascending, and both tensors as places among them."""
    used, places = torch.cat([labels, tokens.flatten()]).unique(return_inverse=True)
    places = places.int()
    return used, places[: len(labels)], places[len(labels) :].view_as(tokens)
