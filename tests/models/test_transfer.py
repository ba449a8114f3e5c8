"""What a source knows, in another's vocabulary: nothing lost, nothing invented."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from fedlora.adapters import WireError
from fedlora.models.batches import collate
from fedlora.models.examples import Example
from fedlora.models.knowledge import Knowledge, predict
from fedlora.models.loading import load_base
from fedlora.models.pieces import Vocabulary
from fedlora.models.transfer import SoftTargets, own_ids, soft_targets, transfer_loss
from fedlora.recipes.schema import ModelSection

LABELS = ((-100, 70, 71, 72), (-100, -100, 73, 2))
EXAMPLES = [(3, Example((1, 70, 71, 72), LABELS[0])), (5, Example((1, 9, 73, 2), LABELS[1]))]


@pytest.fixture(scope="module")
def vocabulary(tiny_tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return Vocabulary.of(tiny_tokenizer)


@pytest.fixture(scope="module")
def model(tiny_causal: Path) -> torch.nn.Module:
    return load_base(tiny_causal, ModelSection(source="x"))


@pytest.fixture(scope="module")
def knowledge(model: torch.nn.Module, vocabulary: Vocabulary) -> Knowledge:
    return predict(model, EXAMPLES, vocabulary, 8, 1)


def test_guesses_and_losses_are_the_models_own(
    model: torch.nn.Module, knowledge: Knowledge, vocabulary: Vocabulary
) -> None:
    position = 0
    for row, (number, example) in enumerate(EXAMPLES):
        logits = model(torch.tensor([example.input_ids])).logits[0]
        gold = [place for place, label in enumerate(example.labels) if label != -100]  # type: ignore[arg-type]
        scores = logits[[place - 1 for place in gold]].log_softmax(-1)
        labels = [example.input_ids[place] for place in gold]
        size = sum(len(vocabulary.pieces[label]) for label in labels if label != 2)
        loss = -sum(scores[i, label].item() for i, label in enumerate(labels)) / size
        assert knowledge.loss_of()[number] == pytest.approx(loss, rel=1e-5)
        assert knowledge.positions()[number] == slice(position, position + len(labels))
        best = scores[:, : len(vocabulary.pieces)].topk(8)  # no rows without tokens
        span = slice(position, position + len(labels))
        assert torch.equal(knowledge.ids[knowledge.tokens[span].long()].long(), best.indices)
        assert torch.allclose(knowledge.values[span].float(), best.values, atol=0.01)
        position += len(labels)
        assert row == list(knowledge.loss_of()).index(number)


def test_a_subset_says_the_same_of_its_examples(knowledge: Knowledge) -> None:
    one = knowledge.subset([5])
    span = knowledge.positions()[5]
    assert one.loss_of() == {5: knowledge.loss_of()[5]}
    assert [one.pieces[i] for i in one.labels.tolist()] == [
        knowledge.pieces[i] for i in knowledge.labels[span].tolist()
    ]
    assert torch.equal(one.ids[one.tokens.long()], knowledge.ids[knowledge.tokens[span].long()])
    assert set(one.tokens.flatten().tolist() + one.labels.tolist()) == set(range(len(one.pieces)))


def test_the_same_tokenizer_maps_to_itself(knowledge: Knowledge, vocabulary: Vocabulary) -> None:
    words = own_ids(knowledge, vocabulary)
    assert torch.equal(words, knowledge.ids.long())
    soft = soft_targets(knowledge, 3, (70, 71, 72), vocabulary, words, 8)
    span = knowledge.positions()[3]
    assert torch.equal(soft.ids, knowledge.ids[knowledge.tokens[span].long()].long())
    assert torch.equal(soft.shares, knowledge.values[span].float().exp())


def test_a_source_that_claims_the_own_vocabulary_must_be_in_it(
    knowledge: Knowledge, vocabulary: Vocabulary
) -> None:
    small = Vocabulary(vocabulary.digest, vocabulary.pieces[:5])
    with pytest.raises(WireError, match="of 5"):
        own_ids(knowledge, small)


@given(st.data())
def test_no_probability_is_lost_on_the_way(data: st.DataObject) -> None:
    """However the source's guesses fall together in the own vocabulary."""
    pieces = (b"a", b"ab", b"abc", b"b", b"ba")
    shares = data.draw(st.lists(st.floats(0.01, 1), min_size=3, max_size=3))
    values = (torch.tensor([shares]) / (sum(shares) + 0.1)).log().half()
    guesses = data.draw(st.permutations(range(5)))[:3]
    one, whole = torch.tensor([1], dtype=torch.int32), torch.arange(5, dtype=torch.int32)
    source = Knowledge(
        "other",
        one - 1,
        one,
        torch.tensor([1.0]),
        torch.tensor([2], dtype=torch.int32),
        torch.tensor([guesses], dtype=torch.int32),
        values,
        whole,
        pieces,
    )
    order = tuple(data.draw(st.permutations((b"a", b"b", b"bab", b"abc"))))
    own = Vocabulary(str(order), order)
    words = own_ids(source, own)
    gold = own.pieces.index(b"abc")
    assert soft_targets(source, 0, [(gold + 1) % 4], own, words, 4).shares.sum() == 0
    soft = soft_targets(source, 0, [gold], own, words, 4)
    assert soft.shares.sum() == pytest.approx(values.float().exp().sum().item(), rel=1e-5)
    kept = soft.ids[0][soft.shares[0] > 0].tolist()
    assert len(set(kept)) == len(kept)
    for token in kept:
        expected = sum(
            values[0, place].float().exp().item()
            for place, guess in enumerate(guesses)
            if words[guess] == token
        )
        assert soft.shares[0][soft.ids[0] == token].sum() == pytest.approx(expected, rel=1e-5)


def test_the_loss_is_the_mixture_label_by_label(model: torch.nn.Module) -> None:
    batch = collate([one for _, one in EXAMPLES], 0)
    soft = SoftTargets.none(5, 3)
    soft.ids[1] = torch.tensor([70, 9, 40])
    soft.shares[1] = torch.tensor([0.5, 0.2, 0.1])
    loss = transfer_loss(model, batch, soft, 0.25)
    scores = model(batch.input_ids, attention_mask=batch.attention_mask).logits.log_softmax(-1)
    places = [(0, 1, 70), (0, 2, 71), (0, 3, 72), (1, 2, 73), (1, 3, 2)]
    expected = []
    for number, (row, place, gold) in enumerate(places):
        here = scores[row, place - 1]
        if number == 1:
            whole = torch.zeros_like(here)
            whole[[70, 9, 40]] = torch.tensor([0.5, 0.2, 0.1]) / 0.8
            expected.append(-0.75 * here[gold] + 0.25 * F.kl_div(here, whole, reduction="sum"))
        else:
            expected.append(-here[gold])
    assert loss.item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)


def test_nothing_known_is_the_plain_loss(model: torch.nn.Module) -> None:
    batch = collate([one for _, one in EXAMPLES], 0)
    plain = transfer_loss(model, batch, SoftTargets.none(5, 2), 0.9)
    half = transfer_loss(model, batch, SoftTargets.none(5, 2), 0.0)
    assert plain.item() == half.item()
