"""From a strategy's reports to events on the screen and lines in metrics.jsonl."""

from collections.abc import Mapping, Sequence

from fedlora.strategies import NodeReport, Observer, RoundReport

from .events import Event, Listener, NodeRefused, NodeReplied, Notice, RoundDone, RoundStarted
from .rundir import RunDirectory


class Reporter(Observer):
    """Tells a listener, and keeps the run's records."""

    def __init__(self, run: RunDirectory, listener: Listener) -> None:
        """Report on `run` to `listener`."""
        super().__init__()
        self._run, self._listener = run, listener
        self._rounds = run.recipe.federation.rounds

    def tell(self, event: Event) -> None:
        """Log an event and pass it on."""
        self._run.log(event)
        self._listener(event)

    def round_started(self, round: int, nodes: Sequence[str]) -> None:
        """Messages go out."""
        self.tell(RoundStarted(round, self._rounds, tuple(nodes)))

    def replied(self, round: int, node: str, report: NodeReport) -> None:
        """An update is in."""
        self.tell(NodeReplied(round, node, report.metrics, report.bytes_up, report.bytes_down))

    def refused(self, round: int, node: str, reason: str) -> None:
        """An update isn't used."""
        self.tell(NodeRefused(round, node, reason))

    def round_failed(self, round: int, attempt: int, reason: str) -> None:
        """Too few updates."""
        self.tell(Notice(f"round {round}, attempt {attempt + 1}: too few updates ({reason})"))

    def recovered(self, damage: str) -> None:
        """Part of the ledger was set aside."""
        self.tell(Notice(damage))

    def round_done(self, report: RoundReport) -> None:
        """A round is committed."""
        self._run.add_metrics(
            {
                "round": report.round,
                "head": report.head,
                "receipt": report.receipt.worst,
                "receipt_by_module": dict(report.receipt.errors),
                "metrics": dict(report.metrics),
                "nodes": _plain(report.nodes),
                "refused": dict(report.refused),
                "residual_bytes": report.residual_bytes,
                "seconds": report.seconds,
            }
        )
        self.tell(
            RoundDone(
                report.round,
                self._rounds,
                report.head,
                report.receipt.worst,
                report.metrics,
                report.seconds,
            )
        )

    def evaluated(self, round: int, nodes: Mapping[str, NodeReport]) -> None:
        """The nodes evaluated a head."""
        self._run.add_metrics({"round": round, "evaluation": "nodes", "nodes": _plain(nodes)})
        for name, report in sorted(nodes.items()):
            self.tell(NodeReplied(round, name, report.metrics, report.bytes_up, report.bytes_down))

    def coordinator_evaluated(self, round: int, metrics: Mapping[str, float]) -> None:
        """The coordinator evaluated a head on text of its own."""
        record = {"round": round, "evaluation": "coordinator", "metrics": dict(metrics)}
        self._run.add_metrics(record)
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.tell(Notice(f"head of round {round} on the coordinator's text: {numbers}"))

    def covered(self, round: int, metrics: Mapping[str, float]) -> None:
        """Which subnets were drawn so far, in a once-for-all run."""
        self._run.add_metrics({"round": round, "subnets": dict(metrics)})


def _plain(nodes: Mapping[str, NodeReport]) -> dict[str, dict[str, object]]:
    return {
        name: {**vars(report), "metrics": dict(report.metrics)} for name, report in nodes.items()
    }
