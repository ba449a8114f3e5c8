"""Whether a hub's offer is what was asked for, whole, and made of nothing but what may be written.

Names come from the hub, so they are compared with the few that there can be; code and pickles have
none.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from fedlora.adapters import WireError
from fedlora.protos.envelope import VerifyingKey
from fedlora.protos.hub_pb2 import (
    FORM_CHEAPEST,
    FORM_MERGED,
    Offer,
    OfferedFile,
    PullRequest,
    SignedOffer,
)
from fedlora.strategies.records import HeadRecord

LEDGER_FILE = re.compile(
    r"ledger/(\d{4,9})/(record\.json|(?:adapter|residual|snapshot-[0-9a-f]{64})\.safetensors)"
)
MODEL_FILE = re.compile(
    r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*\.(?:json|safetensors|txt|jinja|model)"
)
_SHA256 = 32  # bytes


@dataclass(frozen=True)
class CheckedOffer:
    """An offer that makes sense.

    Attributes:
        proto: as it came.
        record: of the head.
        files: by digest in hex, those that are alike once.
    """

    proto: Offer
    record: HeadRecord
    files: dict[str, OfferedFile]

    @property
    def merged(self) -> bool:
        """Whether it is a model folder, and no ledger."""
        return self.proto.form == FORM_MERGED


def checked_offer(
    signed: SignedOffer, asked: PullRequest, trusted: VerifyingKey | None
) -> CheckedOffer:
    """Open an offer.

    Args:
        signed: as it came.
        asked: what it answers.
        trusted: the coordinator's key; None to look at no signature.

    Raises:
        IdentityError: if the coordinator did not sign it.
        WireError: if it is not what was asked for, or no head can be made of it.
    """
    if trusted is not None:
        trusted.check("offer", signed.offer, signed.signature)
    try:
        offer = Offer.FromString(signed.offer)
        record = HeadRecord.from_json(offer.record)
    except (DecodeError, ValueError) as error:
        raise WireError(f"the hub's offer can't be read: {error}") from None
    if (record.run, record.round, record.hash) != (offer.run, offer.round, offer.head):
        raise WireError(f"the hub's offer of round {offer.round} is not what its record says")
    if asked.HasField("round") and asked.round != offer.round:
        raise WireError(f"round {asked.round} was asked for, and {offer.round} offered")
    if asked.form not in (FORM_CHEAPEST, offer.form):
        raise WireError("the model is offered in another form than was asked for")
    _check_names(offer)
    if offer.form != FORM_MERGED:
        _check_ledger(offer, record)
    return CheckedOffer(offer, record, {one.digest.hex(): one for one in offer.files})


def _check_names(offer: Offer) -> None:
    allowed, names = MODEL_FILE if offer.form == FORM_MERGED else LEDGER_FILE, set()
    sizes: dict[bytes, int] = {}
    for file in offer.files:
        if not allowed.fullmatch(file.name):
            raise WireError(f"the hub offers {file.name[:80]!r}, which is no file of a model")
        if file.name in names or len(file.digest) != _SHA256:
            raise WireError(f"the hub offers {file.name} twice, or without a SHA-256")
        if sizes.setdefault(file.digest, file.size) != file.size:
            raise WireError(f"the hub offers {file.name} with two sizes")
        names.add(file.name)


def _check_ledger(offer: Offer, record: HeadRecord) -> None:
    """The files must be the parts that the head's hash is made of."""
    digests = {file.name: file.digest.hex() for file in offer.files}
    folder = f"ledger/{record.round:04d}"
    if digests.get(f"{folder}/adapter.safetensors") != record.adapter:
        raise WireError("the hub offers another adapter than the head's")
    if digests.get(f"{folder}/record.json") != hashlib.sha256(offer.record).hexdigest():
        raise WireError("the hub offers another record than the head's")
    residuals = _in_order([name for name in digests if name.endswith("residual.safetensors")])
    later = [digests[name] for name in residuals]
    skipped = len(record.history) - len(later) if offer.HasField("since") else offer.covers
    if later != list(record.history[max(0, skipped) :]):
        raise WireError("the residuals that the hub offers are not those of the head")
    if offer.covers and not any("/snapshot-" in name for name in digests):
        raise WireError("the hub offers a head without the residuals that it begins with")


def _in_order(names: Sequence[str]) -> list[str]:
    """By round; there may be more than four digits."""
    return sorted(names, key=lambda name: int(name.split("/")[1]))
