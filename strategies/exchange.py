"""One round's messages out and replies in: who was asked, who answered, and who holds what."""

from collections.abc import Iterable, Iterator, Mapping

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedlora.protos import Head, describe

from .heads import HeadStore
from .messages import content_bytes, head_content
from .participation import collect


class Exchange:
    """Sends heads with the residuals that each node lacks, and takes replies.

    Attributes:
        asked: names of the nodes of the current round, by node id.
        bytes_down: tensors sent to each of them.
    """

    def __init__(self, heads: HeadStore, task: str, full_history: bool) -> None:
        """Send heads from `heads`, with `task`; all residuals each time, if `full_history`."""
        self._heads, self._task, self._full_history = heads, task, full_history
        self._acknowledged: dict[int, int] = {}
        self._origin: dict[str, int] = {}
        self._payloads: dict[str, bytes] = {}
        self.asked: dict[int, str] = {}
        self.bytes_down: dict[int, int] = {}

    def messages(
        self, kind: str, nodes: Mapping[int, str], adapter: bytes, config: ConfigRecord, ttl: float
    ) -> Iterator[Message]:
        """A message with the latest head for each of `nodes`, made when it is asked for."""
        self.asked, self.bytes_down, self._payloads = dict(nodes), {}, {}
        return (self._message(kind, node_id, adapter, config, ttl) for node_id in self.asked)

    def replies(
        self, grid: Grid, messages: Iterable[Message], seconds: float, poll: float
    ) -> Iterator[Message]:
        """Send, and hand out each reply as it comes, until all are in or time is up."""
        for node_id, reply in collect(grid, messages, seconds, poll):
            self._origin[reply.metadata.reply_to_message_id] = node_id
            yield reply
        self._payloads = {}  # memory for the aggregation

    def sender(self, reply: Message) -> int:
        """The node that was asked: Flower's own error replies come from node 1, whoever failed."""
        return self._origin.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

    def settle(self, node_id: int, holds_head: bool) -> None:
        """Note what a node holds after its reply: everything up to the head, or who knows what."""
        self._acknowledged[node_id] = len(self._heads.record().history) if holds_head else 0

    def _message(
        self, kind: str, node_id: int, adapter: bytes, config: ConfigRecord, ttl: float
    ) -> Message:
        record = self._heads.record()
        known = 0 if self._full_history else self._acknowledged.get(node_id, 0)
        residuals = [self._payload(digest) for digest in record.history[known:]]
        head = Head(
            run=record.run,
            round=record.round,
            base=record.base,
            head=record.hash,
            task=self._task,
            adapter=describe(adapter),
            history=[bytes.fromhex(digest) for digest in record.history],
            residuals=[describe(one) for one in residuals],
        )
        content = head_content(head, adapter, residuals, config)
        self.bytes_down[node_id] = content_bytes(content)
        return Message(content, node_id, kind, ttl=ttl, group_id=str(record.round))

    def _payload(self, digest: str) -> bytes:
        """A residual, read once a round: the messages to all nodes share its bytes."""
        if digest not in self._payloads:
            (self._payloads[digest],) = self._heads.residual_payloads([digest])
        return self._payloads[digest]
