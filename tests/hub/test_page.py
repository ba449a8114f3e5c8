"""The commands of docs/hub.md are ones that there are."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hub.md"


def test_every_command_of_the_page_is_understood(call: Callable[..., Result]) -> None:
    commands = re.findall(r"^ {4,}fedlora (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 8
    for command in commands:
        done = call(*shlex.split(command), "--help")  # an option that it lacks is an error before
        assert done.exit_code == 0, f"{command}: {done.output}"
    assert call("pull", "host:1", "--no-such-option", "--help").exit_code == 2
