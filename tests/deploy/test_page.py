"""docs/deploy.md: what it tells people to type is taken by what they type it to."""

import re
import shlex

import pytest

from .composefile import COMPOSE, NODE, ROOT, load, services
from .parsing import parse

PAGE = (ROOT / "docs" / "deploy.md").read_text()
UNITS = dict(re.findall(r"```ini\n# /etc/systemd/system/(\S+)\n(.*?)```", PAGE, re.DOTALL))
TYPED = re.findall(r"^(?:    )?(?:/opt/fedlora/bin/)?fedlora (.*?)(?:   #.*)?$", PAGE, re.MULTILINE)
TYPED += re.findall(r"`fedlora (\w+ (?:RUN|show|verify|--keys \S)[^`]*)`", PAGE)
COMPOSED = re.findall(r"(?:^    |`)docker compose (.*?)(?:`|$)", PAGE, re.MULTILINE)
SERVICES = services(load(COMPOSE, {}))
FLAGS = ("--rm", "--build", "-d", "--force-recreate")


@pytest.mark.parametrize("line", TYPED)
def test_commands(line: str) -> None:
    parse(shlex.split(line.replace("RUN", "run").replace(" N", " 1")))


@pytest.mark.parametrize("name", UNITS)
def test_units_start_the_program_and_say_how_it_ends(name: str) -> None:
    [program, *arguments] = re.findall(r"^ExecStart=(.*)$", UNITS[name], re.MULTILINE)[0].split()
    assert program == "/opt/fedlora/bin/fedlora"
    parse(arguments)
    assert "SuccessExitStatus=143" in UNITS[name]


@pytest.mark.parametrize("line", COMPOSED)
def test_compose_commands(line: str) -> None:
    words = [word for word in shlex.split(line) if word not in FLAGS]
    if words[0] == "-f":
        assert words == ["-f", NODE.name, "up"]
        return
    action, *rest = words
    if action == "run":
        own = rest[0] == "--entrypoint"
        name, *command = rest[2:] if own else rest
        assert name in SERVICES
        if not own:
            parse(command or SERVICES[name].command)
    elif action == "cp":
        assert rest[0].split(":")[0] in SERVICES
    else:
        assert action in ("up", "stop")
        assert set(rest) <= SERVICES.keys()


def test_what_is_said_of_restarts_is_so() -> None:
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \|.*\| ([^|]*) \|$", PAGE.split("## Several")[0], re.M
    )
    said = {name: how for names, how in rows for name in re.findall(r"\w+", names)}
    assert said.keys() == SERVICES.keys()
    words = {"no": "never", "on-failure:10": "10 times", "unless-stopped": "always"}
    for name, service in SERVICES.items():
        assert said[name].startswith(words[service.content["restart"]])
