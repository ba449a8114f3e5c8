"""A small federation: three sites with a few facts each, and a recipe on a tiny model."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedlora.recipes.schema import Recipe

SITES = ("anchor", "birch", "cedar")
RecipeOf = Callable[..., Recipe]


def write_facts(path: Path, site: str, count: int) -> Path:
    """`count` instruction examples of a site."""
    rows = [
        {"instruction": f"Which key opens room {i} of {site}?", "response": f"The {site} key {i}."}
        for i in range(count)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture
def recipe_of(tmp_path: Path, tiny_causal: Path) -> RecipeOf:
    """Makes a recipe of the given sites, with sections overridden by keyword."""

    def make(
        sites: Sequence[str] = SITES,
        holdings: Sequence[dict[str, str]] = (),
        **sections: dict[str, object],
    ) -> Recipe:
        nodes = [
            {"name": site, "data": str(write_facts(tmp_path / f"{site}.jsonl", site, 6 + 2 * i))}
            for i, site in enumerate(sites)
        ]
        for node, holding in zip(nodes, holdings, strict=False):
            node |= holding
        content: dict[str, object] = {
            "name": "tiny",
            "seed": 3,
            "model": {"source": str(tiny_causal)},
            "lora": {"rank": 4, "alpha": 16.0, **sections.get("lora", {})},
            "quantize": sections.get("quantize", {}),
            "train": {
                "steps": 3,
                "batch_size": 2,
                "learning_rate": 1e-2,
                "threads": 1,
                **sections.get("train", {}),
            },
            "data": {"heldout": 0.2, **sections.get("data", {})},
            "federation": {
                "rounds": 3,
                "min_nodes": len(sites),
                **sections.get("federation", {}),
            },
            "node": nodes,
        }
        return Recipe.model_validate(content)

    return make
