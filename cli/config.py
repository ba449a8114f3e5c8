"""`fedlora config`: what a recipe says once defaults, overrides and paths are resolved."""

import json

import typer

from .options import AsJson, Overrides, RecipeArgument

app = typer.Typer(
    no_args_is_help=True,
    help="Show or check a recipe.",
    epilog="Example: fedlora config validate my-run/demo.toml",
)


@app.command(epilog="Example: fedlora config show demo --set lora.rank=16")
def show(recipe: RecipeArgument, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Print the whole recipe, with every default and absolute path, as TOML."""
    from fedlora.recipes.loading import dump, load_recipe

    loaded = load_recipe(recipe, overrides or ())
    typer.echo(loaded.model_dump_json(indent=2) if as_json else dump(loaded), nl=as_json)


@app.command(epilog="Example: fedlora config validate my-run/demo.toml")
def validate(recipe: RecipeArgument, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a recipe and read its data files, without running it."""
    from fedlora.recipes.loading import load_recipe

    loaded = load_recipe(recipe, overrides or ())

    from .inspection import count_rows

    rows = count_rows(loaded)
    if as_json:
        typer.echo(json.dumps({"valid": True, "name": loaded.name, "rows": rows}))
        return
    typer.echo(
        f"{loaded.name} is valid: {loaded.federation.strategy}, "
        f"{loaded.federation.rounds} rounds of {loaded.train.steps} steps, "
        f"{len(loaded.node)} nodes, {loaded.model.source}"
    )
    for place, count in rows.items():
        typer.echo(f"{place}: {count} rows")
