"""Taking replies in: each is opened, checked and admitted alone, and each refusal has a reason."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message

from fedlora.adapters import Adapter, AdapterError, IdentityError, WireError, change_norm
from fedlora.adapters.mean import Missing
from fedlora.protos import Evaluation, Update

from .admission import admit, outliers
from .exchange import Exchange
from .heads import HeadStore
from .messages import open_evaluation, open_update
from .observer import NodeReport, Observer
from .packing import content_bytes
from .participation import Roster


@dataclass(frozen=True)
class Admitted:
    """An update that enters the mean.

    Attributes:
        update: the node's message.
        adapter: read from disk module by module.
        norm: of the change that it makes to the model.
        report: for the observer; its weight is not known yet.
    """

    update: Update
    adapter: Adapter
    norm: float
    report: NodeReport

    @property
    def name(self) -> str:
        """Of the node."""
        return self.update.node


@dataclass(frozen=True)
class Intake:
    """Checks what comes back from the nodes that an exchange has asked."""

    heads: HeadStore
    exchange: Exchange
    roster: Roster
    observer: Observer
    missing: Missing
    max_norm_ratio: float

    def updates(
        self, round: int, replies: Iterable[Message], spool: Path
    ) -> tuple[list[Admitted], dict[str, str]]:
        """The updates to average, in order of the nodes' names, and why others aren't among them.

        Args:
            round: that is trained.
            replies: as they come.
            spool: folder for the updates.
        """
        admitted: dict[str, Admitted] = {}
        refused: dict[str, str] = {}
        silent = dict(self.exchange.asked)
        for reply in replies:
            node_id = self.exchange.sender(reply)
            name = silent.pop(node_id, str(node_id))
            try:
                one = self._admitted(reply, node_id, admitted, spool)
            except (WireError, AdapterError, IdentityError) as error:
                refused[name] = str(error)
                self._failed(node_id, gone=reply.has_error())
                continue
            admitted[one.name] = one
            self.exchange.settle(node_id, holds_head=True)
            self.observer.replied(round, one.name, one.report)
        for node_id, name in silent.items():
            refused[name] = "no reply within the deadline"
            self._failed(node_id, gone=True)
        norms = {name: one.norm for name, one in admitted.items()}
        refused |= outliers(norms, self.max_norm_ratio)
        return [one for name, one in sorted(admitted.items()) if name not in refused], refused

    def evaluations(self, round: int, replies: Iterable[Message]) -> dict[str, NodeReport]:
        """What the nodes measured, by name; refusals go to the observer."""
        reports: dict[str, NodeReport] = {}
        for reply in replies:
            node_id = self.exchange.sender(reply)
            name = self.exchange.asked.get(node_id, str(node_id))
            try:
                _raise_error_of(reply)
                made = open_evaluation(reply, self.roster.key(node_id))
                self._require_asked(node_id, made.node)
                if made.head != self.heads.record().hash:
                    raise WireError(f"the evaluation is of the head {made.head[:12]}")
            except (WireError, IdentityError) as error:
                self.observer.refused(round, name, str(error))
                continue
            reports[name] = self._report(reply, node_id, made)
        return reports

    def _admitted(
        self, reply: Message, node_id: int, already: Mapping[str, Admitted], spool: Path
    ) -> Admitted:
        """The update in a reply.

        Raises:
            WireError: with the reason of its refusal; likewise AdapterError and IdentityError.
        """
        _raise_error_of(reply)
        update, payload = open_update(reply, self.roster.key(node_id))
        self._require_asked(node_id, update.node)
        head = self.heads.record()
        adapter = self.heads.adapter(head.round)
        examples = self.roster.examples(node_id)
        received = admit(
            update,
            payload,
            head,
            adapter,
            already.keys(),
            self.missing,
            spool,
            examples,
            self.exchange.modules_asked(node_id),
        )
        report = self._report(reply, node_id, update)
        return Admitted(update, received, change_norm(received, adapter, self.missing), report)

    def _report(self, reply: Message, node_id: int, made: Update | Evaluation) -> NodeReport:
        down = self.exchange.bytes_down.get(node_id, 0)
        return NodeReport(0.0, dict(made.metrics), content_bytes(reply.content), down)

    def _require_asked(self, node_id: int, name: str) -> None:
        if not self.roster.is_called(node_id, name):
            raise WireError(f"the reply is in the name of {name}")

    def _failed(self, node_id: int, gone: bool) -> None:
        """A node that is gone says what it holds when it comes back; of others nobody knows."""
        if gone:
            self.exchange.forget(node_id)
            self.roster.lost(node_id)
        else:
            self.exchange.settle(node_id, holds_head=False)


def _raise_error_of(reply: Message) -> None:
    if reply.has_error():
        raise WireError(reply.error.reason or f"error code {reply.error.code}")
