"""A folder that a model is pulled into: what is there already, and what may come.

A pulled ledger is a run's directory: recipe.toml and ledger/NNNN/, for `fedlora generate` and
`fedlora export`. A merged model is a folder for any tool; pulled.json in it says which head it is.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedlora.adapters import RunError
from fedlora.recipes.identity import differences
from fedlora.recipes.loading import load_recipe
from fedlora.recipes.schema import Recipe
from fedlora.strategies.heads import RECORD, HeadStore

from .offers import LEDGER_FILE, MODEL_FILE, CheckedOffer
from .parts import Parts

NOTE, RECIPE, HIDDEN = "pulled.json", "recipe.toml", ".pull"
_OWN = "versions.json"  # in the directory of a run that is led here, which is not pulled into


class PullFolder:
    """One folder, held by one pull at a time.

    Attributes:
        root: its path.
        parts: of files that are on their way.
        there: digest in hex, by name, of each file that is in its place.
    """

    def __init__(self, folder: Path) -> None:
        """See `locked`."""
        self.root = folder
        self.parts = Parts(folder / HIDDEN / "parts")
        self.there = dict(self._scan())

    @classmethod
    @contextmanager
    def locked(cls, folder: Path) -> Iterator["PullFolder"]:
        """The folder, made if need be, with what it holds read through once.

        Raises:
            RunError: if it holds something else, another pull is at work there, or it can't be
                written to.
        """
        try:
            names = {one.name for one in folder.iterdir()} - {HIDDEN} if folder.exists() else set()
            if names and (not names & {NOTE, RECIPE} or _OWN in names):
                raise RunError(f"{folder} holds other files than a pull's: name another folder")
            (folder / HIDDEN).mkdir(parents=True, exist_ok=True)
            with FileLock(folder / HIDDEN / "lock", timeout=0):
                held = cls(folder)
                try:
                    yield held
                finally:
                    held.leave()
        except Timeout:
            raise RunError(f"another pull is at work in {folder}") from None
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None

    def leave(self) -> None:
        """Keep what has come; leave nothing hidden where nothing has."""
        if not self.parts.sizes() and {one.name for one in self.root.iterdir()} == {HIDDEN}:
            shutil.rmtree(self.root / HIDDEN)

    def held(self) -> dict[str, int]:
        """Bytes of each file that are there, whole or begun, by digest in hex."""
        there = {digest: (self.root / name).stat().st_size for name, digest in self.there.items()}
        return self.parts.sizes() | there

    def whole(self, digest: str) -> Path | None:
        """A file with this digest, in its place or about to take it."""
        there = (self.root / name for name, one in self.there.items() if one == digest)
        return self.parts.whole(digest) or next(there, None)

    def whole_round(self, last: int | None) -> int | None:
        """The latest round, up to `last`, whose head can be reached from what is here."""
        heads, sound = HeadStore(self.root / "ledger"), set(self.there.values())
        for round in reversed(heads.rounds()):
            if (last is None or round <= last) and f"ledger/{round:04d}/{RECORD}" in self.there:
                history = heads.record(round).history
                start = heads.snapshot(history)
                covered = start.covers if start and start.digest in sound else 0
                if sound.issuperset(history) or sound.issuperset(history[covered:]):
                    return round
        return None

    def expect(self, offer: CheckedOffer) -> None:
        """See that an offer can go here, before its bytes come.

        Raises:
            RunError: if the folder holds something else, or the disk has no room.
        """
        other, kind = (RECIPE, "a ledger") if offer.merged else (NOTE, "a merged model")
        if (self.root / other).exists():
            raise RunError(f"{kind} was pulled into {self.root} before: name another folder")
        held = self.held()
        missing = sum(one.size - held.get(digest, 0) for digest, one in offer.files.items())
        if missing > (free := shutil.disk_usage(self.root).free):
            raise RunError(f"{missing} bytes are to come, and {self.root} has room for {free}")
        for file in offer.proto.files:
            known = self.there.get(file.name, file.digest.hex())
            if file.name.endswith(RECORD) and known != file.digest.hex():
                raise RunError(f"{self.root / file.name} is of another run, or was altered")

    def agreed(self, text: str, model: str | None) -> Recipe:
        """The run's recipe, with the model from where it is here.

        Args:
            text: the recipe as the hub has it.
            model: where this machine has the base model, if not where the recipe says.

        Raises:
            RunError: if another run was pulled into this folder.
            RecipeError: if it is no recipe.
        """
        path, fresh = self.root / RECIPE, self.root / HIDDEN / RECIPE
        fresh.write_text(text, encoding="utf-8")
        recipe = load_recipe(fresh)
        begun = load_recipe(path) if path.exists() else recipe
        if different := differences(begun, _with(recipe, begun.model.source)):
            raise RunError(f"{self.root} holds another run: " + "; ".join(different))
        return _with(recipe, model or begun.model.source)

    def _scan(self) -> Iterator[tuple[str, str]]:
        """Name and digest of each file that is in its place."""
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if path.is_file() and (LEDGER_FILE.fullmatch(name) or MODEL_FILE.fullmatch(name)):
                with path.open("rb") as file:
                    yield name, hashlib.file_digest(file, "sha256").hexdigest()


def _with(recipe: Recipe, source: str) -> Recipe:
    model = recipe.model.model_copy(update={"source": source})
    return recipe.model_copy(update={"model": model})
