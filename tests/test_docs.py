"""What the documents show runs as they show it."""

import runpy
from pathlib import Path

from flwr.app import Context, RecordDict

from fedlora.strategies import InProcessGrid

ROOT = Path(__file__).resolve().parents[1]


def test_the_flower_app_of_the_docs_learns_and_is_exact(capsys: object) -> None:
    app = runpy.run_path(str(ROOT / "docs" / "examples" / "flower_app.py"))
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    app["server"](InProcessGrid(app["client"], 2), context)
    lines = capsys.readouterr().out.splitlines()  # type: ignore[attr-defined]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines[:3]]
    distances = [float(line.rsplit(" ", 1)[1]) for line in lines[:3]]
    assert losses[2] < losses[0]
    assert all(distance <= 1e-6 for distance in distances)
