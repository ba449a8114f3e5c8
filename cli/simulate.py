"""`fedlora simulate`: a whole federation on this machine."""

from contextlib import ExitStack
from typing import Annotated, Literal

import typer

from .options import AsJson, Overrides, RecipeArgument, Resume, RunFolder

EXAMPLE = "Example: fedlora simulate demo --set train.steps=10 --compare"


def simulate(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    run_dir: RunFolder = None,
    resume: Resume = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Also run the rivals, and put the questions to each model."),
    ] = False,
    engine: Annotated[
        Literal["inprocess", "flower", "ray"],
        typer.Option(
            help="Nodes take turns in this process, are processes of Flower, or actors of Ray."
        ),
    ] = "inprocess",
    as_json: AsJson = False,
) -> None:
    """Play all nodes of a recipe, and its coordinator, on this machine."""
    from fedlora.recipes.loading import load_recipe

    loaded = load_recipe(recipe, overrides or ())

    from . import compare as comparison
    from . import engines
    from .folders import run_directory
    from .inspection import count_rows
    from .progress import progress
    from .tables import show

    count_rows(loaded)
    if compare:
        comparison.require_questions(loaded)
    folder = run_directory(loaded.name, run_dir, resume)
    with progress(as_json) as listener, ExitStack() as stack:
        tally = comparison.Tally(listener)
        rivals = stack.enter_context(comparison.Rivals(loaded, folder)) if compare else None
        engines.simulate(loaded, folder, engine, tally)
        compared = rivals.compare(tally) if rivals else None
    if compared:
        show(compared, as_json)
