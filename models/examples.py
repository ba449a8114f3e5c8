"""From rows to what a model learns: token ids, with labels only where something is to be learned.

Labels are built here from the text, never from the ids: an end-of-sequence token that happens to
be the padding token as well is learned like any other. Formats:

- instruction, chat: the model's own chat template; labels on the assistant's turns.
- instruction, where the tokenizer has no template: `prompt`, an empty line, `response`, eos.
- text: the text and eos; labels everywhere.
- classification: the text; the label is a class id.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from transformers import PreTrainedTokenizerBase

from fedlora.adapters.errors import DataError, ModelError

from .chat import conversation_ids, prompt_ids, text_ids
from .rows import Chat, Instruction, Labelled, Message, Row, nearest

IGNORED = -100
GAP = "\n\n"  # between prompt and response, for models without a chat template


@dataclass(frozen=True)
class Example:
    """One sequence.

    Attributes:
        input_ids: (length,).
        labels: (length,), `IGNORED` where nothing is learned; or the class id of the sequence.
    """

    input_ids: tuple[int, ...]
    labels: tuple[int, ...] | int

    @property
    def label_count(self) -> int:
        """How many predictions this example teaches."""
        if isinstance(self.labels, int):
            return 1
        return sum(label != IGNORED for label in self.labels)


@dataclass(frozen=True)
class Counts:
    """What became of the rows.

    Attributes:
        rows: read.
        truncated: examples that were cut to the longest allowed length.
        tokens_cut: tokens that this took away.
        dropped: examples that had nothing left to learn after the cut.
    """

    rows: int = 0
    truncated: int = 0
    tokens_cut: int = 0
    dropped: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        """The sum, field by field."""
        return Counts(
            *(getattr(self, part.name) + getattr(other, part.name) for part in fields(self))
        )


@dataclass(frozen=True)
class Encoded:
    """Examples, and the account of what was cut."""

    examples: tuple[Example, ...]
    counts: Counts


def encode(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    labels: Sequence[str] = (),
) -> Encoded:
    """Examples of all rows that keep something to learn within `max_length` tokens.

    Args:
        rows: of one format.
        tokenizer: the model's; its own `model_max_length` bounds the length too.
        max_length: tokens; longer examples lose their end, and are counted.
        labels: class names in the order of their ids, for classification.

    Raises:
        DataError: for a label that is not in `labels`, a conversation that the chat template
            refuses, or if no example keeps anything to learn.
        ModelError: if the tokenizer lacks what the format needs: a chat template, an eos token.
    """
    longest = min(max_length, int(tokenizer.model_max_length))
    whole = [_encode(row, tokenizer, longest, labels) for row in rows]
    cut = [_cut(example, longest) for example, _ in whole]
    kept = tuple(example for example in cut if example.label_count)
    lost = [max(0, length - longest) for _, length in whole]
    if rows and not kept:
        raise DataError(
            f"{rows[0].place} and all others: no token to learn is left within {longest} tokens; "
            "shorten the prompts or raise train.max_length"
        )
    truncated = sum(tokens > 0 for tokens in lost)
    return Encoded(kept, Counts(len(rows), truncated, sum(lost), len(cut) - len(kept)))


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, data_format: str) -> list[int]:
    """What the model sees before it answers: the beginning of an example of the same format."""
    if data_format == "text":
        return _without_eos(tokenizer, prompt)
    if data_format == "instruction" and not tokenizer.chat_template:
        return _without_eos(tokenizer, prompt + GAP)
    return prompt_ids(tokenizer, prompt)


def _encode(
    row: Row, tokenizer: PreTrainedTokenizerBase, longest: int, labels: Sequence[str]
) -> tuple[Example, int]:
    """The example, and its length in tokens before any cut."""
    if isinstance(row, Labelled):
        return _classified(row, tokenizer, longest, labels)
    if isinstance(row, Chat):
        ids, said = conversation_ids(tokenizer, row.messages, row.place)
    elif isinstance(row, Instruction) and tokenizer.chat_template:
        turns = (Message("user", row.prompt), Message("assistant", row.response))
        ids, said = conversation_ids(tokenizer, turns, row.place)
    elif isinstance(row, Instruction):
        start = len(row.prompt + GAP)
        text = row.prompt + GAP + row.response
        ids, said = _with_eos(tokenizer, *text_ids(tokenizer, text, [(start, len(text))], True))
    else:
        span = [(0, len(row.text))]
        ids, said = _with_eos(tokenizer, *text_ids(tokenizer, row.text, span, True))
    example = _learned(ids, said)
    return example, len(example.input_ids)


def _learned(ids: list[int], said: list[bool]) -> Example:
    """The example up to its last label: what stands behind teaches nothing."""
    said[0] = False  # nothing predicts the first token
    length = max((i + 1 for i, now in enumerate(said) if now), default=len(ids))
    pairs = list(zip(ids, said, strict=True))[:length]
    labels = tuple(key if now else IGNORED for key, now in pairs)
    return Example(tuple(ids[:length]), labels)


def _classified(
    row: Labelled, tokenizer: PreTrainedTokenizerBase, longest: int, labels: Sequence[str]
) -> tuple[Example, int]:
    if row.label not in labels:
        raise DataError(
            f"{row.place}: unknown label {row.label!r}{nearest(row.label, list(labels))}; "
            f"expected one of {', '.join(labels)}"
        )
    whole = tokenizer(row.text, verbose=False)["input_ids"]
    # The tokenizer's own cut keeps the special token at the end.
    ids = tokenizer(row.text, truncation=True, max_length=longest)["input_ids"]
    return Example(tuple(ids), labels.index(row.label)), len(whole)


def _cut(example: Example, longest: int) -> Example:
    if isinstance(example.labels, int):
        return example
    return Example(example.input_ids[:longest], example.labels[:longest])


def _with_eos(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], said: list[bool]
) -> tuple[list[int], list[bool]]:
    """Close the text with an eos that is learned, whether or not the tokenizer wrote one."""
    eos = tokenizer.eos_token_id
    if eos is None:
        raise ModelError(
            "the tokenizer of this model has no end-of-sequence token, so the model could never "
            "learn to stop; use a model made for generation"
        )
    if ids and ids[-1] == eos:
        return ids, [*said[:-1], True]
    return [*ids, eos], [*said, True]


def _without_eos(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids
