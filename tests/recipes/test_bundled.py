import pytest

from fedlora.adapters.errors import RecipeError
from fedlora.recipes import bundled
from fedlora.recipes.loading import data_files, load_recipe


@pytest.mark.parametrize("name", bundled.names())
def test_every_bundled_recipe_is_valid_and_complete(name: str) -> None:
    recipe = load_recipe(name)
    assert all(path.exists() for _, path in data_files(recipe))
    assert recipe.name == name
    assert bundled.summary(name), "a recipe begins with a comment that says what it is"


def test_unknown_name_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="neither a file nor a bundled recipe"):
        bundled.path("nowhere")
    for name in bundled.names():
        with pytest.raises(RecipeError, match=f"did you mean `{name}`"):
            bundled.path(f"{name}x")
