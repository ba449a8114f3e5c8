"""A federation of plain tensors: real messages and strategies, nodes that move factors about."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedlora.adapters import Adapter, Factors
from fedlora.strategies import FederatedLoRA, InProcessGrid, open_head, pack, reply_update

SHAPES = {"layer.q": (12, 8), "layer.v": (4, 8)}  # (out, in)
Work = Callable[[Message, int], Message]


def initial(rank: int = 3, scale: float = 2.0) -> Adapter:
    generator = torch.Generator().manual_seed(0)
    factors = {
        name: Factors(
            torch.randn(out, rank, generator=generator),
            torch.randn(rank, inner, generator=generator),
            scale,
        )
        for name, (out, inner) in SHAPES.items()
    }
    return Adapter(factors, {"score.weight": torch.randn(2, 4, generator=generator)})


def moved(adapter: Adapter, node: int, round: int) -> Adapter:
    """What a node makes of an adapter: a small step of its own."""
    generator = torch.Generator().manual_seed(100 * round + node)

    def step(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 0.1 * torch.randn(tensor.shape, generator=generator)

    factors = {
        name: Factors(step(one.b), step(one.a), one.scale)
        for name, one in sorted(adapter.factors.items())
    }
    return Adapter(factors, {name: step(tensor) for name, tensor in adapter.full.items()})


def honest(message: Message, node: int) -> Message:
    head = open_head(message)
    adapter = moved(head.adapter, node, head.proto.round + 1)
    metrics = {"loss": float(node)}
    return reply_update(message, adapter, node=f"n{node}", examples=10 + node, metrics=metrics)


def app(works: Mapping[int, Work] | None = None) -> ClientApp:
    """A ClientApp whose nodes are honest, but for those in `works`."""
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        node = int(str(context.node_config["partition-id"]))
        return (works or {}).get(node, honest)(message, node)

    return client


def context() -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


@pytest.fixture
def heads_dir(tmp_path: Path) -> Path:
    return tmp_path / "heads"


def run(strategy: FederatedLoRA, grid: InProcessGrid, rounds: int = 2) -> None:
    strategy.start(grid, pack(initial()), num_rounds=rounds, timeout=30)
