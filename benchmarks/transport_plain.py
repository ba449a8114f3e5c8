"""Plain Flower, for `transport.py`: the messages of its FedAvg, and what its examples do with them.

The tensors travel as one array each; a node makes a state dict of them and replies with a number.
"""

import time

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

coordinator = ServerApp()
node = ClientApp()


@coordinator.main()
def send(grid: Grid, context: Context) -> None:
    """One round of FedAvg without its averaging; it has its arrays before, so they cost no time."""
    import safetensors.torch
    from transport_task import PATIENCE, Task

    task, tensors = Task.of(context), {}
    for path in sorted(task.head.rglob("*.safetensors")):
        tensors |= safetensors.torch.load_file(path)
    arrays = ArrayRecord(tensors, keep_input=False)
    del tensors
    strategy = FedAvg(min_train_nodes=task.nodes, min_available_nodes=task.nodes)
    while len(list(grid.get_node_ids())) < task.nodes:
        time.sleep(0.5)
    began = time.perf_counter()
    messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages, timeout=PATIENCE))
    seconds = time.perf_counter() - began
    task.tell(seconds, [float(str(reply.content["metrics"]["bytes"])) for reply in replies])


@node.train()
def take(message: Message, context: Context) -> Message:
    import torch  # noqa: F401  # Flower asks for it to be there

    state = message.content.array_records["arrays"].to_torch_state_dict()
    taken = sum(tensor.nbytes for tensor in state.values())
    metrics = MetricRecord({"bytes": taken, "num-examples": 1})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
