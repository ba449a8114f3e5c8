"""Which models verify a draft tree, and that those which cannot are told by name."""

from typing import Any

import pytest
import torch

from fedlora.client.inference import Decoder, Request
from fedlora.client.inference.selftest import compare, refusal
from fedlora.client.inference.target import Target, windows_of
from fedlora.client.inference.tree import Tree

from .conftest import REFUSED, TREES, VOCABULARY, WINDOW, tiny

TREE = Tree([3, 9, 4, 9, 8, 7, 6], [-1, 0, 0, 1, 1, 2, 5])


@torch.inference_mode()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("length", [2, 2 * WINDOW])
def test_a_tree_gives_the_logits_of_its_branches(model: Any, length: int, attention: str) -> None:
    model.set_attn_implementation(attention if model.config.model_type != "gemma2" else "eager")
    drawn = torch.Generator().manual_seed(1)
    prompt = torch.randint(0, VOCABULARY, (length,), generator=drawn).tolist()
    target = Target(model)
    target.begin(prompt)
    for _ in range(2):  # the second time behind an accepted path
        found = target.step(TREE)
        for node in range(len(TREE)):
            path = [node]
            while TREE.parents[path[0]] >= 0:
                path.insert(0, TREE.parents[path[0]])
            text = prompt + [TREE.tokens[one] for one in path]
            plain = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
            assert (found[node] - plain).abs().max() <= 1e-4
        target.keep([0, 2, 5])
        prompt = prompt + [TREE.tokens[node] for node in (0, 2, 5)]


@pytest.mark.parametrize("family", TREES)
def test_it_accepts_models_that_attend(family: str) -> None:
    model = tiny(family)
    windows = windows_of(model.config)
    assert refusal(model) is None
    assert windows_of(model.config) == windows


@pytest.mark.parametrize("family", REFUSED)
def test_it_refuses_others_by_name_and_they_decode_plainly(family: str) -> None:
    model = tiny(family)
    reason = refusal(model)
    assert reason is not None
    assert type(model).__name__ in reason
    prompt = [5, 6, 7, 8]
    with Decoder(model) as decoder:
        assert decoder.refusal == reason
        found = decoder.generate(prompt, Request(9))
    expected = model.generate(
        torch.tensor([prompt]), max_new_tokens=9, do_sample=False, pad_token_id=0
    )
    assert found == expected[0, len(prompt) :].tolist()


def test_it_refuses_a_model_that_ignores_the_mask(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = type(llama).forward

    def deaf(
        self: Any, input_ids: Any, attention_mask: Any = None, cache: Any = None, **more: Any
    ) -> Any:
        return forward(self, input_ids=input_ids, attention_mask=None, cache=cache, **more)

    monkeypatch.setattr(type(llama), "forward", deaf)
    assert "sees a draft tree differently" in str(refusal(llama))


@torch.inference_mode()
def test_what_it_compares_is_rounding(model: Any) -> None:
    difference, scale = compare(model)
    assert difference <= 1e-4 < scale
