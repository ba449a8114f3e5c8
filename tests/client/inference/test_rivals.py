"""Side by side: the same texts, and a table of what they took."""

from typing import Any

import pytest
import torch

from fedlora.client.inference import Request
from fedlora.client.inference.rivals import GREEDY, LOOKUP, LOOP, OURS, PAPER, Timed, table, ways

PROMPT = [11, 5, 9, 5, 9, 7, 5]


def test_all_ways_give_the_same_text_and_leave_the_model_alone(llama: Any) -> None:
    before = llama(input_ids=torch.tensor([PROMPT])).logits
    with ways(llama) as found:
        assert set(found) == {GREEDY, LOOKUP, LOOP, PAPER, OURS}
        texts = {name: way(PROMPT, Request(24)) for name, way in found.items()}
        again = found[OURS](PROMPT, Request(24))
    assert {tuple(text.tokens) for text in texts.values()} == {tuple(texts[GREEDY].tokens)}
    assert texts[GREEDY].passes == texts[LOOP].passes == 24
    assert again.tokens == texts[OURS].tokens
    assert again.passes < 20
    assert all(text.seconds > 0 for text in texts.values())
    assert torch.equal(llama(input_ids=torch.tensor([PROMPT])).logits, before)


def test_the_table_is_against_the_first_way() -> None:
    slow = [Timed([1, 2, 3, 4], 2.0, 4), Timed([5, 6], 4.0, 2)]
    fast = [Timed([1, 2, 3, 4], 1.0, 2, 1), Timed([5, 7], 1.0, 2)]
    first, second = table({"slow": slow, "fast": fast})
    assert (first.ratio, first.identical, first.tokens_per_pass) == (1.0, 1.0, 1.0)
    assert second.ratio == pytest.approx(3.0)
    assert (second.identical, second.near_ties) == (0.5, 1)
    assert second.tokens_per_pass == 1.5
    assert second.tokens_per_second == 3.0
    assert second.lower <= 2.0 < 4.0 <= second.upper
