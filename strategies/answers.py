"""Taking answers of a cross-model round in: each is checked alone; a refusal has its reason."""

from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message

from fedlora.adapters import IdentityError, WireError
from fedlora.models.alignment import matches
from fedlora.models.knowledge import Knowledge

from .exchange import Exchange
from .knowledge import Bounds, read_knowledge
from .lessons import open_answer
from .observer import NodeReport, Observer
from .packing import content_bytes
from .participation import Roster
from .records import HeadRecord

SLACK = 16  # bytes that a text may be longer anyway, by a first token or a line break
SAME = 0.8  # of the shorter text


@dataclass(frozen=True)
class Answered:
    """What a node knows, and its report; whether that was best is not known yet."""

    knowledge: Knowledge
    report: NodeReport


@dataclass(frozen=True)
class Answers:
    """Checks what comes back from the nodes that were asked."""

    exchange: Exchange
    roster: Roster
    observer: Observer
    bounds: Bounds

    def taken(
        self, round: int, record: HeadRecord, replies: Iterable[Message], own: Knowledge
    ) -> tuple[dict[str, Answered], dict[str, str]]:
        """Answers by name, and why others aren't among them.

        Args:
            round: that is played.
            record: of the round before.
            replies: as they come.
            own: what the coordinator's model knows of the same examples.
        """
        answered: dict[str, Answered] = {}
        refused: dict[str, str] = {}
        silent = dict(self.exchange.asked)
        for reply in replies:
            node_id = self.exchange.sender(reply)
            name = silent.pop(node_id, str(node_id))
            try:
                answered[name] = self._admitted(reply, node_id, round, record, own)
            except (WireError, IdentityError) as error:
                refused[name] = str(error)
                if reply.has_error():
                    self.roster.lost(node_id)
                continue
            self.observer.replied(round, name, answered[name].report)
        for node_id, name in silent.items():
            refused[name] = "no reply within the deadline"
            self.roster.lost(node_id)
        return answered, refused

    def _admitted(
        self, reply: Message, node_id: int, round: int, record: HeadRecord, own: Knowledge
    ) -> Answered:
        """The answer in a reply.

        Raises:
            WireError: with the reason of its refusal; likewise IdentityError.
        """
        if reply.has_error():
            raise WireError(reply.error.reason or f"error code {reply.error.code}")
        answer, content = open_answer(reply, self.roster.key(node_id))
        if not self.roster.is_called(node_id, answer.node):
            raise WireError(f"the reply is in the name of {answer.node}")
        expected = (record.run, round, record.digest)
        found = (answer.run, answer.round, answer.head)
        for name, want, got in zip(("run", "round", "head"), expected, found, strict=True):
            if want != got:
                raise WireError(f"the answer is for {name} {got}, expected {want}")
        knowledge = read_knowledge(content, answer.knowledge, self.bounds)
        check_texts(knowledge, own)
        mean = {"public_loss": float(knowledge.losses.mean())}
        down = self.exchange.bytes_down.get(node_id, 0)
        return Answered(knowledge, NodeReport(0.0, mean, content_bytes(reply.content), down))


def check_texts(knowledge: Knowledge, own: Knowledge) -> None:
    """Refuse knowledge of another text than the examples'.

    Losses are per byte and of the labels that the node names, so both decide who is followed. Twice
    the coordinator's own count leaves room for other templates and cuts; most of the shorter text
    must stand in the longer.

    Raises:
        WireError: naming the example.
    """
    mine = own.texts()
    for sample, said in knowledge.texts().items():
        text = mine.get(sample, said)
        if len(said) > 2 * len(text) + SLACK:
            raise WireError(
                f"knowledge of example {sample} covers {len(said)} bytes of text, which has "
                f"{len(text)}"
            )
        common = sum(place >= 0 for place in matches(said, text))
        if common < SAME * min(len(said), len(text)):
            raise WireError(f"knowledge of example {sample} is of another text than that was sent")
