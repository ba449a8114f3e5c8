"""The model's own chat template: which tokens of a conversation are the model's to learn.

Two ways lead there. A template that marks the assistant's part with `{% generation %}` says it
itself. Any other is rendered turn by turn: the text up to a turn, and the text with it, must both
be beginnings of the whole, and what lies between is the turn. Either way the token that ends the
turn is learned too, or the model would never stop.
"""

import re
from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from fedlora.adapters.errors import DataError, ModelError

from .rows import Message

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def conversation_ids(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], place: str
) -> tuple[list[int], list[bool]]:
    """A conversation as token ids, each with whether it is the assistant's to say.

    Raises:
        ModelError: if there is no template, or it does not let the turns be told apart.
        DataError: if the template refuses the conversation, e.g. two user turns in a row.
    """
    if GENERATION.search(_template(tokenizer)):
        ids, said = _marked(tokenizer, messages, place)
    else:
        ids, said = _rendered(tokenizer, messages, place)
    return _closed(tokenizer, ids, said, last_is_said=messages[-1].role == "assistant")


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """A user's single turn, up to where the assistant begins to speak."""
    _template(tokenizer)
    turn = [{"role": "user", "content": prompt}]
    encoded: Any = tokenizer.apply_chat_template(turn, add_generation_prompt=True)
    return list(encoded["input_ids"])


def text_ids(
    tokenizer: PreTrainedTokenizerBase, text: str, spans: Sequence[tuple[int, int]], special: bool
) -> tuple[list[int], list[bool]]:
    """Token ids of a text, each with whether it overlaps one of the character spans.

    Args:
        tokenizer: one that knows the character offsets of its tokens.
        text: what to encode, as a whole.
        spans: (start, end) in characters.
        special: whether the tokenizer adds its own special tokens.

    Raises:
        ModelError: if the tokenizer gives no offsets.
    """
    if not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer {type(tokenizer).__name__} gives no character offsets, and "
            "without them responses cannot be told from prompts; use a model with a tokenizer.json"
        )
    encoded = tokenizer(
        text,
        add_special_tokens=special,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,
    )
    # A token without width (trimmed white space) counts as the character it stands at.
    reach = [(start, max(end, start + 1)) for start, end in encoded["offset_mapping"]]
    said = [
        not added and any(start < end and stop > begin for begin, end in spans)
        for (start, stop), added in zip(reach, encoded["special_tokens_mask"], strict=True)
    ]
    return list(encoded["input_ids"]), said


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.chat_template:
        raise ModelError(
            "the tokenizer of this model has no chat template, so conversations have no form; "
            'use a model tuned for chat, or data.format = "instruction" or "text"'
        )
    return str(tokenizer.get_chat_template())


def _marked(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], place: str
) -> tuple[list[int], list[bool]]:
    try:
        encoded: Any = tokenizer.apply_chat_template(
            [dict(vars(message)) for message in messages],
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"verbose": False},
        )
    except TemplateError as error:
        raise _refused(place, error) from error
    return list(encoded["input_ids"]), [bool(bit) for bit in encoded["assistant_masks"]]


def _rendered(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], place: str
) -> tuple[list[int], list[bool]]:
    turns = [dict(vars(message)) for message in messages]

    def render(count: int, prompt: bool = False) -> str:
        """The first `count` turns as text."""
        try:
            return str(
                tokenizer.apply_chat_template(
                    turns[:count], tokenize=False, add_generation_prompt=prompt
                )
            )
        except (TemplateError, ValueError) as error:
            raise _refused(place, error) from error

    whole = render(len(turns))
    spans = []
    for number, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        before, after = render(number, prompt=True), render(number + 1)
        if not (whole.startswith(after) and after.startswith(before) and len(after) > len(before)):
            raise ModelError(
                f"{place}: the model's chat template writes turn {number + 1} differently once the "
                "conversation goes on, so its tokens cannot be told; use conversations with one "
                "response, or a template with {% generation %} marks"
            )
        spans.append((len(before), len(after)))
    return text_ids(tokenizer, whole, spans, special=False)


def _closed(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], said: list[bool], last_is_said: bool
) -> tuple[list[int], list[bool]]:
    """Let every turn end with the special token that ends it: no more, and no less.

    What a template writes behind that token (ChatML a line break) is layout. A template that
    leaves it outside of its mark, or has none at all, is put right.
    """
    ends = {key for key, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = (ends | {tokenizer.eos_token_id}) - {tokenizer.unk_token_id}
    closed = list(said)
    runs = [i for i, now in enumerate(said) if now and (i == 0 or not said[i - 1])]
    stop = 0
    for start in runs:
        stop = next((i for i in range(start, len(said)) if not said[i]), len(said))
        marks = [i for i in range(start, stop) if ids[i] in ends]
        if marks:
            closed[marks[-1] + 1 : stop] = [False] * (stop - marks[-1] - 1)
        elif stop < len(ids) and ids[stop] in ends:
            closed[stop] = True
        elif last_is_said and start == runs[-1]:
            ids, closed = [*ids[:stop], tokenizer.eos_token_id], [*closed[:stop], True]
    return ids, closed


def _refused(place: str, error: Exception) -> DataError:
    return DataError(f"{place}: the model's chat template refuses this conversation: {error}")
