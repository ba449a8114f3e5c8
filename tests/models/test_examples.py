"""What is learned: exactly the response tokens with the token that ends them."""

from collections.abc import Sequence

import pytest
from transformers import PreTrainedTokenizerFast

from fedlora.adapters.errors import DataError, ModelError
from fedlora.models.examples import IGNORED, Counts, Example, encode, encode_prompt
from fedlora.models.rows import Chat, Instruction, Labelled, Message, Row, Text

U, A, S = "user", "assistant", "system"
TURNS = Chat(
    "talk, row 1",
    (
        Message(S, "Be brief."),
        Message(U, "Which key?"),
        Message(A, "The green one."),
        Message(U, "Where?"),
        Message(A, "Behind the door."),
    ),
)
MARKED = (
    "{% for message in messages %}{{ message['role'] + ':\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}"
    "{% endgeneration %}{{ eos_token }}{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)
ENDLESS = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
# Earlier answers are shortened, as templates do that strip the reasoning of past turns.
FORGETFUL = (
    "{% for message in messages %}{{ message['role'] + ':' }}"
    "{% if message['role'] == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{ message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
STRICT = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}hi"


@pytest.fixture
def tokenizer(tiny_tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A copy, since tests put templates of their own on it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer.backend_tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=128,
        chat_template=tiny_tokenizer.chat_template,
    )


def one(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int = 128) -> Example:
    (example,) = encode([row], tokenizer, max_length).examples
    return example


def learned(example: Example, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The runs of labelled tokens, as text."""
    assert not isinstance(example.labels, int)
    assert len(example.labels) == len(example.input_ids)
    runs: list[list[int]] = [[]]
    for token, label in zip(example.input_ids, example.labels, strict=True):
        assert label in (token, IGNORED)
        if label == IGNORED:
            runs.append([])
        else:
            runs[-1].append(token)
    return [tokenizer.decode(run) for run in runs if run]


@pytest.mark.parametrize("template", ["own", MARKED])
def test_all_assistant_turns_are_learned_with_their_end(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    if template != "own":
        tokenizer.chat_template = template
    example = one(TURNS, tokenizer)
    assert learned(example, tokenizer) == ["The green one.<eos>", "Behind the door.<eos>"]


@pytest.mark.parametrize("template", ["own", MARKED])
def test_the_ids_are_those_of_the_template(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    if template != "own":
        tokenizer.chat_template = template
    turns = [vars(message) for message in TURNS.messages]
    whole = tokenizer.apply_chat_template(turns)["input_ids"]
    example = one(TURNS, tokenizer)
    # But for the line break behind the last turn, which teaches nothing.
    assert list(example.input_ids) == whole[:-1]


def test_an_instruction_begins_as_generation_does(tokenizer: PreTrainedTokenizerFast) -> None:
    row = Instruction("a", "Which key?", "The green one.")
    for template in (tokenizer.chat_template, MARKED, None):
        tokenizer.chat_template = template
        example = one(row, tokenizer)
        prompt = encode_prompt(tokenizer, "Which key?", "instruction")
        assert list(example.input_ids[: len(prompt)]) == prompt
        assert learned(example, tokenizer) == ["The green one.<eos>"]
        assert example.label_count == len(example.input_ids) - len(prompt)


def test_pad_as_eos_hides_no_eos(tokenizer: PreTrainedTokenizerFast) -> None:  # trl#976
    tokenizer.pad_token = tokenizer.eos_token
    for row in (TURNS, Instruction("a", "b", "c"), Text("a", "first<eos>second")):
        example = one(row, tokenizer)
        assert not isinstance(example.labels, int)
        assert example.labels[-1] == tokenizer.eos_token_id
    assert learned(example, tokenizer)[0].endswith("<eos>second<eos>")


def test_a_template_without_an_end_gets_one(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = ENDLESS
    runs = learned(one(TURNS, tokenizer), tokenizer)
    assert runs[-1].endswith("Behind the door.\n<eos>")


def test_a_token_across_the_border_is_learned(tokenizer: PreTrainedTokenizerFast) -> None:
    # The template's prompt ends in a space, which the tokenizer joins to the answer.
    tokenizer.chat_template = ENDLESS.replace("'assistant:'", "'assistant: '")
    runs = learned(one(Instruction("a", "Which?", "The key."), tokenizer), tokenizer)
    assert runs == [" The key.\n<eos>"]


def test_a_template_that_rewrites_the_past(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = FORGETFUL
    row = Instruction("a", "Which?", "The key.")
    assert learned(one(row, tokenizer), tokenizer) == ["<think></think>The key.<eos>"]
    with pytest.raises(ModelError, match=r"talk, row 1: .* turn 3 differently"):
        one(TURNS, tokenizer)


def test_a_template_that_refuses(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = STRICT
    with pytest.raises(DataError, match=r"talk, row 1: .* refuses this conversation: user first"):
        one(TURNS, tokenizer)


def test_without_a_template(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    example = one(Instruction("a", "Which?", "The key."), tokenizer)
    assert tokenizer.decode(example.input_ids) == "Which?\n\nThe key.<eos>"
    with pytest.raises(ModelError, match="has no chat template"):
        one(TURNS, tokenizer)
    with pytest.raises(ModelError, match="has no chat template"):
        encode_prompt(tokenizer, "Which?", "chat")
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        one(Text("a", "b"), tokenizer)


def test_text_is_learned_but_for_its_first_token(tokenizer: PreTrainedTokenizerFast) -> None:
    example = one(Text("a", "The ferry leaves."), tokenizer)
    ids = (*tokenizer("The ferry leaves.")["input_ids"], tokenizer.eos_token_id)
    assert example == Example(ids, (IGNORED, *ids[1:]))
    assert encode_prompt(tokenizer, "The ferry", "text") == list(example.input_ids[:2])


@pytest.mark.parametrize("length", range(8, 40))
def test_the_cut_is_counted(tokenizer: PreTrainedTokenizerFast, length: int) -> None:
    rows = [TURNS, Text("b", "x"), Instruction("c", "A prompt of many words, more than most", "y")]
    whole = encode(rows, tokenizer, 128)
    assert whole.counts == Counts(rows=3)
    lengths = [len(example.input_ids) for example in whole.examples]
    cut = encode(rows, tokenizer, length)
    assert all(len(example.input_ids) <= length for example in cut.examples)
    assert all(example.label_count > 0 for example in cut.examples)
    assert cut.counts.truncated == sum(n > length for n in lengths)
    assert cut.counts.tokens_cut == sum(max(0, n - length) for n in lengths)
    assert cut.counts.dropped == 3 - len(cut.examples)
    assert cut.counts.dropped == sum(
        all(label == IGNORED for label in labels_of(example)[:length]) for example in whole.examples
    )


def labels_of(example: Example) -> Sequence[int]:
    assert not isinstance(example.labels, int)
    return example.labels


def test_nothing_left_to_learn(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [Instruction(f"file, row {i}", "many words " * 9, "answer") for i in (1, 2)]
    with pytest.raises(DataError, match=r"file, row 1 and all others: .* within 8 tokens"):
        encode(rows, tokenizer, 8)


def test_the_tokenizers_own_limit_holds(tokenizer: PreTrainedTokenizerFast) -> None:
    encoded = encode([Text("a", "word " * 500)], tokenizer, 4096)
    assert len(encoded.examples[0].input_ids) == 128
    assert encoded.counts.truncated == 1


def test_classification(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [Labelled("a", "yes it is", "yes"), Labelled("b", "no " * 60, "no")]
    encoded = encode(rows, tokenizer, 16, labels=("no", "yes"))
    assert [example.labels for example in encoded.examples] == [1, 0]
    assert encoded.examples[0].input_ids == tuple(tokenizer("yes it is")["input_ids"])
    assert len(encoded.examples[1].input_ids) == 16
    assert encoded.counts.truncated == 1
    assert encoded.counts.tokens_cut == len(tokenizer(rows[1].text)["input_ids"]) - 16
    with pytest.raises(DataError, match=r"c: unknown label 'yess' \(did you mean 'yes'\?\)"):
        encode([Labelled("c", "x", "yess")], tokenizer, 16, labels=("no", "yes"))


def test_counts_add() -> None:
    assert Counts(1, 2, 3, 4) + Counts(10, 20, 30, 40) == Counts(11, 22, 33, 44)
