import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedlora.cli import progress
from fedlora.server import events

STORY = (
    events.RunStarted("ferry", ("north", "south"), 2),
    events.RoundStarted(1, 2, ("north", "south")),
    events.StepDone("north", 1, 4, 2.5, 812.0),
    events.StepDone("north", 4, 4, 2.25, 812.0),
    events.NodeReplied(1, "north", {"loss": 2.25, "tokens": 3200}, 1_500_000, 900),
    events.NodeRefused(1, "south", "other base"),
    events.RoundDone(1, 2, "abcdef0123456789", 3.14e-8, {"loss": 2.125}, 12.4),
    events.Notice("[bold]not markup[/bold]"),
    events.RunDone(Path("/runs/ferry"), "abcdef0123456789", 3.14e-8),
)


def test_plain_lines_leave_out_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress(as_json=False) as listener:
        for event in STORY:
            listener(event)
    assert capsys.readouterr().out.splitlines() == [
        "run ferry: 2 rounds, 2 nodes: north, south",
        "round 1: north: 1.5 MB up, 900 B down, loss 2.25",
        "round 1: south refused: other base",
        "round 1/2 done in 12 s: receipt 3.1e-08, head abcdef012345, loss 2.125",
        "[bold]not markup[/bold]",
        "run done: /runs/ferry, head abcdef012345, receipt 3.1e-08",
    ]


def test_json_has_every_event_and_field(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress(as_json=True) as listener:
        for event in STORY:
            listener(event)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == [
        "RunStarted",
        "RoundStarted",
        "StepDone",
        "StepDone",
        "NodeReplied",
        "NodeRefused",
        "RoundDone",
        "Notice",
        "RunDone",
    ]
    assert lines[2] == {
        "event": "StepDone",
        "node": "north",
        "step": 1,
        "steps": 4,
        "loss": 2.5,
        "tokens_per_second": 812.0,
    }
    assert lines[4]["metrics"] == {"loss": 2.25, "tokens": 3200}
    assert lines[8]["run_dir"] == "/runs/ferry"


def drawn(*story: events.Event) -> str:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with progress.Live(console) as live:
        for event in story:
            live(event)
    return screen.getvalue()


def test_bars_show_steps_speed_and_bytes() -> None:
    training = drawn(*STORY[:3])
    assert "1/4" in training
    assert "loss 2.500  812 tokens/s" in training
    assert "0/2" in training
    finished = drawn(*STORY[:7])
    assert "1.5 MB up, 900 B down" in finished
    assert "refused" in finished
    assert "1/2" in finished
    assert "round 1/2 done in 12 s" in finished
    assert "[bold]not markup[/bold]" in drawn(*STORY)


def test_bars_start_anew_for_another_run() -> None:
    other = events.RunStarted("alone", ("east",), 1)
    last = drawn(*STORY, other).rsplit("run alone", 1)[1]
    assert "east" in last
    assert "north" not in last


def test_the_terminal_is_given_back_after_an_error() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with pytest.raises(TypeError), progress.Live(console) as live:
        live(events.StepDone("north", 1, None, None, None))  # type: ignore[arg-type]
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB"), (5e12, "5e+03 GB")],
)
def test_size(count: float, text: str) -> None:
    assert progress.size(count) == text
