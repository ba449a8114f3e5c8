"""What the documents show runs as they show it."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from pydantic_core import PydanticUndefined

from fedlora.recipes import schema
from fedlora.strategies import InProcessGrid

from .deploy.parsing import parse

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def test_the_flower_app_of_the_docs_learns_and_is_exact(capsys: object) -> None:
    app = runpy.run_path(str(ROOT / "docs" / "examples" / "flower_app.py"))
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    app["server"](InProcessGrid(app["client"], 2), context)
    lines = capsys.readouterr().out.splitlines()  # type: ignore[attr-defined]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines[:3]]
    distances = [float(line.rsplit(" ", 1)[1]) for line in lines[:3]]
    assert losses[2] < losses[0]
    assert all(distance <= 1e-6 for distance in distances)


def test_the_page_shows_the_app_that_was_run() -> None:
    source = (ROOT / "docs" / "examples" / "flower_app.py").read_text()
    assert f"```python\n{source}```" in (ROOT / "docs" / "flower.md").read_text()


def test_every_measurement_on_the_page_is_that_of_a_result_file() -> None:
    report = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))
    assert (ROOT / "docs" / "measurements.md").read_text() == report["page"](), (
        "run `python benchmarks/report.py`"
    )


SECTIONS = {
    "model": schema.ModelSection,
    "lora": schema.LoraSection,
    "quantize": schema.QuantizeSection,
    "train": schema.TrainSection,
    "data": schema.DataSection,
    "federation": schema.FederationSection,
    "public": schema.PublicSection,
    "evaluate": schema.EvaluateSection,
    "node": schema.NodeSection,
}


def test_every_key_of_a_recipe_is_documented_with_its_default() -> None:
    assert {"name", "seed", *SECTIONS} == set(schema.Recipe.model_fields)
    text = (ROOT / "docs" / "recipes.md").read_text()
    for name, section in SECTIONS.items():
        part = re.split(rf"\n## \[+{name}\]+\n", text)[1].split("\n## ")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", part, re.MULTILINE))
        assert rows.keys() == section.model_fields.keys()
        for key, field in section.model_fields.items():
            if field.default not in (None, (), PydanticUndefined):
                shown = list(field.default) if isinstance(field.default, tuple) else field.default
                assert f"`{shown}`".lower() == rows[key].lower()


COMMAND = re.compile(r"^(?:    )?fedlora (\w.*?)(?:\s+#.*)?$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_shown_is_understood(page: Path) -> None:
    for line in COMMAND.findall(page.read_text()):
        parse(shlex.split(line))


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text().replace("\n", " ")):
            if not target.startswith("http"):
                assert (page.parent / target.strip()).exists(), f"{page.name}: {target}"
