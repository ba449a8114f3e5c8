"""Throws altered and random bytes at everything that opens what a stranger sent.

    python tests/fuzz/decoder.py [--minutes 10]

Only the errors that refuse a message may come out, and memory must not grow. Prints a summary as
JSON; exit code 1 if anything else came out.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

import psutil
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedlora.adapters import Adapter, AdapterError, Factors, IdentityError, WireError
from fedlora.protos import Head, Manifest, SigningKey, Update, decode, describe, encode
from fedlora.strategies import open_head
from fedlora.strategies.messages import open_introduction, open_update
from fedlora.strategies.packing import SEALED, TENSORS, arrays, pack, unpack
from fedlora.strategies.payloads import adapter_tensors
from fedlora.strategies.records import HeadRecord

REFUSALS = (WireError, AdapterError, IdentityError)
ADAPTER = Adapter({"q": Factors(torch.ones(4, 2), torch.ones(2, 3), 1.0)}, {"s": torch.ones(3)})


def altered(draw: random.Random, content: bytes) -> bytes:
    """Bits flipped, parts cut, doubled, exchanged or random."""
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        at = draw.randrange(len(made) + 1)
        kind = draw.randrange(5)
        if kind == 0 and made:
            made[at % len(made)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del made[at : at + draw.randrange(64)]
        elif kind == 2:
            made[at:at] = made[at : at + draw.randrange(64)]
        elif kind == 3:
            made[at : at + 8] = draw.randbytes(8)
        else:
            made[at:at] = draw.randbytes(draw.randrange(32))
    return bytes(made)


def message(kind: str, body: bytes, payload: bytes, signature: bytes = b"") -> Message:
    content = RecordDict(
        {
            SEALED: ConfigRecord({kind: body, "signature": signature}),
            TENSORS: arrays({"adapter": payload}),
        }
    )
    return Message(content, 1, MessageType.TRAIN)


def targets(draw: random.Random) -> list[Callable[[], object]]:
    payload = encode(adapter_tensors(ADAPTER))
    manifest = describe(payload)
    head = Head(run="r", base="b", adapter=manifest).SerializeToString()
    update = Update(run="r", node="n", examples=3, adapter=manifest).SerializeToString()
    record = HeadRecord("r", 0, "b", "a").to_json()
    key = SigningKey.generate()
    signed = key.sign("update", update)

    def bad(content: bytes) -> bytes:
        return altered(draw, content)

    def lying() -> object:
        content = bad(payload)
        claimed = Manifest()
        claimed.CopyFrom(manifest)
        claimed.size = len(content)
        claimed.digest = describe(payload).digest if draw.random() < 0.5 else _sha(content)
        return dict(decode(content, claimed))

    return [
        lambda: decode(bad(payload), manifest),
        lying,
        lambda: unpack(arrays({"adapter": bad(payload)})),
        lambda: open_head(message("head", bad(head), payload)).adapter,
        lambda: open_update(message("update", bad(update), bad(payload))),
        lambda: open_update(message("update", update, payload, bad(signed)), key.verifying),
        lambda: open_introduction(message("introduction", draw.randbytes(40), payload)),
        lambda: _record(bad(record)),
        lambda: pack(ADAPTER),
    ]


def _record(content: bytes) -> HeadRecord:
    try:
        return HeadRecord.from_json(content)
    except ValueError as error:  # what it promises
        raise WireError(str(error)) from None


def _sha(content: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(content).digest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    draw = random.Random(options.seed)
    calls, memory = targets(draw), psutil.Process()
    outcomes: Counter[str] = Counter()
    escaped: list[str] = []
    begun, warm = time.monotonic(), 0.0
    while time.monotonic() < begun + 60 * options.minutes:
        try:
            draw.choice(calls)()
            outcomes["opened"] += 1
        except REFUSALS as error:
            outcomes[type(error).__name__] += 1
        except Exception as error:
            escaped.append(repr(error))
        if not warm and time.monotonic() > begun + 6 * options.minutes:
            warm = memory.memory_info().rss / 1e6
    grown = memory.memory_info().rss / 1e6 - warm
    summary = {"calls": outcomes.total(), "outcomes": outcomes, "escaped": escaped[:5]}
    print(json.dumps({**summary, "warm_mb": warm, "grown_mb": grown}))
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
