"""The ways to aggregate one module that `aggregation.py` compares, and the factors they get."""

import torch
from torch import Tensor

from fedlora.adapters import Factors, Residual, exact_mean

try:
    from chorus.server.aggregation import FedExLoRA
except ImportError:
    FedExLoRA = None

RANK, SCALE = 16, 2.0
Aggregated = tuple[Factors, Residual]


def factors(shape: tuple[int, int], nodes: int, generator: torch.Generator) -> list[Factors]:
    """Warm-started factors: common ones, and a move of each node of a third of their size."""
    out, inner = shape
    b, a = (0.02 * torch.randn(s, generator=generator) for s in ((out, RANK), (RANK, inner)))
    return [
        Factors(
            torch.randn(b.shape, generator=generator).mul_(0.006).add_(b),
            torch.randn(a.shape, generator=generator).mul_(0.006).add_(a),
            SCALE,
        )
        for _ in range(nodes)
    ]


def shares(nodes: int) -> list[float]:
    """Unequal weights that sum to 1."""
    return [2 * (1 + index) / (nodes * (nodes + 1)) for index in range(nodes)]


def recompressed(nodes: list[Factors], weights: list[float]) -> Aggregated:
    """What a round sends: the exact mean, its residual by its own singular vectors."""
    mean, residual = exact_mean(nodes, weights)
    return mean, residual.recompressed(consume=True)[0]


def dense(nodes: list[Factors], weights: list[float]) -> Aggregated:
    """The difference of dense float32 products, node by node, as the papers' code does it."""
    total = torch.zeros(nodes[0].shape)
    for one, weight in zip(nodes, weights, strict=True):
        total += weight * one.scale * (one.b @ one.a)
    mean = _averaged(nodes, weights)
    return mean, Residual(total - mean.scale * (mean.b @ mean.a))


def dense_at_once(nodes: list[Factors], weights: list[float]) -> Aggregated:
    """The dense difference as one product of stacks: the fastest way to it that we know."""
    mean = _averaged(nodes, weights)
    u, v = _stacked(nodes, weights, mean)
    return mean, Residual(u @ v)


def qr_svd(nodes: list[Factors], weights: list[float]) -> Aggregated:
    """QR of both stacks and the SVD of the core, cut to the (k - 1) r directions there are."""
    mean = _averaged(nodes, weights)
    u, v = _stacked(nodes, weights, mean)
    q_u, r_u = torch.linalg.qr(u)
    q_v, r_v = torch.linalg.qr(v.T)
    left, values, right = torch.linalg.svd(r_u @ r_v.T)
    kept = (len(nodes) - 1) * RANK
    root = values[:kept].sqrt()
    return mean, Residual(q_u @ (left[:, :kept] * root), (root[:, None] * right[:kept]) @ q_v.T)


def chorus(nodes: list[Factors], weights: list[float]) -> Aggregated:
    """The package chorus-fl, credited with the scale alpha / rank, which it leaves out."""
    rule = FedExLoRA()
    updates = [{"m.lora_A.weight": one.a, "m.lora_B.weight": one.b} for one in nodes]
    made = rule.aggregate(updates, weights)
    mean = Factors(made["m.lora_B.weight"], made["m.lora_A.weight"], SCALE)
    return mean, Residual(rule.get_residuals()["m"].mul_(SCALE))


def read(nodes: list[Factors], weights: list[float]) -> float:
    """Touch every number once: what no aggregation can do without."""
    return sum(float(one.b.sum() + one.a.sum()) for one in nodes)


def _averaged(nodes: list[Factors], weights: list[float]) -> Factors:
    """The separate averages in float32."""
    b, a = torch.zeros_like(nodes[0].b), torch.zeros_like(nodes[0].a)
    for one, weight in zip(nodes, weights, strict=True):
        b.add_(one.b, alpha=weight)
        a.add_(one.a, alpha=weight)
    return Factors(b, a, SCALE)


def _stacked(nodes: list[Factors], weights: list[float], mean: Factors) -> tuple[Tensor, Tensor]:
    """Factors of the difference, side by side: (out, (k + 1) r) and ((k + 1) r, in)."""
    left = [weight * one.scale * one.b for one, weight in zip(nodes, weights, strict=True)]
    u = torch.cat([*left, -mean.scale * mean.b], dim=1)
    return u, torch.cat([*(one.a for one in nodes), mean.a])
