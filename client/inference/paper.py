"""The published draft tree: 80 nodes of fixed shape over the matrix's rows.

Luo et al., 2024, in whose code the shape stands as a list of paths of candidate ranks; here as how
many children each node has, level by level. Kept for comparison, and for devices on which 81
tokens cost no more than one.
"""

from collections.abc import Sequence

from .matrix import EMPTY, Chances, Ids
from .tables import Tables
from .tree import Tree

# By node, in order of level and rank: how many of the best candidates are its children.
CHILDREN: dict[tuple[int, ...], int] = {
    (): 8,
    **dict(zip([(rank,) for rank in range(8)], (8, 4, 3, 2, 1, 1, 1, 1), strict=True)),
    **dict(zip([(0, rank) for rank in range(8)], (8, 3, 2, 1, 1, 1, 1, 1), strict=True)),
    **dict(zip([(1, 0), (1, 1), (2, 0), (3, 0), (4, 0), (5, 0)], (2, 1, 1, 1, 1, 1), strict=True)),
    **dict(zip([(0, 0, rank) for rank in range(5)], (5, 2, 1, 1, 1), strict=True)),
    **dict.fromkeys([(0, 1, 0), (0, 2, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)], 1),
    (0, 0, 0, 0): 3,
    **dict.fromkeys([(0, 0, 0, 1), (0, 0, 0, 2), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0)], 1),
    (0, 0, 0, 0, 0): 2,
    (0, 0, 0, 1, 0): 1,
}


def _shape() -> tuple[list[int], list[int]]:
    """Parent and rank of each node, parents first."""
    nodes: list[tuple[int, ...]] = [()]
    parents, ranks = [-1], [0]
    for node, path in enumerate(nodes):
        for rank in range(CHILDREN.get(path, 0)):
            nodes.append((*path, rank))
            parents.append(node)
            ranks.append(rank)
    return parents, ranks


PARENTS, RANKS = _shape()
DEPTHS = Tree(RANKS, PARENTS).depths()


class PaperDrafter:
    """Fills the fixed tree from the matrix alone."""

    def __init__(self, tables: Tables) -> None:
        """A drafter on tables, of which it uses the matrix."""
        self._matrix = tables.matrix

    def begin(self, prompt: Sequence[int]) -> None:
        """The published method learns nothing from the prompt."""

    def grow(self, text: Sequence[int], most: int, deepest: int) -> Tree:
        """The tree down to a level; a row not yet seen gives token 0, as published."""
        count = sum(depth <= deepest for depth in DEPTHS)
        tokens = [text[-1]]
        for parent, rank in zip(PARENTS[1:count], RANKS[1:count], strict=True):
            token = int(self._matrix.ids[tokens[parent], rank])
            tokens.append(0 if token == EMPTY else token)
        return Tree(tokens, PARENTS[:count])

    def learn(self, tree: Tree, before: int, top: tuple[Ids, Chances], path: Sequence[int]) -> None:
        """Update the rows of all nodes, accepted or not."""
        self._matrix.write(tree.tokens, *top)

    def extend(self, tokens: Sequence[int], text: Sequence[int]) -> None:
        """The published method looks up no suffixes."""
