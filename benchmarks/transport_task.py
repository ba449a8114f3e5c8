"""What the apps of `transport.py` are told, and what they tell it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr.app import Context

PATIENCE = 1800.0  # seconds for all nodes to reply


@dataclass(frozen=True)
class Task:
    """One delivery.

    Attributes:
        nodes: how many take it.
        head: a ledger whose latest head is delivered.
        out: where the figures go.
    """

    nodes: int
    head: Path
    out: Path

    @classmethod
    def of(cls, context: Context) -> "Task":
        said = context.run_config
        return cls(int(str(said["nodes"])), Path(str(said["head"])), Path(str(said["out"])))

    def config(self) -> str:
        """As TOML, for an app's description."""
        return "\n".join(f"{name} = {json.dumps(str(v))}" for name, v in asdict(self).items())

    def tell(self, seconds: float, taken: list[float]) -> None:
        """Leave the figures, whole at once.

        Args:
            seconds: from sending to the last reply.
            taken: bytes of the tensors that each node has come to hold.
        """
        part = self.out.with_suffix(".part")
        part.write_text(json.dumps({"seconds": seconds, "taken": taken}))
        part.replace(self.out)
