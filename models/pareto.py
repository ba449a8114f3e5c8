"""Cost against loss of the subnets that a search scored: the front, and a picture of it."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from .search import Point

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 440, 70, 30, 30, 50  # pixels
TICKS = 5
COLOURS = {"uniform": "#d1495b", "random": "#b8c0c8", "guided": "#6f9ac8", "polish": "#2a6f4e"}


def pareto(points: Iterable[Point]) -> list[Point]:
    """The points that none beats in both cost and loss, cheapest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.loss)):
        if not front or point.loss < front[-1].loss:
            front.append(point)
    return front


def plot(points: Sequence[Point], budget: float, unit: str, path: Path) -> None:
    """Draw them as an SVG file: points by stage, the front as a line, the budget dashed.

    Args:
        points: at least one of finite loss; others are left out.
        budget: in the unit of their cost.
        unit: what the horizontal axis says, e.g. "bits per weight".
        path: where to.
    """
    points = [point for point in points if math.isfinite(point.loss)]
    costs, losses = [*(p.cost for p in points), budget], [p.loss for p in points]
    x, y = _Axis(costs, LEFT, WIDTH - RIGHT), _Axis(losses, HEIGHT - BOTTOM, TOP)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _line([(LEFT, TOP), (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM)], "#333"),
        _line([(x(budget), TOP), (x(budget), HEIGHT - BOTTOM)], "#999", 'stroke-dasharray="4"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, unit),
        _text(LEFT, TOP - 12, "held-out loss"),
    ]
    drawn += [_text(x(tick), HEIGHT - BOTTOM + 18, f"{tick:.4g}") for tick in x.ticks()]
    drawn += [_text(LEFT - 8, y(tick) + 4, f"{tick:.4g}", "end") for tick in y.ticks()]
    drawn.append(_line([(x(p.cost), y(p.loss)) for p in pareto(points)], "#333"))
    for point in points:
        title = f"{point.stage}: {point.cost:.6g} {unit}, loss {point.loss:.5g}"
        drawn.append(
            f'<circle cx="{x(point.cost):.1f}" cy="{y(point.loss):.1f}" r="4" '
            f'fill="{COLOURS[point.stage]}"><title>{escape(title)}</title></circle>'
        )
    for place, (stage, colour) in enumerate(COLOURS.items()):
        at = TOP + 8 + 18 * place
        drawn.append(f'<circle cx="{WIDTH - RIGHT - 70}" cy="{at}" r="4" fill="{colour}"/>')
        drawn.append(_text(WIDTH - RIGHT - 60, at + 4, stage, "start"))
    path.write_text("\n".join([*drawn, "</svg>\n"]), encoding="utf-8")


class _Axis:
    """From values to pixels, with a margin on both sides."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        low, high = min(values), max(values)
        margin = 0.05 * (high - low) or 0.05 * abs(low) or 1.0
        self.low, self.high = low - margin, high + margin
        self.begin, self.end = begin, end

    def __call__(self, value: float) -> float:
        return self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        step = (self.high - self.low) / (TICKS + 1)
        return [self.low + step * (index + 1) for index in range(TICKS)]


def _line(corners: Sequence[tuple[float, float]], colour: str, style: str = "") -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" {style}/>'


def _text(x: float, y: float, said: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'
