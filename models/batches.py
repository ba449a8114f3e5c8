"""Batches, and the order in which a node sees its examples.

The order is a function, not a state: batch number -> examples. Epochs follow each other without a
gap, each a permutation drawn from (seed, node, epoch), so a node that stops and comes back in any
round goes on exactly where it would have been.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .examples import IGNORED, Example


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples of one forward pass, padded on the right to the longest.

    Attributes:
        input_ids: (n, length).
        attention_mask: (n, length), 1 where a token stands.
        labels: (n, length), `IGNORED` where nothing is learned; or (n,) class ids.
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor

    @property
    def tokens(self) -> int:
        """Tokens without the padding."""
        return int(self.attention_mask.sum())

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return Batch(
            self.input_ids.to(device), self.attention_mask.to(device), self.labels.to(device)
        )


def collate(examples: Sequence[Example], pad_id: int) -> Batch:
    """One batch of examples that are all of the same kind."""
    width = max(len(example.input_ids) for example in examples)
    ids = torch.full((len(examples), width), pad_id)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORED)
    for row, example in enumerate(examples):
        length = len(example.input_ids)
        ids[row, :length] = torch.tensor(example.input_ids)
        mask[row, :length] = 1
        if not isinstance(example.labels, int):
            labels[row, :length] = torch.tensor(example.labels)
    if isinstance(examples[0].labels, int):
        labels = torch.tensor([example.labels for example in examples])
    return Batch(ids, mask, labels)


class SampleStream:
    """The endless sequence of a node's examples, epoch after epoch."""

    def __init__(self, count: int, seed: int, node: str) -> None:
        """Order the examples 0 .. count - 1 for a node and a seed."""
        self._count, self._seed, self._node = count, seed, node
        self._epoch, self._order = -1, [0]

    def batch(self, number: int, size: int) -> list[int]:
        """The examples of batch `number`, counted from 0 over all rounds.

        A batch may end one epoch and begin the next; where there are fewer examples than `size`,
        it holds some of them more than once.
        """
        return [self._at(number * size + offset) for offset in range(size)]

    def _at(self, position: int) -> int:
        epoch, place = divmod(position, self._count)
        if epoch != self._epoch:
            draw = generator(self._seed, self._node, epoch)
            self._order = torch.randperm(self._count, generator=draw).tolist()
            self._epoch = epoch
        return self._order[place]


def derived_seed(*parts: int | str) -> int:
    """A seed of 63 bits for what the parts name, e.g. (seed, node, round)."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator of its own for what the parts name."""
    return torch.Generator().manual_seed(derived_seed(*parts))
