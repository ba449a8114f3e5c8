"""Our draft tree: grown best first from all that is remembered, at every step anew.

The node that the text most probably goes through is added next, whatever its depth: a long chain
where a suffix matches, a broad crown where nobody knows. So any first part of the nodes is the
best tree of that size, and how many to verify can be decided afterwards.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from .matrix import Chances, Ids
from .tables import Tables
from .tree import Tree

TAIL = 16  # tokens of context that matter
LEAST = 0.004  # no node below this probability


class Drafter:
    """Grows trees from tables, and writes into them what each forward pass yields."""

    def __init__(self, tables: Tables) -> None:
        """A drafter on tables, which may be warm from earlier texts."""
        self._tables = tables

    def begin(self, prompt: Sequence[int]) -> None:
        """Take in a prompt."""
        self._tables.suffixes.extend(prompt, ())

    def grow(self, text: Sequence[int], most: int, deepest: int) -> Tree:
        """A tree whose root is the text's last token.

        Args:
            text: what is known, prompt included.
            most: nodes at most, the root among them.
            deepest: levels below the root at most.
        """
        tails = [list(text[-TAIL:])]
        tokens, parents, scores, clues, depths = [text[-1]], [-1], [1.0], [0], [0]
        heap: list[tuple[float, int, int, int, int]] = []
        born = 0
        for node in range(most):
            if node:
                if not heap:
                    break
                score, _, parent, token, clue = heappop(heap)
                tokens.append(token)
                parents.append(parent)
                scores.append(-score)
                clues.append(clue)
                tails.append([*tails[parent][1 - TAIL :], token])
                depths.append(depths[parent] + 1)
            if depths[node] == deepest:
                continue
            for token, clue, chance in self._candidates(tails[node]):
                score = scores[node] * chance
                if score > LEAST:
                    born += 1
                    heappush(heap, (-score, born, node, token, clue))
        return Tree(tokens, parents, scores, clues)

    def learn(self, tree: Tree, before: int, top: tuple[Ids, Chances], path: Sequence[int]) -> None:
        """Recycle a verified tree: rows of all nodes, and the fate of those that were tried.

        Args:
            tree: as verified.
            before: the token before the root.
            top: candidates of each node, and their probabilities, each (nodes, width).
            path: the accepted nodes, from the root; their rows win.
        """
        tried = set(path)
        order = [node for node in range(len(tree)) if node not in tried] + list(path)
        tokens = [tree.tokens[node] for node in order]
        above = [tree.tokens[tree.parents[node]] if node else before for node in order]
        ids, chances = top[0][order], top[1][order]
        self._tables.matrix.write(tokens, ids, chances)
        self._tables.pairs.write(list(zip(above, tokens, strict=True)), ids, chances)
        for node, parent in enumerate(tree.parents[: len(tree.clues)]):
            if parent in tried:
                self._tables.acceptance.learn(tree.clues[node], node in tried)

    def extend(self, tokens: Sequence[int], text: Sequence[int]) -> None:
        """Take in tokens that are now known to follow the text."""
        self._tables.suffixes.extend(tokens, text)

    def _candidates(self, tail: list[int]) -> list[tuple[int, int, float]]:
        """Tokens that may follow, each with its clue and its probability."""
        tables = self._tables
        found: dict[int, list[float]] = {}
        for token, matched in tables.suffixes.continuations(tail):
            found.setdefault(token, [float(matched), 0.0, 0.0])
        if len(tail) > 1:
            for token, chance in tables.pairs.row(tail[-2], tail[-1]):
                found.setdefault(token, [0.0, 0.0, 0.0])[1] = chance
        for token, chance in tables.matrix.row(tail[-1]):
            found.setdefault(token, [0.0, 0.0, 0.0])[2] = chance
        acceptance = tables.acceptance
        made = []
        for token, (match, pair, row) in found.items():
            clue = acceptance.clue(int(match), pair, row)
            made.append((token, clue, acceptance.chance(clue)))
        return made
