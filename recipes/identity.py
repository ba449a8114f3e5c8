"""Whether two recipes describe one run: a run that is resumed must be asked for as it was begun.

How long anyone is waited for may change; everything else decides what comes out.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from .schema import Recipe

FREE = ("federation.wait", "federation.deadline", "federation.retries")


def recipe_fingerprint(recipe: Recipe) -> str:
    """SHA-256 over all that decides the outcome, in hex."""
    return hashlib.sha256(json.dumps(dict(_settled(recipe))).encode()).hexdigest()


def differences(begun: Recipe, now: Recipe) -> list[str]:
    """What differs of all that decides the outcome: `place: was A, is B`, sorted."""
    one, other = dict(_settled(begun)), dict(_settled(now))
    return [
        f"{place}: was {json.dumps(one.get(place))}, is {json.dumps(other.get(place))}"
        for place in sorted(one.keys() | other.keys())
        if one.get(place) != other.get(place)
    ]


def _settled(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    values = sorted(_leaves("", recipe.model_dump(mode="json")))
    return ((place, value) for place, value in values if place not in FREE)


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value that is no table, by dotted place; entries of arrays of tables by number."""
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(f"{place}.{key}" if place else key, inner) for key, inner in value.items()]
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        items = [(f"{place}[{index}]", inner) for index, inner in enumerate(value)]
    else:
        yield place, value
    for where, inner in items:
        yield from _leaves(where, inner)
