"""How large a teacher should be: the law of capacity gap, and a vertex fitted to one's own runs.

A better teacher isn't always a better one to learn from: past some size students get worse again.
The law says where, as a prior; short runs with several teachers say it for one's own text, if they
say anything at all. A vertex that the runs do not pin down is refused, with the reason.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SLOPE, INTERCEPT = 2.498, -11.498  # millions of parameters
FITTED = (50_000_000, 3_000_000_000)  # sizes of student that the law is known to hold for
LEAST = 3  # sizes, below which any parabola fits
OFTEN = 0.1  # share of resampled curves without a vertex in range, beyond which it is refused


@dataclass(frozen=True)
class Point:
    """Students of one teacher.

    Attributes:
        size: parameters of the teacher.
        losses: of its students in nats, one a seed.
    """

    size: int
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Vertex:
    """The teacher's size at which the fitted student's loss is lowest.

    Attributes:
        size: in parameters.
        low: end of the interval that holds 95 % of the resampled vertices; likewise `high`.
        high: see there.
        loss: of a student there, in nats.
        misfit: root mean square of what the parabola leaves of the mean losses, in nats.
    """

    size: float
    low: float
    high: float
    loss: float
    misfit: float


@dataclass(frozen=True)
class NotIdentified:
    """No vertex can be told from these runs, and why."""

    reason: str


def law_teacher(student_parameters: int) -> float | None:
    """The best teacher's parameters by the law of capacity gap (Zhang et al., ACL 2025).

    T = 2.498 S - 11.498 in millions, R^2 = 0.9957: fitted on GPT-2 and Pythia students pruned from
    their teachers and judged by the perplexity of web text, up to teachers of 2.8 billion, and seen
    to hold for a student of 3 billion. For others, above all for a student that was pretrained on
    its own, it is a prior and no more. Below 7.7 million the line falls under the student's own
    size and says nothing: None.
    """
    student = student_parameters / 1e6
    teacher = SLOPE * student + INTERCEPT
    return teacher * 1e6 if teacher > student else None


def law_holds(student_parameters: int) -> bool:
    """Whether the student is of a size that the law was fitted or tried on."""
    return FITTED[0] <= student_parameters <= FITTED[1]


def law_distance(teacher_parameters: int, student_parameters: int) -> float | None:
    """|ln(N / T)| of a teacher's size N and the law's, T; None where the law says nothing."""
    best = law_teacher(student_parameters)
    return None if best is None else abs(math.log(teacher_parameters / best))


def vertex(
    points: Sequence[Point], generator: torch.Generator, draws: int = 1000
) -> Vertex | NotIdentified:
    """Fit a parabola of the student's mean loss against ln(teacher's parameters).

    The interval is a bootstrap's: each teacher's seeds are drawn anew, with replacement.

    Args:
        points: one a teacher, each with two seeds or more.
        generator: draws the seeds.
        draws: resampled curves.

    Returns:
        The vertex; or the reason why there is none: fewer than 3 sizes or 2 seeds, a loss that is
        not finite, a curve that doesn't open upwards, a vertex outside the sizes tried, or one
        that more than a tenth of the resampled curves lack or have outside.
    """
    if reason := _too_little(points):
        return NotIdentified(reason)
    places = torch.tensor([math.log(point.size) for point in points], dtype=torch.float64)
    least, most = places.min(), places.max()
    centre = places.mean()
    powers = torch.stack([(places - centre) ** k for k in range(3)], dim=1)  # (points, 3)
    solve = torch.linalg.pinv(powers)  # (3, points)
    means = torch.stack([_losses(point).mean() for point in points])
    fit = solve @ means
    if fit[2] <= 0:
        return NotIdentified(
            "the student's loss has no lowest point over these sizes: the fitted curve does not "
            f"open upwards; the best of them is {_best(points)}"
        )
    place = centre - fit[1] / (2 * fit[2])
    if not least <= place <= most:
        side, end = ("below", least) if place < least else ("above", most)
        return NotIdentified(
            f"the lowest point lies {side} the sizes tried, whose end is {_size(end)}; try "
            f"{'smaller' if place < least else 'larger'} teachers"
        )
    fits = torch.stack([_resampled(point, generator, draws) for point in points], dim=1) @ solve.T
    drawn = centre - fits[:, 1] / (2 * fits[:, 2])  # (draws,)
    good = (fits[:, 2] > 0) & (drawn >= least) & (drawn <= most)
    missed = 1 - good.double().mean().item()
    if missed > OFTEN:
        return NotIdentified(
            f"the spread over seeds hides it: {missed:.0%} of the resampled curves have no lowest "
            "point within the sizes tried; take more seeds, longer runs or sizes further apart"
        )
    ends = torch.quantile(drawn[good], torch.tensor([0.025, 0.975], dtype=torch.float64))
    low, high = ends.exp().tolist()
    return Vertex(
        size=place.exp().item(),
        low=low,
        high=high,
        loss=(fit[0] - fit[1] ** 2 / (4 * fit[2])).item(),
        misfit=(powers @ fit - means).square().mean().sqrt().item(),
    )


def _too_little(points: Sequence[Point]) -> str | None:
    sizes = len({point.size for point in points})
    if sizes < LEAST:
        return f"a vertex needs teachers of {LEAST} sizes or more, found {sizes}"
    for point in points:
        if len(point.losses) < 2:
            return (
                f"the teacher of {point.size:,} parameters has {len(point.losses)} run(s): a "
                "vertex needs two seeds or more, to tell a curve from chance"
            )
        if not all(map(math.isfinite, point.losses)):
            return f"a loss with the teacher of {point.size:,} parameters is not finite"
    return None


def _losses(point: Point) -> Tensor:
    return torch.tensor(point.losses, dtype=torch.float64)


def _resampled(point: Point, generator: torch.Generator, draws: int) -> Tensor:
    """Means (draws,) over seeds drawn with replacement, with the variance of a mean of n seeds.

    Drawing alone gives (n - 1) / n of it, which is half with two seeds.
    """
    losses, count = _losses(point), len(point.losses)
    picks = torch.randint(count, (draws, count), generator=generator)
    mean = losses.mean()
    widened: Tensor = (losses[picks].mean(dim=1) - mean) * math.sqrt(count / (count - 1))
    return mean + widened


def _best(points: Sequence[Point]) -> str:
    best = min(points, key=lambda point: sum(point.losses) / len(point.losses))
    return f"{best.size:,} parameters"


def _size(place: Tensor) -> str:
    return f"{round(place.exp().item()):,} parameters"
