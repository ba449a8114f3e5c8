import json
from pathlib import Path

import pytest

from fedlora.adapters.errors import DataError, RecipeError
from fedlora.cli import compare, tables
from fedlora.cli.compare import Comparison, Exchange, Score, Tally
from fedlora.recipes.loading import load_recipe
from fedlora.server import events

COMPARISON = Comparison(
    scores={
        "base": {"north": Score(0, 4), "south": Score(1, 5)},
        "north alone": {"north": Score(3, 4), "south": Score(0, 5)},
        "fedlora": {"north": Score(4, 4), "south": Score(4, 5)},
    },
    receipt=4.2e-8,
    up={"north": 3_000_000, "south": 3_000_000},
    down={"north": 6_000_000, "south": 6_000_000},
    example=Exchange("When does it leave?", ("seven",), "I do not\nknow.", "At seven."),
)


def test_tally_adds_up_and_passes_on() -> None:
    heard: list[events.Event] = []
    tally = Tally(heard.append)
    story = [
        events.NodeReplied(1, "north", {}, 10, 100),
        events.NodeReplied(2, "north", {}, 11, 101),
        events.NodeReplied(2, "south", {}, 7, 70),
        events.RoundDone(1, 2, "h", 3e-8, {}, 1.0),
        events.RoundDone(2, 2, "h", 2e-8, {}, 1.0),
        events.RunDone(Path("run"), "h", 3e-8),
    ]
    for event in story:
        tally(event)
    assert heard == story
    assert tally.up == {"north": 21, "south": 7}
    assert tally.down == {"north": 201, "south": 70}
    assert tally.receipt == 3e-8


def test_what_cannot_be_compared_is_said_before_training(recipe: Path) -> None:
    with pytest.raises(RecipeError, match="needs `questions`"):
        compare.require_questions(load_recipe(recipe))
    with pytest.raises(RecipeError, match="strategy=fedit"):
        compare.require_questions(load_recipe(recipe, ["federation.strategy=fedit"]))
    recipe.write_text(recipe.read_text() + 'questions = "asked.jsonl"\n')
    with pytest.raises(DataError, match=r"asked\.jsonl"):
        compare.require_questions(load_recipe(recipe))
    recipe.with_name("asked.jsonl").write_text('{"question": "Who?", "answers": ["I"]}\n')
    compare.require_questions(load_recipe(recipe))


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    tables.show(COMPARISON, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "│ fedlora │ 100 % (4/4) │ 80 % (4/5) │ 89 % (8/9) │" in shown
    assert "│ base │ 0 % (0/4) │ 20 % (1/5) │ 11 % (1/9) │" in shown
    assert "│ north │ 3 MB │ 6 MB │" in shown
    assert "receipt: 4.2e-08" in shown
    assert "before I do not know. after At seven." in shown


def test_table_as_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(COMPARISON, as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert report["event"] == "Comparison"
    assert report["scores"]["fedlora"]["south"] == {"right": 4, "asked": 5}
    assert report["example"]["after"] == "At seven."
