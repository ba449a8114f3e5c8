"""No wrong byte is taken: not from a bad disk, a line that alters, nor a hub that lies."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedlora.adapters import FedloraError, IdentityError, RunError, WireError
from fedlora.client.hub import Hub
from fedlora.client.pulling import pull
from fedlora.protos.clientkeys import ClientKeys
from fedlora.protos.envelope import SigningKey
from fedlora.protos.hub_pb2 import Offer, PullReply, PullRequest
from fedlora.protos.hub_pb2_grpc import HubServicer, add_HubServicer_to_server
from fedlora.protos.keys import CoordinatorKeys
from fedlora.server.hub import HubService
from fedlora.server.rundir import RunDirectory
from fedlora.strategies import Proceedings

from .conftest import hosted, in_thread

Alter = Callable[[PullReply], PullReply | None]


class LyingHub(HubServicer):  # type: ignore[misc]
    """A real hub whose replies to pulls are altered on their way."""

    def __init__(self, run: RunDirectory, alter: Alter) -> None:
        self._hub, self._alter = HubService(run), alter

    async def Pull(self, request: PullRequest, context: Any) -> AsyncIterator[PullReply]:
        async for reply in self._hub.Pull(request, context):
            altered = self._alter(reply)
            if altered is not None:
                yield altered


@contextmanager
def lying(run: RunDirectory, alter: Alter) -> Iterator[Hub]:
    ready: Future[int] = Future()

    async def serve() -> None:
        server = grpc.aio.server()
        add_HubServicer_to_server(LyingHub(run, alter), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready.set_result(port)
        try:
            await server.wait_for_termination()
        finally:
            await server.stop(0)

    with in_thread(serve()), Hub(f"127.0.0.1:{ready.result(20)}") as hub:
        yield hub


def placed(folder: Path) -> list[str]:
    """Files that were taken for good."""
    return [path.name for path in folder.rglob("*") if path.is_file() and ".pull" not in str(path)]


@pytest.mark.parametrize("name", ["adapter.safetensors", "residual.safetensors", "record.json"])
def test_a_flipped_bit_on_the_hubs_disk_is_refused_by_the_hub(
    tiny_run: RunDirectory, tmp_path: Path, name: str
) -> None:
    run = RunDirectory.open(shutil.copytree(tiny_run.path, tmp_path / "run"))
    path = run.heads.folder(3) / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with hosted(run) as address, Hub(address) as hub:
        with pytest.raises(RunError, match=r"altered on the hub's disk; tell its operator"):
            pull(hub, tmp_path / "pulled", 3, "log")
        assert not placed(tmp_path / "pulled")
        pull(hub, tmp_path / "pulled", 2, "log")  # the rounds before are as they were


def test_a_byte_that_is_altered_on_its_way_is_refused(
    tiny_run: RunDirectory, tmp_path: Path
) -> None:
    sent: list[int] = []

    def alter(reply: PullReply) -> PullReply:
        if reply.HasField("piece"):
            sent.append(len(reply.piece.content))
        if len(sent) == 2:
            reply.piece.content = reply.piece.content[:-1] + b"!"
            sent.append(0)
        return reply

    with lying(tiny_run, alter) as hub:
        with pytest.raises(WireError, match="altered on its way: its SHA-256 is not"):
            pull(hub, tmp_path / "pulled", form="log")
        assert not placed(tmp_path / "pulled")
        first = sent[0]
        again = pull(hub, tmp_path / "pulled", form="log")
        assert again.received == again.size - first  # what was sound before it is kept


def shift(reply: PullReply) -> PullReply:
    reply.piece.offset += 1
    return reply


def lengthen(reply: PullReply) -> PullReply:
    reply.piece.content += b"more" * 100_000
    return reply


def other_file(reply: PullReply) -> PullReply:
    reply.piece.file += 1
    return reply


def no_file(reply: PullReply) -> PullReply:
    reply.piece.file = 10_000
    return reply


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (shift, "where byte 0 was to come next"),
        (lengthen, "of a file of"),
        (other_file, "out of turn"),
        (no_file, "had not offered"),
        (lambda reply: None, r"ended before it had sent \d+ file"),
    ],
    ids=["offset", "length", "order", "index", "missing"],
)
def test_pieces_that_are_not_what_was_offered(
    tiny_run: RunDirectory, tmp_path: Path, alter: Alter, reason: str
) -> None:
    with (
        lying(tiny_run, lambda one: alter(one) if one.HasField("piece") else one) as hub,
        pytest.raises(WireError, match=reason),
    ):
        pull(hub, tmp_path / "pulled", form="log")
    assert not placed(tmp_path / "pulled")


def test_pieces_without_an_offer(tiny_run: RunDirectory, tmp_path: Path) -> None:
    with (
        lying(tiny_run, lambda one: None if one.HasField("offer") else one) as hub,
        pytest.raises(WireError, match="had not offered"),
    ):
        pull(hub, tmp_path / "pulled")


def rename(name: str) -> Callable[[Offer], None]:
    def change(offer: Offer) -> None:
        offer.files[0].name = name

    return change


def drop_residual(offer: Offer) -> None:
    [index] = [i for i, one in enumerate(offer.files) if "0002/residual" in one.name]
    del offer.files[index]


def pretend_snapshot(offer: Offer) -> None:
    offer.covers = 2
    for one in [one for one in offer.files if one.name.endswith("residual.safetensors")][:2]:
        offer.files.remove(one)


def swap_adapter(offer: Offer) -> None:
    adapter, other = offer.files[-1], offer.files[0]
    assert "adapter" in adapter.name
    adapter.digest, adapter.size = other.digest, other.size


def swap_record(offer: Offer) -> None:
    [record] = [one for one in offer.files if one.name == "ledger/0003/record.json"]
    record.digest, record.size = offer.files[0].digest, offer.files[0].size


def twice(offer: Offer) -> None:
    offer.files.add().CopyFrom(offer.files[0])


def short_digest(offer: Offer) -> None:
    offer.files[0].digest = b"short"


def two_sizes(offer: Offer) -> None:
    other = offer.files.add()
    other.CopyFrom(offer.files[0])
    other.name, other.size = "ledger/0009/residual.safetensors", 7


def other_round(offer: Offer) -> None:
    offer.round = 2


def other_head(offer: Offer) -> None:
    offer.head = "0" * 64


def other_form(offer: Offer) -> None:
    offer.form = 3


def no_record(offer: Offer) -> None:
    offer.record = b"{}"


def enormous(offer: Offer) -> None:
    offer.files[0].size = 1 << 62


def wrong_recipe(offer: Offer) -> None:
    offer.recipe = "name = 3"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (rename("../../etc/cron.d/x.json"), "no file of a model"),
        (rename("/etc/passwd"), "no file of a model"),
        (rename("ledger/0001/../../x.json"), "no file of a model"),
        (rename("modeling_evil.py"), "no file of a model"),
        (rename("ledger/0001/adapter.bin"), "no file of a model"),
        (rename("ledger/0001/record.json\n"), "no file of a model"),
        (rename("recipe.toml"), "no file of a model"),
        (twice, "twice"),
        (short_digest, "without a SHA-256"),
        (two_sizes, "two sizes"),
        (drop_residual, "the residuals that the hub offers are not those of the head"),
        (pretend_snapshot, "without the residuals that it begins with"),
        (swap_adapter, "another adapter"),
        (swap_record, "another record"),
        (other_round, "not what its record says"),
        (other_head, "not what its record says"),
        (other_form, "in another form"),
        (no_record, "can't be read"),
        (enormous, "has room for"),
        (wrong_recipe, "recipe.toml"),
    ],
)
def test_an_offer_that_lies(
    tiny_run: RunDirectory, tmp_path: Path, change: Callable[[Offer], None], reason: str
) -> None:
    def alter(reply: PullReply) -> PullReply:
        if reply.HasField("offer"):
            offer = Offer.FromString(reply.offer.offer)
            change(offer)
            reply.offer.offer = offer.SerializeToString()
        return reply

    with lying(tiny_run, alter) as hub, pytest.raises(FedloraError, match=reason):
        pull(hub, tmp_path / "pulled" / "in", 3, "log")
    assert not placed(tmp_path)


def test_names_in_a_model_folder_are_those_of_models(
    tiny_run: RunDirectory, tmp_path: Path
) -> None:
    for name in ("modeling_evil.py", "pytorch_model.bin", "a/b/c.json", ".hidden.json", "x.json/"):

        def alter(reply: PullReply, name: str = name) -> PullReply:
            if reply.HasField("offer"):
                offer = Offer.FromString(reply.offer.offer)
                offer.files[0].name = name
                reply.offer.offer = offer.SerializeToString()
            return reply

        with lying(tiny_run, alter) as hub, pytest.raises(WireError, match="no file of a model"):
            pull(hub, tmp_path / "pulled", 0, "merged")


def test_records_that_are_no_chain(tiny_run: RunDirectory, tmp_path: Path) -> None:
    """Each is sound by itself, and the head's hash would not show it."""
    run = RunDirectory.open(shutil.copytree(tiny_run.path, tmp_path / "run"))
    forged = replace(run.heads.record(2), proceedings=Proceedings(sampled=("nobody",)))
    (run.heads.folder(2) / "record.json").write_bytes(forged.to_json())
    with (
        hosted(run) as address,
        Hub(address) as hub,
        pytest.raises(WireError, match="round 3 does not follow the round before it"),
    ):
        pull(hub, tmp_path / "pulled", 3, "log")
    assert not placed(tmp_path / "pulled")


def test_S8_an_offer_is_signed_by_the_coordinator(
    tiny_run: RunDirectory, coordinator: CoordinatorKeys, pki: Path, tmp_path: Path
) -> None:
    with hosted(tiny_run, coordinator) as address:
        keys = ClientKeys.open(pki / "library")
        with Hub(address, keys) as hub:
            pull(hub, tmp_path / "pulled")
        with Hub(address, keys) as hub:
            hub.trusted = SigningKey.generate().verifying
            with pytest.raises(IdentityError, match="this offer does not carry a signature of"):
                pull(hub, tmp_path / "other")
    with lying(tiny_run, lambda reply: reply) as hub:
        hub.trusted = keys.coordinator
        with pytest.raises(IdentityError, match="this offer is not signed"):
            pull(hub, tmp_path / "other")


def test_a_part_that_rots_here_is_found_when_it_is_gone_on_with(
    tiny_run: RunDirectory, tmp_path: Path
) -> None:
    left = [3]

    def cut(reply: PullReply) -> PullReply | None:
        left[0] -= 1
        if reply.HasField("piece") and left[0] <= 0:
            reply.piece.content = reply.piece.content[:-10]
        return reply if left[0] >= 0 else None

    with lying(tiny_run, cut) as hub, pytest.raises(WireError, match="ended before"):
        pull(hub, tmp_path / "pulled", form="log")
    [part] = (tmp_path / "pulled").rglob("*.part")
    content = bytearray(part.read_bytes())
    content[7] ^= 1
    part.write_bytes(content)
    with hosted(tiny_run) as address, Hub(address) as hub:
        with pytest.raises(WireError, match="altered on its way"):
            pull(hub, tmp_path / "pulled", form="log")
        pull(hub, tmp_path / "pulled", form="log")
