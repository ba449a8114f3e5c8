"""A look into every data file of a recipe, before anything that takes time starts."""

from fedlora.models.files import read_questions, read_rows
from fedlora.recipes.loading import data_files
from fedlora.recipes.schema import Recipe


def count_rows(recipe: Recipe) -> dict[str, int]:
    """Rows of every data file that the recipe names, by place, e.g. `node[0].data`.

    Raises:
        DataError: if a file is missing, empty, or not in the declared format.
        RecipeError: if `data.columns` names a field that the format does not have.
    """
    return {
        place: len(
            read_questions(path) if place.endswith(".questions") else read_rows(path, recipe.data)
        )
        for place, path in data_files(recipe)
    }
