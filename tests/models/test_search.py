"""The search: better than chance at equal cost, within the budget, the same path when resumed."""

import math
import random
import statistics
from collections.abc import Callable, Mapping
from xml.etree import ElementTree

import pytest

from fedlora.adapters import RecipeError
from fedlora.models.pareto import pareto, plot
from fedlora.models.search import Point, SearchResult, importance, search
from fedlora.models.widths import mean_width

WIDTHS = (3, 4, 8)
BUDGET = 4.5
Loss = Callable[[Mapping[str, int]], float]


def world(seed: int, count: int = 30) -> tuple[dict[str, int], Loss, dict[str, float]]:
    """Modules, a loss of their own and of their pairs' errors, and how sensitive each is."""
    draw = random.Random(f"world/{seed}")
    modules = {f"m{index:02d}": draw.choice([1, 1, 3]) for index in range(count)}
    sensitive = {name: math.exp(draw.gauss(0, 1.2)) for name in modules}
    names = sorted(modules)
    pairs = [(draw.choice(names), draw.choice(names), draw.gauss(0, 1)) for _ in names]
    total = sum(sensitive.values())

    def error(assignment: Mapping[str, int], name: str) -> float:
        return 4.0 ** (3 - assignment[name]) * sensitive[name] / total

    def loss(assignment: Mapping[str, int]) -> float:
        alone = sum(error(assignment, name) for name in names)
        together = sum(
            weight * math.sqrt(error(assignment, one) * error(assignment, other))
            for one, other, weight in pairs
        )
        return 3 + alone + 0.3 * together

    return modules, loss, sensitive


def run(seed: int, evaluations: int = 80, **options: object) -> SearchResult:
    modules, loss, _ = world(seed)
    options = {"loss": loss, **options}
    return search(
        modules,
        WIDTHS,
        lambda assignment: mean_width(modules, assignment),
        BUDGET,
        seed=seed,
        evaluations=evaluations,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return run(0)


def random_only(seed: int, evaluations: int) -> float:
    """The rival: as many random subnets, each filled up to the budget."""
    modules, loss, _ = world(seed)
    draw, names, losses = random.Random(seed), sorted(modules), []
    for _ in range(evaluations):
        assignment = {name: draw.choice(WIDTHS) for name in names}
        while mean_width(modules, assignment) > BUDGET:
            name = draw.choice(names)
            assignment[name] = WIDTHS[max(WIDTHS.index(assignment[name]) - 1, 0)]
        for name in draw.sample(names, len(names)):
            for width in WIDTHS:
                wider = {**assignment, name: max(width, assignment[name])}
                if mean_width(modules, wider) <= BUDGET:
                    assignment = wider
        losses.append(loss(assignment))
    return min(losses)


def test_it_beats_pure_chance_at_as_many_evaluations() -> None:
    gains = []
    for seed in range(5):
        searched = run(seed)
        assert len(searched.points) == 80
        gains.append((random_only(seed, 80) - 3) / (searched.best.loss - 3))
    assert min(gains) > 1
    assert statistics.geometric_mean(gains) > 1.2


def test_the_best_is_within_the_budget_and_none_is_scored_twice(found: SearchResult) -> None:
    modules, _, _ = world(0)
    seen = {tuple(sorted(point.assignment.items())) for point in found.points}
    assert len(seen) == len(found.points)
    for point in found.points:
        assert point.cost == mean_width(modules, point.assignment)
        assert point.cost <= BUDGET or point.stage == "uniform"
    uniform = [set(point.assignment.values()) for point in found.points[:3]]
    assert uniform == [{3}, {4}, {8}]
    assert found.points[2].loss < found.best.loss < found.points[1].loss
    assert [point.stage for point in found.points] == sorted(
        (point.stage for point in found.points),
        key=["uniform", "random", "guided", "polish"].index,
    )
    # Later stages do better than the first.
    by_stage = {
        stage: min(point.loss for point in found.points if point.stage == stage)
        for stage in ("random", "guided", "polish")
    }
    assert by_stage["polish"] <= by_stage["guided"] < by_stage["random"]


def test_importance_finds_the_sensitive_modules(found: SearchResult) -> None:
    alike = []
    for seed in range(3, 6):
        sensitive, estimated = world(seed)[2], importance(run(seed).points)
        ranks = [
            {name: place for place, name in enumerate(sorted(values, key=values.__getitem__))}
            for values in (sensitive, estimated)
        ]
        alike.append(
            statistics.correlation(*([rank[name] for name in sensitive] for rank in ranks))
        )
    assert statistics.fmean(alike) > 0.4
    assert set(importance(found.points[:3]).values()) == {0}  # subnets of one width
    assert set(importance(found.points[3:4]).values()) == {0}  # a single point


def test_importance_is_exact_on_a_linear_loss() -> None:
    """With many points and a loss that is linear in the widths, up to the ridge."""
    draw = random.Random(1)
    truth = {"a": 1.0, "b": 0.1, "c": 0.0}
    points = []
    for _ in range(400):
        widths = {name: draw.choice(WIDTHS) for name in truth}
        loss = 9 - sum(truth[name] * width for name, width in widths.items())
        points.append(Point(widths, 0.0, loss, "random"))
    broken = Point(dict.fromkeys(truth, 3), 0.0, math.inf, "random")
    for name, slope in importance([*points, broken]).items():
        assert slope == pytest.approx(truth[name], abs=0.01)


def test_the_same_seed_takes_the_same_path(found: SearchResult) -> None:
    assert run(0) == found
    assert run(0, subject="another").points == found.points


def test_a_search_that_was_cut_off_ends_as_if_it_had_not_been(found: SearchResult) -> None:
    _, loss, _ = world(0)
    parts: list[SearchResult] = []
    calls = 0

    def dying(assignment: Mapping[str, int]) -> float:
        if len(parts) == 57:
            raise KeyboardInterrupt
        return loss(assignment)

    with pytest.raises(KeyboardInterrupt):
        run(0, loss=dying, progress=parts.append)
    assert parts[-1].points == found.points[:57]

    def counted(assignment: Mapping[str, int]) -> float:
        nonlocal calls
        calls += 1
        return loss(assignment)

    kept = SearchResult.from_json(parts[-1].to_json())
    assert run(0, loss=counted, known=kept.points) == found
    assert calls == len(found.points) - 57


def test_json_keeps_all(found: SearchResult) -> None:
    assert SearchResult.from_json(found.to_json()) == found
    assert len(found.to_json().splitlines()) == len(found.points) + 3
    hopeless = SearchResult("s", 3.0, (Point({"a": 3}, 3.0, math.inf, "uniform"),))
    assert SearchResult.from_json(hopeless.to_json()) == hopeless
    cut = found.to_json()[:-40]
    for text in ("", "[]", "{}", cut, found.to_json().replace('"polish"', '"x"')):
        with pytest.raises(ValueError, match="not the result of a search"):
            SearchResult.from_json(text)


def test_a_budget_below_the_narrowest_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"as little as 2.9.* all at 3 bits, costs 3; raise"):
        search({"a": 1}, WIDTHS, lambda a: a["a"], 2.9, lambda a: 0.0, 0, 10)


def test_a_small_space_is_searched_to_its_end() -> None:
    modules = {"a": 1, "b": 1}

    def cost(assignment: Mapping[str, int]) -> float:
        return mean_width(modules, assignment)

    result = search(modules, WIDTHS, cost, 6.0, lambda a: -a["a"] - 0.1 * a["b"], 0, 1000)
    assert result.best.assignment == {"a": 8, "b": 4}
    assert len(result.points) <= 9
    only = search(modules, (4,), cost, 8.0, lambda a: 1.0, 0, 1000)
    assert [dict(point.assignment) for point in only.points] == [{"a": 4, "b": 4}]


def test_a_loss_that_is_no_number_is_the_worst() -> None:
    _, loss, _ = world(3)

    def failing(assignment: Mapping[str, int]) -> float:
        return math.nan if assignment["m00"] == 3 else loss(assignment)

    result = run(3, loss=failing)
    assert result.best.assignment["m00"] > 3
    assert math.isfinite(result.best.loss)


def test_bytes_are_a_budget_too() -> None:
    modules, loss, _ = world(0)
    stored = {3: 4.5, 4: 4.5, 8: 9.0}  # bits that a store really takes: 3 is no smaller than 4

    def nbytes(assignment: Mapping[str, int]) -> float:
        return sum(size * stored[assignment[name]] / 8 for name, size in modules.items())

    limit = sum(modules.values()) * 6 / 8
    result = search(modules, WIDTHS, nbytes, limit, loss, 0, 60)
    assert nbytes(result.best.assignment) <= limit
    assert set(result.best.assignment.values()) == {4, 8}


def test_the_front_holds_what_nothing_beats() -> None:
    points = [
        Point({}, cost, loss, "random")
        for cost, loss in ((3, 5), (4, 4), (4, 4.5), (5, 4), (6, 4.2), (7, 1), (3, 6))
    ]
    assert [(point.cost, point.loss) for point in pareto(points)] == [(3, 5), (4, 4), (7, 1)]
    assert pareto([]) == []


def test_the_plot_shows_every_point_in_its_frame(
    found: SearchResult, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("plot") / "pareto.svg"
    hopeless = Point(found.best.assignment, 4.0, math.inf, "random")
    plot([*found.points, hopeless], BUDGET, "mean <bits>", path)
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    namespace = "{http://www.w3.org/2000/svg}"
    dots = [
        dot for dot in root.iter(f"{namespace}circle") if dot.find(f"{namespace}title") is not None
    ]
    assert len(dots) == len(found.points)
    assert all(0 < float(dot.attrib["cx"]) < width for dot in dots)
    assert all(0 < float(dot.attrib["cy"]) < height for dot in dots)
    # Cheaper lies left, better lies low.
    cheapest, best = found.points[0], found.points[2]
    assert float(dots[0].attrib["cx"]) < float(dots[2].attrib["cx"]), (cheapest, best)
    assert float(dots[0].attrib["cy"]) < float(dots[2].attrib["cy"])
    assert "mean &lt;bits&gt;" in path.read_text(encoding="utf-8")
    plot(found.points[:1], found.points[0].cost, "bits", path)
    assert "nan" not in path.read_text(encoding="utf-8")
