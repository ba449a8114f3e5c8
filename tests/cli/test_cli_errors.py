import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from fedlora.adapters.errors import BaseMismatchError
from fedlora.cli import errors
from fedlora.cli.errors import Commands

Call = Callable[..., Result]
Program = Callable[..., "subprocess.CompletedProcess[str]"]

PATH = "{tmp}"
WRONG = [
    (["simulate", "no-such-recipe"], 3, "no recipe `no-such-recipe`"),
    (["simulate", "{tmp}/none.toml"], 3, "no recipe file {tmp}/none.toml"),
    (["simulate", "{tmp}/broken.toml"], 3, "{tmp}/broken.toml:1:8: not valid TOML"),
    (["simulate", "{tmp}/unknown.toml"], 3, "did you mean `train.steps`?"),
    (["simulate", "{tmp}/ferry.toml", "--set", "train.step=3"], 3, "did you mean `train.steps`?"),
    (["simulate", "{tmp}/ferry.toml", "--set", "train.steps=x"], 3, "expected a valid integer"),
    (["simulate", "{tmp}/ferry.toml", "--set", "steps"], 3, "expected KEY=VALUE"),
    (["simulate", "{tmp}/missing.toml"], 4, "{tmp}/gone.jsonl: no such file"),
    (["coordinator", "no-such-recipe"], 3, "no recipe `no-such-recipe`"),
    (["config", "validate", "{tmp}/missing.toml"], 4, "{tmp}/gone.jsonl: no such file"),
    (["config", "show", "{tmp}"], 3, "{tmp} is a folder"),
    (["recipes", "show", "nowhere"], 3, "no recipe `nowhere`"),
    (["join", "h:8000", "--name", "a", "--data", "{tmp}/gone.csv"], 4, "--data: no such file"),
]


@pytest.fixture
def files(recipe: Path) -> Path:
    folder = recipe.parent
    (folder / "broken.toml").write_text("name = \n")
    (folder / "unknown.toml").write_text(recipe.read_text() + "[train]\nstep = 3\n")
    (folder / "missing.toml").write_text(recipe.read_text().replace("north.jsonl", "gone.jsonl"))
    return folder


@pytest.mark.parametrize(("args", "code", "said"), WRONG, ids=lambda value: str(value))
def test_one_message_and_its_exit_code(
    call: Call, files: Path, args: list[str], code: int, said: str
) -> None:
    done = call(*(arg.format(tmp=files) for arg in args))
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert said.format(tmp=files) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("args", "code", "said"), [WRONG[0], WRONG[4], WRONG[7]])
def test_json_on_request(call: Call, files: Path, args: list[str], code: int, said: str) -> None:
    done = call(*(arg.format(tmp=files) for arg in args), "--json")
    report = json.loads(done.stderr)
    assert done.exit_code == report["exit_code"] == code
    assert report["error"] == ("DataError" if code == 4 else "RecipeError")
    assert said.format(tmp=files) in report["message"]
    assert done.stdout == ""


def test_the_installed_program_says_it_without_traceback_or_colour(
    program: Program, files: Path
) -> None:
    done = program("simulate", files / "unknown.toml")
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "did you mean `train.steps`?" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["simulat"],
        ["simulate"],
        ["simulate", "demo", "--engine", "steam"],
        ["simulate", "demo", "--port", "1"],
        ["coordinator", "demo", "--port", "70000"],
        ["join", "nowhere", "--name", "a", "--data", "x"],
        ["join", "host:http", "--name", "a", "--data", "x"],
        ["join", "host:8000", "--name", "../a", "--data", "x"],
        ["export", "run", "there"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_usage(call: Call, args: list[str]) -> None:
    done = call(*args)
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    as_json = call(*args, "--json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stderr)["error"] == "UsageError"


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (("north.jsonl", "empty.jsonl"), 4, "empty.jsonl: holds no rows"),
        (("{model}", "/no/such/model"), 5, "no model at /no/such/model"),
        (("{model}", "{folder}"), 5, "it lacks config.json"),
        (("min_nodes = 1", "min_nodes = 2"), 3, "needs a [[node]] entry for each node"),
    ],
)
def test_what_a_run_finds_out(
    call: Call, recipe: Path, tiny_causal: Path, change: tuple[str, str], code: int, said: str
) -> None:
    folder = recipe.parent
    (folder / "empty.jsonl").write_text("\n")
    text = recipe.read_text().replace("smollm2-135m", "{model}")
    text = f"{text}\n[federation]\nmin_nodes = 1\n".replace(*change)
    recipe.write_text(text.format(model=tiny_causal, folder=folder))
    done = call("simulate", recipe, "--run-dir", folder / "run")
    assert done.exit_code == code, done.output
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port(program: Program, recipe: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = recipe.parent / "run"
        done = program("coordinator", recipe, "--port", port, "--run-dir", run)
    assert done.returncode == 10
    assert str(port) in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def raising(error: BaseException) -> typer.Typer:
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)

    @app.callback()
    def _root() -> None: ...

    @app.command()
    def go(as_json: bool = typer.Option(False, "--json")) -> None:
        raise error

    return app


def test_an_interrupt_ends_with_one_word_and_130() -> None:
    done = CliRunner().invoke(raising(KeyboardInterrupt()), ["go"])
    assert (done.exit_code, done.stderr) == (130, "interrupted\n")


def test_a_subclass_keeps_its_own_code() -> None:
    done = CliRunner().invoke(raising(BaseMismatchError("two bases")), ["go", "--json"])
    assert json.loads(done.stderr) == {
        "error": "BaseMismatchError",
        "message": "two bases",
        "exit_code": 6,
    }


def test_a_defect_keeps_its_traceback() -> None:
    done = CliRunner().invoke(raising(ZeroDivisionError("a bug")), ["go"])
    assert done.exit_code == 1
    assert isinstance(done.exception, ZeroDivisionError)


def test_ctrl_c_is_told_as_such_where_a_library_makes_another_error_of_it() -> None:
    app = typer.Typer(cls=Commands)

    @app.callback()
    def root() -> None:
        """A command line of one command."""

    @app.command()
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise ValueError("no shape") from None

    before = signal.signal(signal.SIGINT, errors.interrupted)
    try:
        done = CliRunner().invoke(app, ["work"])
    finally:
        signal.signal(signal.SIGINT, before)
        errors._interrupts.clear()
    assert (done.exit_code, done.output.strip()) == (130, "interrupted")
