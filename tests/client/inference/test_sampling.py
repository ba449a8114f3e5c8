"""Drawn texts: the right distribution, and the same text as one by one."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlora.client.inference import Decoder, Request
from fedlora.client.inference.plain import plainly
from fedlora.client.inference.sampling import Chooser, gumbel
from fedlora.client.inference.tree import Tree
from fedlora.client.inference.verify import walk

from .conftest import TREES, VOCABULARY, tiny

COUNT = 6  # tokens of the tiny vocabulary
BUSHY = Tree([0, 1, 2, 3, 1, 2], [-1, 0, 0, 0, 1, 1])
CHAIN = Tree([0, 4, 5, 1], [-1, 0, 1, 2])
REQUESTS = {
    "cool": Request(40, temperature=0.7, top_p=0.9, seed=3),
    "warm": Request(40, temperature=1.0, seed=4),
    "hot": Request(40, temperature=1.6, top_k=20, seed=5),
}


def p_value(found: Counter[Any], expected: dict[Any, float], draws: int) -> float:
    """Pearson's chi-square, of cells that are not too rare."""
    cells = {key: share * draws for key, share in expected.items() if share * draws > 10}
    rest = draws - sum(cells.values())
    statistic = sum((found[key] - count) ** 2 / count for key, count in cells.items())
    if rest > 10:
        statistic += (draws - sum(found[key] for key in cells) - rest) ** 2 / rest
    degrees = torch.tensor((len(cells) - (rest <= 10)) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2).double()))


def chance(logits: Tensor, temperature: float) -> list[float]:
    probabilities: list[float] = (logits / temperature).softmax(-1).tolist()
    return probabilities


@pytest.mark.parametrize("tree", [BUSHY, CHAIN], ids=["bushy", "chain"])
@pytest.mark.parametrize(
    ("temperature", "walks"),
    [
        (1.0, 5_000),
        (0.6, 5_000),
        *(pytest.param(one, 50_000, marks=pytest.mark.slow) for one in (0.6, 1.0, 1.7)),
    ],
)
def test_the_distribution_is_that_of_plain_sampling(
    tree: Tree, temperature: float, walks: int
) -> None:
    """Pairs of tokens, whether or not the first was drafted."""
    logits = torch.randn(COUNT, COUNT, generator=torch.Generator().manual_seed(1)) * 1.5
    found: Counter[Any] = Counter()
    for seed in range(walks):
        chooser = Chooser(1, temperature, seed)

        def choose(node: int, chosen: list[int], chooser: Chooser = chooser) -> int:
            last = chosen[-1] if chosen else tree.tokens[0]  # a model of the last token alone
            return chooser.choose(logits[last], [0, *chosen]).token

        taken = walk(tree, choose, lambda chosen: len(chosen) == 2)
        tokens = taken.tokens
        if len(tokens) == 1:
            tokens = [*tokens, choose(0, tokens)]  # the next step's root
        found[tuple(tokens)] += 1
    first = chance(logits[0], temperature)
    expected = {
        (a, b): first[a] * share
        for a in range(COUNT)
        for b, share in enumerate(chance(logits[a], temperature))
    }
    assert p_value(found, expected, walks) > 0.01
    wrong = {(a, b): share * first[b] for a, share in enumerate(first) for b in range(COUNT)}
    assert p_value(found, wrong, walks) < 1e-6


@pytest.mark.parametrize("family", TREES)
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_drawn_text_is_that_of_drawing_one_by_one(family: str, request_: Request) -> None:
    model = tiny(family)
    prompts = [[11, 5, 9, 5, 9], [4]]
    expected = [plainly(model, [prompt], request_)[0] for prompt in prompts]
    with Decoder(model, strict=True) as decoder:
        for _ in range(2):  # the second time with warm tables
            assert [decoder.generate(prompt, request_) for prompt in prompts] == expected
    assert len({tuple(text) for text in expected}) == 2


def test_a_batch_draws_the_same_texts(llama: Any) -> None:
    prompts = [[11, 5, 9, 5, 9], [4, 8], [4]]
    request = REQUESTS["warm"]
    alone = [plainly(llama, [prompt], request)[0] for prompt in prompts]
    assert plainly(llama, prompts, request) == alone


def test_noise_belongs_to_seed_and_position() -> None:
    assert torch.equal(gumbel(1, 2, 50), gumbel(1, 2, 50))
    assert not torch.equal(gumbel(1, 2, 50), gumbel(1, 3, 50))
    assert not torch.equal(gumbel(1, 2, 50), gumbel(2, 2, 50))
    noise = torch.cat([gumbel(0, position, VOCABULARY) for position in range(400)])
    assert noise.isfinite().all()
    assert abs(noise.mean() - 0.5772) < 0.02
    assert abs(noise.var() - 1.6449) < 0.05
