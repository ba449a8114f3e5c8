"""What federation is worth: the tuned model beside the base, each site alone, and FedIT.

Every rival trains with the same rounds and steps, and answers the same held-out questions.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedlora.adapters.errors import RecipeError
from fedlora.client import inference
from fedlora.models.files import read_questions
from fedlora.models.rows import Question
from fedlora.recipes.schema import Recipe
from fedlora.server.events import Event, Listener, NodeReplied, Notice, RoundDone
from fedlora.server.rundir import RunDirectory

from . import engines
from .tuned import base, tuned

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BASE, FEDIT, FEDLORA = "base", "fedit", "fedlora"
LONGEST_ANSWER = 32  # tokens; the answers looked for are a few words


@dataclass(frozen=True)
class Score:
    """How many questions of a site, or of all, were answered."""

    right: int
    asked: int

    def __add__(self, other: "Score") -> "Score":
        """Both sites' questions together."""
        return Score(self.right + other.right, self.asked + other.asked)

    def __str__(self) -> str:
        """As in `75 % (12/16)`."""
        return f"{100 * self.right / self.asked:.0f} % ({self.right}/{self.asked})"


@dataclass
class Tally:
    """A listener that adds up what a run sent, passing each event on.

    Attributes:
        listener: who else wants to know.
        up: bytes by node, from it to the coordinator.
        down: bytes by node, to it.
        receipt: the largest relative error of any module in any round.
    """

    listener: Listener
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    receipt: float = 0.0

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, NodeReplied):
            self.up[event.node] = self.up.get(event.node, 0) + event.bytes_up
            self.down[event.node] = self.down.get(event.node, 0) + event.bytes_down
        elif isinstance(event, RoundDone):
            self.receipt = max(self.receipt, event.receipt)
        self.listener(event)


@dataclass(frozen=True)
class Exchange:
    """One question, what counts as right, and the replies before and after the training."""

    question: str
    answers: tuple[str, ...]
    before: str
    after: str


@dataclass(frozen=True)
class Comparison:
    """What `fedlora simulate --compare` reports.

    Attributes:
        scores: by model, in the order of the table, then by site.
        receipt: the largest relative error of any module in any round of the fedlora run.
        up: bytes of the whole run by node, from it to the coordinator.
        down: bytes of the whole run by node, to it.
        example: a question that the tuned model answers and the base does not, if there is one.
    """

    scores: Mapping[str, Mapping[str, Score]]
    receipt: float
    up: Mapping[str, int]
    down: Mapping[str, int]
    example: Exchange


def require_questions(recipe: Recipe) -> None:
    """Check that a recipe can be compared, before anything is trained.

    Raises:
        RecipeError: if it is not FedEx-LoRA on a model that writes, or has no questions.
        DataError: if a file of questions is missing or malformed.
    """
    if recipe.model.task != "causal-lm" or recipe.federation.strategy != "fedex-lora":
        raise RecipeError(
            "--compare sets fedex-lora on a causal-lm beside its rivals; the recipe has "
            f"federation.strategy={recipe.federation.strategy}, model.task={recipe.model.task}"
        )
    if not _questions(recipe):
        raise RecipeError("--compare needs `questions` in at least one [[node]] of the recipe")


def compare(run: RunDirectory, tally: Tally) -> Comparison:
    """Run the rivals in the run's folder, question every model, and write compare.json there.

    Args:
        run: the finished run.
        tally: what it sent; its listener hears of the rivals' runs.
    """
    recipe = run.recipe
    questions = _questions(recipe)
    scores: dict[str, Mapping[str, Score]] = {}
    scores[BASE], before = _ask(recipe, base(recipe), questions)
    for name, rival in _rivals(recipe):
        tally.listener(Notice(f"to compare: {name}"))
        place = run.path / "compare" / name.replace(" ", "-")
        other = engines.simulate(rival, place, "inprocess", tally.listener)
        scores[name], _ = _ask(recipe, tuned(other), questions)
    scores[FEDLORA], after = _ask(recipe, tuned(run), questions)
    example = _example(questions, before, after)
    compared = Comparison(scores, tally.receipt, tally.up, tally.down, example)
    text = json.dumps(asdict(compared), indent=2, ensure_ascii=False)
    (run.path / "compare.json").write_text(text, encoding="utf-8")
    return compared


def _questions(recipe: Recipe) -> dict[str, list[Question]]:
    return {
        node.name: read_questions(Path(node.questions)) for node in recipe.node if node.questions
    }


def _rivals(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    federation = recipe.federation
    alone = federation.model_copy(update={"min_nodes": 1, "sample": 1.0})
    for node in recipe.node:
        update = {"federation": alone, "node": (node,)}
        yield f"{node.name} alone", recipe.model_copy(update=update)
    averaged = federation.model_copy(update={"strategy": "fedit"})
    yield FEDIT, recipe.model_copy(update={"federation": averaged})


def _ask(
    recipe: Recipe,
    loaded: "tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]",
    questions: Mapping[str, list[Question]],
) -> tuple[dict[str, Score], dict[str, list[str]]]:
    """Scores and replies by site."""
    asked = [question.question for group in questions.values() for question in group]
    replies = iter(
        inference.generate(*loaded, asked, LONGEST_ANSWER, data_format=recipe.data.format)
    )
    given = {site: [next(replies) for _ in group] for site, group in questions.items()}
    scores = {
        site: Score(sum(map(_right, group, given[site])), len(group))
        for site, group in questions.items()
    }
    return scores, given


def _right(question: Question, reply: str) -> bool:
    return inference.answered(reply, question.answers)


def _example(
    questions: Mapping[str, list[Question]],
    before: Mapping[str, list[str]],
    after: Mapping[str, list[str]],
) -> Exchange:
    exchanges = [
        exchange
        for site, group in questions.items()
        for exchange in zip(group, before[site], after[site], strict=True)
    ]
    learnt = (e for e in exchanges if _right(e[0], e[2]) and not _right(e[0], e[1]))
    question, old, new = next(learnt, exchanges[0])
    return Exchange(question.question, question.answers, old, new)
