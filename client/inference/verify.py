"""The way of a text through a verified tree."""

from collections.abc import Callable
from dataclasses import dataclass

from .tree import Tree


@dataclass(frozen=True)
class Walk:
    """What a tree brought.

    Attributes:
        path: the nodes that the text goes through, the root first.
        tokens: what follows each of them; the last one is in no node.
    """

    path: list[int]
    tokens: list[int]


def walk(
    tree: Tree, choose: Callable[[int, list[int]], int], ended: Callable[[list[int]], bool]
) -> Walk:
    """Follow the text from the root as long as it was drafted.

    At each node the next token is chosen as if nothing had been drafted; a draft that says the
    same saves the forward pass, and nothing else. So the text is the target's own.

    Args:
        tree: the drafts.
        choose: gives the token that follows a node, and the tokens chosen on the way to it.
        ended: whether the text ends with these tokens, chosen since the root.
    """
    children = tree.children()
    path, tokens = [0], [choose(0, [])]
    while not ended(tokens):
        child = children[path[-1]].get(tokens[-1])
        if child is None:
            break
        path.append(child)
        tokens.append(choose(child, tokens))
    return Walk(path, tokens)
