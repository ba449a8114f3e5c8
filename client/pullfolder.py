"""A folder that a model is pulled into: what is there already, and how new files take their place.

A pulled ledger is a run's directory: recipe.toml and ledger/NNNN/, for `fedlora generate` and
`fedlora export`. A merged model is a folder for any tool; pulled.json in it says which head it is.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedlora.adapters import RunError, WireError
from fedlora.recipes.identity import differences
from fedlora.recipes.loading import dump, load_recipe
from fedlora.recipes.schema import Recipe
from fedlora.strategies.records import HeadRecord

from .offers import LEDGER_FILE, MODEL_FILE, CheckedOffer
from .parts import Parts

NOTE = "pulled.json"
_RECIPE, _RECORD = "recipe.toml", "record.json"
_OWN = "versions.json"  # in the directory of a run that is led here, which is not pulled into


class PullFolder:
    """One folder, held by one pull at a time."""

    def __init__(self, folder: Path) -> None:
        """See `locked`."""
        self._folder = folder
        self.parts = Parts(folder / ".pull" / "parts")
        self._there = dict(self._scan())
        self._uses: Counter[str] = Counter()  # files of the offer by digest, while they settle

    @classmethod
    @contextmanager
    def locked(cls, folder: Path) -> Iterator["PullFolder"]:
        """The folder, made if need be, with what it holds read through once.

        Raises:
            RunError: if another pull is at work there, or it can't be written to.
        """
        try:
            (folder / ".pull").mkdir(parents=True, exist_ok=True)
            with FileLock(folder / ".pull" / "lock", timeout=0):
                held = cls(folder)
                try:
                    yield held
                finally:
                    held.parts.close()
        except Timeout:
            raise RunError(f"another pull is at work in {folder}") from None
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None

    def held(self) -> dict[str, int]:
        """Bytes of each file that are there, whole or begun, by digest in hex."""
        there = {digest: self._path(name).stat().st_size for name, digest in self._there.items()}
        return self.parts.sizes() | there

    def whole(self, digest: str) -> Path | None:
        """A file with this digest, in its place or about to take it."""
        there = (self._path(name) for name, one in self._there.items() if one == digest)
        return self.parts.whole(digest) or next(there, None)

    def expect(self, offer: CheckedOffer, model: str | None) -> None:
        """See that an offer can go here, before its bytes come; its recipe is written.

        Args:
            offer: what is about to come.
            model: where this machine has the base model, if not where the recipe says.

        Raises:
            RunError: if the folder holds something else, or the disk has no room.
        """
        usual = NOTE if offer.merged else _RECIPE
        names = {one.name for one in self._folder.iterdir()} - {".pull"}
        if (names and usual not in names) or _OWN in names:
            kind = "merged model" if offer.merged else "ledger"
            raise RunError(f"{self._folder} holds no pulled {kind}, but other files: name another")
        held = self.held()
        missing = sum(one.size - held.get(digest, 0) for digest, one in offer.files.items())
        if missing > (free := shutil.disk_usage(self._folder).free):
            raise RunError(f"{missing} bytes are to come, and {self._folder} has room for {free}")
        if offer.merged:
            return
        for file in offer.proto.files:
            known = self._there.get(file.name, file.digest.hex())
            if file.name.endswith(_RECORD) and known != file.digest.hex():
                raise RunError(f"{self._folder / file.name} is of another run, or was altered")
        self._write_recipe(offer.proto.recipe, model)

    def settle(self, offer: CheckedOffer) -> None:
        """Let what was offered, and is whole, take its place.

        Raises:
            WireError: if the records that came are no chain.
        """
        self._uses = Counter(file.digest.hex() for file in offer.proto.files)
        if offer.merged:
            self._settle_merged(offer)
        else:
            self._check_chain(offer)
            self._settle_ledger(offer)
        shutil.rmtree(self._folder / ".pull" / "parts")

    def _settle_merged(self, offer: CheckedOffer) -> None:
        proto, note = offer.proto, self._folder / NOTE
        names = [file.name for file in proto.files]
        earlier = json.loads(note.read_text())["files"] if note.exists() else []
        said = {"run": proto.run, "round": proto.round, "head": proto.head}
        note.write_text(json.dumps({**said, "files": sorted({*earlier, *names})}, indent=1))
        for file in proto.files:
            self._put(file.name, file.digest.hex(), self._folder)
        for name in set(earlier) - set(names):
            self._path(name).unlink(missing_ok=True)
        note.write_text(json.dumps({**said, "files": names}, indent=1))

    def _settle_ledger(self, offer: CheckedOffer) -> None:
        """Round by round; a new one appears whole, as when it is committed."""
        ledger = self._folder / "ledger"
        rounds: dict[str, list[tuple[str, str]]] = {}
        for file in offer.proto.files:
            rounds.setdefault(file.name.split("/")[1], []).append((file.name, file.digest.hex()))
        for round, files in sorted(rounds.items(), key=lambda item: int(item[0])):
            if (ledger / round).exists():
                for name, digest in files:
                    self._put(name, digest, self._folder)
            else:
                fresh = self._folder / ".pull" / "fresh"
                shutil.rmtree(fresh, ignore_errors=True)
                for name, digest in files:
                    self._put(name, digest, fresh)
                ledger.mkdir(exist_ok=True)
                (fresh / "ledger" / round).rename(ledger / round)

    def _put(self, name: str, digest: str, root: Path) -> None:
        """Copied if another file is made of the same bytes, or else moved."""
        if self._there.get(name) == digest:
            return
        part, target = self.parts.whole(digest), root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if part and self._uses[digest] == 1:
            part.replace(target)
            return
        self._uses[digest] -= 1
        scratch = self._folder / ".pull" / "copy"
        shutil.copyfile(self._sure(digest), scratch)
        scratch.replace(target)

    def _sure(self, digest: str) -> Path:
        whole = self.whole(digest)
        assert whole is not None  # nothing settles before everything has come
        return whole

    def _check_chain(self, offer: CheckedOffer) -> None:
        """Each record must name the one before, where both are there."""
        before: HeadRecord | None = None
        names = [file for file in offer.proto.files if file.name.endswith(_RECORD)]
        for file in sorted(names, key=lambda one: int(one.name.split("/")[1])):
            try:
                record = HeadRecord.from_json(self._sure(file.digest.hex()).read_bytes())
            except ValueError as error:
                raise WireError(f"{file.name} from the hub is no round's record: {error}") from None
            if before and record.round == before.round + 1 and record.parent != before.digest:
                raise WireError(f"{file.name} from the hub does not follow the round before it")
            before = record

    def _write_recipe(self, text: str, model: str | None) -> None:
        path, fresh = self._folder / _RECIPE, self._folder / ".pull" / _RECIPE
        fresh.write_text(text, encoding="utf-8")
        recipe = load_recipe(fresh)
        begun = load_recipe(path) if path.exists() else recipe
        if different := differences(begun, _with(recipe, begun.model.source)):
            raise RunError(f"{self._folder} holds another run: " + "; ".join(different))
        fresh.write_text(dump(_with(recipe, model or begun.model.source)), encoding="utf-8")
        fresh.replace(path)

    def _scan(self) -> Iterator[tuple[str, str]]:
        """Name and digest of each file that is in its place."""
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder).as_posix()
            if path.is_file() and (LEDGER_FILE.fullmatch(name) or MODEL_FILE.fullmatch(name)):
                with path.open("rb") as file:
                    yield name, hashlib.file_digest(file, "sha256").hexdigest()

    def _path(self, name: str) -> Path:
        return self._folder / name


def _with(recipe: Recipe, source: str) -> Recipe:
    model = recipe.model.model_copy(update={"source": source})
    return recipe.model_copy(update={"model": model})
