"""A node's private examples: read, encoded, and split into those to learn and those to test on."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from fedlora.adapters.errors import DataError
from fedlora.models.batches import generator
from fedlora.models.examples import Counts, Encoded, Example, encode
from fedlora.models.files import read_rows
from fedlora.recipes.schema import Task


@dataclass(frozen=True)
class NodeData:
    """What a node trains and evaluates on; none of it ever leaves the node.

    Attributes:
        train: at least one example.
        heldout: disjoint from `train`, or from a file of their own; may be empty.
        counts: rows read, and what became of them, over both.
    """

    train: tuple[Example, ...]
    heldout: tuple[Example, ...]
    counts: Counts

    @classmethod
    def load(
        cls,
        path: Path,
        heldout_path: Path | None,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        node: str,
    ) -> "NodeData":
        """Read a node's data.

        Args:
            path: a data file or saved dataset.
            heldout_path: the same for evaluation; without it, the share `task.data.heldout` of the
                examples is held out, drawn from (seed, node).
            task: format, labels, lengths and seed.
            tokenizer: the model's.
            node: the node's name.

        Raises:
            DataError: for a file that is missing, empty or not in the format, or if there are too
                few examples to hold some out.
        """
        own = _encoded(path, task, tokenizer)
        if heldout_path is not None:
            extra = _encoded(heldout_path, task, tokenizer)
            return cls(own.examples, extra.examples, own.counts + extra.counts)
        train, heldout = split(own.examples, task.data.heldout, task.seed, node)
        if not train:
            raise DataError(
                f"{path}: {len(own.examples)} example is too few to hold out a share of "
                f"{task.data.heldout}; add examples, set data.heldout = 0, or name a heldout file"
            )
        return cls(train, heldout, own.counts)


def split(
    examples: tuple[Example, ...], share: float, seed: int, node: str
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Examples to train on and, drawn by (seed, node), a share of them (at least one) to hold out.

    Both keep the order of the file.
    """
    count = max(1, round(share * len(examples))) if share else 0
    draw = generator(seed, node, "heldout")
    held = set(torch.randperm(len(examples), generator=draw)[:count].tolist())
    train = tuple(example for i, example in enumerate(examples) if i not in held)
    return train, tuple(examples[i] for i in sorted(held))


def _encoded(path: Path, task: Task, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    rows = read_rows(path, task.data)
    return encode(rows, tokenizer, task.train.max_length, task.model.labels)
