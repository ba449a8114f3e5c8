"""Rows of private text: the four formats, typed, each checked when it is read.

A row keeps its place (file and row number), so that whatever is found wrong with it later, by the
tokenizer or by the list of labels, can still be named to whoever has to mend it.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from fedlora.adapters.errors import DataError, RecipeError
from fedlora.recipes.schema import DataSection

Record = Mapping[str, object]

FIELDS: Mapping[str, tuple[str, ...]] = {
    "instruction": ("instruction", "context", "response"),
    "chat": ("messages",),
    "text": ("text",),
    "classification": ("text", "label"),
}
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Instruction:
    """One request and its response; a context stands below the instruction in the prompt."""

    place: str
    prompt: str
    response: str


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class Chat:
    """A conversation with at least one assistant turn."""

    place: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Text:
    """Plain text, learned as it stands."""

    place: str
    text: str


@dataclass(frozen=True)
class Labelled:
    """A text and the name of its class."""

    place: str
    text: str
    label: str


@dataclass(frozen=True)
class Question:
    """A question to put to the tuned model, and the answers that count as right."""

    question: str
    answers: tuple[str, ...]


Row = Instruction | Chat | Text | Labelled


def column_names(data: DataSection) -> dict[str, str]:
    """Our field names of the format, each with the name of its column in the files.

    Raises:
        RecipeError: if `data.columns` names a field that the format does not have.
    """
    fields = FIELDS[data.format]
    for name in data.columns:
        if name not in fields:
            raise RecipeError(
                f'data.columns: format "{data.format}" has no field {name!r}; '
                f"it has {', '.join(fields)}"
            )
    return {name: data.columns.get(name, name) for name in fields}


def parse_row(record: Record, place: str, data: DataSection) -> Row:
    """One record of a file as a row of the declared format.

    Raises:
        DataError: naming place, column, what was expected and what was found.
    """
    column = column_names(data)
    if data.format == "chat":
        return Chat(place, _messages(record, column["messages"], place))
    if data.format == "text":
        return Text(place, _text(record, column["text"], place))
    if data.format == "classification":
        label = _label(record, column["label"], place)
        return Labelled(place, _text(record, column["text"], place), label)
    prompt = _text(record, column["instruction"], place)
    context = _context(record, column["context"], place)
    response = _text(record, column["response"], place)
    return Instruction(place, f"{prompt}\n\n{context}" if context else prompt, response)


def parse_question(record: Record, place: str) -> Question:
    """One record `{"question": ..., "answers": [...]}`.

    Raises:
        DataError: as `parse_row`.
    """
    answers = record.get("answers")
    texts = [answer for answer in answers if _filled(answer)] if isinstance(answers, list) else []
    if not isinstance(answers, list) or not texts or len(texts) < len(answers):
        raise _wrong(record, "answers", place, "a list of texts")
    return Question(_text(record, "question", place), tuple(map(str, texts)))


def nearest(name: str, names: tuple[str, ...] | list[str]) -> str:
    """A hint ` (did you mean ...?)`, or nothing if no name resembles it."""
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _filled(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _text(record: Record, column: str, place: str) -> str:
    value = record.get(column)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(record, column, place, "a text")
    return value


def _context(record: Record, column: str, place: str) -> str:
    # The other usual name; a column that the recipe names is meant as it stands.
    if column == "context" and column not in record:
        column = "input"
    return "" if record.get(column) in (None, "") else _text(record, column, place)


def _label(record: Record, column: str, place: str) -> str:
    value = record.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(record, column, place, "the name of a class")
    return value


def _messages(record: Record, column: str, place: str) -> tuple[Message, ...]:
    turns = record.get(column)
    if not isinstance(turns, list) or not turns:
        raise _wrong(record, column, place, "a list of messages {role, content}")
    messages = []
    for number, turn in enumerate(turns, start=1):
        where = f"{place}, message {number} of column {column!r}"
        if not isinstance(turn, Mapping):
            raise DataError(f"{where}: expected {{role, content}}, found {_shown(turn)}")
        if turn.get("role") not in ROLES:
            raise _wrong(turn, "role", where, f"one of {', '.join(ROLES)}")
        messages.append(Message(str(turn["role"]), _text(turn, "content", where)))
    if not any(message.role == "assistant" for message in messages):
        raise DataError(
            f"{place}, column {column!r}: expected at least one assistant message to learn from, "
            f"found the roles {', '.join(message.role for message in messages)}"
        )
    return tuple(messages)


def _wrong(record: Record, column: str, place: str, expected: str) -> DataError:
    if column not in record:
        names = [str(name) for name in record]
        return DataError(
            f"{place}: no column {column!r}{nearest(column, names)}: expected {expected}; found "
            f"the columns {', '.join(names) or 'none'}. Name yours in the recipe's [data.columns]"
        )
    return DataError(
        f"{place}, column {column!r}: expected {expected}, found {_shown(record[column])}"
    )


def _shown(value: object) -> str:
    if value is None or value == "":
        return "nothing"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
