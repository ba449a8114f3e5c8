"""Trees, their masks, and the way through them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlora.client.inference.paper import PARENTS, RANKS
from fedlora.client.inference.tree import Tree, mask
from fedlora.client.inference.verify import walk

TREES = st.lists(st.integers(0, 50), max_size=12).map(
    lambda drawn: Tree(
        [7, *[n % 5 for n in drawn]], [-1, *[n % (i + 1) for i, n in enumerate(drawn)]]
    )
)


def branch(tree: Tree, node: int) -> list[int]:
    """Nodes from the root to a node."""
    return [] if node < 0 else [*branch(tree, tree.parents[node]), node]


@given(tree=TREES, length=st.integers(0, 9), window=st.one_of(st.none(), st.integers(1, 8)))
def test_a_node_sees_the_text_before_it_and_its_ancestors(
    tree: Tree, length: int, window: int | None
) -> None:
    made = mask(tree, length, torch.float32, window)
    assert made.shape == (1, 1, len(tree), length + len(tree))
    for node in range(len(tree)):
        seen = [*range(length), *[length + one for one in branch(tree, node)]]
        expected = set(seen[-window:] if window else seen)
        assert set((made[0, 0, node] == 0).nonzero().flatten().tolist()) == expected
    assert (made[made != 0] == torch.finfo(torch.float32).min).all()


@given(tree=TREES, seed=st.integers(0, 99))
def test_a_walk_is_the_text_whatever_is_drafted(tree: Tree, seed: int) -> None:
    text = torch.randint(0, 5, (20,), generator=torch.Generator().manual_seed(seed)).tolist()
    taken = walk(tree, lambda node, chosen: text[len(chosen)], lambda chosen: len(chosen) == 4)
    assert taken.tokens == text[: len(taken.tokens)]
    assert taken.path == branch(tree, taken.path[-1])
    assert [tree.tokens[node] for node in taken.path[1:]] == taken.tokens[:-1]
    children = [n for n in range(len(tree)) if tree.parents[n] == taken.path[-1]]
    missed = taken.tokens[-1] not in {tree.tokens[child] for child in children}
    assert missed or len(taken.tokens) == 4


def test_the_published_tree_has_its_shape() -> None:
    tree = Tree([0] * len(PARENTS), PARENTS)
    depths = tree.depths()
    assert [depths.count(depth) for depth in range(7)] == [1, 8, 21, 25, 15, 8, 3]
    assert max(RANKS) == 7


def test_padding_adds_nodes_and_changes_none() -> None:
    tree = Tree([5, 6], [-1, 0], [1.0, 0.5], [0, 9])
    padded = tree.padded(4)
    assert len(padded) == 4
    assert padded.first(2) == tree
    assert tree.padded(1) == tree
