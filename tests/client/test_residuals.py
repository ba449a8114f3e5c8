"""A node's residuals on disk: whole or not at all, whoever dies while writing."""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fedlora.adapters import Residual, RunError
from fedlora.client.residuals import ResidualCache
from fedlora.protos import encode
from fedlora.strategies.payloads import residual_tensors

WRITE = """
import sys
from pathlib import Path
from fedlora.client.residuals import ResidualCache
print("ready", flush=True)
payload = bytes(1 << 20) * 400
ResidualCache(Path(sys.argv[1])).keep({sys.argv[2]: payload})
"""


@pytest.fixture
def payload() -> bytes:
    return encode(residual_tensors({"layer": Residual(torch.ones(4, 2), torch.ones(2, 3))}))


def test_what_was_kept_is_read_by_another_process_of_the_node(
    tmp_path: Path, payload: bytes
) -> None:
    digest = hashlib.sha256(payload).hexdigest()
    ResidualCache(tmp_path / "residuals").keep({digest: payload})
    found = ResidualCache(tmp_path / "residuals").read(digest)
    assert torch.equal(found["layer"].u, torch.ones(4, 2))


def test_a_writer_killed_half_way_leaves_nothing(tmp_path: Path, payload: bytes) -> None:
    digest = hashlib.sha256(payload).hexdigest()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path), digest], stdout=subprocess.PIPE
    )
    limit = time.monotonic() + 60
    while not (parts := list(tmp_path.iterdir())) and time.monotonic() < limit:
        time.sleep(0.001)
    writer.kill()
    writer.communicate()
    (part,) = parts
    assert part.suffix == ".part"
    assert part.exists(), "it was quicker than the kill"
    cache = ResidualCache(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match="lacks"):
        cache.read(digest)
    cache.keep({digest: payload})
    assert set(cache.read(digest)) == {"layer"}


def test_the_scratch_file_of_a_process_that_lives_is_left_alone(
    tmp_path: Path, payload: bytes
) -> None:
    part = tmp_path / f"{'0' * 64}.1.part"
    part.write_bytes(payload)
    ResidualCache(tmp_path)
    assert part.exists()


def test_an_altered_file_is_refused_and_removed_so_that_it_is_sent_again(
    tmp_path: Path, payload: bytes
) -> None:
    digest = hashlib.sha256(payload).hexdigest()
    cache = ResidualCache(tmp_path)
    cache.keep({digest: payload})
    (file,) = tmp_path.iterdir()
    file.write_bytes(payload[:-1] + b"\x01")
    with pytest.raises(RunError, match="altered"):
        cache.read(digest)
    assert list(tmp_path.iterdir()) == []
