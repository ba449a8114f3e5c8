"""A draft tree: continuations of a text that share beginnings, verified in one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Tree:
    """Nodes in an order in which parents precede their children.

    Attributes:
        tokens: of the nodes; the first is the root, the text's last token, which is known.
        parents: index of each node's parent; -1 for the root.
        scores: estimated probability that the text goes through the node; 1 for the root.
        clues: what the drafter goes by when it learns from the node's fate, if anything.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    scores: Sequence[float] = ()
    clues: Sequence[int] = ()

    def __len__(self) -> int:
        """Number of nodes, the root among them."""
        return len(self.tokens)

    def first(self, count: int) -> "Tree":
        """The tree of the first `count` nodes."""
        return Tree(
            self.tokens[:count], self.parents[:count], self.scores[:count], self.clues[:count]
        )

    def padded(self, count: int) -> "Tree":
        """The tree with nodes added that draft nothing in earnest, up to `count`."""
        more = max(0, count - len(self))
        return Tree(
            [*self.tokens, *[self.tokens[0]] * more],
            [*self.parents, *[0] * more],
            self.scores,
            self.clues,
        )

    def depths(self) -> list[int]:
        """Distance of each node from the root."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return depths

    def children(self) -> list[dict[int, int]]:
        """For each node, its children by token; of twins the first."""
        found: list[dict[int, int]] = [{} for _ in self.tokens]
        for node in range(len(self) - 1, 0, -1):
            found[self.parents[node]][self.tokens[node]] = node
        return found

    def ancestry(self) -> Flags:
        """(nodes, nodes): whether the column is the row's ancestor, or itself."""
        seen = np.eye(len(self), dtype=bool)
        for node in range(1, len(self)):
            seen[node] |= seen[self.parents[node]]
        return seen


def mask(tree: Tree, length: int, dtype: torch.dtype, window: int | None = None) -> Tensor:
    """What a tree behind `length` tokens attends to, as a tensor to be *added* to the scores.

    Additive floats, since eager attention adds whatever it is given: a boolean mask would be
    silently wrong there.

    Args:
        tree: of n nodes.
        length: tokens before the root, all cached.
        dtype: of the model.
        window: how many positions a node sees, its own included; None for all.

    Returns:
        (1, 1, n, length + n): 0 where seen, the type's lowest number elsewhere.
    """
    depths = np.array(tree.depths())
    seen = np.concatenate([np.ones((len(tree), length), dtype=bool), tree.ancestry()], axis=1)
    if window is not None:
        positions = np.concatenate([np.arange(length), length + depths])
        seen &= (length + depths)[:, None] - positions[None, :] < window
    hidden = torch.from_numpy(~seen)[None, None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
