"""One round's messages out and replies in: who was asked, who answered, and who holds what."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from flwr.app import Array, ConfigRecord, Message
from flwr.serverapp import Grid

from fedlora.adapters import names_at
from fedlora.protos import Head, Manifest, Snapshot, describe
from fedlora.protos.envelope import SigningKey

from .heads import HeadStore, checked
from .messages import head_content
from .packing import ADAPTER, SIDE, array, content_bytes
from .participation import Roster, collect
from .records import HeadRecord
from .sides import Sides


class Exchange:
    """Sends heads with what each node lacks of the folded weights, and takes replies.

    Attributes:
        asked: names of the nodes of the current round, by node id.
        bytes_down: tensors sent to each of them.
    """

    def __init__(
        self,
        heads: HeadStore,
        task: str,
        roster: Roster,
        full_history: bool,
        key: SigningKey | None = None,
        sides: Sides | None = None,
    ) -> None:
        """Send heads from `heads`, with `task`, signed if there is a key.

        Args:
            heads: the ledger.
            task: what nodes are told to do.
            roster: knows what a node held when it came.
            full_history: send everything each time, to nodes that keep nothing.
            key: of the coordinator.
            sides: for nodes that take no residuals; None if every node takes them.
        """
        self._heads, self._task, self._roster, self._key = heads, task, roster, key
        self._full_history, self._sides = full_history, sides
        self._held: dict[int, Collection[str]] = {}
        self._origin: dict[str, int] = {}
        self._payloads: dict[str, tuple[Array, Manifest]] = {}
        self._subnets: Mapping[int, Mapping[str, int]] = {}
        self.asked: dict[int, str] = {}
        self.bytes_down: dict[int, int] = {}

    def messages(
        self,
        kind: str,
        nodes: Mapping[int, str],
        config: ConfigRecord,
        ttl: float,
        subnets: Mapping[int, Mapping[str, int]] = MappingProxyType({}),
    ) -> Iterator[Message]:
        """A message with the latest head for each of `nodes`, made when it is asked for.

        Args:
            kind: Flower's type of message.
            nodes: name by node id.
            config: passed on to the nodes.
            ttl: seconds after which a message is void.
            subnets: the width of each module that a node shall train at, where that is drawn here.
        """
        self.asked, self.bytes_down, self._payloads = dict(nodes), {}, {}
        self._subnets = subnets
        return (self._message(kind, node_id, config, ttl) for node_id in self.asked)

    def replies(
        self, grid: Grid, messages: Iterable[Message], seconds: float, poll: float
    ) -> Iterator[Message]:
        """Send, and hand out each reply as it comes, until all are in or time is up."""
        for node_id, reply in collect(grid, messages, seconds, poll):
            self._origin[reply.metadata.reply_to_message_id] = node_id
            yield reply
        self._payloads, self._origin = {}, {}  # memory for the aggregation

    def sender(self, reply: Message) -> int:
        """The node that was asked: Flower's own error replies come from node 1, whoever failed."""
        return self._origin.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

    def modules_asked(self, node_id: int) -> Collection[str] | None:
        """The modules that a node was asked to train; None for all."""
        subnet = self._subnets.get(node_id)
        return names_at(subnet).values() if subnet else None

    def settle(self, node_id: int, holds_head: bool) -> None:
        """Note what a node holds after its reply: everything up to the head, or who knows what."""
        self._held[node_id] = self._heads.record().history if holds_head else ()

    def forget(self, node_id: int) -> None:
        """Take the node's own word for what it holds, when it is asked next."""
        self._held.pop(node_id, None)

    def _message(self, kind: str, node_id: int, config: ConfigRecord, ttl: float) -> Message:
        record = self._heads.record()
        head = Head(
            run=record.run,
            round=record.round,
            base=record.base,
            head=record.hash,
            task=self._task,
            history=[bytes.fromhex(digest) for digest in record.history],
        )
        adapter, manifest = self._payload(self._heads.adapter_file(record.round), record.adapter)
        head.adapter.CopyFrom(manifest)
        head.subnet.update(self._subnets.get(node_id, {}))
        payloads = {ADAPTER: adapter, **self._below(head, record, node_id)}
        content = head_content(head, payloads, config, self._key)
        self.bytes_down[node_id] = content_bytes(content)
        return Message(content, node_id, kind, ttl=ttl, group_id=str(record.round))

    def _below(self, head: Head, record: HeadRecord, node_id: int) -> dict[str, Array]:
        """What belongs to the frozen weights below the adapter, in the form the node can use."""
        if self._sides is None or self._roster.takes_residuals(node_id):
            return self._lacking(head, record.history, node_id)
        side = self._sides.of(record)
        head.side.CopyFrom(side.proto)
        digest = side.proto.manifest.digest.hex()
        self._payloads.setdefault(digest, (array(side.payload), side.proto.manifest))
        return {SIDE: self._payloads[digest][0]}

    def _lacking(self, head: Head, history: Sequence[str], node_id: int) -> dict[str, Array]:
        """What a node lacks, by the cheaper way: the residuals, or a snapshot and those after it.

        Written into `head`; returned as payloads by digest.
        """
        held = self._held.setdefault(node_id, self._roster.held(node_id))
        held = () if self._full_history else held
        log = {one: self._heads.residual_file(one) for one in history if one not in held}
        files, snapshot = log, self._heads.snapshot(history) if log else None
        if snapshot:
            later = {one: path for one, path in log.items() if one in history[snapshot.covers :]}
            own = {} if snapshot.digest in held else {snapshot.digest: snapshot.path}
            if _size(own | later) < _size(log):
                files = own | later
                _, manifest = self._payload(snapshot.path, snapshot.digest)
                head.snapshot.CopyFrom(Snapshot(manifest=manifest, covers=snapshot.covers))
        payloads = {}
        for digest, path in files.items():
            payloads[digest], manifest = self._payload(path, digest)
            if digest in log:
                head.residuals.append(manifest)
        return payloads

    def _payload(self, path: Path, digest: str) -> tuple[Array, Manifest]:
        """A file's bytes, read and hashed once a round: the messages to all nodes share them."""
        if digest not in self._payloads:
            content = checked(path, digest).read_bytes()
            self._payloads[digest] = array(content), describe(content)
        return self._payloads[digest]


def _size(files: Mapping[str, Path]) -> int:
    return sum(path.stat().st_size for path in files.values())
