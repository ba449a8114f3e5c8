"""Requests to a hub that nobody would write, and what may come of them."""

from pathlib import Path
from random import Random

import grpc
from google.protobuf.message import Message
from hypothesis import strategies as st

from fedlora.protos.hub_pb2 import (
    FORM_MERGED,
    DescribeRequest,
    Held,
    Offer,
    PullReply,
    PullRequest,
    WatchRequest,
)
from fedlora.server.rundir import RunDirectory

SERVICE = "/fedlora.v1.Hub/"
# A crash of the service would be UNKNOWN or INTERNAL.
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,  # of a watch, which has no end
}
_DEADLINE = 20.0  # seconds; a watch is left after its first message

_numbers = st.sampled_from([None, None, 0, 0, 1, 1, 2, 2**32 - 1])
_runs = st.sampled_from([*[""] * 12, "tiny", "../../etc/passwd", "/", "tiny\0"])


def pulls(digests: list[bytes]) -> st.SearchStrategy[PullRequest]:
    """Pulls with any numbers, of which some name files that there are."""
    named = st.sampled_from(digests) | st.binary(min_size=32, max_size=33)
    held = st.builds(
        lambda digest, size: Held(digest=digest, size=size),
        named,
        st.integers(0, 5000) | st.integers(0, 2**64 - 1),
    )
    return st.builds(
        lambda run, form, round, since, held: PullRequest(
            run=run, form=form, round=round, since=since, held=held
        ),
        _runs,
        st.sampled_from([*range(4)] * 4 + [-1, 7, 2**31 - 1]),
        _numbers,
        _numbers,
        st.lists(held, max_size=20),
    )


def calls(digests: list[bytes]) -> st.SearchStrategy[tuple[str, bytes]]:
    """A method and the bytes of a request: sound, altered, another method's, or none at all."""
    by_method: dict[str, st.SearchStrategy[Message]] = {
        "Pull": pulls(digests),
        "Watch": st.builds(lambda run, after: WatchRequest(run=run, after=after), _runs, _numbers),
        "Describe": st.builds(lambda run: DescribeRequest(run=run), _runs),
    }
    sound = {name: one.map(lambda it: it.SerializeToString()) for name, one in by_method.items()}
    any_sound = st.one_of(*sound.values())
    methods = st.sampled_from([*sound, "Push", "../Pull"])
    return st.one_of(
        *(st.tuples(st.just(name), sound[name]) for name in ("Pull", "Pull", "Watch", "Describe")),
        st.tuples(st.just("Pull"), st.builds(_altered, sound["Pull"], st.randoms())),
        st.tuples(methods, any_sound | st.binary(max_size=2000)),
    )


def _altered(content: bytes, random: Random) -> bytes:
    altered = bytearray(content or b"\0")
    for _ in range(3):
        altered[random.randrange(len(altered))] = random.randrange(256)
    return bytes(altered)


def exchange(channel: grpc.Channel, run: RunDirectory, method: str, content: bytes) -> None:
    """Send a request; what comes must be an expected status, and bytes of the run's own files."""
    call = channel.unary_stream(SERVICE + method)(content, timeout=_DEADLINE)
    offer: Offer | None = None
    try:
        for message in call:
            if method == "Watch":
                call.cancel()
                return
            if method == "Pull":
                reply = PullReply.FromString(message)
                if reply.HasField("offer"):
                    offer = Offer.FromString(reply.offer.offer)
                elif reply.HasField("piece"):
                    assert offer is not None
                    _compare(run, offer, reply)
    except grpc.RpcError as error:
        if error.code() not in EXPECTED:
            raise


def _compare(run: RunDirectory, offer: Offer, reply: PullReply) -> None:
    piece, name = reply.piece, offer.files[reply.piece.file].name
    made = sorted((run.path / "hub").glob("*/files"))
    roots = made if offer.form == FORM_MERGED or "snapshot" in name else [run.path]
    places = [root / Path(name).name if root != run.path else root / name for root in roots]
    end = piece.offset + len(piece.content)
    contents = [place.read_bytes()[piece.offset : end] for place in places if place.exists()]
    assert piece.content in contents, name
