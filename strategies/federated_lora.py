"""Rounds of federated LoRA on Flower: send the head, collect, admit, aggregate, receipt, commit.

Flower's own loop waits without end, keeps every reply in memory, lets one bad update stop the run
and can't continue; so `start` is overridden, with the same signature. The subclasses say what
becomes of the residual.
"""

import hashlib
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedlora.adapters import Adapter, AdapterError, QuorumError, Residual, WireError
from fedlora.adapters.mean import Missing, normalized
from fedlora.protos import encode

from .admission import admit
from .aggregate import aggregate, weighted_means
from .exchange import Exchange
from .heads import HeadRecord, HeadStore
from .messages import adapter_payload, content_bytes, metrics_of, open_update, pack
from .observer import NodeReport, Observer, RoundReport
from .participation import AnyNode, Participation, Roster
from .payloads import adapter_tensors, residual_tensors


@dataclass(frozen=True)
class Identity:
    """What a run is called and stands on.

    Attributes:
        run: its name; updates of another run are refused.
        base: fingerprint of the frozen weights; updates from another base are refused.
        task: what nodes are told to do, as JSON.
    """

    run: str = "run"
    base: str = ""
    task: str = ""


@dataclass(frozen=True)
class _Admitted:
    node_id: int
    name: str
    examples: int
    adapter: Adapter
    metrics: Mapping[str, float]
    bytes_up: int


class FederatedLoRA(Strategy):
    """A Flower strategy over packed adapters (`fedlora.strategies.pack`).

    Args:
        directory: where each round's head is committed; one that holds heads is continued.
        participation: how many nodes, and how long to wait for them.
        identity: of the run.
        roster: knows the nodes by name.
        observer: told of what happens.
        missing: "refuse" a round in which a node lacks a module, or count it as "zero" change.
        full_history: send every residual in each message, for nodes that keep nothing between
            messages; otherwise a node gets what it hasn't acknowledged.
    """

    name: ClassVar[str]

    def __init__(
        self,
        directory: Path,
        participation: Participation | None = None,
        *,
        identity: Identity | None = None,
        roster: Roster | None = None,
        observer: Observer | None = None,
        missing: Missing = "refuse",
        full_history: bool = True,
    ) -> None:
        """See the class."""
        self.heads = HeadStore(directory)
        self.participation = participation or Participation()
        self.identity = identity or Identity()
        self.roster: Roster = roster or AnyNode()
        self.observer = observer or Observer()
        self.missing: Missing = missing
        self._exchange = Exchange(self.heads, self.identity.task, full_history)
        self._timeout = 3600.0
        self._attempt = 0
        self._reasons = ""
        self._started = 0.0

    @abstractmethod
    def keep(self, residual: Residual) -> Residual | None:
        """The residual as it is sent to the nodes; None if this rule drops it."""

    def summary(self) -> None:
        """Flower asks for a log line; the observer tells more."""

    # -- the loop ------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds up to `num_rounds`, from the last committed head if there is one.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: `pack(adapter)`; unused where a head is committed already.
            num_rounds: rounds in all.
            timeout: seconds that one attempt at a round may take.
            train_config: passed on to the nodes, as "config" beside the head.
            evaluate_config: likewise, with the evaluation of the final head.
            evaluate_fn: the coordinator's own evaluation, of round 0 and of each head made.

        Raises:
            QuorumError: if too few nodes came or answered, in all attempts.
        """
        self._timeout = timeout
        result = Result(arrays=self._open(initial_arrays))
        evaluate = evaluate_fn or (lambda round, arrays: None)
        first = self.heads.record().round + 1
        for number in range(first - 1, num_rounds + 1):
            if number >= first:
                arrays, metrics = self._round(number, result.arrays, train_config, grid)
                result.arrays = arrays
                result.train_metrics_clientapp[number] = metrics
            own = evaluate(number, result.arrays)
            if own is not None:
                result.evaluate_metrics_serverapp[number] = own
        final = self._evaluation(num_rounds, result.arrays, evaluate_config, grid)
        if final is not None:
            result.evaluate_metrics_clientapp[num_rounds] = final
        return result

    def _round(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord | None, grid: Grid
    ) -> tuple[ArrayRecord, MetricRecord]:
        """One round, tried again a bounded number of times."""
        for attempt in range(self.participation.retries + 1):
            self._attempt = attempt
            messages = self.configure_train(number, arrays, config or ConfigRecord(), grid)
            made, metrics = self.aggregate_train(number, self._replies(grid, messages))
            if made is not None and metrics is not None:
                return made, metrics
        raise QuorumError(
            f"round {number} got fewer than {self.participation.min_nodes} updates in "
            f"{self.participation.retries + 1} attempts; {self._reasons}. {self.roster.absent()}"
        )

    def _replies(self, grid: Grid, messages: Iterable[Message]) -> Iterable[Message]:
        return self._exchange.replies(grid, messages, self._timeout, self.participation.poll)

    def _open(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """The last committed head, or the initial adapter committed as round 0."""
        if not self.heads.rounds():
            payload = adapter_payload(initial_arrays)
            record = HeadRecord(self.identity.run, 0, self.identity.base, _digest(payload))
            self.heads.save(record, payload, None)
        return pack(self.heads.adapter(self.heads.record().round))

    # -- sending -------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw nodes, and send each the head and the residuals that it lacks."""
        nodes = self.participation.gather(grid, self.roster)
        drawn = self.participation.draw(nodes, server_round, self._attempt)
        self._started = time.monotonic()
        self.observer.round_started(server_round, list(drawn.values()))
        return self._messages(MessageType.TRAIN, drawn, arrays, config)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the head to every node: nodes that didn't train get the last residual too."""
        return self._messages(MessageType.EVALUATE, self.roster.names(grid), arrays, config)

    def _messages(
        self, kind: str, nodes: Mapping[int, str], arrays: ArrayRecord, config: ConfigRecord
    ) -> Iterable[Message]:
        payload = adapter_payload(arrays)
        return self._exchange.messages(kind, nodes, payload, config, self._timeout)

    # -- receiving -----------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Admit updates one by one, then aggregate module by module and commit the head."""
        with tempfile.TemporaryDirectory(prefix="fedlora-round-") as spool:
            admitted, refused = self._admit(server_round, replies, Path(spool))
            for name, reason in refused.items():
                self.observer.refused(server_round, name, reason)
            self._reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
            if len(admitted) < self.participation.min_nodes:
                self.observer.round_failed(server_round, self._attempt, self._reasons)
                return None, None
            report = self._aggregate(server_round, admitted, refused)
        self.observer.round_done(report)
        arrays = pack(self.heads.adapter(server_round))
        return arrays, MetricRecord(dict(report.metrics))

    def _admit(
        self, server_round: int, replies: Iterable[Message], spool: Path
    ) -> tuple[list[_Admitted], dict[str, str]]:
        """Updates in order of the nodes' names, and the reasons of those refused or missing."""
        head = self.heads.record()
        adapter = self.heads.adapter(head.round)
        admitted: dict[str, _Admitted] = {}
        missing = dict(self._exchange.asked)
        refused: dict[str, str] = {}
        for reply in replies:
            node_id = self._exchange.sender(reply)
            name = missing.pop(node_id, str(node_id))
            try:
                if reply.has_error():
                    raise WireError(reply.error.reason or f"error code {reply.error.code}")
                update, payload = open_update(reply)
                if not self.roster.is_called(node_id, update.node):
                    raise WireError(f"the update is in the name of {update.node}")
                received = admit(
                    update, payload, head, adapter, admitted.keys(), self.missing, spool
                )
            except (WireError, AdapterError) as error:
                self._exchange.settle(node_id, holds_head=False)
                refused[name] = str(error)
                continue
            self._exchange.settle(node_id, holds_head=True)
            one = _Admitted(
                node_id,
                update.node,
                update.examples,
                received,
                metrics_of(reply),
                content_bytes(reply.content),
            )
            admitted[update.node] = one
            self.observer.replied(server_round, update.node, self._node_report(one, 0.0))
        for node_id, name in missing.items():
            self._exchange.settle(node_id, holds_head=False)
            refused[name] = "no reply within the deadline"
        return [admitted[name] for name in sorted(admitted)], refused

    def _node_report(self, one: _Admitted, weight: float) -> NodeReport:
        down = self._exchange.bytes_down.get(one.node_id, 0)
        return NodeReport(weight, one.metrics, one.bytes_up, down)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Mean of the nodes' metrics, weighted by their examples; None if no node answered."""
        reports: dict[str, NodeReport] = {}
        for reply in replies:
            node_id = self._exchange.sender(reply)
            name = self._exchange.asked.get(node_id, str(node_id))
            if reply.has_error():
                self.observer.refused(server_round, name, reply.error.reason or "no reason given")
                continue
            up, down = content_bytes(reply.content), self._exchange.bytes_down[node_id]
            reports[name] = NodeReport(0.0, metrics_of(reply), up, down)
        self.observer.evaluated(server_round, reports)
        metrics = [report.metrics for _, report in sorted(reports.items())]
        means = weighted_means(metrics, [one.get("examples", 1.0) for one in metrics])
        return MetricRecord(dict(means)) if means else None

    def _evaluation(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord | None, grid: Grid
    ) -> MetricRecord | None:
        messages = self.configure_evaluate(number, arrays, config or ConfigRecord(), grid)
        return self.aggregate_evaluate(number, self._replies(grid, messages))

    # -- aggregating ---------------------------------------------------------------------------

    def _aggregate(
        self, server_round: int, admitted: list[_Admitted], refused: Mapping[str, str]
    ) -> RoundReport:
        head = self.heads.record()
        weights = normalized([float(one.examples) for one in admitted])
        made = aggregate(
            [one.adapter for one in admitted],
            weights,
            self.heads.adapter(head.round),
            self.keep,
            self.missing,
            self.participation.seed,
        )
        payload = encode(adapter_tensors(made.adapter))
        residual = encode(residual_tensors(made.residuals)) if made.residuals else None
        history = (*head.history, _digest(residual)) if residual else head.history
        record = HeadRecord(head.run, server_round, head.base, _digest(payload), history)
        self.heads.save(record, payload, residual)
        return RoundReport(
            round=server_round,
            head=record.hash,
            receipt=made.receipt,
            nodes={
                one.name: self._node_report(one, weight)
                for one, weight in zip(admitted, weights, strict=True)
            },
            refused=refused,
            metrics=weighted_means([one.metrics for one in admitted], weights),
            residual_bytes=len(residual or b""),
            seconds=time.monotonic() - self._started,
        )


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
