"""F9: the coordinator's memory is flat over rounds, and does not depend on the number of nodes."""

import gc
import os
import statistics
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlora.adapters import Adapter, Factors
from fedlora.strategies import FedExLoRA, InProcessGrid, Observer, RoundReport, open_head, pack
from fedlora.strategies.messages import reply_update

WIDTH, RANK, MODULES = 256, 8, 4


class Watch(Observer):
    """Notes the memory after each round, and keeps no reports."""

    def __init__(self) -> None:
        super().__init__()
        self.rss: list[float] = []

    def round_done(self, report: RoundReport) -> None:
        gc.collect()
        self.rss.append(psutil.Process().memory_info().rss / 1e6)


def initial() -> Adapter:
    factors = {
        f"layer.{number}": Factors(torch.zeros(WIDTH, RANK), torch.ones(RANK, WIDTH), 2.0)
        for number in range(MODULES)
    }
    return Adapter(factors, {})


def app() -> ClientApp:
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        node = int(str(context.node_config["partition-id"]))
        head = open_head(message)
        draw = torch.Generator().manual_seed(1000 * head.proto.round + node)
        factors = {
            name: Factors(
                one.b + 0.01 * torch.randn(one.b.shape, generator=draw),
                one.a + 0.01 * torch.randn(one.a.shape, generator=draw),
                one.scale,
            )
            for name, one in head.adapter.factors.items()
        }
        return reply_update(message, Adapter(factors, {}), node=str(node), examples=1, metrics={})

    return client


def rounds(directory: Path, nodes: int, count: int) -> list[float]:
    """Memory in MB after each round."""
    watch = Watch()
    strategy = FedExLoRA(directory, observer=watch, full_history=False)
    strategy.start(InProcessGrid(app(), nodes), pack(initial()), num_rounds=count, timeout=60)
    return watch.rss


@pytest.mark.slow
def test_F9_thirty_rounds_with_eight_nodes_do_not_grow(tmp_path: Path) -> None:
    rss = rounds(tmp_path / "ledger", 8, 30)[6:]
    residual = 4 * MODULES * 2 * WIDTH * 7 * RANK / 1e6  # MB that a round commits to disk
    slope = statistics.linear_regression(range(len(rss)), rss).slope
    assert slope < 0.25 * residual, rss


def test_F9_the_peak_does_not_grow_with_the_updates(tmp_path: Path) -> None:
    """In a fresh process each; what may grow is the residual, of rank (k - 1) r."""
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.strategies.test_memory import rounds
rounds(Path(sys.argv[1]), int(sys.argv[2]), 3)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    peaks = [
        float(
            subprocess.run(
                [sys.executable, "-c", script, str(tmp_path / str(nodes)), str(nodes)],
                check=True,
                capture_output=True,
                text=True,
                env=environment,
            ).stdout.split()[-1]
        )
        for nodes in (4, 16)
    ]
    update = 4 * MODULES * 2 * WIDTH * RANK / 1e6  # MB
    dense = 4 * MODULES * WIDTH * WIDTH / 1e6  # MB, the most that a round's residual can be
    assert peaks[1] - peaks[0] < 4 * dense + 5 * update, peaks
