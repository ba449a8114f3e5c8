"""Takes a head from a hub into a folder: only what is missing there, and every byte checked."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedlora.adapters import WireError
from fedlora.protos.envelope import VerifyingKey
from fedlora.protos.hub_pb2 import Form, Held, Piece, PullReply, PullRequest

from .hub import Hub
from .offers import CheckedOffer, checked_offer
from .pullfolder import PullFolder
from .settling import Settler

_MOST = 20_000  # files that a request may say are held

Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Pulled:
    """What a pull has brought.

    Attributes:
        folder: where it is.
        run: name of the run.
        round: of the head.
        head: its hash.
        form: "log", "snapshot" or "merged".
        size: bytes of all its files.
        received: bytes of them that had to be sent.
    """

    folder: Path
    run: str
    round: int
    head: str
    form: str
    size: int
    received: int


def pull(
    hub: Hub,
    folder: Path,
    round: int | None = None,
    form: str = "cheapest",
    since: int | None = None,
    model: str | None = None,
    told: Told = lambda received, missing: None,
) -> Pulled:
    """Take a head. What a broken pull has left is gone on with.

    Args:
        hub: whom to ask.
        folder: new, or of an earlier pull.
        round: whose head; the latest if not given.
        form: "log", "snapshot", "merged" (a model folder), or "cheapest" of the first two.
        since: with "log", a round whose residuals are elsewhere, and not to be sent.
        model: where this machine has the base model, if not where the recipe says.
        told: how many bytes have come, and are missing, after each piece.

    Raises:
        FedloraError: of the class that the hub refused with.
        IdentityError: if the offer is not the coordinator's.
        WireError: if what comes is not what was offered, or not a head.
        RunError: if the folder holds something else, or has no room.
        EngineError: if the hub doesn't answer.
    """
    asked = PullRequest(form=f"FORM_{form.upper()}", round=round, since=since)
    with PullFolder.locked(folder.absolute()) as place:
        if form == "cheapest" and since is None and (whole := place.whole_round(round)) is not None:
            asked.since = whole  # also where the hub has dropped the snapshot that is here
        receiver = _Receiver(place, asked, hub.trusted, model, told)
        with closing(hub.pull(receiver.request)) as replies:
            for reply in replies:
                receiver.take(reply)
        return receiver.finish(folder)


class _Receiver:
    """Puts the replies to one pull together."""

    def __init__(
        self,
        place: PullFolder,
        asked: PullRequest,
        trusted: VerifyingKey | None,
        model: str | None,
        told: Told,
    ) -> None:
        self._place, self._asked, self._trusted = place, asked, trusted
        self._model, self._told = model, told
        self._offer: CheckedOffer | None = None
        self._missing: list[str] = []  # digests, in the order in which they will come
        self._left = self._received = 0

    def request(self) -> PullRequest:
        """What to ask for now."""
        request = PullRequest()
        request.CopyFrom(self._asked)
        for digest, size in list(self._place.held().items())[:_MOST]:
            request.held.append(Held(digest=bytes.fromhex(digest), size=size))
        return request

    def take(self, reply: PullReply) -> None:
        """The next reply; raises as `pull`."""
        if reply.HasField("offer"):
            self._open(checked_offer(reply.offer, self._asked, self._trusted))
        elif reply.HasField("piece"):
            self._add(reply.piece)

    def finish(self, folder: Path) -> Pulled:
        """Let everything take its place; raises as `pull`."""
        if self._offer is None or self._missing:
            raise WireError(f"the hub ended before it had sent {len(self._missing)} file(s)")
        settler, offer = Settler(self._place, self._offer), self._offer.proto
        if self._offer.merged:
            settler.merged()
        else:
            settler.ledger(self._place.agreed(offer.recipe, self._model))
        size = sum(file.size for file in offer.files)
        form = Form.Name(offer.form).removeprefix("FORM_").lower()
        return Pulled(folder, offer.run, offer.round, offer.head, form, size, self._received)

    def _open(self, offer: CheckedOffer) -> None:
        self._place.expect(offer)
        if not offer.merged:
            self._place.agreed(offer.proto.recipe, self._model)
        self._offer, self._asked.round = offer, offer.proto.round  # and no other, if asked again
        held, self._missing, self._left = self._place.held(), [], 0
        for digest, file in offer.files.items():
            there = held.get(digest, 0)
            if there < file.size:
                self._missing.append(digest)
                self._left += file.size - there
            elif not self._place.whole(digest):  # empty, or never checked
                self._place.parts.add(digest, there, b"", file.size)
        self._told(self._received, self._left)

    def _add(self, piece: Piece) -> None:
        if self._offer is None or piece.file >= len(self._offer.proto.files):
            raise WireError("the hub sent a piece of a file that it had not offered")
        digest = self._offer.proto.files[piece.file].digest.hex()
        if not self._missing or digest != self._missing[0]:
            raise WireError(f"the hub sent a piece of {digest[:12]} out of turn")
        size = self._offer.files[digest].size
        if self._place.parts.add(digest, piece.offset, piece.content, size):
            self._missing.pop(0)
        self._received += len(piece.content)
        self._left -= len(piece.content)
        self._told(self._received, self._left)
