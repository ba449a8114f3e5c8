"""A damaged ledger: what holds is kept, what doesn't is set aside, and the run ends as it would."""

from pathlib import Path

import pytest

from fedlora.adapters import BaseMismatchError, RunError
from fedlora.strategies import FedExLoRA, HeadStore, Identity, InProcessGrid
from fedlora.strategies.recovery import recover, verify

from .conftest import app, run


def run_to(directory: Path, rounds: int) -> HeadStore:
    strategy = FedExLoRA(directory)
    run(strategy, InProcessGrid(app(), 2), rounds)
    return strategy.heads


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_an_undamaged_ledger_holds(heads_dir: Path) -> None:
    heads = run_to(heads_dir, 3)
    told: list[int] = []
    verify(heads, told.append)
    assert told == [0, 1, 2, 3]
    assert recover(heads) == ""


@pytest.mark.parametrize("name", ["record.json", "adapter.safetensors", "residual.safetensors"])
@pytest.mark.parametrize("round", [1, 3])
def test_F6_a_run_goes_on_from_the_last_round_that_holds(
    tmp_path: Path, name: str, round: int
) -> None:
    undisturbed = run_to(tmp_path / "whole", 4).record().hash
    heads = run_to(tmp_path / "heads", 3)
    damage(heads.folder(round) / name)
    with pytest.raises(RunError, match=rf"{round:04d}"):
        verify(heads)
    said = recover(heads)
    assert heads.rounds() == list(range(round))
    assert f"going on from round {round - 1}" in said
    assert len(list(heads.directory.glob("damaged-*"))) == 4 - round  # nothing is deleted
    assert run_to(tmp_path / "heads", 4).record().hash == undisturbed


def test_a_round_that_was_taken_out_is_noticed(heads_dir: Path) -> None:
    heads = run_to(heads_dir, 3)
    (heads_dir / "0002").rename(heads_dir / "elsewhere")
    with pytest.raises(RunError, match="round 2 is missing"):
        verify(heads)


def test_a_round_of_another_run_is_noticed(tmp_path: Path) -> None:
    heads = run_to(tmp_path / "one", 2)
    other = FedExLoRA(tmp_path / "other", identity=Identity("another"))
    run(other, InProcessGrid(app(), 2), 2)
    (tmp_path / "one" / "0002").rename(tmp_path / "aside")
    other.heads.folder(2).rename(tmp_path / "one" / "0002")
    with pytest.raises(RunError, match="does not follow"):
        verify(heads)


def test_F1_a_commit_that_was_cut_short_leaves_nothing(tmp_path: Path) -> None:
    undisturbed = run_to(tmp_path / "whole", 3).record().hash
    heads = run_to(tmp_path / "heads", 2)
    half = heads.directory / ".new-killed"
    half.mkdir()
    (half / "adapter.safetensors").write_bytes(b"half of it")
    assert run_to(tmp_path / "heads", 3).record().hash == undisturbed
    assert not half.exists()


def test_F8_a_run_on_another_base_is_not_gone_on_with(heads_dir: Path) -> None:
    run_to(heads_dir, 1)
    other = FedExLoRA(heads_dir, identity=Identity(base="b" * 64))
    with pytest.raises(BaseMismatchError, match="b" * 64):
        run(other, InProcessGrid(app(), 2), 2)


def test_a_damaged_snapshot_is_set_aside_and_the_log_is_sent_instead(heads_dir: Path) -> None:
    heads = run_to(heads_dir, 2)
    history = heads.record().history
    for digest in ("a" * 64, "b" * 64):  # neither is what the files hash to
        (heads.folder(2) / f"snapshot-{digest}.safetensors").write_bytes(b"half of it")
        said = recover(heads)
        assert "was altered" in said
        assert heads.snapshot(history) is None
    (heads.folder(2) / ".snapshot.new").write_bytes(b"of a process that was killed")
    assert recover(heads) == ""
    assert not (heads.folder(2) / ".snapshot.new").exists()
    assert heads.rounds() == [0, 1, 2]
