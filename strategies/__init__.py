"""Flower strategies for federated LoRA, and the messages that they exchange with nodes."""

from .federated_lora import FederatedLoRA
from .fedex_lora import FedExLoRA
from .fedit import FedIT
from .fedmkt import FedMKT
from .heads import HeadStore
from .identity import Identity
from .inprocess import InProcessGrid
from .messages import ReceivedHead, open_head, reply_evaluation, reply_update
from .observer import NodeReport, Observer, RoundReport
from .packing import pack, unpack
from .participation import Participation, Roster, collect
from .records import HeadRecord, Proceedings, head_hash

# Those that average adapters of one base; FedMKT, across models, is made otherwise.
STRATEGIES: dict[str, type[FederatedLoRA]] = {rule.name: rule for rule in (FedExLoRA, FedIT)}

__all__ = [
    "STRATEGIES",
    "FedExLoRA",
    "FedIT",
    "FedMKT",
    "FederatedLoRA",
    "HeadRecord",
    "HeadStore",
    "Identity",
    "InProcessGrid",
    "NodeReport",
    "Observer",
    "Participation",
    "Proceedings",
    "ReceivedHead",
    "Roster",
    "RoundReport",
    "collect",
    "head_hash",
    "open_head",
    "pack",
    "reply_evaluation",
    "reply_update",
    "unpack",
]
