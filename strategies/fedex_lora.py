"""FedEx-LoRA: the residual that averaging factors loses is folded into every node's base.

Source: Singhal et al., "FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of
LLMs", arXiv 2410.09432; the residual here is computed by contrasts, see `fedlora.adapters.mean`.
"""

from typing import ClassVar

from fedlora.adapters import Residual

from .federated_lora import FederatedLoRA


class FedExLoRA(FederatedLoRA):
    """Exact: base plus adapter of the new head is the weighted mean of the nodes' models."""

    name: ClassVar[str] = "fedex-lora"

    def keep(self, residual: Residual) -> Residual | None:
        """The whole residual, in its own singular vectors so that no node's factors stand in it."""
        compressed, _ = residual.recompressed(consume=True)
        return compressed.smaller_form() if compressed.rank else None
