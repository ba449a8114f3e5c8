"""What is wrong in a recipe, in words: place, expected, found, and the nearest valid key."""

import json
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .schema import Recipe


def explain(error: ValidationError, origin: Callable[[str], str]) -> str:
    """All problems that pydantic found, one a line.

    Args:
        error: raised by validating a `Recipe`.
        origin: tells where the value at a place was written: the file, or an override.
    """
    places: dict[str, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        places.setdefault(_place(details["loc"]), []).append(details)
    lines = [
        ": ".join(part for part in (origin(place), place, _problem(place, group)) if part)
        for place, group in places.items()
    ]
    return "\n".join(lines)


def _place(loc: Sequence[str | int]) -> str:
    """`("node", 0, "data")` as `node[0].data`, without the branches of a union."""
    section: type[BaseModel] | None = Recipe
    parts: list[str] = []
    for part in loc:
        if isinstance(part, int):
            parts[-1] += f"[{part}]"
        elif section is None:
            break
        else:
            parts.append(part)
            section = _subsection(section, part)
    return ".".join(parts)


def _problem(place: str, group: Sequence[ErrorDetails]) -> str:
    kind = group[0]["type"]
    if kind == "extra_forbidden":
        return unknown_key(place)
    if kind == "missing":
        return "missing, and it has no default"
    if kind == "value_error":
        return group[0]["msg"].removeprefix("Value error, ")
    wanted = " or ".join(dict.fromkeys(_expected(details["msg"]) for details in group))
    found = json.dumps(group[0]["input"], default=str, ensure_ascii=False)
    return f"expected {wanted}, found {found if len(found) <= 60 else f'{found[:57]}...'}"


def _expected(message: str) -> str:
    """pydantic's `Input should be greater than 0` in our words."""
    wanted = message.removeprefix("Input should be ").replace("an object", "a table")
    wanted = wanted.replace("String should ", "a string to ")
    return f"a number {wanted}" if wanted.startswith(("greater", "less")) else wanted


def unknown_key(place: str) -> str:
    """Says that there is no such key, which one is nearest, and which ones are valid there."""
    path = _without_indices(place)
    section: type[BaseModel] = Recipe
    known = list(_keys(Recipe))
    for part in path.split(".")[:-1]:
        section = _subsection(section, part) or section
    same_word = [key for key in known if key.split(".")[-1] == path.split(".")[-1]]
    close = get_close_matches(path, same_word, n=1, cutoff=0) or get_close_matches(path, known, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return f"unknown key; {hint}Valid here: {', '.join(section.model_fields)}"


def _without_indices(place: str) -> str:
    return ".".join(part.partition("[")[0] for part in place.split("."))


def _keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a section, and of the sections in it, dotted."""
    for name in section.model_fields:
        yield prefix + name
        inner = _subsection(section, name)
        if inner is not None:
            yield from _keys(inner, f"{prefix}{name}.")


def _subsection(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The section at a key, also for a list of sections; None for a plain value."""
    if name not in section.model_fields:
        return None
    annotation = section.model_fields[name].annotation
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
