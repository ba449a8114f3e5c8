"""From a recipe to answers and exports, by the commands that a user types."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from click.testing import Result
from peft import PeftModel
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from fedlora.cli.main import app
from fedlora.cli.tuned import base, tuned
from fedlora.server.rundir import RunDirectory

Call = Callable[..., Result]

RECIPE = """
name = "ferry"

[model]
source = "{model}"

[lora]
rank = 2

[train]
steps = 2
batch_size = 2
learning_rate = 0.01

[data]
heldout = 0.25

[federation]
rounds = 2

[[node]]
name = "north"
data = "north.jsonl"
questions = "north.questions.jsonl"

[[node]]
name = "south"
data = "south.jsonl"
questions = "south.questions.jsonl"
"""
IDS = torch.tensor([[1, 30, 77, 120, 9, 200]])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tiny_causal: Path) -> tuple[Path, Result]:
    """A compared run of two nodes, and what the command said."""
    folder = tmp_path_factory.mktemp("ferry")
    (folder / "ferry.toml").write_text(RECIPE.format(model=tiny_causal))
    for site in ("north", "south"):
        rows = [{"instruction": f"{site} {i}?", "response": f"The key {i}."} for i in range(4)]
        (folder / f"{site}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        asked = {"question": f"Which key is {site}'s?", "answers": ["green"]}
        (folder / f"{site}.questions.jsonl").write_text(json.dumps(asked))
    run = folder / "run"
    args = ["simulate", str(folder / "ferry.toml"), "--run-dir", str(run), "--compare", "--json"]
    return run, CliRunner().invoke(app, args)


def test_simulate_tells_what_happens_as_json(done: tuple[Path, Result]) -> None:
    run, said = done
    assert said.exit_code == 0, said.output
    events = [json.loads(line) for line in said.stdout.splitlines()]
    assert events[0]["event"] == "RunStarted"
    assert events[-1]["event"] == "Comparison"
    assert [e["round"] for e in events if e["event"] == "RoundDone"][:2] == [1, 2]
    assert (run / "recipe.toml").is_file()


def test_compare_has_a_row_for_every_rival(done: tuple[Path, Result]) -> None:
    run, _ = done
    report = json.loads((run / "compare.json").read_text())
    assert list(report["scores"]) == ["base", "north alone", "south alone", "fedit", "fedlora"]
    for scores in report["scores"].values():
        assert {site: score["asked"] for site, score in scores.items()} == {"north": 1, "south": 1}
    assert 0 <= report["receipt"] <= 1e-6
    assert set(report["up"]) == set(report["down"]) == {"north", "south"}
    assert all(count > 0 for count in report["up"].values())
    assert report["example"]["question"].startswith("Which key")


def test_a_rival_trains_as_long_as_the_federation(done: tuple[Path, Result]) -> None:
    run, _ = done
    ours = RunDirectory.open(run).recipe
    alone = RunDirectory.open(run.with_name("run-rivals") / "north-alone").recipe
    fedit = RunDirectory.open(run.with_name("run-rivals") / "fedit").recipe
    assert [node.name for node in alone.node] == ["north"]
    assert alone.federation.min_nodes == 1
    same = ours.train.model_copy(update={"threads": 1})
    assert (alone.train, alone.federation.rounds) == (same, ours.federation.rounds)
    assert fedit.federation.strategy == "fedit"
    assert fedit.node == ours.node


def test_a_run_is_never_overwritten(done: tuple[Path, Result], call: Call) -> None:
    run, _ = done
    kept = {path: path.read_bytes() for path in run.glob("ledger/*/*")}
    assert kept
    again = call("simulate", run / "recipe.toml", "--run-dir", run)
    assert again.exit_code == 0, again.output  # it is over: nothing is left to do
    other = call("simulate", run / "recipe.toml", "--run-dir", run, "--set", "seed=99")
    assert other.exit_code == 11
    assert "seed: was" in other.stderr
    assert {path: path.read_bytes() for path in run.glob("ledger/*/*")} == kept


def test_generate_answers_every_prompt(done: tuple[Path, Result], call: Call) -> None:
    run, _ = done
    few = ["--max-new-tokens", 4]
    said = call("generate", run, "Which key?", "Which door?", "--compare", "--json", *few)
    assert said.exit_code == 0, said.output
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert [line["prompt"] for line in lines] == ["Which key?", "Which door?"]
    assert set(lines[0]) == {"prompt", "base", "tuned"}
    alone = call("generate", run, "Which key?", *few).stdout
    assert alone == lines[0]["tuned"] + "\n"
    shown = call("generate", run, "Which key?", "--compare", *few).stdout
    assert [line.split()[0] for line in shown.splitlines() if line] == ["prompt", "base", "tuned"]


def test_sampling_depends_on_the_seed_alone(done: tuple[Path, Result], call: Call) -> None:
    run, _ = done

    def drawn(seed: int) -> str:
        args = ["--temperature", 1.0, "--max-new-tokens", 12, "--seed", seed]
        return call("generate", run, "Which key?", *args).stdout

    assert drawn(1) == drawn(1) != drawn(2)


def test_decoding_is_measured_side_by_side(done: tuple[Path, Result], call: Call) -> None:
    run, _ = done
    said = call("bench", "decode", run, "Which key?", "Who?", "--max-new-tokens", 6, "--json")
    assert said.exit_code == 0, said.output
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    ways = [row["way"] for row in rows]
    assert (ways[0], ways[-1]) == ("transformers greedy", "fedlora")
    assert rows[0]["ratio"] == 1.0
    assert all(row["identical"] == 1.0 for row in rows)
    shown = call("bench", "decode", run, "Which key?", "--max-new-tokens", 3).stdout
    assert all(way in shown for way in ways)


def test_generate_remembers_drafts_in_the_users_cache(
    done: tuple[Path, Result], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = done
    kept = set(run.rglob("*"))
    monkeypatch.setenv("FEDLORA_CACHE", str(tmp_path))
    first = call("generate", run, "Which key?", "--max-new-tokens", 12).stdout
    (file,) = (tmp_path / "drafts").iterdir()
    before = file.read_bytes()
    assert call("generate", run, "Which key?", "--max-new-tokens", 12, "--strict").stdout == first
    assert file.read_bytes() != before
    assert set(run.rglob("*")) == kept


def test_rounds_that_are_not_there(done: tuple[Path, Result], call: Call, tmp_path: Path) -> None:
    run, _ = done
    for args in (
        ["generate", run, "Who?", "--round", 9],
        ["export", run, tmp_path / "out", "--form", "merged", "--round", 9],
        ["generate", tmp_path, "Who?"],
    ):
        said = call(*args)
        assert said.exit_code == 11
        assert said.stderr.startswith("error: ")


def test_training_changes_the_model(done: tuple[Path, Result]) -> None:
    opened = RunDirectory.open(done[0])
    with torch.inference_mode():
        before, after = base(opened.recipe)[0](IDS).logits, tuned(opened)[0](IDS).logits
        first = tuned(opened, 1)[0](IDS).logits
    assert not torch.allclose(before, after, atol=1e-4)
    assert not torch.allclose(first, after, atol=1e-4)


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_exports_give_the_heads_logits_without_fedlora(
    done: tuple[Path, Result], call: Call, tmp_path: Path, tiny_causal: Path, form: str
) -> None:
    run, _ = done
    said = call("export", run, tmp_path / "out", "--form", form)
    assert said.exit_code == 0, said.output
    if form == "merged":
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    else:
        model = AutoModelForCausalLM.from_pretrained(tiny_causal)
        model = PeftModel.from_pretrained(model, tmp_path / "out")
    with torch.inference_mode():
        expected = tuned(RunDirectory.open(run))[0](IDS).logits
        torch.testing.assert_close(model.eval()(IDS).logits, expected, atol=1e-5, rtol=1e-5)
    assert call("export", run, tmp_path / "out", "--form", form).exit_code == 11


def test_ctrl_c_stops_cleanly(done: tuple[Path, Result], tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("fedlora")
    args = ["simulate", done[0] / "recipe.toml", "--run-dir", tmp_path / "run", "--json"]
    long = [*args, "--set", "train.steps=100000"]
    with subprocess.Popen([script, *long], stdout=PIPE, stderr=PIPE, text=True) as child:
        assert child.stdout
        assert child.stderr
        for line in child.stdout:
            if json.loads(line)["event"] == "StepDone":
                break
        child.send_signal(signal.SIGINT)
        child.stdout.read()
        assert child.wait(timeout=30) == 130
        said = json.loads(child.stderr.read())
    assert said == {"error": "KeyboardInterrupt", "message": "interrupted", "exit_code": 130}
