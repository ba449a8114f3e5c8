"""`fedlora distill`: students of a run's head and of other models, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from fedlora.cli.main import app

Call = Callable[..., Result]

RECIPE = """
name = "ferry"

[model]
source = "{model}"

[lora]
rank = 4

[train]
steps = 12
batch_size = 4
learning_rate = 0.02

[data]
heldout = 0.25

[federation]
rounds = 2

[[node]]
name = "north"
data = "north.jsonl"

[[node]]
name = "south"
data = "south.jsonl"
"""


def rows(site: str) -> str:
    made = [{"instruction": f"{site} {i}?", "response": f"The key {i % 3}."} for i in range(12)]
    return "\n".join(map(json.dumps, made))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_causal: Path) -> Path:
    """A run of two nodes that has learned something; transfer text beside it."""
    folder = tmp_path_factory.mktemp("ferry")
    (folder / "ferry.toml").write_text(RECIPE.format(model=tiny_causal))
    for site in ("north", "south"):
        (folder / f"{site}.jsonl").write_text(rows(site))
    (folder / "mine.jsonl").write_text(rows("north") + "\n" + rows("east"))
    args = ["simulate", str(folder / "ferry.toml"), "--run-dir", str(folder / "run")]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    return folder / "run"


def distilled(call: Call, run: Path, out: Path, *options: object) -> tuple[dict[str, Any], Result]:
    quick = ("--steps", 12, "--batch-size", 4, "--learning-rate", 0.01, "--heldout", 0.25)
    data = ("--data", run.parent / "mine.jsonl", "--out", out, "--json")
    done = call("distill", "--run", run, *data, *quick, *options)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1]), done


def logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        answer: torch.Tensor = model(torch.tensor([[1, 30, 77, 120]])).logits
    return answer


def test_a_pruned_student_learns_and_opens_in_transformers(
    call: Call, run: Path, tmp_path: Path
) -> None:
    said, done = distilled(call, run, tmp_path / "small", "--ratio", 0.6)
    assert said["loss_after"] < said["loss_before"]
    assert said["teacher_loss"] < said["loss_before"]
    assert 0.4 < said["student_parameters"] / said["teacher_parameters"] < 0.8
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["step"] for one in events if one["event"] == "Step"] == list(range(1, 13))
    assert logits(tmp_path / "small").shape == (1, 4, 400)
    assert AutoTokenizer.from_pretrained(tmp_path / "small").chat_template
    report = json.loads((tmp_path / "small" / "distillation.json").read_text())
    assert report["summary"]["loss_after"] == said["loss_after"]
    assert len((tmp_path / "small" / "metrics.jsonl").read_text().splitlines()) == 12
    assert not (tmp_path / "small.partial").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--top-k", 20),
        ("--teacher-precision", "int8"),
        ("--on-policy", 0.5, "--gate"),
        pytest.param(("--temperature", 2.0, "--kd", 1.0), marks=pytest.mark.slow),
    ],
    ids=lambda options: str(options[0]),
)
def test_each_way_to_ask_a_teacher(
    call: Call, run: Path, tmp_path: Path, options: tuple[object, ...]
) -> None:
    said, _ = distilled(call, run, tmp_path / "small", "--ratio", 0.6, *options)
    assert said["loss_after"] < said["loss_before"]


def test_a_lora_student_begins_as_the_head_and_is_merged(
    call: Call, run: Path, tmp_path: Path
) -> None:
    said, _ = distilled(call, run, tmp_path / "own", "--student", "lora")
    assert said["loss_before"] == said["teacher_loss"]
    assert said["loss_after"] < said["loss_before"]
    assert said["student_parameters"] == said["teacher_parameters"]
    names = AutoModelForCausalLM.from_pretrained(tmp_path / "own").state_dict()
    assert not any("lora" in name for name in names)


def test_a_smaller_model_learns_from_two_teachers(
    call: Call, run: Path, tiny_causal: Path, tmp_path: Path
) -> None:
    options = ("--teacher", tiny_causal, "--student", tiny_causal, "--gate")
    said, _ = distilled(call, run, tmp_path / "found", *options)
    assert said["teacher_loss"] < said["loss_before"]
    assert said["loss_after"] < said["loss_before"]
    facts = json.loads((tmp_path / "found" / "distillation.json").read_text())["order"]
    assert facts["teacher 1"].startswith("head ")
    assert facts["teacher 2"].startswith("base ")


def test_a_distillation_that_was_killed_is_gone_on_with(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedlora.client.distillation.checkpoints import Checkpoints

    options = ("--ratio", 0.6, "--every", 5)
    distilled(call, run, tmp_path / "whole", *options)
    add = Checkpoints.add

    def dying(self: Checkpoints, line: dict[str, Any]) -> None:
        add(self, line)
        if line["step"] == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "add", dying)
        quick = ("--steps", 12, "--batch-size", 4, "--learning-rate", 0.01, "--heldout", 0.25)
        data = ("--data", run.parent / "mine.jsonl", "--out", tmp_path / "cut")
        assert call("distill", "--run", run, *data, *quick, *options).exit_code == 130
    assert not (tmp_path / "cut").exists()
    other = call("distill", "--run", run, *data, *quick, *options, "--seed", 1)
    assert other.exit_code == 11
    assert "seed was 0, now 1" in other.stderr
    _, done = distilled(call, run, tmp_path / "cut", *options)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["step"] for one in events if one["event"] == "Step"] == list(range(6, 13))
    assert torch.equal(logits(tmp_path / "cut"), logits(tmp_path / "whole"))


def refused(call: Call, *arguments: object) -> Result:
    done = call("distill", *arguments)
    assert done.exit_code
    assert "Traceback" not in done.output
    return done


def test_a_student_of_another_vocabulary_is_refused_with_both_sizes(
    call: Call, run: Path, tiny_causal: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    model = AutoModelForCausalLM.from_pretrained(tiny_causal)
    model.resize_token_embeddings(416)
    model.save_pretrained(other)
    AutoTokenizer.from_pretrained(tiny_causal).save_pretrained(other)
    data = ("--data", run.parent / "mine.jsonl", "--out", tmp_path / "out")
    done = refused(call, "--run", run, "--student", other, *data)
    assert done.exit_code == 5
    assert "400 tokens, the student one of 416" in done.stderr
    assert "--student pruned" in done.stderr


def test_equal_sizes_of_other_tokens_are_refused(
    call: Call, run: Path, tiny_causal: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_causal, other)
    content = json.loads((other / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    last, before = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary[last], vocabulary[before] = vocabulary[before], vocabulary[last]
    (other / "tokenizer.json").write_text(json.dumps(content))
    data = ("--data", run.parent / "mine.jsonl", "--out", tmp_path / "out")
    done = refused(call, "--run", run, "--student", other, *data)
    assert done.exit_code == 5
    assert "but not the same" in done.stderr


def test_a_teacher_that_is_no_better_is_refused(
    call: Call, run: Path, tiny_causal: Path, tmp_path: Path
) -> None:
    assert call("export", run, tmp_path / "tuned", "--form", "merged").exit_code == 0
    data = ("--data", run.parent / "mine.jsonl", "--out", tmp_path / "out")
    done = refused(call, "--teacher", tiny_causal, "--student", tmp_path / "tuned", *data)
    assert done.exit_code == 5
    assert "not better than the student on this text" in done.stderr


def test_parts_that_contradict_each_other_are_refused(
    call: Call, run: Path, tiny_causal: Path, tmp_path: Path
) -> None:
    mine = ("--data", run.parent / "mine.jsonl", "--out", tmp_path / "out")
    assert "needs a teacher" in refused(call, *mine).stderr
    assert "below 1" in refused(call, "--run", run, "--top-k", 8, "--kd", 1.0, *mine).stderr
    done = refused(call, "--run", run, "--top-k", 8, "--on-policy", 0.5, *mine)
    assert "can't judge what the student writes" in done.stderr
    done = refused(call, "--teacher", tiny_causal, "--student", "lora", *mine)
    assert "name a run" in done.stderr
    assert refused(call, "--run", run).exit_code == 2
    assert not (tmp_path / "out.partial").exists()


def test_an_empty_transfer_set_is_refused(call: Call, run: Path, tmp_path: Path) -> None:
    empty, one = tmp_path / "empty.jsonl", tmp_path / "one.jsonl"
    empty.write_text("")
    one.write_text('{"instruction": "Who?", "response": "I."}')
    out = ("--out", tmp_path / "out")
    assert refused(call, "--run", run, "--data", empty, *out).exit_code == 4
    done = refused(call, "--run", run, "--data", one, *out)
    assert done.exit_code == 4
    assert "too few" in done.stderr


def test_no_room_in_memory_is_said_before_anything_is_opened(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedlora.client.distillation import room

    class Little:
        available = 100_000

    monkeypatch.setattr(room.psutil, "virtual_memory", lambda: Little)
    data = ("--data", run.parent / "mine.jsonl", "--out", tmp_path / "out")
    done = refused(call, "--run", run, *data)
    assert done.exit_code == 5
    assert "--teacher-precision int8" in done.stderr


def test_a_folder_that_is_taken_is_left_alone(call: Call, run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    data = ("--data", run.parent / "mine.jsonl", "--out", tmp_path / "out")
    assert refused(call, "--run", run, *data).exit_code == 11
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
