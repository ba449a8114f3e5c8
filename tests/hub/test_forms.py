"""What is pulled is the model: in every form, from any round, and only what is missing is sent."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from transformers import AutoModelForCausalLM

from fedlora.adapters import BaseMismatchError, RunError
from fedlora.client.hub import Hub
from fedlora.client.pullfolder import PullFolder
from fedlora.client.pulling import Pulled, pull
from fedlora.recipes.loading import dump
from fedlora.server.making import MERGED, SNAPSHOT, make
from fedlora.server.rundir import RunDirectory

from .conftest import ROUNDS, commit, fabricated, hosted

Call = Callable[..., Result]


def take(address: str, folder: Path, *args: object, **options: object) -> Pulled:
    with Hub(address) as hub:
        return pull(hub, folder, *args, **options)  # type: ignore[arg-type]


def sizes(folder: Path, *patterns: str) -> int:
    return sum(path.stat().st_size for one in patterns for path in folder.glob(one))


@pytest.mark.parametrize("round", [1, 3, ROUNDS])
@pytest.mark.parametrize("form", ["log", "snapshot"])
def test_a_pulled_ledger_is_a_run_that_exports_to_the_same_bytes(
    tiny_run: RunDirectory, address: str, tmp_path: Path, call: Call, round: int, form: str
) -> None:
    pulled = take(address, tmp_path / "pulled", round, form)
    assert (pulled.form, pulled.round, pulled.run) == (form, round, "tiny")
    opened = RunDirectory.open(tmp_path / "pulled")
    assert opened.heads.record() == tiny_run.heads.record(round)
    assert pulled.head == opened.heads.record().hash
    for run, name in ((tiny_run.path, "ours"), (opened.path, "theirs")):
        options = ("--form", "merged", "--round", round)
        done = call("export", run, tmp_path / name, *options)
        assert done.exit_code == 0, done.output
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("ours", "theirs"))
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("round", [0, 2])
def test_a_merged_model_is_what_export_makes(
    tiny_run: RunDirectory, address: str, tmp_path: Path, call: Call, round: int
) -> None:
    pulled = take(address, tmp_path / "pulled", round, "merged")
    call("export", tiny_run.path, tmp_path / "ours", "--form", "merged", "--round", round)
    for path in (tmp_path / "ours").iterdir():
        assert (tmp_path / "pulled" / path.name).read_bytes() == path.read_bytes()
    note = json.loads((tmp_path / "pulled" / "pulled.json").read_text())
    assert note["head"] == pulled.head == tiny_run.heads.record(round).hash
    AutoModelForCausalLM.from_pretrained(tmp_path / "pulled")


def test_a_merged_folder_moves_to_another_round(
    tiny_run: RunDirectory, address: str, tmp_path: Path
) -> None:
    first = take(address, tmp_path / "model", 2, "merged")
    assert first.received == first.size
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    stale = tmp_path / "model" / "model-00001-of-00002.safetensors"
    stale.write_bytes(b"of an earlier pull")
    note = tmp_path / "model" / "pulled.json"
    said = json.loads(note.read_text())
    note.write_text(json.dumps({**said, "files": [*said["files"], stale.name]}))
    second = take(address, tmp_path / "model", 0, "merged")
    assert second.received == sizes(tmp_path / "model", "model.safetensors")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != weights
    assert not stale.exists()


def test_only_what_is_missing_is_sent(tiny_run: RunDirectory, address: str, tmp_path: Path) -> None:
    folder = tmp_path / "pulled"
    first = take(address, folder, 2, "log")
    assert first.received == first.size == sizes(folder, "ledger/*/*")
    second = take(address, folder, 3, "log")
    assert second.received == sizes(folder, "ledger/0003/*")
    assert take(address, folder, 3, "log").received == 0
    assert RunDirectory.open(folder).heads.record() == tiny_run.heads.record(3)


def test_what_was_altered_here_is_sent_again(address: str, tmp_path: Path) -> None:
    take(address, tmp_path / "pulled", form="log")
    path = tmp_path / "pulled" / "ledger" / "0002" / "residual.safetensors"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    assert take(address, tmp_path / "pulled", form="log").received == len(sound)
    assert path.read_bytes() == sound


def test_since_a_round_only_what_came_later_is_sent(
    tiny_run: RunDirectory, address: str, tmp_path: Path
) -> None:
    """Someone who has the residuals elsewhere puts both together."""
    take(address, tmp_path / "early", 1, "log")
    late = take(address, tmp_path / "late", 3, "log", since=1)
    assert late.received == sizes(tmp_path / "late", "ledger/*/*")
    names = sorted(path.name for path in (tmp_path / "late" / "ledger").iterdir())
    assert names == ["0002", "0003"]
    shutil.copytree(tmp_path / "late", tmp_path / "early", dirs_exist_ok=True)
    whole = RunDirectory.open(tmp_path / "early").head()
    assert whole.round == 3
    assert len(whole.residuals) == 3


def test_the_cheaper_of_log_and_snapshot_is_sent(address: str, tmp_path: Path) -> None:
    assert take(address, tmp_path / "new").form == "snapshot"
    assert take(address, tmp_path / "early", 3).form == "log"  # there was no snapshot yet
    assert take(address, tmp_path / "early").form == "log"  # one residual is less than all weights


def test_an_adapter_needs_the_log(address: str, tmp_path: Path, call: Call) -> None:
    take(address, tmp_path / "pulled", form="snapshot")
    done = call("export", tmp_path / "pulled", tmp_path / "adapter", "--form", "adapter")
    assert done.exit_code == RunError.exit_code
    assert "pull it with --form log" in done.stderr
    take(address, tmp_path / "pulled", form="log")
    done = call("export", tmp_path / "pulled", tmp_path / "adapter", "--form", "adapter")
    assert done.exit_code == 0, done.output


def test_the_base_may_lie_elsewhere_here_but_must_be_the_same(
    address: str, tmp_path: Path, call: Call, tiny_causal: Path
) -> None:
    other = shutil.copytree(tiny_causal, tmp_path / "base")
    take(address, tmp_path / "pulled", model=str(other))
    take(address, tmp_path / "pulled")  # and it stays so
    assert RunDirectory.open(tmp_path / "pulled").recipe.model.source == str(other)
    done = call("export", tmp_path / "pulled", tmp_path / "one", "--form", "merged")
    assert done.exit_code == 0, done.output
    model = AutoModelForCausalLM.from_pretrained(other)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(other)
    done = call("export", tmp_path / "pulled", tmp_path / "two", "--form", "merged")
    assert done.exit_code == BaseMismatchError.exit_code
    assert "other weights than the run's base" in done.stderr


def test_nothing_of_the_coordinators_own_data_is_in_the_recipe(
    tiny_run: RunDirectory, address: str, tmp_path: Path
) -> None:
    take(address, tmp_path / "pulled", 0)
    assert "anchor" in dump(tiny_run.recipe)
    assert "anchor" not in (tmp_path / "pulled" / "recipe.toml").read_text()


@pytest.mark.parametrize("form", ["log", "merged"])
def test_a_folder_with_something_else_is_left_alone(
    tiny_run: RunDirectory, address: str, tmp_path: Path, form: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("irreplaceable")
    copy = shutil.copytree(tiny_run.path, tmp_path / "run")
    for folder in (tmp_path / "mine", copy):
        with pytest.raises(RunError, match="holds other files than a pull's: name another"):
            take(address, folder, 0, form)
        assert not (folder / ".pull").exists()


@pytest.mark.parametrize(("form", "other"), [("log", "merged"), ("merged", "log")])
def test_one_folder_is_one_kind(address: str, tmp_path: Path, form: str, other: str) -> None:
    take(address, tmp_path / "pulled", 0, form)
    with pytest.raises(RunError, match=r"was pulled into .* before: name another"):
        take(address, tmp_path / "pulled", 0, other)


def test_two_pulls_do_not_share_a_folder(address: str, tmp_path: Path) -> None:
    with PullFolder.locked(tmp_path / "pulled"), pytest.raises(RunError, match="another pull is"):
        take(address, tmp_path / "pulled")


def test_a_follower_is_sent_a_residual_where_the_hub_has_taken_new_snapshots(
    tiny_run: RunDirectory, tmp_path: Path
) -> None:
    """What it began with, the hub has no more; yet all weights anew would be a waste."""
    run = RunDirectory.open(shutil.copytree(tiny_run.path, tmp_path / "run"))
    for round in (3, 4):
        shutil.move(run.heads.folder(round), tmp_path / f"{round}")
    make(run, 2, SNAPSHOT)
    [early] = (run.path / "hub").glob("snapshot-0002*/files/*")
    shutil.copy(early, run.heads.folder(2))
    with hosted(run) as address:
        assert take(address, tmp_path / "pulled", form="snapshot").round == 2
        (run.heads.folder(2) / early.name).unlink()
        for round in (3, 4):
            shutil.move(tmp_path / f"{round}", run.heads.folder(round))
            pulled = take(address, tmp_path / "pulled")
            assert pulled.form == "log"
            assert pulled.received == sizes(tmp_path / "pulled", f"ledger/000{round}/*")
    head = RunDirectory.open(tmp_path / "pulled").head()
    assert head.snapshot is not None
    assert (head.round, head.snapshot.covers, len(head.residuals)) == (4, 2, 2)


def test_a_folder_of_another_run_is_left_alone(address: str, tmp_path: Path) -> None:
    run = fabricated(tmp_path / "other", [])
    with hosted(run) as other:
        take(other, tmp_path / "pulled")
    with pytest.raises(RunError, match=r'holds another run: .*name: was "large", is "tiny"'):
        take(address, tmp_path / "pulled")
    shutil.rmtree(run.path)
    again = fabricated(tmp_path / "other", [400, 400])
    shutil.rmtree(again.heads.folder(2))
    commit(again, torch.ones(100, 1))
    with hosted(again) as other:
        take(other, tmp_path / "pulled")
    shutil.rmtree(again.heads.folder(2))
    commit(again, torch.zeros(100, 1))
    with hosted(again) as other, pytest.raises(RunError, match="is of another run, or was altered"):
        take(other, tmp_path / "pulled")


def test_residuals_that_are_alike_are_sent_once(tmp_path: Path) -> None:
    run = fabricated(tmp_path / "run", [])
    for _ in range(3):
        commit(run, torch.ones(1000, 1))
    with hosted(run) as address:
        pulled = take(address, tmp_path / "pulled", form="log")
    assert pulled.received < pulled.size - 8000
    assert len(RunDirectory.open(tmp_path / "pulled").head().residuals) == 3


def test_what_cannot_be_had_is_said(tiny_run: RunDirectory, address: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the hub has no round 9; it has 0 to 4"):
        take(address, tmp_path / "pulled", 9)
    assert not list((tmp_path / "pulled").iterdir())
    with pytest.raises(RunError, match="round 2 does not build on round 3"):
        take(address, tmp_path / "pulled", 2, "log", since=3)
    with pytest.raises(RunError, match="round 0 has folded nothing yet: pull it as log"):
        take(address, tmp_path / "pulled", 0, "snapshot")


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", fabricated(tmp_path / "other", []).recipe)
    with hosted(run) as address, Hub(address) as hub:
        assert not hub.describe().rounds
        with pytest.raises(RunError, match="the hub has no head yet"):
            pull(hub, tmp_path / "pulled")


@pytest.mark.slow
def test_a_base_that_is_gone_is_named_where_a_model_must_be_made(tmp_path: Path) -> None:
    run = fabricated(tmp_path / "run", [400])
    recipe = run.recipe.model_copy(
        update={"model": run.recipe.model.model_copy(update={"source": str(tmp_path / "gone")})}
    )
    (run.path / "recipe.toml").write_text(dump(recipe))
    with (
        hosted(RunDirectory.open(run.path)) as address,
        pytest.raises(RunError, match=r"cannot make merged of round 1: no model at .*gone"),
    ):
        take(address, tmp_path / "pulled", form="merged")


def test_a_hub_keeps_few_models(tiny_run: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory.open(shutil.copytree(tiny_run.path, tmp_path / "run"))
    (run.path / "hub" / ".merged-0001-abc.x").mkdir()  # of a process that was killed
    for round in (0, 1, 3):
        make(run, round, MERGED)
    kept = sorted(path.name for path in (run.path / "hub").iterdir())
    assert [name[:11] for name in kept if "merged" in name] == ["merged-0001", "merged-0003"]


def test_describe_says_what_there_is(tiny_run: RunDirectory, address: str, tmp_path: Path) -> None:
    take(address, tmp_path / "log", form="log")
    with Hub(address) as hub:
        said = hub.describe()
    assert said.run == "tiny"
    assert said.model == tiny_run.recipe.model.source
    assert said.base == tiny_run.heads.record().base
    assert [(one.round, one.head) for one in said.rounds] == [
        (round, tiny_run.heads.record(round).hash) for round in range(ROUNDS + 1)
    ]
    log, snapshot, whole = said.forms
    assert log.size == sizes(tmp_path / "log", "ledger/*/*")
    assert snapshot.size < log.size
    assert whole.size == 0  # it is made when somebody asks for it
    assert said.limits.chunk == 1 << 20


def test_the_ledger_is_only_read(tiny_run: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory.open(shutil.copytree(tiny_run.path, tmp_path / "run"))
    (run.heads.directory / ".lock").unlink(missing_ok=True)
    before = [(path, path.stat().st_mtime_ns) for path in sorted(run.heads.directory.rglob("*"))]
    with hosted(run) as address, run.heads.locked():
        take(address, tmp_path / "a", form="log")
        take(address, tmp_path / "b", 1, form="snapshot")
        take(address, tmp_path / "c", 0, form="merged")
        make(run, 3, MERGED)
    os.unlink(run.heads.directory / ".lock")
    after = [(path, path.stat().st_mtime_ns) for path in sorted(run.heads.directory.rglob("*"))]
    assert after == before
