"""A Flower Grid in one process: unchanged apps, nodes that take turns, one share of the memory.

Flower's only simulation backend needs Ray. Here a node works when its reply is pulled, so one reply
exists at a time and memory stays flat in the number of nodes. Messages are handed over as they are;
tensors travel in them as bytes, the same as on the wire.
"""

from collections.abc import Iterable, Sequence

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class InProcessGrid(Grid):
    """Runs a ClientApp for `nodes` nodes; node i has id i + 1 and partition-id i."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        """Make the nodes."""
        self._app = app
        self._contexts = {
            index + 1: Context(
                run_id=1,
                node_id=index + 1,
                node_config={"partition-id": index, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for index in range(nodes)
        }
        self._waiting: dict[str, Message] = {}
        self._run = Run.create_empty(run_id=1)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1

    def set_run(self, run: Run) -> None:
        """Flower names the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Flower's deprecated way to make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes, always."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the messages until their replies are asked for."""
        identifiers = []
        for message in messages:
            identifier = str(len(self._waiting)) + "/" + str(id(message))
            message.metadata.__dict__["_message_id"] = identifier
            self._waiting[identifier] = message
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let the next node that was asked work, and hand out its reply."""
        for identifier in self.order([one for one in message_ids if one in self._waiting]):
            return [self._work(self._waiting.pop(identifier))]
        return []

    def order(self, message_ids: Sequence[str]) -> Sequence[str]:
        """The order in which nodes take turns."""
        return message_ids

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """All replies at once, as Flower's own strategies want them."""
        identifiers = list(self.push_messages(messages))
        return [reply for one in identifiers for reply in self.pull_messages([one])]

    def _work(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._app(message=message, context=context)
        except Exception as error:  # as Flower does: a node's failure is an error reply
            reason = f"{type(error)}:<'{error}'>"
            failure = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
            return Message(failure, reply_to=message)
