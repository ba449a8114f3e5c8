"""What a run shows while it goes on: live bars in a terminal, plain lines elsewhere, or JSON."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fedlora.server import events
from fedlora.server.events import Event, Listener


@contextmanager
def progress(as_json: bool) -> Iterator[Listener]:
    """A listener for the events of one or several runs, fit for where stdout goes."""
    if as_json:
        yield json_line
    elif sys.stdout.isatty():
        with Live(Console()) as live:
            yield live
    else:
        yield plain_line


def json_line(event: Event) -> None:
    """One JSON object a line: `event` is the kind, then its fields."""
    typer.echo(events.to_line(event))


def plain_line(event: Event) -> None:
    """One line for what matters; nothing for single steps."""
    text = describe(event)
    if text:
        typer.echo(text)


def describe(event: Event) -> str:
    """The event as a line of text; empty for what only a live display shows."""
    match event:
        case events.RunStarted(run, nodes, rounds):
            return f"run {run}: {rounds} rounds, {len(nodes)} nodes: {', '.join(nodes)}"
        case events.NodeReplied(round, node, metrics, bytes_up, bytes_down):
            sent = f"{size(bytes_up)} up, {size(bytes_down)} down"
            return ", ".join([f"round {round}: {node}: {sent}", *_quality(metrics)])
        case events.NodeRefused(round, node, reason):
            return f"round {round}: {node} refused: {reason}"
        case events.RoundDone(round, rounds, head, receipt, metrics, seconds):
            done = f"round {round}/{rounds} done in {seconds:.0f} s"
            return ", ".join(
                [f"{done}: receipt {receipt:.1e}", f"head {head[:12]}", *_quality(metrics)]
            )
        case events.RunDone(run_dir, head, receipt):
            return f"run done: {run_dir}, head {head[:12]}, receipt {receipt:.1e}"
        case events.Notice(text):
            return text
    return ""


def _quality(metrics: Mapping[str, float]) -> list[str]:
    """What tells how well it goes; the rest is in the run's metrics.jsonl."""
    return [
        f"{name} {value:.4g}"
        for name, value in metrics.items()
        if name.endswith(("loss", "accuracy"))
    ]


def size(count: float) -> str:
    """Bytes in the largest decimal unit that keeps a number of at least one."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


class Live:
    """Bars for rounds and for every node's steps; finished rounds stay above as lines."""

    def __init__(self, console: Console) -> None:
        """Draw on that console."""
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Live":
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and leave the terminal as it was, whatever happened."""
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case events.RunStarted(nodes=nodes, rounds=rounds):
                self._restart(nodes, rounds)
            case events.RoundStarted(round, rounds, nodes):
                self._set("rounds", completed=round - 1, total=rounds)
                for node in nodes:
                    self._set(node, completed=0, note="waiting")
            case events.StepDone(node, step, steps, loss, speed):
                note = f"loss {loss:.3f}  {speed:.0f} tokens/s"
                self._set(node, completed=step, total=steps, note=note)
            case events.NodeReplied(node=node, bytes_up=up, bytes_down=down):
                self._set(node, note=f"done  {size(up)} up, {size(down)} down")
            case events.NodeRefused(node=node):
                self._set(node, note="refused")
            case events.RoundDone(round=round, receipt=receipt):
                self._set("rounds", completed=round, note=f"receipt {receipt:.1e}")
        if not isinstance(event, events.NodeReplied) and (text := describe(event)):
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _restart(self, nodes: tuple[str, ...], rounds: int) -> None:
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()
        self._set("rounds", total=rounds)
        for node in nodes:
            self._set(node, note="waiting")

    def _set(self, name: str, **changes: float | str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=None, note="")
        update: Callable[..., None] = self._bars.update
        update(self._tasks[name], **changes)
