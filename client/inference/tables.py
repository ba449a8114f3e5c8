"""All that a drafter remembers, and its copy on this machine's disk.

The tables are a compressed copy of what was asked and answered. They are therefore never sent,
exported or logged: they lie in a folder that only this user can read. As drafts are verified,
tables of an older model, or wrong ones, cost time and never change a text; another vocabulary
would make them meaningless, so the file is named by it. Delete the file to forget.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerBase

from .acceptance import Acceptance
from .matrix import PAIR_WIDTH, WIDTH, Matrix, Pairs
from .suffixes import Suffixes

Array = npt.NDArray[Any]

VERSION = 1  # of the file's layout and of what its numbers mean


class Tables:
    """What a drafter goes by.

    Attributes:
        matrix: rows by the last token.
        pairs: rows by the last two.
        suffixes: the recent texts themselves; these are not written to disk.
        acceptance: how far each source can be trusted.
    """

    def __init__(self, vocabulary: int) -> None:
        """Empty tables for token ids below `vocabulary`."""
        self.matrix = Matrix(vocabulary, min(WIDTH, vocabulary))
        self.pairs = Pairs(width=min(PAIR_WIDTH, vocabulary))
        self.suffixes = Suffixes()
        self.acceptance = Acceptance()

    @property
    def nbytes(self) -> int:
        """Memory of all tables, in bytes; it does not grow."""
        arrays = self._arrays().values()
        return sum(array.nbytes for array in arrays) + self.suffixes.nbytes

    def save(self, path: Path) -> None:
        """Write the tables so that a reader finds the old file or the new one, never half of one.

        The folder and the file are this user's alone.
        """
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            draft.touch(mode=0o600)
            save_file(self._arrays(), draft)
            draft.chmod(0o600)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, vocabulary: int) -> "Tables":
        """Tables from a file; empty ones if there is none.

        A file that is damaged or does not fit is set aside as `*.damaged`.
        """
        tables = cls(vocabulary)
        if not path.exists():
            return tables
        try:
            tables._restore(load_file(path))
        except (SafetensorError, OSError, KeyError, ValueError):
            path.replace(path.with_suffix(".damaged"))
            return cls(vocabulary)
        return tables

    def _arrays(self) -> dict[str, Array]:
        return {
            "matrix.ids": self.matrix.ids,
            "matrix.chances": self.matrix.chances,
            "pairs.keys": self.pairs.keys,
            "pairs.ids": self.pairs.ids,
            "pairs.chances": self.pairs.chances,
            "acceptance.trials": self.acceptance.trials,
            "acceptance.hits": self.acceptance.hits,
        }

    def _restore(self, found: dict[str, Array]) -> None:
        """Take over arrays from a file.

        Raises:
            KeyError: if one is missing.
            ValueError: if one is of another shape or type, or names tokens that there are not.
        """
        own = self._arrays()
        for name, array in own.items():
            if found[name].shape != array.shape or found[name].dtype != array.dtype:
                raise ValueError(name)
        vocabulary = len(self.matrix.ids)
        for name in ("matrix.ids", "pairs.ids"):
            if found[name].max() >= vocabulary or found[name].min() < -1:
                raise ValueError(name)
        trials, hits = found["acceptance.trials"], found["acceptance.hits"]
        if not ((trials > 0).all() and (hits >= 0).all() and (hits <= trials).all()):
            raise ValueError("acceptance")
        for name, array in own.items():
            np.copyto(array, found[name])
        self.acceptance.restore(self.acceptance.trials, self.acceptance.hits)


def table_file(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Where the tables of a vocabulary lie in a folder."""
    entries = json.dumps([VERSION, sorted(tokenizer.get_vocab().items())])
    digest = hashlib.sha256(entries.encode()).hexdigest()
    return folder / f"{digest[:16]}.safetensors"
