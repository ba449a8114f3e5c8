"""What the ledger says of a round: the head it made, and how it came to it.

Records are chained: each names the SHA-256 of the one before, so that none can be altered or taken
out unseen.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class AdmittedUpdate:
    """One node's part in a round.

    Attributes:
        examples: it trained on.
        weight: its share of the mean.
        digest: SHA-256 of its adapter's payload, in hex.
        norm: Frobenius norm of the change that it made to the model, over all modules.
        folded: what the node says its frozen weights were; see `fedlora.models.tuned`.
    """

    examples: int
    weight: float
    digest: str
    norm: float
    folded: str


@dataclass(frozen=True)
class Proceedings:
    """How a round came to its head. Enters the chain, but not the head's hash.

    Attributes:
        recipe: fingerprint of what was asked for.
        attempt: from 0; more if the round had to be tried again.
        sampled: names of the nodes that were asked.
        admitted: by name.
        refused: reason by name, for updates that weren't admitted or didn't come.
        receipt: aggregation error by module.
        metrics: weighted means over the nodes.
    """

    recipe: str = ""
    attempt: int = 0
    sampled: tuple[str, ...] = ()
    admitted: Mapping[str, AdmittedUpdate] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    receipt: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def worst_receipt(self) -> float:
        """The largest aggregation error of any module; 0 for none."""
        return max(self.receipt.values(), default=0.0)


@dataclass(frozen=True)
class HeadRecord:
    """A round's record.

    Attributes:
        run: name of the run.
        round: 0 before any training.
        base: fingerprint of the frozen pretrained weights.
        adapter: SHA-256 of the adapter's payload, in hex.
        history: SHA-256 of every residual folded so far, in hex, oldest first.
        parent: `digest` of the record before; empty in round 0.
        proceedings: how the round came to this head.
    """

    run: str
    round: int
    base: str
    adapter: str
    history: tuple[str, ...] = ()
    parent: str = ""
    proceedings: Proceedings = Proceedings()

    @property
    def hash(self) -> str:
        """SHA-256 over base, history and adapter, in hex; run and round don't enter."""
        return head_hash(self.base, self.history, self.adapter)

    @property
    def digest(self) -> str:
        """SHA-256 over all that the record says, in hex."""
        return hashlib.sha256(_json({"hash": self.hash, **asdict(self)})).hexdigest()

    def to_json(self) -> bytes:
        """The record's bytes; the same record gives the same bytes."""
        return _json({"digest": self.digest, "hash": self.hash, **asdict(self)})

    @classmethod
    def from_json(cls, content: bytes) -> "HeadRecord":
        """The record that `to_json` wrote.

        Raises:
            ValueError: if the bytes are not a record's, to the last byte.
        """
        try:
            fields: dict[str, Any] = json.loads(content)
            del fields["digest"], fields["hash"]
            how = fields.pop("proceedings")
            how["sampled"] = tuple(how["sampled"])
            how["admitted"] = {
                name: AdmittedUpdate(**update) for name, update in how["admitted"].items()
            }
            fields["history"] = tuple(fields["history"])
            record = cls(**fields, proceedings=Proceedings(**how))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a round's record: {error}") from None
        if record.to_json() != content:
            raise ValueError("not as it was written")
        return record


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, indent=1, sort_keys=True).encode()


def head_hash(base: str, history: Sequence[str], adapter: str) -> str:
    """The hash of a head, from the hex digests of its parts."""
    parts = json.dumps({"adapter": adapter, "base": base, "history": list(history)})
    return hashlib.sha256(parts.encode()).hexdigest()
