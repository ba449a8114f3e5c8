"""Compaction against lists."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlora.client.inference.cache import SPARE, TreeCache, TreeLayer

STEPS = st.lists(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(first=st.integers(1, 5), steps=STEPS)
def test_what_is_kept_is_what_a_list_would_keep(
    first: int, steps: list[tuple[int, set[int]]]
) -> None:
    cache, kept, number = TreeCache(), [], 0
    for count, chosen in [(first, set(range(first))), *steps]:
        states = (number + torch.arange(count)).float().view(1, 1, count, 1).expand(1, 2, -1, 3)
        number += count
        for layer in range(2):
            keys, values = cache.update(states, -states, layer)
            assert keys[0, 1, :, 2].tolist() == kept + states[0, 0, :, 0].tolist()
            assert torch.equal(keys, -values)
        path = sorted(chosen)
        cache.keep(len(kept), path)
        kept += [states[0, 0, row, 0].item() for row in path]
        assert cache.get_seq_length() == len(kept)


def test_a_buffer_that_is_full_grows_and_keeps_what_it_holds() -> None:
    layer = TreeLayer()
    states = torch.randn(1, 2, SPARE + 7, 4)
    layer.update(states[:, :, :3], states[:, :, :3])
    keys, values = layer.update(states[:, :, 3:], states[:, :, 3:])
    assert torch.equal(keys, states)
    assert torch.equal(values, states)


def test_transformers_may_cut_its_end() -> None:
    layer = TreeLayer()
    layer.update(torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 5, 2))
    layer.crop(-2)
    assert layer.get_seq_length() == 3
