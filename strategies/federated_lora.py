"""Rounds of federated LoRA on Flower: send the head, collect, admit, aggregate, receipt, commit.

Flower's own loop waits without end, keeps every reply in memory, lets one bad update stop the run
and can't continue; so `start` is overridden, with the same signature. The subclasses say what
becomes of the residual.
"""

import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedlora.adapters import BaseMismatchError, QuorumError, Residual
from fedlora.adapters.mean import Missing, normalized

from .aggregate import aggregate, weighted_means
from .exchange import Exchange
from .heads import HeadStore
from .identity import Identity
from .intake import Admitted, Intake
from .observer import Observer, RoundReport
from .packing import pack, unpack
from .participation import AnyNode, Participation, Roster, Subnets
from .records import AdmittedUpdate, Proceedings
from .recovery import recover
from .sides import Sides

TAKEOVER = 60.0  # seconds for a killed coordinator's app to leave the ledger


class FederatedLoRA(Strategy):
    """A Flower strategy over packed adapters (`fedlora.strategies.pack`).

    Args:
        directory: where each round's head is committed; one that holds heads is continued.
        participation: how many nodes, and how long to wait for them.
        identity: of the run.
        roster: knows the nodes by name.
        observer: told of what happens.
        missing: "refuse" a round in which a node lacks a module, count it as "zero" change, or
            "skip" the node for that module.
        side_rank: rank of the side path for nodes that take no residuals, 0 for all that it has;
            None where every node takes them.
        subnets: draws the width of each module that a node trains at; None if nodes decide.
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
        side_rank: int | None = None,
        subnets: Subnets | None = None,
        full_history: bool = True,
    ) -> None:
        """See the class."""
        self.heads = HeadStore(directory)
        self.participation = participation or Participation()
        self.identity = identity or Identity()
        self.roster: Roster = roster or AnyNode()
        self.observer = observer or Observer()
        self.missing: Missing = missing
        self.subnets = subnets
        self._exchange = Exchange(
            self.heads,
            self.identity.task,
            self.roster,
            full_history,
            self.identity.key,
            None if side_rank is None else Sides(self.heads, side_rank),
        )
        self._intake = Intake(
            self.heads,
            self._exchange,
            self.roster,
            self.observer,
            self.missing,
            self.participation.max_norm_ratio,
        )
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
            RunError: if another coordinator leads this run, or the disk refuses.
            BaseMismatchError: if the run was begun on another base.
        """
        self._timeout = timeout
        with self.heads.locked(TAKEOVER):
            return self._run(
                grid, initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn
            )

    def _run(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> Result:
        result = Result(arrays=self._begin(initial_arrays))
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
        config = evaluate_config or ConfigRecord()
        messages = self.configure_evaluate(num_rounds, result.arrays, config, grid)
        final = self.aggregate_evaluate(num_rounds, self._replies(grid, messages))
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

    def _begin(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """The last committed head, or the initial adapter committed as round 0."""
        if damage := recover(self.heads):
            self.observer.recovered(damage)
        if not self.heads.rounds():
            proceedings = Proceedings(self.identity.recipe)
            initial = unpack(initial_arrays)
            self.heads.commit(self.identity.run, self.identity.base, initial, {}, proceedings)
        record = self.heads.record()
        if record.base != self.identity.base:
            raise BaseMismatchError(
                f"the run in {self.heads.directory} stands on the base {record.base}, this is "
                f"{self.identity.base}; give the coordinator the same files as before"
            )
        return pack(self.heads.adapter(record.round))

    # -- sending -------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw nodes, and send each the head and the residuals that it lacks."""
        nodes = self.participation.gather(grid, self.roster)
        drawn = self.participation.draw(nodes, server_round, self._attempt)
        self._started = time.monotonic()
        self.observer.round_started(server_round, list(drawn.values()))
        subnets = self.subnets.draw(server_round, drawn) if self.subnets else {}
        return self._exchange.messages(MessageType.TRAIN, drawn, config, self._timeout, subnets)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the head to every node: nodes that didn't train get the last residual too."""
        nodes = self.roster.names(grid)
        return self._exchange.messages(MessageType.EVALUATE, nodes, config, self._timeout)

    # -- receiving -----------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Admit updates one by one, then aggregate module by module and commit the head."""
        with tempfile.TemporaryDirectory(prefix="fedlora-round-") as spool:
            admitted, refused = self._intake.updates(server_round, replies, Path(spool))
            for name, reason in refused.items():
                self.observer.refused(server_round, name, reason)
            self._reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
            if len(admitted) < self.participation.min_nodes:
                self.observer.round_failed(server_round, self._attempt, self._reasons)
                return None, None
            report = self._aggregate(admitted, refused)
        self.observer.round_done(report)
        arrays = pack(self.heads.adapter(server_round))
        return arrays, MetricRecord(dict(report.metrics))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Mean of the nodes' metrics, weighted by their examples; None if no node answered."""
        reports = self._intake.evaluations(server_round, replies)
        self.observer.evaluated(server_round, reports)
        metrics = [report.metrics for _, report in sorted(reports.items())]
        means = weighted_means(metrics, [one.get("examples", 1.0) for one in metrics])
        return MetricRecord(dict(means)) if means else None

    # -- aggregating ---------------------------------------------------------------------------

    def _aggregate(self, admitted: Sequence[Admitted], refused: Mapping[str, str]) -> RoundReport:
        """Average, and commit the head with how it came about."""
        head = self.heads.record()
        weights = normalized([float(one.update.examples) for one in admitted])
        made = aggregate(
            [one.adapter for one in admitted],
            weights,
            self.heads.adapter(head.round),
            self.keep,
            self.missing,
            self.participation.seed,
        )
        parts = {
            one.name: AdmittedUpdate(
                one.update.examples,
                weight,
                one.update.adapter.digest.hex(),
                one.norm,
                one.update.folded,
            )
            for one, weight in zip(admitted, weights, strict=True)
        }
        metrics = weighted_means([dict(one.update.metrics) for one in admitted], weights)
        proceedings = Proceedings(
            self.identity.recipe,
            self._attempt,
            tuple(self._exchange.asked.values()),
            parts,
            refused,
            made.receipt.errors,
            metrics,
        )
        record = self.heads.commit(head.run, head.base, made.adapter, made.residuals, proceedings)
        return RoundReport(
            round=record.round,
            head=record.hash,
            receipt=made.receipt,
            nodes={
                one.name: replace(one.report, weight=parts[one.name].weight) for one in admitted
            },
            refused=refused,
            metrics=metrics,
            residual_bytes=sum(one.nbytes for one in made.residuals.values()),
            seconds=time.monotonic() - self._started,
        )
