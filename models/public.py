"""Public examples on their way to other tokenizers: records, as token ids mean nothing there."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from transformers import PreTrainedTokenizerBase

from fedlora.adapters.errors import DataError
from fedlora.recipes.schema import DataSection, Task

from .examples import Example, encode
from .rows import Chat, Instruction, Row, Text, parse_row


def to_record(row: Row) -> str:
    """A row as JSON, under our own field names."""
    fields: dict[str, object]
    if isinstance(row, Chat):
        fields = {"messages": [asdict(message) for message in row.messages]}
    elif isinstance(row, Instruction):
        fields = {"instruction": row.prompt, "response": row.response}
    elif isinstance(row, Text):
        fields = {"text": row.text}
    else:
        raise DataError(f"{row.place}: a classified text has no tokens to predict")
    return json.dumps(fields, ensure_ascii=False)


def public_examples(
    records: Sequence[str], tokenizer: PreTrainedTokenizerBase, task: Task
) -> list[tuple[int, Example]]:
    """The examples of public records, each with its number.

    One that this model's template refuses, or that has nothing to learn within its length, is left
    out: others may know it.

    Raises:
        DataError: if a record is not of the task's format.
    """
    found = []
    plain = DataSection(format=task.data.format)
    for number, record in enumerate(records):
        place = f"public example {number + 1}"
        try:
            fields = json.loads(record)
        except ValueError as error:
            raise DataError(f"{place} is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise DataError(f"{place} is no record: {record[:60]}")
        row = parse_row(fields, place, plain)
        try:
            examples = encode([row], tokenizer, task.train.max_length).examples
        except DataError:
            continue
        found.append((number, examples[0]))
    return found
