"""A node is sent what it lacks: by what it was sent, or by its own word when it comes back."""

from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Message

from fedlora.adapters import Residual
from fedlora.strategies import FedExLoRA, InProcessGrid, Participation, open_head
from fedlora.strategies.exchange import Exchange
from fedlora.strategies.heads import HeadStore
from fedlora.strategies.packing import TENSORS
from fedlora.strategies.participation import AnyNode

from .conftest import app, honest, initial, run


class Returning(AnyNode):
    """Each node says, when it comes back, that it holds everything but the last residual."""

    def __init__(self) -> None:
        self.strategy: FedExLoRA | None = None
        self.gone: set[int] = set()

    def held(self, node_id: int) -> Collection[str]:
        heads = self.strategy.heads if self.strategy else None
        return heads.record().history[:-1] if heads and node_id in self.gone else ()

    def lost(self, node_id: int) -> None:
        self.gone.add(node_id)


@pytest.mark.parametrize("dies", [True, False])
def test_a_node_that_was_gone_is_sent_what_it_says_it_lacks(heads_dir: Path, dies: bool) -> None:
    received: list[int] = []

    def fails_in_the_third(message: Message, node: int) -> Message:
        proto = open_head(message).proto
        received.append(len(proto.residuals))
        if proto.round == 2 and dies:
            raise RuntimeError("out of memory")
        reply = honest(message, node)
        if proto.round == 2:  # a reply that is refused: nobody knows what the node holds
            reply.content["fedlora"]["update"] = b""  # type: ignore[index]
        return reply

    roster = Returning()
    plan = Participation(min_nodes=2)
    strategy = FedExLoRA(heads_dir, plan, roster=roster, full_history=False)
    roster.strategy = strategy
    run(strategy, InProcessGrid(app({1: fails_in_the_third}), 3), rounds=4)
    assert received == [0, 1, 1, 1 if dies else 3]


def test_the_messages_to_all_nodes_share_what_is_hashed(heads_dir: Path) -> None:
    heads = HeadStore(heads_dir)
    heads.commit("run", "base", initial(), {})
    heads.commit("run", "base", initial(), {"layer.q": Residual(torch.rand(12, 8), None)})
    exchange = Exchange(heads, "", AnyNode(), full_history=False)
    InProcessGrid(app(), 2)  # says on whose behalf messages are made
    one, other = exchange.messages("train", {1: "a", 2: "b"}, ConfigRecord(), 60.0)
    arrays, others = (sent.content.array_records[TENSORS] for sent in (one, other))
    assert len(arrays) == 2
    assert all(array is others[name] for name, array in arrays.items())
