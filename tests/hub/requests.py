"""Requests to a hub that nobody would write, and what may come of them."""

from pathlib import Path
from random import Random

import grpc
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

_numbers = st.one_of(st.none(), st.integers(0, 5), st.integers(0, 2**32 - 1))
_runs = st.sampled_from(["", "", "", "tiny", "../../etc/passwd", "/", "tiny\0"]) | st.text()


def pulls(digests: list[bytes]) -> st.SearchStrategy[PullRequest]:
    """Pulls with any numbers, of which some name files that there are."""
    named = st.sampled_from(digests) | st.binary(max_size=40)
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
        st.integers(0, 3) | st.integers(-(2**31), 2**31 - 1),
        _numbers,
        _numbers,
        st.lists(held, max_size=20),
    )


def calls(digests: list[bytes]) -> st.SearchStrategy[tuple[str, bytes]]:
    """A method and the bytes of a request: sound, altered, another method's, or none at all."""
    requests = st.one_of(
        pulls(digests),
        st.builds(lambda run, after: WatchRequest(run=run, after=after), _runs, _numbers),
        st.builds(lambda run: DescribeRequest(run=run), _runs),
    ).map(lambda request: request.SerializeToString())
    methods = st.sampled_from(["Pull", "Pull", "Pull", "Describe", "Watch", "Push", "../Pull"])
    contents = requests | st.binary(max_size=2000) | st.builds(_altered, requests, st.randoms())
    return st.tuples(methods, contents)


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
