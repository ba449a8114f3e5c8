"""GGUF to safetensors, once, whoever asks first.

Reading a GGUF takes a minute where the converted folder opens in seconds, and several nodes on
one machine start at the same moment: one converts, under a file lock, and the others wait for it.
"""

import hashlib
import shutil
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedlora.adapters import ModelError

from .cache import cache_folder, leftovers, published
from .quiet import quiet

WAIT = 1800.0  # seconds; another process may be converting a large model


def converted(file: Path) -> Path:
    """The float32 safetensors folder made from a GGUF file, named by the file's content.

    Raises:
        ModelError: if the file is missing or not a GGUF that transformers can read, or if another
            process holds the conversion for half an hour.
    """
    if not file.is_file():
        raise ModelError(f"no model at {file}: there is no such file")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    folder = cache_folder("models") / f"{file.stem}-{digest[:16]}"
    try:
        with FileLock(f"{folder}.lock", timeout=WAIT):
            if not folder.is_dir():
                for left in leftovers(folder):
                    shutil.rmtree(left, ignore_errors=True)
                with published(folder) as partial:
                    _convert(file, partial)
    except Timeout:
        raise ModelError(
            f"another process has been converting {file} for {WAIT / 60:.0f} minutes; if none is, "
            f"delete {folder}.lock"
        ) from None
    return folder


def _convert(file: Path, folder: Path) -> None:
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            read = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32
            )
    except ImportError:
        raise ModelError("reading GGUF files needs `pip install 'fedlora[gguf]'`") from None
    except Exception as error:  # its readers raise whatever a malformed file makes them stumble on
        raise ModelError(f"cannot read {file} as GGUF: {error}") from error
    # transformers takes the model for a quantized one for ever, and does not save those.
    del read.config.quantization_config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
