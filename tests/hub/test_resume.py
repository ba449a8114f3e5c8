"""A pull that is broken off goes on where it stopped, whoever died."""

from pathlib import Path

import pytest
import torch

from fedlora.adapters import EngineError
from fedlora.cli.processes import free_port
from fedlora.client.hub import Hub
from fedlora.client.pulling import pull
from fedlora.server.rundir import RunDirectory

from .conftest import commit, fabricated, hosted, hub_process

LARGE = 48 << 20  # bytes
CHUNK = 1 << 20


class Stop(Exception):
    """The puller dies."""


@pytest.fixture(scope="module")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return fabricated(tmp_path_factory.mktemp("large") / "run", [LARGE, LARGE])


def same(folder: Path, run: RunDirectory) -> bool:
    files = [path.relative_to(run.path) for path in run.heads.directory.glob("*/residual*")]
    return all((folder / one).read_bytes() == (run.path / one).read_bytes() for one in files)


def test_F7_a_hub_that_is_killed_in_mid_stream_and_started_again_is_gone_on_with(
    large_run: RunDirectory, tmp_path: Path
) -> None:
    with hub_process(large_run, free_port()) as hub:
        killed: list[int] = []

        def told(received: int, missing: int) -> None:
            if received > LARGE // 3 and not killed:
                killed.append(received)
                hub.restart()

        with Hub(hub.address, patience=60) as called:
            pulled = pull(called, tmp_path / "pulled", told=told)
    assert killed
    assert pulled.received == pulled.size  # no byte was lost, and none sent twice
    assert same(tmp_path / "pulled", large_run)


def test_F7_a_hub_that_stays_away_is_given_up_and_what_came_is_kept(
    large_run: RunDirectory, tmp_path: Path
) -> None:
    received = [0]
    with hub_process(large_run, free_port()) as hub:

        def told(now: int, missing: int) -> None:
            received[0] = now
            if now > LARGE // 3:
                hub.kill()

        with (
            Hub(hub.address, patience=1) as called,
            pytest.raises(EngineError, match=r"is gone: .* what came so far is kept"),
        ):
            pull(called, tmp_path / "pulled", told=told)
        assert not (tmp_path / "pulled" / "ledger").exists()
    with hosted(large_run) as address, Hub(address) as called:
        rest = pull(called, tmp_path / "pulled")
    assert rest.received == rest.size - received[0]
    assert same(tmp_path / "pulled", large_run)


def test_a_puller_that_dies_goes_on_from_its_last_byte(
    large_run: RunDirectory, tmp_path: Path
) -> None:
    def told(received: int, missing: int) -> None:
        if received > LARGE + LARGE // 3:
            raise Stop

    with hosted(large_run) as address:
        with Hub(address) as called, pytest.raises(Stop):
            pull(called, tmp_path / "pulled", told=told)
        parts = (tmp_path / "pulled" / ".pull" / "parts").iterdir()
        kept = sum(path.stat().st_size for path in parts)
        assert kept > LARGE + LARGE // 3
        with Hub(address) as called:
            rest = pull(called, tmp_path / "pulled")
    assert rest.received == rest.size - kept
    assert same(tmp_path / "pulled", large_run)


@pytest.mark.slow
def test_a_round_that_is_committed_meanwhile_is_not_mixed_in(tmp_path: Path) -> None:
    """Whoever asked for the latest gets the one that was latest then."""
    run = fabricated(tmp_path / "run", [4 * CHUNK])
    with hub_process(run, free_port()) as hub:
        killed: list[int] = []

        def told(received: int, missing: int) -> None:
            if received >= 2 * CHUNK and not killed:
                killed.append(received)
                hub.kill()
                commit(run, torch.ones(100, 1))
                hub.restart()

        with Hub(hub.address, patience=60) as called:
            assert pull(called, tmp_path / "pulled", told=told).round == 1
