"""What a distillation shows while it goes on."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import typer
from rich.console import Console
from rich.progress import Progress

from fedlora.client.distillation.order import Told
from fedlora.client.distillation.training import Step


@contextmanager
def shown(steps: int, as_json: bool) -> Iterator[Told]:
    """Lines and a bar, or one JSON object a line."""
    if as_json:
        yield Told(_json_notice, _json_step)
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("distilling", total=steps)

        def stepped(step: Step) -> None:
            losses = f"CE {step.cross_entropy:.3f}, KL {step.divergence:.3f}"
            bar.update(task, completed=step.step, description=f"distilling: {losses}")

        yield Told(lambda text: typer.echo(text), stepped)


def _json_notice(text: str) -> None:
    typer.echo(json.dumps({"event": "Notice", "text": text}, ensure_ascii=False))


def _json_step(step: Step) -> None:
    typer.echo(json.dumps({"event": "Step", **asdict(step)}))
