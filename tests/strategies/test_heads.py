"""Heads on disk: whole, checked, and continued from."""

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from fedlora.adapters import RunError
from fedlora.strategies import FedExLoRA, HeadRecord, HeadStore, InProcessGrid

from .conftest import app, initial, run


def committed(heads_dir: Path, rounds: int = 2) -> FedExLoRA:
    strategy = FedExLoRA(heads_dir)
    run(strategy, InProcessGrid(app(), 2), rounds)
    return strategy


def test_a_run_that_is_started_again_continues_and_ends_with_the_same_head(tmp_path: Path) -> None:
    whole = committed(tmp_path / "whole", 4)
    committed(tmp_path / "parts", 2)
    parts = committed(tmp_path / "parts", 4)
    assert [report.round for report in parts.observer.reports] == [3, 4]
    assert parts.heads.record() == whole.heads.record()
    assert [parts.heads.record(n).digest for n in range(5)] == [
        whole.heads.record(n).digest for n in range(5)
    ]


@pytest.mark.parametrize("name", ["adapter.safetensors", "residual.safetensors"])
def test_F6_a_flipped_bit_is_found(heads_dir: Path, name: str) -> None:
    heads = committed(heads_dir).heads
    path = heads_dir / "0002" / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"was altered"):
        heads.adapter(2) if "adapter" in name else heads.residuals(heads.record().history[-1])


def test_a_round_that_is_not_there_is_named(heads_dir: Path) -> None:
    heads = committed(heads_dir).heads
    with pytest.raises(RunError, match=r"no head of round 9 .*committed rounds: \[0, 1, 2\]"):
        heads.record(9)
    with pytest.raises(RunError, match="committed rounds: none"):
        HeadStore(heads_dir / "elsewhere").record()


def test_F5_a_disk_that_refuses_leaves_the_old_heads(heads_dir: Path) -> None:
    heads = committed(heads_dir).heads
    before = heads.record()
    (heads_dir / "0003").write_text("in the way")
    with pytest.raises(RunError, match="cannot commit round 3"):
        heads.commit("run", "", initial(), {})
    (heads_dir / "0003").unlink()
    assert heads.record() == before
    assert not list(heads_dir.glob(".new-*"))


def test_F5_a_full_disk_leaves_the_old_heads(heads_dir: Path) -> None:
    heads = committed(heads_dir).heads
    before = heads.record()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # bytes a file may have
    try:
        with pytest.raises(RunError, match=r"cannot commit round 3 .*make room"):
            heads.commit("run", "", initial(), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert heads.record() == before
    assert not list(heads_dir.glob(".new-*"))


def test_the_hash_covers_base_history_and_adapter_but_not_the_name() -> None:
    record = HeadRecord("run", 1, "base", "adapter", ("one", "two"))
    same = HeadRecord("other", 2, "base", "adapter", ("one", "two"))
    assert record.hash == same.hash
    for changed in (
        HeadRecord("run", 1, "x", "adapter", ("one", "two")),
        HeadRecord("run", 1, "base", "x", ("one", "two")),
        HeadRecord("run", 1, "base", "adapter", ("two", "one")),
    ):
        assert changed.hash != record.hash


def test_a_record_tells_how_the_round_came_about(heads_dir: Path) -> None:
    record = committed(heads_dir).heads.record()
    how = record.proceedings
    assert how.sampled == ("1", "2")
    assert set(how.admitted) == {"n0", "n1"}
    assert [one.examples for one in how.admitted.values()] == [10, 11]
    assert sum(one.weight for one in how.admitted.values()) == pytest.approx(1)
    assert how.metrics["loss"] == pytest.approx(11 / 21)
    assert max(how.receipt.values()) <= 1e-6
    assert HeadRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"n1"', '"n2"'),
        lambda text: text.replace(" ", ""),
        lambda text: text[:-1],
        lambda text: "{}",
        lambda text: "[]",
    ],
)
def test_a_record_that_was_altered_is_named(heads_dir: Path, change: Callable[[str], str]) -> None:
    heads = committed(heads_dir).heads
    path = heads_dir / "0002" / "record.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(RunError, match=r"record\.json was altered"):
        heads.record()


def test_F10_two_coordinators_on_one_ledger(heads_dir: Path) -> None:
    one, other = HeadStore(heads_dir), HeadStore(heads_dir)
    with one.locked(), pytest.raises(RunError, match="another coordinator"), other.locked(0.1):
        pass
    with other.locked():
        pass
