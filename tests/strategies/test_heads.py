"""Heads on disk: whole, checked, and continued from."""

from pathlib import Path

import pytest

from fedlora.adapters import RunError
from fedlora.strategies import FedExLoRA, HeadRecord, HeadStore, InProcessGrid

from .conftest import app, run


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


@pytest.mark.parametrize("name", ["adapter.safetensors", "residual.safetensors"])
def test_F6_a_flipped_bit_is_found(heads_dir: Path, name: str) -> None:
    heads = committed(heads_dir).heads
    path = heads_dir / "0002" / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"was altered"):
        heads.adapter(2) if "adapter" in name else heads.residuals(heads.record().history)


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
        heads.save(HeadRecord("run", 3, "", "a" * 64), b"payload", None)
    (heads_dir / "0003").unlink()
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
