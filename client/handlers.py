"""What a node does with each message of the coordinator; the work itself is in `node.py`."""

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedlora.adapters import FedloraError
from fedlora.strategies import open_head, reply_evaluation, reply_update
from fedlora.strategies.lessons import is_lesson, open_lesson, reply_answer
from fedlora.strategies.messages import open_hello, reply_introduction

from .identity import identity_of
from .node import Node
from .place import NodePlace, place_of


def make_app(
    node_of: Callable[[Context], Node],
    on_failure: Callable[[FedloraError], None] = lambda error: None,
    on_done: Callable[[], None] = lambda: None,
) -> ClientApp:
    """A ClientApp whose nodes live in this process.

    Args:
        node_of: finds the node that a message is for.
        on_failure: told why a message couldn't be served; the coordinator is told too.
        on_done: told when the run's last head is evaluated.
    """
    client = ClientApp()

    def answer(message: Message, context: Context, work: Callable[[Node], Message]) -> Message:
        node = node_of(context)
        try:
            return work(node)
        except FedloraError as error:  # the coordinator names the reason instead of a traceback
            on_failure(error)
            failure = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=str(error))
            return Message(failure, reply_to=message)

    @client.query()
    def hello(message: Message, context: Context) -> Message:
        def work(node: Node) -> Message:
            threads = torch.get_num_threads()
            own = identity_of(node.place.keys)
            said = open_hello(message, own.coordinator)
            introduction = node.introduce(said, version("fedlora"), threads)
            return reply_introduction(message, introduction, own.signing)

        return answer(message, context, work)

    @client.train()
    def train(message: Message, context: Context) -> Message:
        def work(node: Node) -> Message:
            own = identity_of(node.place.keys)
            if is_lesson(message):
                known = node.learn(open_lesson(message, own.coordinator))
                return reply_answer(message, known, node.place.name, own.signing)
            made = node.train(open_head(message, trusted=own.coordinator))
            return reply_update(
                message,
                made.adapter,
                node=node.place.name,
                examples=made.examples,
                metrics=made.metrics,
                folded=made.folded,
                key=own.signing,
            )

        return answer(message, context, work)

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        def work(node: Node) -> Message:
            own = identity_of(node.place.keys)
            if is_lesson(message):  # the last one: the run is over, and there is nothing to tell
                open_lesson(message, own.coordinator)
                on_done()
                return Message(RecordDict(), reply_to=message)
            metrics, folded = node.evaluate(open_head(message, trusted=own.coordinator))
            reply = reply_evaluation(
                message, node=node.place.name, metrics=metrics, folded=folded, key=own.signing
            )
            on_done()
            return reply

        return answer(message, context, work)

    return client


@lru_cache(maxsize=64)
def _node(place: NodePlace) -> Node:
    return Node(place)


cold = make_app(lambda context: _node(place_of(context.node_config)))
