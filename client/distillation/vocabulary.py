"""Whether two models speak of the same tokens: without that, their distributions can't be compared.

Sizes differ even inside a family, where output layers are padded to other multiples, and equal
sizes say nothing of equal tokens.
"""

from typing import Any

from transformers import PreTrainedTokenizerBase

from fedlora.adapters import ModelError


def require_same_vocabulary(
    teacher: Any,
    student: Any,
    teacher_tokens: PreTrainedTokenizerBase,
    student_tokens: PreTrainedTokenizerBase,
) -> None:
    """See that teacher and student have the same tokens, and as many logits.

    Args:
        teacher: its configuration; likewise `student`.
        student: see there.
        teacher_tokens: its tokenizer; likewise `student_tokens`.
        student_tokens: see there.

    Raises:
        ModelError: saying how they differ, and what can be done.
    """
    sizes = [int(one.get_text_config().vocab_size) for one in (teacher, student)]
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"the teacher has a vocabulary of {sizes[0]} tokens, the student one of {sizes[1]}: "
            "their logits can't be compared. Take a student with the teacher's vocabulary, prune "
            "one from the teacher (--student pruned), or let the models exchange knowledge across "
            "vocabularies (strategy fedmkt)"
        )
    ours, theirs = teacher_tokens.get_vocab(), student_tokens.get_vocab()
    if ours != theirs:
        token = min(set(ours.items()) ^ set(theirs.items()), key=lambda one: (one[1], one[0]))[0]
        raise ModelError(
            f"teacher and student have {sizes[0]} tokens each, but not the same: {token!r} is "
            f"{ours.get(token, 'none')} there and {theirs.get(token, 'none')} here. Take a student "
            "with the teacher's tokenizer, or prune one from the teacher (--student pruned)"
        )
