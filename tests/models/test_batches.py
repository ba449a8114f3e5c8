"""Batches and their order."""

import torch

from fedlora.models.batches import SampleStream, collate, derived_seed, generator
from fedlora.models.examples import IGNORED, Example


def test_padding_on_the_right_to_the_longest() -> None:
    batch = collate([Example((5, 6, 7), (IGNORED, 6, 7)), Example((8, 0), (IGNORED, 0))], pad_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    # The second example's own 0 is learned, its padding is not.
    assert batch.labels.tolist() == [[IGNORED, 6, 7], [IGNORED, 0, IGNORED]]
    assert batch.tokens == 5


def test_classes() -> None:
    batch = collate([Example((5,), 2), Example((8, 9), 0)], pad_id=1)
    assert batch.labels.tolist() == [2, 0]
    assert batch.input_ids.tolist() == [[5, 1], [8, 9]]


def test_epochs_are_permutations_without_a_gap() -> None:
    stream = SampleStream(10, seed=3, node="north")
    drawn = [i for number in range(15) for i in stream.batch(number, 4)]
    epochs = [drawn[start : start + 10] for start in range(0, 60, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    expected = torch.randperm(10, generator=generator(3, "north", 2)).tolist()
    assert epochs[2] == expected


def test_the_order_has_no_state() -> None:
    forward = [SampleStream(7, 0, "a").batch(number, 3) for number in range(20)]
    stream = SampleStream(7, 0, "a")
    assert [stream.batch(number, 3) for number in reversed(range(20))] == forward[::-1]


def test_the_order_depends_on_seed_and_node() -> None:
    orders = {
        tuple(SampleStream(20, seed, node).batch(0, 20)) for seed in (0, 1) for node in ("a", "b")
    }
    assert len(orders) == 4


def test_fewer_examples_than_a_batch() -> None:
    batch = SampleStream(3, 0, "a").batch(0, 8)
    assert sorted(batch[:3]) == sorted(batch[3:6]) == [0, 1, 2]
    assert len(batch) == 8
    assert SampleStream(1, 0, "a").batch(5, 2) == [0, 0]


def test_seeds_differ_by_part_and_stay() -> None:
    assert derived_seed(0, "a", 1) == 4757247737403457943
    assert derived_seed(0, "a", 1) != derived_seed(0, "a1")
    assert derived_seed(1, 23) != derived_seed(12, 3)
    assert 0 <= derived_seed("x") < 2**63


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    SampleStream(9, 0, "a").batch(0, 9)
    assert torch.equal(before, torch.get_rng_state())
