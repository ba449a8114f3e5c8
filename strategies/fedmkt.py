"""FedMKT (Fan et al., COLING 2025): parties with different models teach each other on public text.

Adapters of different models can't be averaged. So each party says what it would have predicted of
public examples; on every example the one with the lowest loss is followed by all who did worse. An
example is predicted in one round and learned in the next: its losses are those of models that have
not seen it since it was last drawn. What a node learns on its own text stays with it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedlora.adapters import Adapter, Receipt, Residual
from fedlora.models.knowledge import Knowledge
from fedlora.protos import Lesson

from .answers import Answered, Answers
from .federated_lora import FederatedLoRA
from .identity import Identity
from .knowledge import Bounds
from .lessons import lesson_content
from .library import OWN, Library, lowest_loss
from .observer import Observer, RoundReport
from .packing import content_bytes, pack
from .participation import Participation, Roster
from .records import AdmittedUpdate, HeadRecord, Proceedings


class PublicModel(Protocol):
    """The coordinator's own model, and the public text."""

    def batch(self, round: int) -> Sequence[str]:
        """The public examples that are learned in a round, from 1; the same each time."""
        ...

    def predict(self, adapter: Adapter, records: Sequence[str]) -> Knowledge:
        """What the model knows of public examples, with this adapter."""
        ...

    def study(
        self, adapter: Adapter, round: int, records: Sequence[str], sources: Sequence[Knowledge]
    ) -> Adapter:
        """The adapter after learning from examples and from what others know of them."""
        ...


class FedMKT(FederatedLoRA):
    """The rounds of `FederatedLoRA`, in which knowledge travels instead of adapters.

    A round's head is the coordinator's own adapter; its record says who was best on which share of
    the next round's examples, with the digests of what they know.

    Args:
        directory: where each round is committed; one that holds rounds is continued.
        own: the coordinator's model and the public text.
        bounds: of what a node may answer.
        participation: how many nodes, and how long to wait for them.
        identity: of the run.
        roster: knows the nodes by name.
        observer: told of what happens.
    """

    name: ClassVar[str] = "fedmkt"

    def __init__(
        self,
        directory: Path,
        own: PublicModel,
        bounds: Bounds,
        participation: Participation | None = None,
        *,
        identity: Identity | None = None,
        roster: Roster | None = None,
        observer: Observer | None = None,
    ) -> None:
        """See the class."""
        super().__init__(
            directory, participation, identity=identity, roster=roster, observer=observer
        )
        self._own, self._bounds = own, bounds
        self._answers = Answers(self._exchange, self.roster, self.observer, bounds)
        self._library = Library(directory.parent / "knowledge")

    def keep(self, residual: Residual) -> Residual | None:
        """Nothing is averaged, so nothing is left over."""
        return None

    # -- sending -------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw nodes, and send them public examples with the best that is known of them."""
        nodes = self.participation.gather(grid, self.roster)
        drawn = self.participation.draw(nodes, server_round, self._attempt)
        self._started = time.monotonic()
        self.observer.round_started(server_round, list(drawn.values()))
        study, following = self._own.batch(server_round), self._own.batch(server_round + 1)
        content = self._content(server_round, study, following, self._best(study), config)
        return self._messages(MessageType.TRAIN, drawn, content)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Tell every node that the run is over: an empty lesson."""
        content = self._content(server_round, (), (), (), config)
        return self._messages(MessageType.EVALUATE, self.roster.names(grid), content)

    def _content(
        self,
        round: int,
        study: Sequence[str],
        following: Sequence[str],
        sources: Sequence[Knowledge],
        config: ConfigRecord,
    ) -> RecordDict:
        record = self.heads.record()
        lesson = Lesson(
            run=record.run,
            round=round,
            head=record.digest,
            origin=self.heads.record(0).digest,
            task=self.identity.task,
            study=study,
            next=following,
        )
        return lesson_content(lesson, sources, config, self.identity.key)

    def _messages(
        self, kind: str, nodes: Mapping[int, str], content: RecordDict
    ) -> Sequence[Message]:
        self._exchange.asked = dict(nodes)
        self._exchange.bytes_down = dict.fromkeys(nodes, content_bytes(content))
        group = str(self.heads.record().round)
        return [Message(content, one, kind, ttl=self._timeout, group_id=group) for one in nodes]

    def _best(self, study: Sequence[str]) -> list[Knowledge]:
        """The best that was known of the examples when the last round ended, by source."""
        record = self.heads.record()
        if record.round == 0:  # nobody was asked yet
            return [self._own.predict(self.heads.adapter(0), study)]
        known = {
            name: self._library.read(one.digest, self._bounds)
            for name, one in record.proceedings.admitted.items()
        }
        return [known[name].subset(own) for name, own in sorted(lowest_loss(known).items())]

    # -- receiving -----------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Admit answers one by one, learn from the best of them, and commit."""
        record = self.heads.record()
        following = self._own.batch(server_round + 1)
        own = self._own.predict(self.heads.adapter(record.round), following)
        answered, refused = self._answers.taken(server_round, record, replies, own)
        for name, reason in refused.items():
            self.observer.refused(server_round, name, reason)
        self._reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        if len(answered) < self.participation.min_nodes:
            self.observer.round_failed(server_round, self._attempt, self._reasons)
            return None, None
        report = self._commit(record, own, answered, refused, following)
        self.observer.round_done(report)
        return pack(self.heads.adapter(server_round)), MetricRecord(dict(report.metrics))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Hear the nodes out; there is nothing in what they say."""
        for reply in replies:
            if reply.has_error():
                name = self._exchange.asked.get(self._exchange.sender(reply), "a node")
                self.observer.refused(server_round, name, reply.error.reason or "no reason given")
        return None

    def _commit(
        self,
        record: HeadRecord,
        own: Knowledge,
        answered: Mapping[str, Answered],
        refused: Mapping[str, str],
        following: Sequence[str],
    ) -> RoundReport:
        """Pick the best, let the coordinator's model learn from the nodes, and commit."""
        known = {OWN: own} | {name: one.knowledge for name, one in sorted(answered.items())}
        best = lowest_loss(known)
        sources = [known[name].subset(best[name]) for name in sorted(best.keys() - {OWN})]
        adapter = self.heads.adapter(record.round)
        learned = self._own.study(adapter, record.round + 1, following, sources)
        total = sum(map(len, best.values()))
        shares = {name: len(best.get(name, ())) / total for name in known}
        parts = {
            name: AdmittedUpdate(len(one.samples), shares[name], self._library.keep(one), 0.0, "")
            for name, one in known.items()
        }
        losses = [known[name].loss_of()[one] for name, picks in best.items() for one in picks]
        metrics = {"public_loss": sum(losses) / total, "own_loss": float(own.losses.mean())}
        proceedings = Proceedings(
            self.identity.recipe,
            self._attempt,
            tuple(self._exchange.asked.values()),
            parts,
            refused,
            metrics=metrics,
        )
        made = self.heads.commit(record.run, record.base, learned, {}, proceedings)
        self._library.clear({one.digest for one in parts.values()})
        return RoundReport(
            round=made.round,
            head=made.hash,
            receipt=Receipt({}),
            nodes={
                name: replace(one.report, weight=shares[name]) for name, one in answered.items()
            },
            refused=refused,
            metrics=metrics,
            residual_bytes=0,
            seconds=time.monotonic() - self._started,
        )
