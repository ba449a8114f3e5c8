"""The worked example of docs/distill.md, on the demo and the real model."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Call = Callable[..., Result]

PAGE = Path(__file__).parents[2] / "docs" / "distill.md"
QUICK = ["--steps", "6", "--batch-size", "2", "--learning-rate", "5e-4"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_received_head_to_advice_to_student_to_answer(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advise, distil, generate = (
        shlex.split(line)
        for line in re.findall(r"^    fedlora (.*)$", PAGE.read_text(), re.MULTILINE)
    )
    monkeypatch.chdir(tmp_path)
    assert call("recipes", "copy", "demo", "demo").exit_code == 0
    rows = (Path("demo") / "data" / "demo" / "clinic.jsonl").read_text()
    Path("mine.jsonl").write_text(rows)
    quick = ("--set", "train.steps=4", "--set", "federation.rounds=2")
    begun = call("simulate", "demo/demo.toml", "--run-dir", "runs/demo", *quick)
    assert begun.exit_code == 0, begun.output
    advised = call(*advise, "--json")
    assert advised.exit_code == 0, advised.output
    assert json.loads(advised.stdout.splitlines()[0])["decided_by"] in ("gate", "measurement")
    done = call(*distil, *QUICK, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["loss_after"] < said["loss_before"]
    assert 0.38 < said["student_parameters"] / said["teacher_parameters"] < 0.42
    answered = call(*generate, "--max-new-tokens", 8)
    assert answered.exit_code == 0, answered.output
    assert answered.stdout.strip()
