"""Replies that carry metrics alone are checked too."""

from pathlib import Path

from flwr.app import Context, Message

from fedlora.protos import Evaluation
from fedlora.strategies import FedExLoRA, InProcessGrid, Observer, pack, reply_evaluation
from fedlora.strategies.packing import SEALED
from fedlora.strategies.participation import AnyNode

from .conftest import app, initial


class Named(AnyNode):
    def is_called(self, node_id: int, name: str) -> bool:
        return name == f"n{node_id - 1}"


class Refusals(Observer):
    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}

    def refused(self, round: int, node: str, reason: str) -> None:
        self.reasons[node] = reason


def test_S7_S8_an_evaluation_in_anothers_name_or_of_another_head(heads_dir: Path) -> None:
    client = app()

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        node = int(str(context.node_config["partition-id"]))
        name = "n0" if node == 1 else f"n{node}"
        reply = reply_evaluation(message, node=name, metrics={"eval_loss": float(node)})
        if node == 2:
            made = Evaluation()
            made.ParseFromString(reply.content.config_records[SEALED]["evaluation"])  # type: ignore[arg-type]
            made.head = "0" * 64
            reply.content.config_records[SEALED]["evaluation"] = made.SerializeToString()
        return reply

    refusals = Refusals()
    strategy = FedExLoRA(heads_dir, roster=Named(), observer=refusals)
    result = strategy.start(InProcessGrid(client, 3), pack(initial()), num_rounds=1, timeout=30)
    assert result.evaluate_metrics_clientapp[1]["eval_loss"] == 0.0
    assert refusals.reasons == {
        "2": "the reply is in the name of n0",
        "3": f"the evaluation is of the head {'0' * 12}",
    }
