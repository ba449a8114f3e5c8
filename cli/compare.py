"""What federation is worth: the tuned model beside the base, each site alone, and FedIT.

Every rival trains with the same rounds and steps, and answers the same held-out questions. The
rivals are processes of their own: single threads side by side do more than one after another with
all cores, since a small model's layers are too small to share.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from fedlora.adapters.errors import RecipeError
from fedlora.client import inference
from fedlora.models.files import read_questions
from fedlora.models.rows import Question
from fedlora.models.threads import cores, set_threads
from fedlora.recipes.schema import Recipe
from fedlora.server.events import Event, Listener, NodeReplied, Notice, RunDone
from fedlora.server.rundir import RunDirectory

from . import engines
from .tuned import base, tuned

BASE, FEDIT, FEDLORA = "base", "fedit", "fedlora"
LONGEST_ANSWER = 16  # tokens; the answers looked for are a few words
_Answers = dict[str, list[str]]  # replies by site


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
        elif isinstance(event, RunDone):
            self.receipt = event.receipt
        self.listener(event)


@dataclass(frozen=True)
class Exchange:
    """One question, what counts as right, and the replies before and after the training."""

    question: str
    answers: tuple[str, ...]
    before: str
    after: str


@dataclass(frozen=True)
class _Job:
    """A model to question: the base, a finished run, or a run that is still to be made."""

    recipe: Recipe
    place: Path | None


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


class Rivals:
    """The rivals of a run, trained and questioned in processes of their own beside it."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        """Start those that don't need the run's own head.

        Args:
            recipe: of the run, as `require_questions` accepts it.
            folder: of the run; rivals get theirs in `folder`-rivals.
        """
        rivals = folder.with_name(folder.name + "-rivals")
        self._questions = _questions(recipe)
        self._recipe, self._folder = recipe, folder
        self._pool = ProcessPoolExecutor(_workers(), get_context("spawn"))
        self._futures = {
            name: self._submit(_Job(rival, rivals / name.replace(" ", "-")))
            for name, rival in _rivals(recipe)
        }
        self._futures[BASE] = self._submit(_Job(recipe, None))

    def __enter__(self) -> "Rivals":
        """Stop the processes on leaving."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the processes, whatever happened."""
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def compare(self, tally: Tally) -> Comparison:
        """Question the run's head too, wait for all, and write `folder`/compare.json.

        Args:
            tally: what the run sent; its listener hears who is done.
        """
        self._futures[FEDLORA] = self._submit(_Job(self._recipe, self._folder))
        names = {future: name for name, future in self._futures.items()}
        for future in as_completed(names):
            future.result()
            tally.listener(Notice(f"compared: {names[future]}"))
        answers = {name: future.result() for name, future in self._futures.items()}
        order = [BASE, *(f"{node.name} alone" for node in self._recipe.node), FEDIT, FEDLORA]
        scores = {name: _scores(self._questions, answers[name]) for name in order}
        example = _example(self._questions, answers[BASE], answers[FEDLORA])
        compared = Comparison(scores, tally.receipt, tally.up, tally.down, example)
        text = json.dumps(asdict(compared), indent=2, ensure_ascii=False)
        (self._folder / "compare.json").write_text(text, encoding="utf-8")
        return compared

    def _submit(self, job: _Job) -> "Future[_Answers]":
        return self._pool.submit(_work, job, self._questions)


def _workers() -> int:
    """One process a core, as far as there is memory for models of a gigabyte or two."""
    return max(1, min(cores(), psutil.virtual_memory().available // (3 << 30)))


def _work(job: _Job, questions: Mapping[str, list[Question]]) -> _Answers:
    """In a process of its own, with one thread: train if need be, and answer all questions."""
    logging.disable()
    set_threads(1)
    recipe = job.recipe
    if job.place is None:
        loaded: Any = base(recipe)
    elif (job.place / "recipe.toml").exists():
        loaded = tuned(RunDirectory.open(job.place))
    else:
        train = recipe.train.model_copy(update={"threads": 1})
        rival = recipe.model_copy(update={"train": train})
        loaded = tuned(engines.simulate(rival, job.place, "inprocess", lambda event: None))
    asked = [question.question for group in questions.values() for question in group]
    model, tokenizer = loaded
    replies = iter(
        inference.generate(model, tokenizer, asked, LONGEST_ANSWER, data_format=recipe.data.format)
    )
    return {site: [next(replies) for _ in group] for site, group in questions.items()}


def _questions(recipe: Recipe) -> dict[str, list[Question]]:
    return {
        node.name: read_questions(Path(node.questions)) for node in recipe.node if node.questions
    }


def _rivals(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """The longest first, so that the processes end at about the same time."""
    federation = recipe.federation
    averaged = federation.model_copy(update={"strategy": "fedit"})
    yield FEDIT, recipe.model_copy(update={"federation": averaged})
    alone = federation.model_copy(update={"min_nodes": 1, "sample": 1.0})
    for node in recipe.node:
        update = {"federation": alone, "node": (node,)}
        yield f"{node.name} alone", recipe.model_copy(update=update)


def _scores(questions: Mapping[str, list[Question]], answers: _Answers) -> dict[str, Score]:
    return {
        site: Score(sum(map(_right, group, answers[site])), len(group))
        for site, group in questions.items()
    }


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
