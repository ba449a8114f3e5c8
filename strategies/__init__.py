"""Flower strategies for federated LoRA, and the messages that they exchange with nodes."""

from .federated_lora import FederatedLoRA, Identity
from .fedex_lora import FedExLoRA
from .fedit import FedIT
from .heads import HeadRecord, HeadStore, head_hash
from .inprocess import InProcessGrid
from .messages import (
    ReceivedHead,
    metrics_of,
    open_head,
    pack,
    reply_metrics,
    reply_update,
    unpack,
)
from .observer import NodeReport, Observer, RoundReport
from .participation import Participation, Roster, collect

STRATEGIES: dict[str, type[FederatedLoRA]] = {rule.name: rule for rule in (FedExLoRA, FedIT)}

__all__ = [
    "STRATEGIES",
    "FedExLoRA",
    "FedIT",
    "FederatedLoRA",
    "HeadRecord",
    "HeadStore",
    "Identity",
    "InProcessGrid",
    "NodeReport",
    "Observer",
    "Participation",
    "ReceivedHead",
    "Roster",
    "RoundReport",
    "collect",
    "head_hash",
    "metrics_of",
    "open_head",
    "pack",
    "reply_metrics",
    "reply_update",
    "unpack",
]
