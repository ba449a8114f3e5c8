"""The Dockerfile as far as it can be read without a builder."""

import re
import shlex
from dataclasses import dataclass
from functools import cache

from .composefile import ROOT


@dataclass(frozen=True)
class Instruction:
    """One instruction, with the stage that it belongs to: 0 before the first FROM."""

    stage: int
    name: str
    rest: str


@cache
def instructions() -> tuple[Instruction, ...]:
    text = (ROOT / "Dockerfile").read_text()
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    found: list[Instruction] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            stage = (found[-1].stage if found else 0) + (name == "FROM")
            found.append(Instruction(stage, name, rest.strip()))
    return tuple(found)


def last(name: str) -> list[str]:
    """What follows the instructions of that name in the last stage, which is the image."""
    stage = instructions()[-1].stage
    return [one.rest for one in instructions() if (one.stage, one.name) == (stage, name)]


def environment() -> dict[str, str]:
    pairs = [pair.partition("=") for rest in last("ENV") for pair in shlex.split(rest)]
    return {name: value for name, _, value in pairs}


def folders() -> set[str]:
    """Those that belong to the image's user."""
    [made] = [re.search(r"install -d -o fedlora (.*)", rest) for rest in last("RUN")]
    assert made is not None
    return {word for word in made[1].split() if word.startswith("/")}
