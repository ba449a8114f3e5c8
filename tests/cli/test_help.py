import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest
from click.testing import Result

from fedlora.adapters.errors import FedloraError
from fedlora.cli.errors import EXIT_CODES

Call = Callable[..., Result]
Program = Callable[..., "subprocess.CompletedProcess[str]"]

COMMANDS = [
    ["simulate"],
    ["coordinator"],
    ["join"],
    ["hub"],
    ["pull"],
    ["watch"],
    ["keys", "client"],
    ["generate"],
    ["export"],
    ["distill"],
    ["distill", "advise"],
    ["subnet"],
    ["subnet", "search"],
    ["doctor"],
    ["recipes"],
    ["recipes", "list"],
    ["recipes", "show"],
    ["recipes", "copy"],
    ["bench"],
    ["bench", "decode"],
    ["config"],
    ["config", "show"],
    ["config", "validate"],
]
# Imports nothing but the command line: whatever is loaded then, `--help` had to wait for.
PROBE = """
import sys
from fedlora.cli.main import app
from typer.testing import CliRunner
for command in {commands}:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, result.output
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


def test_no_help_loads_anything_heavy() -> None:
    probe = PROBE.format(commands=[[], *COMMANDS])
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    heavy = {"torch", "transformers", "peft", "accelerate", "datasets", "flwr", "numpy", "pydantic"}
    assert not loaded & heavy


def test_the_installed_program_lists_every_command(program: Program) -> None:
    done = program("--help")
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert f" {command[0]} " in done.stdout
    for meaning in EXIT_CODES.values():
        assert meaning in done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_ends_with_an_example_and_explains_every_argument(
    call: Call, command: list[str]
) -> None:
    shown = call(*command, "--help").output
    assert "Example: fedlora" in shown.strip().splitlines()[-1]
    for line in shown.splitlines():
        assert line.split()[3:] not in (["TEXT", "[required]", "│"], ["PATH", "[required]", "│"])


def test_defaults_are_shown(call: Call) -> None:
    assert "[default: 8000]" in call("coordinator", "--help").output
    assert "[default: inprocess]" in call("simulate", "--help").output


def test_version(call: Call) -> None:
    assert call("--version").output == f"fedlora {version('fedlora')}\n"


def test_exit_codes_are_those_of_the_exceptions() -> None:
    kinds: list[type[FedloraError]] = FedloraError.__subclasses__()
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert sorted(codes) == [code for code in EXIT_CODES if code not in (0, 1, 2, 130, 143)]
    for kind in kinds:
        assert EXIT_CODES[kind.exit_code] == (kind.__doc__ or "").splitlines()[0]
