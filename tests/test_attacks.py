"""S2: nothing that is written or accepted can run code."""

import pickle
import re
from pathlib import Path

import pytest
import torch

from fedlora.adapters import WireError
from fedlora.protos import Limits, Manifest, decode, verify
from fedlora.strategies.payloads import FileTensors

ROOT = Path(__file__).parents[1]
PACKAGES = ("adapters", "models", "protos", "strategies", "server", "client", "cli", "recipes")
WORDS = ("import pickle", "torch.load(", "eval(", "exec(", "trust_remote_code=True")


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_S2_a_pickle_is_refused_and_does_not_run(tmp_path: Path, kind: str) -> None:
    import hashlib

    canary, file = tmp_path / "canary", tmp_path / "payload"
    if kind == "pickle":
        file.write_bytes(pickle.dumps(Canary(canary)))
    else:
        torch.save({"layer.lora_A": Canary(canary)}, file)
    payload = file.read_bytes()
    manifest = Manifest(size=len(payload), digest=hashlib.sha256(payload).digest())
    with pytest.raises(WireError):
        decode(payload, manifest)
    with pytest.raises(WireError):
        verify(payload, manifest, Limits())
    with pytest.raises(WireError):
        FileTensors(file)
    assert not canary.exists()


def test_S2_no_code_of_ours_reads_pickles_or_runs_text() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            text = text.replace(".eval()", "").replace("safetensors.torch.load(", "")
            for word in WORDS:
                assert not re.search(rf"(?<!\w){re.escape(word)}", text), f"{path}: {word}"
