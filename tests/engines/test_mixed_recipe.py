"""The bundled recipe of four nodes that differ: each holds what its comment says."""

import pytest

from fedlora.models.holding import holding
from fedlora.recipes.loading import load_recipe


@pytest.mark.slow  # needs the real model
def test_the_nodes_of_the_mixed_recipe_hold_four_precisions() -> None:
    recipe = load_recipe("mixed")
    held = {
        node.name: holding(recipe.model.source, recipe.task, node.precision, node.memory).subnet
        for node in recipe.node
    }
    widths = {name: sorted(set(subnet.values())) if subnet else 32 for name, subnet in held.items()}
    assert widths == {"clinic": 32, "harbour": [8], "garden": [4], "night-shift": [4, 8]}
