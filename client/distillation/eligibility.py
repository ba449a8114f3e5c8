"""What a teacher must be before it is worth measuring: of one vocabulary, small enough, allowed.

All of it is read from small files; no weights are opened.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fedlora.adapters import ModelError
from fedlora.models.loading import empty_base, load_tokenizer
from fedlora.models.source import resolve
from fedlora.recipes.schema import ModelSection

from .room import FLOAT, need
from .vocabulary import require_same_vocabulary

CARD = re.compile(r"\A---\n(.*?)^---$", re.DOTALL | re.MULTILINE)  # the head of a model card
LICENCE = re.compile(r"^license:\s*[\"']?([\w.+-]+)", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Described:
    """A model, from its small files.

    Attributes:
        folder: of the model.
        empty: its shapes.
        tokens: its tokenizer.
        parameters: tied ones once.
        licence: as its card, configuration or LICENSE file names it; None if none does.
    """

    folder: Path
    empty: PreTrainedModel
    tokens: PreTrainedTokenizerBase
    parameters: int
    licence: str | None


def describe(source: str) -> Described:
    """Read what a model is, without its weights.

    Raises:
        ModelError: if there is no such language model.
    """
    folder = resolve(source)
    empty = empty_base(folder, ModelSection(source=source))
    parameters = sum(parameter.numel() for parameter in empty.parameters())
    return Described(folder, empty, load_tokenizer(folder), parameters, licence(folder))


def memory_need(teacher: Described, student: Described, chunk: int) -> int:
    """Bytes of a distillation: float32 weights of both, the student's optimizer, and logits.

    Args:
        teacher: one.
        student: all of which trains.
        chunk: label tokens whose logits stand in memory at once.
    """
    size, vocabulary = student.parameters, int(student.empty.config.get_text_config().vocab_size)
    return need(FLOAT * teacher.parameters, size, size, chunk, vocabulary)


def require_fit(
    teacher: Described,
    student: Described,
    needed: int,
    memory: int,
    licences: Sequence[str] = (),
) -> None:
    """See that a teacher can teach this student here.

    Args:
        teacher: a candidate.
        student: who shall learn from it.
        needed: bytes, see `memory_need`.
        memory: bytes that may be used.
        licences: the allowed ones, as `licence` returns them; none given allows any.

    Raises:
        ModelError: naming the first thing that is in the way, and what can be done.
    """
    require_same_vocabulary(
        teacher.empty.config, student.empty.config, teacher.tokens, student.tokens
    )
    if needed > memory:
        raise ModelError(
            f"distilling from it needs {needed / 1e9:.2f} GB for weights, optimizer and logits, "
            f"and {memory / 1e9:.2f} GB may be used; take a smaller teacher, or hold this one at a "
            "lower precision"
        )
    if licences and (teacher.licence or "").lower() not in {one.lower() for one in licences}:
        raise ModelError(
            f"its licence is {teacher.licence or 'not named in its files'}; allowed are "
            f"{', '.join(licences)}"
        )


def licence(folder: Path) -> str | None:
    """The licence that a model's card, configuration, or LICENSE file names, in this order."""
    card = folder / "README.md"
    head = CARD.match(card.read_text("utf-8", errors="replace")) if card.is_file() else None
    if head and (named := LICENCE.search(head[1])):
        return named[1]
    if given := json.loads((folder / "config.json").read_text("utf-8")).get("license"):
        return str(given)
    for path in sorted(folder.glob("LICENSE*")):
        lines = (line.strip() for line in path.read_text("utf-8", errors="replace").splitlines())
        return next((line for line in lines if line), None)
    return None
