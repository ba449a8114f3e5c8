"""Whether a distillation fits in memory, said before anything is loaded."""

import psutil

from fedlora.adapters import ModelError

FLOAT = 4  # bytes
LEARNED = 4  # copies of what trains: value, gradient, and AdamW's two moments
LOGITS = 6  # copies of a chunk's: both models' logits and log-probabilities, and gradients


def need(teachers: int, student: int, trained: int, chunk: int, vocabulary: int) -> int:
    """Bytes that weights, optimizer and logits take; activations and libraries come on top.

    Args:
        teachers: bytes of the teachers' weights.
        student: parameters of the student.
        trained: those of them that train.
        chunk: tokens whose logits stand in memory at once.
        vocabulary: size.
    """
    weights = teachers + FLOAT * (student + (LEARNED - 1) * trained)
    return weights + LOGITS * FLOAT * chunk * vocabulary


def require_room(needed: int) -> None:
    """See that so many bytes are free.

    Raises:
        ModelError: saying what helps.
    """
    free = psutil.virtual_memory().available
    if needed > free:
        raise ModelError(
            f"this distillation needs {needed / 1e9:.1f} GB for weights and optimizer, and "
            f"{free / 1e9:.1f} GB are free. Hold the teacher at --teacher-precision int8 or int4, "
            "ask it beforehand (--top-k 32), or take a smaller student"
        )
