"""Reads a recipe file, applies overrides, and says exactly what is wrong with it."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedlora.adapters.errors import RecipeError

from . import bundled
from .problems import explain
from .schema import Recipe

RUN_DIRECTORY = "FEDLORA_RUN_DIR"  # tells Flower's processes where the run and its recipe lie


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file or of a bundled name, checked, with absolute data paths.

    A relative path in the file is meant from the file's folder, one in an override from the
    current folder, where the shell completed it.

    Args:
        source: path of a TOML file, or the name of a bundled recipe.
        overrides: `section.key=value`, the value in TOML; a bare word is a string.

    Raises:
        RecipeError: naming the place, what was expected and what was found.
    """
    path = find(source)
    values = _parse(path)
    changed = dict(map(_split, overrides))
    for place, text in changed.items():
        _assign(values, place, text)

    def origin(place: str) -> str:
        for key, text in changed.items():
            if place and (key == place or key.startswith(f"{place}.")):
                return f"--set {key}={text}"
        return str(path)

    try:
        # JSON, because pydantic is strict there without refusing a list where a tuple is meant.
        recipe = Recipe.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        raise RecipeError(explain(error, origin)) from None
    return _anchored(recipe, path.parent, changed)


def dump(recipe: Recipe) -> str:
    """The resolved recipe as TOML that `load_recipe` reads back to an equal one."""
    return tomli_w.dumps(recipe.model_dump(exclude_none=True))


def data_files(recipe: Recipe) -> Iterator[tuple[str, Path]]:
    """Place and path of every data file that a recipe names."""
    if recipe.public is not None:
        yield "public.data", Path(recipe.public.data)
    if recipe.evaluate.data is not None:
        yield "evaluate.data", Path(recipe.evaluate.data)
    for index, node in enumerate(recipe.node):
        for key in ("data", "heldout", "questions"):
            value = getattr(node, key)
            if value is not None:
                yield f"node[{index}].{key}", Path(value)


def find(source: str | Path) -> Path:
    """The absolute path of a recipe file, given as a path or as a bundled name.

    Raises:
        RecipeError: if it is neither.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return path.absolute()
    if path.is_dir() and str(source) not in bundled.names():
        raise RecipeError(f"{path} is a folder; expected a recipe file (TOML)")
    if path.suffix or len(path.parts) > 1:
        raise RecipeError(f"no recipe file {path}; `fedlora recipes list` shows the bundled ones")
    return bundled.path(str(source))


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        reason, line, column = _position(str(error), text)
        raise RecipeError(f"{path}:{line}:{column}: not valid TOML: {reason}") from None


def _position(message: str, text: str) -> tuple[str, int, int]:
    """Python 3.11 tells the position only in the message."""
    found = re.search(r"^(.*) \(at line (\d+), column (\d+)\)$", message)
    if found:
        return found[1], int(found[2]), int(found[3])
    lines = text.splitlines() or [""]
    return message, len(lines), len(lines[-1]) + 1


def _split(override: str) -> tuple[str, str]:
    place, equals, text = override.partition("=")
    if not equals or not place.strip():
        raise RecipeError(f"--set {override}: expected KEY=VALUE, for example train.steps=20")
    return place.strip(), text.strip()


def _assign(values: dict[str, Any], place: str, text: str) -> None:
    *sections, key = place.split(".")
    target = values
    for name in sections:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            raise RecipeError(
                f"--set {place}={text}: `{name}` is no section; to change [[node]] entries, "
                "copy the recipe and edit it"
            )
    target[key] = _value(text)


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _anchored(recipe: Recipe, folder: Path, changed: Mapping[str, str]) -> Recipe:
    """The recipe with absolute paths."""

    def at(place: str, value: str | None) -> str | None:
        base = Path.cwd() if place in changed else folder
        return None if value is None else os.path.abspath(base / Path(value).expanduser())

    def model_at(place: str, value: str | None) -> str | None:
        return at(place, value) if value and value.startswith(("./", "../", "~/")) else value

    model, evaluate, public = recipe.model, recipe.evaluate, recipe.public
    model = model.model_copy(update={"source": model_at("model.source", model.source)})
    if public is not None:
        public = public.model_copy(update={"data": at("public.data", public.data)})
    evaluate = evaluate.model_copy(update={"data": at("evaluate.data", evaluate.data)})
    nodes = tuple(
        node.model_copy(
            update={
                "model": model_at("node", node.model),
                **{key: at("node", getattr(node, key)) for key in ("data", "heldout", "questions")},
            }
        )
        for node in recipe.node
    )
    return recipe.model_copy(
        update={"model": model, "evaluate": evaluate, "public": public, "node": nodes}
    )
