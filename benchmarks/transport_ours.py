"""fedlora's own way, for `transport.py`: a coordinator that sends a head, and a node's worker.

    python transport_ours.py SOCKET CONFIG    (the worker)

All is what runs in a federation, but for the model: the worker checks a head, keeps it on disk and
reads each tensor back, as if it folded it.
"""

import json
import sys
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

coordinator = ServerApp()


@coordinator.main()
def send(grid: Grid, context: Context) -> None:
    """One phase of a round; reading the ledger counts."""
    from transport_task import PATIENCE, Task

    from fedlora.server.app import POLL
    from fedlora.strategies.exchange import Exchange
    from fedlora.strategies.heads import HeadStore
    from fedlora.strategies.messages import open_evaluation
    from fedlora.strategies.participation import AnyNode, Participation

    task = Task.of(context)
    exchange = Exchange(HeadStore(task.head), "", AnyNode(), full_history=False)
    nodes = Participation(min_nodes=task.nodes).gather(grid, AnyNode())
    began = time.perf_counter()
    messages = exchange.messages("evaluate", nodes, ConfigRecord(), PATIENCE)
    replies = list(exchange.replies(grid, messages, PATIENCE, POLL))
    seconds = time.perf_counter() - began
    task.tell(seconds, [open_evaluation(reply).metrics["bytes"] for reply in replies])


def work(socket: Path, config: dict[str, str]) -> None:
    """Serve as a node's worker."""
    from fedlora.client import worker
    from fedlora.client.node import Node
    from fedlora.client.place import place_of
    from fedlora.strategies import ReceivedHead

    class Receiver(Node):
        """Follows a head up to the weights, which it lacks."""

        def evaluate(self, head: ReceivedHead) -> tuple[dict[str, float], str]:
            self._residuals.keep(head.folded_payloads)
            tensors = [one for factors in head.adapter.factors.values() for one in (factors.a,)]
            taken = sum(tensor.nbytes for tensor in tensors)
            for digest in head.history:
                for tensor in self._residuals.read_tensors(digest).values():
                    assert bool(tensor.sum().isfinite())  # so that it is read
                    taken += tensor.nbytes
            return {"bytes": float(taken)}, ""

    vars(worker)["Node"] = Receiver
    worker.serve(place_of(config), socket)


if __name__ == "__main__":
    work(Path(sys.argv[1]), json.loads(sys.argv[2]))
