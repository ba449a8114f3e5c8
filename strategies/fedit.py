"""FedIT: A and B are averaged separately, and what that loses is lost.

Source: Zhang et al., "Towards Building the Federated GPT: Federated Instruction Tuning", ICASSP
2024. The honest baseline: the same rounds, weights and receipt as FedEx-LoRA.
"""

from typing import ClassVar

from fedlora.adapters import Residual

from .federated_lora import FederatedLoRA


class FedIT(FederatedLoRA):
    """Not exact: its receipt shows by how much."""

    name: ClassVar[str] = "fedit"

    def keep(self, residual: Residual) -> Residual | None:
        """Nothing is folded."""
        return None
