"""What happens in a run, as plain data: for progress on a screen and for other processes to read.

The coordinator's app runs in a process of its own under Flower, so events also go through a file,
one JSON object a line.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunStarted:
    """The nodes that a run begins with have introduced themselves."""

    run: str
    nodes: tuple[str, ...]
    rounds: int


@dataclass(frozen=True)
class RoundStarted:
    """A round's messages go out to these nodes."""

    round: int
    rounds: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class StepDone:
    """A node has made a training step. Loss in nats per label token."""

    node: str
    step: int
    steps: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True)
class NodeReplied:
    """A node's reply is in; bytes are those of the tensors sent either way."""

    round: int
    node: str
    metrics: Mapping[str, float]
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class NodeRefused:
    """A node's update was refused or didn't come, or the node was turned away."""

    round: int
    node: str
    reason: str


@dataclass(frozen=True)
class RoundDone:
    """A round is committed; `receipt` is the worst relative error of any module."""

    round: int
    rounds: int
    head: str
    receipt: float
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class RunDone:
    """The run is over; `receipt` is the worst of all rounds."""

    run_dir: Path
    head: str
    receipt: float


@dataclass(frozen=True)
class RunFailed:
    """The run stopped on an error of this class."""

    error: str
    message: str


@dataclass(frozen=True)
class Notice:
    """Anything else worth a line."""

    text: str


Event = (
    RunStarted
    | RoundStarted
    | StepDone
    | NodeReplied
    | NodeRefused
    | RoundDone
    | RunDone
    | RunFailed
    | Notice
)
Listener = Callable[[Event], None]

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        RunStarted,
        RoundStarted,
        StepDone,
        NodeReplied,
        NodeRefused,
        RoundDone,
        RunDone,
        RunFailed,
        Notice,
    )
}


def to_line(event: Event) -> str:
    """An event as one line of JSON."""
    return json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)}, default=str)


def from_line(line: str) -> Event:
    """The event that `to_line` wrote."""
    fields = json.loads(line)
    kind = _KINDS[fields.pop("event")]
    if "nodes" in fields:
        fields["nodes"] = tuple(fields["nodes"])
    if "run_dir" in fields:
        fields["run_dir"] = Path(fields["run_dir"])
    event: Event = kind(**fields)
    return event
