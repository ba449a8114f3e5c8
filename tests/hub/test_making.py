"""What the ledger does not hold is made once, by a process that lives no longer than its askers."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from fedlora.adapters import RunError
from fedlora.cli.processes import free_port
from fedlora.client.hub import Hub
from fedlora.client.pulling import pull
from fedlora.protos.hub_pb2 import FORM_LOG, FORM_MERGED, PullRequest
from fedlora.recipes.loading import dump
from fedlora.server.making import MERGED, make, place
from fedlora.server.rundir import RunDirectory

from .conftest import ROUNDS, HubProcess, fabricated, hosted, hub_process


@pytest.fixture
def run(tiny_run: RunDirectory, tmp_path: Path) -> RunDirectory:
    ignored = shutil.ignore_patterns("hub")
    return RunDirectory.open(shutil.copytree(tiny_run.path, tmp_path / "run", ignore=ignored))


def test_a_merged_model_of_a_folder_that_holds_folded_weights_has_them(
    run: RunDirectory, tmp_path: Path
) -> None:
    """A pulled folder can be served in its turn, without the residuals that it never had."""
    snapshot = run.heads.snapshot(run.heads.record().history)
    assert snapshot is not None
    make(run, ROUNDS, MERGED)
    [whole] = place(run, ROUNDS, MERGED).glob("files/model.safetensors")
    thin = RunDirectory.open(shutil.copytree(run.path, tmp_path / "thin"))
    shutil.rmtree(thin.path / "hub")
    for digest in run.heads.record().history[: snapshot.covers]:
        (thin.path / run.heads.residual_file(digest).relative_to(run.path)).unlink()
    make(thin, ROUNDS, MERGED)
    [made] = place(thin, ROUNDS, MERGED).glob("files/model.safetensors")
    assert made.read_bytes() == whole.read_bytes()


def test_a_once_for_all_run_is_offered_as_its_log_alone(tmp_path: Path) -> None:
    plain = fabricated(tmp_path / "run", [64]).recipe
    quantize = plain.quantize.model_copy(update={"adapters": "per-width"})
    (tmp_path / "run" / "recipe.toml").write_text(
        dump(plain.model_copy(update={"quantize": quantize}))
    )
    run = RunDirectory.open(tmp_path / "run")
    with hosted(run) as address, Hub(address) as hub:
        assert [one.form for one in hub.describe().forms] == [FORM_LOG]
        assert pull(hub, tmp_path / "log", form="log").round == 1
        for form in ("merged", "snapshot"):
            with pytest.raises(RunError, match="an adapter for each width"):
                pull(hub, tmp_path / form, form=form)


def makers(hub: HubProcess) -> list[psutil.Process]:
    return psutil.Process(hub.process.pid).children(recursive=True)


@pytest.mark.slow
def test_many_ask_and_one_is_made(run: RunDirectory, tmp_path: Path) -> None:
    with hub_process(run, free_port()) as hub, ThreadPoolExecutor(3) as pool:

        def take(name: str) -> str:
            with Hub(hub.address) as called:
                pull(called, tmp_path / name, 1, "merged")
            return (tmp_path / name / "pulled.json").read_text()

        asked = [pool.submit(take, name) for name in ("a", "b", "c")]
        seen = set()
        while not all(one.done() for one in asked):
            seen |= {process.pid for process in makers(hub)}
            time.sleep(0.05)
        assert len({one.result() for one in asked}) == 1
    assert len(seen) == 1


@pytest.mark.slow
def test_nothing_is_made_for_someone_who_has_gone(run: RunDirectory) -> None:
    with hub_process(run, free_port()) as hub:
        with Hub(hub.address) as called:
            silent = called._stub.Pull(PullRequest(form=FORM_MERGED))
            limit = time.monotonic() + 20
            while not makers(hub) and time.monotonic() < limit:
                time.sleep(0.05)
            assert makers(hub)
            silent.cancel()
        limit = time.monotonic() + 10
        while makers(hub) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not makers(hub)
    assert not list((run.path / "hub").glob("merged*"))
