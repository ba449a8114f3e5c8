import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedlora.adapters import ModelError
from fedlora.models import fingerprint as module
from fedlora.models.fingerprint import fingerprint
from fedlora.models.loading import load_base
from fedlora.recipes.schema import ModelSection

WEIGHTS = "model.safetensors"
NORM = "model.norm.weight"


@pytest.fixture
def copy(tiny_causal: Path, tmp_path: Path) -> Path:
    """A model folder to alter."""
    return Path(shutil.copytree(tiny_causal, tmp_path / "model"))


def rewrite(folder: Path, state: dict[str, torch.Tensor]) -> None:
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def test_it_is_sha256_of_the_tensors(tiny_causal: Path) -> None:
    assert len(bytes.fromhex(fingerprint(tiny_causal))) == 32


def test_order_metadata_and_other_files_do_not_matter(tiny_causal: Path, copy: Path) -> None:
    state = load_file(copy / WEIGHTS)
    save_file(dict(reversed(state.items())), copy / WEIGHTS, metadata={"format": "pt", "by": "me"})
    (copy / "adapter_model.safetensors").write_bytes(b"not of the base")
    assert (copy / WEIGHTS).read_bytes() != (tiny_causal / WEIGHTS).read_bytes()
    assert fingerprint(copy) == fingerprint(tiny_causal)


def test_a_resharded_copy_is_the_same_base(tiny_causal: Path, tmp_path: Path) -> None:
    base = load_base(tiny_causal, ModelSection(source="x"))
    base.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    assert fingerprint(tmp_path / "sharded") == fingerprint(tiny_causal)


def test_one_flipped_bit_is_another_base(tiny_causal: Path, copy: Path) -> None:
    data = bytearray((copy / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (copy / WEIGHTS).write_bytes(data)
    assert fingerprint(copy) != fingerprint(tiny_causal)


def test_name_dtype_and_shape_count(tiny_causal: Path, copy: Path) -> None:
    state = load_file(copy / WEIGHTS)
    norm = state.pop(NORM)
    variants = [
        {"model.norm.gain": norm},
        {NORM: norm.view(torch.int32)},
        {NORM: norm.view(1, -1)},
        {NORM: norm, "model.norm.bias": torch.zeros(0)},
        {},
    ]
    seen = {fingerprint(tiny_causal)}
    for variant in variants:
        rewrite(copy, state | variant)
        seen.add(fingerprint(copy))
    assert len(seen) == 1 + len(variants)


def test_any_dtype_can_be_hashed(tmp_path: Path) -> None:
    dtypes = [torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn, torch.bool]
    rewrite(tmp_path, {str(dtype): torch.ones(3).to(dtype) for dtype in dtypes})
    assert fingerprint(tmp_path)


def test_it_is_read_once_until_the_file_changes(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    digest = module._digest
    monkeypatch.setattr(module, "_digest", lambda files: reads.append(files) or digest(files))
    first = fingerprint(copy)
    assert fingerprint(copy) == first
    assert len(reads) == 1
    rewrite(copy, load_file(copy / WEIGHTS))
    assert fingerprint(copy) == first
    assert len(reads) == 2


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, (2**62).to_bytes(8, "little") + b"{}"])
def test_a_malformed_file_is_refused_by_name(copy: Path, content: bytes) -> None:
    (copy / WEIGHTS).write_bytes(content)
    with pytest.raises(ModelError, match=f"{WEIGHTS} is not a valid safetensors file"):
        fingerprint(copy)


def test_a_cut_file_is_refused(copy: Path) -> None:
    data = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(data[:-1])
    with pytest.raises(ModelError, match="not a valid safetensors file"):
        fingerprint(copy)
