"""The node's Flower ClientApp: messages in, messages out; the work is in `node.py`."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedlora.adapters import FedloraError, RecipeError
from fedlora.recipes.loading import RUN_DIRECTORY, load_recipe
from fedlora.strategies import open_head, reply_evaluation, reply_update
from fedlora.strategies.messages import open_hello, reply_introduction

from .identity import identity_of
from .node import Node, NodePlace
from .signals import signal_done, signal_failure, signal_step


def make_app(node_of: Callable[[Context], Node]) -> ClientApp:
    """A ClientApp whose nodes are found by `node_of`."""
    client = ClientApp()

    def answer(message: Message, context: Context, work: Callable[[Node], Message]) -> Message:
        node = node_of(context)
        try:
            return work(node)
        except FedloraError as error:  # the coordinator names the reason instead of a traceback
            signal_failure(node.place.state, error)
            failure = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=str(error))
            return Message(failure, reply_to=message)

    @client.query()
    def hello(message: Message, context: Context) -> Message:
        def work(node: Node) -> Message:
            threads = torch.get_num_threads()
            own = identity_of(node.place.keys)
            hello = open_hello(message, own.coordinator)
            introduction = node.introduce(hello, version("fedlora"), threads)
            return reply_introduction(message, introduction, own.signing)

        return answer(message, context, work)

    @client.train()
    def train(message: Message, context: Context) -> Message:
        def work(node: Node) -> Message:
            own = identity_of(node.place.keys)
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
            metrics, folded = node.evaluate(open_head(message, trusted=own.coordinator))
            reply = reply_evaluation(
                message, node=node.place.name, metrics=metrics, folded=folded, key=own.signing
            )
            signal_done(node.place.state)
            return reply

        return answer(message, context, work)

    return client


def place_of(config: Mapping[str, object]) -> NodePlace:
    """Where a node's things lie: from `--node-config`, or from the recipe of a simulation.

    Raises:
        RecipeError: if neither says.
    """
    if "partition-id" in config and RUN_DIRECTORY in os.environ:
        run = Path(os.environ[RUN_DIRECTORY])
        recipe = load_recipe(run / "recipe.toml")
        section = recipe.node[int(str(config["partition-id"]))]
        heldout = Path(section.heldout) if section.heldout else None
        return NodePlace(
            section.name,
            Path(section.data),
            heldout,
            run / "nodes",
            model=recipe.model.source,
        )
    try:
        heldout = Path(str(config["heldout"])) if "heldout" in config else None
        threads = int(str(config["threads"])) if "threads" in config else None
        model = str(config["model"]) if "model" in config else None
        keys = Path(str(config["keys"])) if "keys" in config else None
        name, data, state = (str(config[key]) for key in ("name", "data", "state"))
    except KeyError as error:
        raise RecipeError(
            f"this node's configuration lacks {error}; `fedlora join` sets it, by hand it is "
            '--node-config \'name="..." data="/..." state="/..."\''
        ) from None
    return NodePlace(name, Path(data), heldout, Path(state), threads, model, keys)


@lru_cache(maxsize=64)
def _node(place: NodePlace) -> Node:
    return Node(place, lambda name, report: signal_step(place.state, report))


def _configured(context: Context) -> Node:
    return _node(place_of(context.node_config))


app = make_app(_configured)
