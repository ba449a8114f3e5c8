"""After the run: the subnet with the lowest held-out loss under a budget.

The way of LLM-QFA (arXiv 2405.20202): score random subnets, learn from them which modules need
their bits, and draw more from the space shrunk by that. Then the best one is polished: a module is
widened, others pay for it. The paper takes each module's correlation with the score; here it is a
ridge regression on all modules' widths, since only the first stage's draws are independent.

Everything follows from the seed and the losses: a search that is given the points of one that was
cut short takes the same path, and evaluates only what that one didn't come to.
"""

import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import torch

from fedlora.adapters.errors import RecipeError

from .widths import Assignment

Stage: TypeAlias = Literal["uniform", "random", "guided", "polish"]
RANDOM, GUIDED = 1 / 2, 3 / 4  # of the evaluations, when these stages end
REPEATS = 300  # subnets in a row that were met before, after which a stage has nothing new
RIDGE = 0.1  # of a point's mean squared distance from the centre


@dataclass(frozen=True)
class Point:
    """A subnet that was evaluated.

    Attributes:
        assignment: width in bits by module.
        cost: in the unit of the budget.
        loss: held-out, in nats; infinite where it is no number.
        stage: what proposed it; "uniform" are the subnets of one width, whatever they cost.
    """

    assignment: Mapping[str, int]
    cost: float
    loss: float
    stage: Stage


@dataclass(frozen=True)
class SearchResult:
    """All that a search evaluated, so far.

    Attributes:
        subject: names the run and the data; points of another subject say nothing of this one.
        budget: what a subnet may cost.
        points: in order of evaluation, the narrowest subnet first.
    """

    subject: str
    budget: float
    points: tuple[Point, ...]

    @property
    def best(self) -> Point:
        """The point of lowest loss within the budget; the earliest of equals."""
        return min((p for p in self.points if p.cost <= self.budget), key=lambda p: p.loss)

    def to_json(self) -> str:
        """One line a point; widths are in the order of the modules."""
        modules = sorted(self.points[0].assignment)
        lines = [
            json.dumps([p.stage, p.cost, p.loss, [p.assignment[name] for name in modules]])
            for p in self.points
        ]
        head = {"subject": self.subject, "budget": self.budget, "modules": modules}
        return json.dumps(head)[:-1] + ',\n"points": [\n' + ",\n".join(lines) + "\n]}\n"

    @classmethod
    def from_json(cls, text: str) -> "SearchResult":
        """Read what `to_json` wrote.

        Raises:
            ValueError: if it didn't.
        """
        try:
            parsed = json.loads(text)
            points = tuple(
                Point(dict(zip(parsed["modules"], widths, strict=True)), cost, loss, stage)
                for stage, cost, loss, widths in parsed["points"]
            )
            if not points or not {point.stage for point in points} <= set(get_args(Stage)):
                raise ValueError("no points, or of an unknown stage")
            return cls(parsed["subject"], parsed["budget"], points)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the result of a search: {error}") from error


def search(
    modules: Mapping[str, int],
    widths: Iterable[int],
    cost: Callable[[Mapping[str, int]], float],
    budget: float,
    loss: Callable[[Mapping[str, int]], float],
    seed: int,
    evaluations: int,
    subject: str = "",
    progress: Callable[[SearchResult], None] = lambda result: None,
    known: Iterable[Point] = (),
) -> SearchResult:
    """Look for the subnet of lowest loss that costs no more than the budget.

    No subnet is evaluated twice. The subnets of one width come first, for comparison.

    Args:
        modules: size of each module, in weights.
        widths: bits that a module may have.
        cost: of a subnet; must not fall where a module gets wider.
        budget: in the unit of `cost`.
        loss: of a subnet, on held-out data; called with one that it may keep.
        seed: of the draws.
        evaluations: how many subnets to score at most; fewer if there are no more.
        subject: of the result.
        progress: is told the result so far after each point.
        known: points of an earlier search of this run on these data, whose loss is taken over.

    Raises:
        RecipeError: if even the narrowest subnet is over the budget.
    """
    generator = random.Random(f"search/{seed}")
    run = _Search(modules, sorted(widths), cost, budget, loss, subject, progress, generator)
    run.known = {run.key(point.assignment): point.loss for point in known}
    narrowest = run.cost(dict.fromkeys(modules, run.widths[0]))
    if narrowest > budget:
        raise RecipeError(
            f"no subnet costs as little as {budget:g}: the narrowest, all at {run.widths[0]} bits, "
            f"costs {narrowest:g}; raise the budget"
        )
    run.uniform(evaluations)
    run.random(round(RANDOM * evaluations), narrowest)
    run.guided(round(GUIDED * evaluations))
    run.polish(evaluations)
    return run.result


def importance(points: Sequence[Point]) -> dict[str, float]:
    """Nats that the loss falls by with each bit more, by module, as the points let one estimate.

    A ridge regression of the loss on the widths, in its dual form: modules outnumber points.

    Args:
        points: at least one; those of one width say nothing of single modules and are left out, as
            are those without a finite loss.
    """
    names = sorted(points[0].assignment)
    scored = [p for p in points if p.stage != "uniform" and math.isfinite(p.loss)]
    if not scored:
        return dict.fromkeys(names, 0.0)
    rows = [[point.assignment[name] for name in names] for point in scored]
    x = torch.tensor(rows, dtype=torch.float64)  # (points, modules)
    y = torch.tensor([point.loss for point in scored], dtype=torch.float64)
    x, y = x - x.mean(dim=0), y - y.mean()
    gram = x @ x.T
    ridge = RIDGE * float(gram.diagonal().mean()) or 1.0
    slopes = x.T @ torch.linalg.solve(gram + ridge * torch.eye(len(y), dtype=x.dtype), y)
    return dict(zip(names, (-slopes).tolist(), strict=True))


@dataclass
class _Search:
    """One search: what was evaluated, and how each stage proposes more."""

    modules: Mapping[str, int]
    widths: list[int]
    cost: Callable[[Mapping[str, int]], float]
    budget: float
    loss: Callable[[Mapping[str, int]], float]
    subject: str
    progress: Callable[[SearchResult], None]
    generator: random.Random
    known: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    points: dict[tuple[int, ...], Point] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = sorted(self.modules)

    @property
    def result(self) -> SearchResult:
        return SearchResult(self.subject, self.budget, tuple(self.points.values()))

    def key(self, assignment: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(assignment[name] for name in self.names)

    def uniform(self, until: int) -> None:
        for width in self.widths[:until]:
            self._evaluate(dict.fromkeys(self.names, width), "uniform")

    def random(self, until: int, narrowest: float) -> None:
        """Every other subnet is fitted to less than the budget, to learn what bits are worth."""

        def propose() -> Assignment:
            share = self.generator.random() if len(self.points) % 2 else 1.0
            drawn = {name: self._choice(self.widths) for name in self.names}
            order = sorted(self.names, key=lambda name: self.generator.random())
            return self._fitted(drawn, order, narrowest + share * (self.budget - narrowest))

        self._fill(until, "random", propose)

    def guided(self, until: int) -> None:
        """The more important half has the upper half of the widths, the other half the lower."""
        needed = self._importance()
        half = (len(self.widths) + 1) // 2
        upper = set(sorted(self.names, key=lambda name: needed[name])[len(self.names) // 2 :])

        def propose() -> Assignment:
            drawn = {
                name: self._choice(self.widths[-half:] if name in upper else self.widths[:half])
                for name in self.names
            }
            return self._fitted(drawn, self._order(needed), self.budget)

        self._fill(until, "guided", propose)

    def polish(self, until: int) -> None:
        """Widen an important module of the best subnet, at the expense of unimportant ones."""

        def propose() -> Assignment:
            changed = dict(self.result.best.assignment)
            order = self._order(self._importance())
            raised = next((n for n in reversed(order) if changed[n] < self.widths[-1]), None)
            if raised is None:
                return changed
            changed[raised] = self._next(changed[raised], +1)
            return self._fitted(changed, [n for n in order if n != raised], self.budget)

        self._fill(until, "polish", propose)

    def _fill(self, until: int, stage: Stage, propose: Callable[[], Assignment]) -> None:
        repeats = 0
        while len(self.points) < until and repeats < REPEATS:
            repeats = 0 if self._evaluate(propose(), stage) else repeats + 1

    def _evaluate(self, assignment: Assignment, stage: Stage) -> bool:
        """Score a subnet, unless it was before or, as polishing one can be, is over the budget."""
        key, cost = self.key(assignment), self.cost(assignment)
        if key in self.points or (cost > self.budget and stage != "uniform"):
            return False
        loss = self.known[key] if key in self.known else self.loss(dict(assignment))
        loss = math.inf if math.isnan(loss) else loss
        self.points[key] = Point(assignment, cost, loss, stage)
        self.progress(self.result)
        return True

    def _fitted(self, assignment: Assignment, order: Sequence[str], budget: float) -> Assignment:
        """Narrow modules in this order until all fits, then widen in the reverse while it does."""
        for name in [*order] * (len(self.widths) - 1):
            if self.cost(assignment) <= budget:
                break
            assignment[name] = self._next(assignment[name], -1)
        for name in reversed(order):
            while (width := self._next(assignment[name], +1)) > assignment[name]:
                if self.cost({**assignment, name: width}) > budget:
                    break
                assignment[name] = width
        return assignment

    def _next(self, width: int, step: int) -> int:
        index = self.widths.index(width) + step
        return self.widths[min(max(index, 0), len(self.widths) - 1)]

    def _importance(self) -> dict[str, float]:
        """By module, for each bit more of each of its weights: what a bit is worth there."""
        found = importance(self.result.points)
        return {name: found[name] / self.modules[name] for name in self.names}

    def _order(self, needed: Mapping[str, float]) -> list[str]:
        """The least important module first, shuffled as the estimates are uncertain."""
        spread = statistics.pstdev(needed.values())
        shuffled = {name: needed[name] + spread * self._normal() for name in self.names}
        return sorted(self.names, key=lambda name: shuffled[name])

    def _choice(self, widths: Sequence[int]) -> int:
        return widths[int(self.generator.random() * len(widths))]

    def _normal(self) -> float:
        """About normal, from `random()` alone, whose values no version of Python changes."""
        return sum(self.generator.random() for _ in range(12)) - 6
