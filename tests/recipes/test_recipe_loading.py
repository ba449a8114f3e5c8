from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlora.adapters.errors import RecipeError
from fedlora.recipes.loading import data_files, dump, load_recipe

RECIPE = """
name = "ferry"

[model]
source = "smollm2-135m"

[train]
steps = 3
learning_rate = 1

[[node]]
name = "north"
data = "data/north.jsonl"
questions = "../north.questions.jsonl"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "ferry.toml"
    path.write_text(RECIPE)
    return path


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


def altered(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_values_and_defaults(recipe: Path) -> None:
    loaded = load_recipe(recipe)
    assert (loaded.train.steps, loaded.train.learning_rate) == (3, 1.0)
    assert loaded.federation.rounds == 3


def test_paths_are_meant_from_the_files_folder(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (node,) = load_recipe(recipe).node
    assert node.data == str(tmp_path / "data/north.jsonl")
    assert node.questions == str(tmp_path.parent / "north.questions.jsonl")
    assert node.heldout is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [("./base", "{}/base"), ("../base", "{}/../base"), ("hub/name", "hub/name"), ("/b", "/b")],
)
def test_a_model_is_a_path_only_with_dots(recipe: Path, source: str, expected: str) -> None:
    loaded = load_recipe(altered(recipe, "smollm2-135m", source))
    wanted = expected.format(recipe.parent)
    assert loaded.model.source == (str(Path(wanted).resolve()) if "{" in expected else wanted)


def test_a_path_in_an_override_is_meant_from_here(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    loaded = load_recipe(recipe, ["evaluate.data=own.jsonl", "model.source=./base"])
    assert loaded.evaluate.data == str(here / "own.jsonl")
    assert loaded.model.source == str(here / "base")
    assert loaded.node == load_recipe(recipe).node


def test_overrides_are_toml_or_bare_words(recipe: Path) -> None:
    loaded = load_recipe(
        recipe,
        [
            "train.steps=20",
            "train.learning_rate=3e-4",
            "lora.rslora=true",
            'lora.targets=["q_proj", "v_proj"]',
            "federation.strategy=fedit",
            "data.columns.prompt=ask",
            "model.source=hub/a=b",
            "train.steps=21",
        ],
    )
    assert loaded.train.steps == 21
    assert loaded.train.learning_rate == 3e-4
    assert loaded.lora.rslora
    assert loaded.lora.targets == ("q_proj", "v_proj")
    assert loaded.federation.strategy == "fedit"
    assert loaded.data.columns == {"prompt": "ask"}
    assert loaded.model.source == "hub/a=b"


def test_an_override_cannot_smuggle_in_other_keys(recipe: Path) -> None:
    assert load_recipe(recipe, ["evaluate.data=x\nseed = 9"]).seed == 0


@pytest.mark.parametrize(
    ("place", "near"),
    [
        ("train.step", "train.steps"),
        ("steps", "train.steps"),
        ("train.rank", "lora.rank"),
        ("trian.steps", "train"),
        ("federation.round", "federation.rounds"),
        ("nam", "name"),
    ],
)
def test_unknown_key_names_the_nearest(recipe: Path, place: str, near: str) -> None:
    message = complaint(recipe, f"{place}=3")
    assert message.startswith(f"--set {place}=3: ")
    assert f"unknown key; did you mean `{near}`?" in message


def test_unknown_key_in_the_file(recipe: Path) -> None:
    message = complaint(altered(recipe, "steps", "step"))
    assert message.startswith(f"{recipe}: train.step: unknown key; did you mean `train.steps`?")
    assert "Valid here: steps, batch_size" in message


def test_unknown_key_of_a_node(recipe: Path) -> None:
    message = complaint(altered(recipe, "questions", "qestions"))
    assert "node[0].qestions: unknown key; did you mean `node.questions`?" in message
    assert message.endswith("Valid here: name, data, model, heldout, questions, precision, memory")


def test_unknown_key_like_no_other(recipe: Path) -> None:
    assert "unknown key; Valid here: steps" in complaint(recipe, "train.zzzzzzz=3")


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("train.steps", "many", 'expected a valid integer, found "many"'),
        ("train.steps", '"3"', 'expected a valid integer, found "3"'),
        ("train.steps", "true", "expected a valid integer, found true"),
        ("train.steps", "0", "expected a number greater than 0, found 0"),
        ("train.learning_rate", "inf", "expected a finite number, found Infinity"),
        ("train.learning_rate", "nan", "expected a finite number, found NaN"),
        ("lora.rslora", "1", "expected a valid boolean, found 1"),
        ("lora.targets", "3", "expected 'all-linear' or a valid array, found 3"),
        ("federation.strategy", "x", "expected 'fedex-lora', 'fedit' or 'fedmkt', found \"x\""),
        ("federation.wait", "2020-01-01", 'expected a valid number, found "2020-01-01"'),
        ("train", "3", "expected a table, found 3"),
        ("model.source", '""', "expected a string to have at least 1 character"),
    ],
)
def test_wrong_value(recipe: Path, place: str, text: str, said: str) -> None:
    message = complaint(recipe, f"{place}={text}")
    assert message.startswith(f"--set {place}={text}: {place}: {said}")


def test_wrong_value_in_the_file_names_the_file(recipe: Path) -> None:
    message = complaint(altered(recipe, "steps = 3", "steps = 0"), "lora.rank=4")
    assert message == f"{recipe}: train.steps: expected a number greater than 0, found 0"


def test_every_problem_is_told_at_once(recipe: Path) -> None:
    message = complaint(altered(recipe, "steps = 3", "steps = 0"), "lora.rank=0")
    assert sorted(line.partition(": ")[0] for line in message.splitlines()) == [
        "--set lora.rank=0",
        str(recipe),
    ]


def test_missing_key(recipe: Path) -> None:
    message = complaint(altered(recipe, 'data = "data/north.jsonl"', ""))
    assert message == f"{recipe}: node[0].data: missing, and it has no default"


def test_sections_that_do_not_fit(recipe: Path) -> None:
    assert "data.format" in complaint(recipe, "data.format=classification")


@pytest.mark.parametrize("override", ["train.steps", "=3", ""])
def test_override_without_a_value(recipe: Path, override: str) -> None:
    assert "expected KEY=VALUE" in complaint(recipe, override)


@pytest.mark.parametrize("override", ["node.0.data=x", "name.first=x"])
def test_override_of_what_is_no_section(recipe: Path, override: str) -> None:
    assert "is no section" in complaint(recipe, override)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('name = "x"\n[model\n', "2:7"),
        ("a = 1\na = 2\n", "2:6"),
        ('name = "x', "1:10"),
        ("=", "1:1"),
    ],
)
def test_syntax_error_has_line_and_column(tmp_path: Path, text: str, position: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    assert complaint(path).startswith(f"{path}:{position}: not valid TOML: ")


def test_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"name = \xff")
    assert complaint(path) == f"{path}: not UTF-8 text (byte 7)"


def test_no_such_recipe(tmp_path: Path) -> None:
    assert "is a folder" in complaint(tmp_path)
    assert f"no recipe file {tmp_path / 'x.toml'}" in complaint(tmp_path / "x.toml")
    with pytest.raises(RecipeError, match="neither a file nor a bundled recipe"):
        load_recipe("no-such-recipe")


def test_dump_reads_back_equal(recipe: Path, tmp_path: Path) -> None:
    loaded = load_recipe(recipe, ["lora.targets=[]", "data.columns.prompt=ask", "train.threads=2"])
    again = tmp_path / "elsewhere" / "again.toml"
    again.parent.mkdir()
    again.write_text(dump(loaded))
    assert load_recipe(again) == loaded


@given(
    seed=st.integers(0, 2**31 - 1),
    rate=st.floats(1e-300, 1e300),
    column=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
def test_dump_keeps_every_value(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rate: float, column: str
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    (folder / "a.toml").write_text(RECIPE)
    loaded = load_recipe(folder / "a.toml", [f"seed={seed}", f"train.learning_rate={rate!r}"])
    loaded = loaded.model_copy(
        update={"data": loaded.data.model_copy(update={"columns": {column: column}})}
    )
    (folder / "b.toml").write_text(dump(loaded), encoding="utf-8", newline="")
    assert load_recipe(folder / "b.toml") == loaded


def test_data_files(recipe: Path, tmp_path: Path) -> None:
    loaded = load_recipe(recipe, ["evaluate.data=/own.jsonl"])
    assert dict(data_files(loaded)) == {
        "evaluate.data": Path("/own.jsonl"),
        "node[0].data": tmp_path / "data/north.jsonl",
        "node[0].questions": tmp_path.parent / "north.questions.jsonl",
    }
