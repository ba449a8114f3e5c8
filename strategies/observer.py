"""What a strategy tells of a round while it runs: for progress, records and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedlora.adapters import Receipt


@dataclass(frozen=True)
class NodeReport:
    """One node's part in a round.

    Attributes:
        weight: its share of the mean; 0 for an evaluation.
        metrics: as the node counted them.
        bytes_up: tensors it sent.
        bytes_down: tensors it was sent.
    """

    weight: float
    metrics: Mapping[str, float]
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class RoundReport:
    """A committed round.

    Attributes:
        round: its number, from 1.
        head: hash of the head it made.
        receipt: aggregation errors by module.
        nodes: by name.
        refused: reason by name, for updates that weren't admitted or didn't come.
        metrics: weighted means over the nodes.
        residual_bytes: size of what the round folds; 0 if nothing.
        seconds: from the first message to the commit.
    """

    round: int
    head: str
    receipt: Receipt
    nodes: Mapping[str, NodeReport]
    refused: Mapping[str, str]
    metrics: Mapping[str, float]
    residual_bytes: int
    seconds: float


@dataclass
class Observer:
    """Does nothing; override what is of interest."""

    reports: list[RoundReport] = field(default_factory=list)

    def round_started(self, round: int, nodes: Sequence[str]) -> None:
        """Messages of a round go out to these nodes."""

    def replied(self, round: int, node: str, report: NodeReport) -> None:
        """An update was admitted."""

    def refused(self, round: int, node: str, reason: str) -> None:
        """An update was not admitted, or did not come."""

    def round_done(self, report: RoundReport) -> None:
        """A round is committed."""
        self.reports.append(report)

    def round_failed(self, round: int, attempt: int, reason: str) -> None:
        """Too few updates came; the round may be tried again."""

    def recovered(self, damage: str) -> None:
        """Rounds of the ledger did not hold, and were set aside."""

    def evaluated(self, round: int, nodes: Mapping[str, NodeReport]) -> None:
        """Nodes evaluated a head."""
