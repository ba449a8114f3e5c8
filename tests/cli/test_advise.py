"""`fedlora distill advise`: a ranked table, and what decided each row."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from transformers import AutoModelForCausalLM, AutoTokenizer

Call = Callable[..., Result]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Transfer text."""
    rows = [{"instruction": f"Door {i}?", "response": f"The key {i % 3}."} for i in range(12)]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def weak(tiny_causal: Path, tmp_path: Path) -> Path:
    """The tiny model with its predictions spoiled, so that the tiny model is the better one."""
    model = AutoModelForCausalLM.from_pretrained(tiny_causal)
    with torch.no_grad():
        model.model.norm.weight.mul_(8)
    model.save_pretrained(tmp_path / "weak")
    AutoTokenizer.from_pretrained(tiny_causal).save_pretrained(tmp_path / "weak")
    return tmp_path / "weak"


def test_the_better_teacher_is_ranked_and_the_worse_refused(
    call: Call, tiny_causal: Path, tiny_gpt2: Path, weak: Path, mine: Path
) -> None:
    teachers = ("--teacher", weak, "--teacher", tiny_gpt2, "--teacher", tiny_causal)
    done = call("distill", "advise", "--student", weak, "--data", mine, *teachers, "--json")
    assert done.exit_code == 0, done.output
    *rows, rest = map(json.loads, done.stdout.splitlines())
    by_name = {row["name"]: row for row in rows}
    assert by_name[str(weak)]["rank"] is None
    assert "not better on this text" in by_name[str(weak)]["reason"]
    best = by_name[str(tiny_causal)]
    assert best["rank"] == 1 or by_name[str(tiny_gpt2)]["rank"] == 1
    assert best["decided_by"] in ("measurement", "prior")
    assert best["measured"]["divergence"] > 0
    assert rest["vertex"] is None
    table = call("distill", "advise", "--student", weak, "--data", mine, *teachers)
    assert "not better on this text" in " ".join(table.stdout.replace("│", " ").split())


def test_pilot_runs_decide_and_say_when_they_show_no_vertex(
    call: Call, tiny_causal: Path, weak: Path, mine: Path
) -> None:
    options = ("--teacher", tiny_causal, "--pilot", 2)
    done = call("distill", "advise", "--student", weak, "--data", mine, *options, "--json")
    assert done.exit_code == 0, done.output
    row, rest = map(json.loads, done.stdout.splitlines())
    assert row["decided_by"] == "pilot"
    assert len(row["pilot_losses"]) == 3
    assert "reason" in rest["vertex"]


def test_nobody_to_judge_is_an_error(call: Call, tiny_causal: Path, mine: Path) -> None:
    done = call("distill", "advise", "--student", tiny_causal, "--data", mine)
    assert done.exit_code == 3
    assert "name a run or a model" in done.stderr
