import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from fedlora.recipes.loading import load_recipe

Call = Callable[..., Result]


def test_show_prints_a_recipe_that_reads_back_equal(call: Call, recipe: Path) -> None:
    done = call("config", "show", recipe, "--set", "lora.rank=4")
    assert done.exit_code == 0
    copy = recipe.with_name("copy.toml")
    copy.write_text(done.stdout)
    assert load_recipe(copy) == load_recipe(recipe, ["lora.rank=4"])


def test_show_as_json(call: Call, recipe: Path) -> None:
    shown = json.loads(call("config", "show", recipe, "--json").stdout)
    assert shown["node"][0]["data"] == str(recipe.with_name("north.jsonl"))
    assert shown["federation"]["rounds"] == 3


def test_validate_counts_the_rows_of_every_file(call: Call, recipe: Path) -> None:
    done = call("config", "validate", recipe)
    assert done.exit_code == 0
    first, second = done.stdout.splitlines()
    assert first == "ferry is valid: fedex-lora, 3 rounds of 20 steps, 1 nodes, smollm2-135m"
    assert second == "node[0].data: 1 rows"
    assert json.loads(call("config", "validate", recipe, "--json").stdout) == {
        "valid": True,
        "name": "ferry",
        "rows": {"node[0].data": 1},
    }


def test_validate_reads_the_rows(call: Call, recipe: Path) -> None:
    recipe.with_name("north.jsonl").write_text('{"instruction": "Who?"}\n')
    done = call("config", "validate", recipe)
    assert done.exit_code == 4
    assert "north.jsonl, row 1" in done.stderr
