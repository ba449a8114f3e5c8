"""The memory of one training step, predicted from shapes alone, before anything is loaded.

So a coordinator can plan with what a node declares, and a node can say what will not fit. What
the prediction leaves out: the libraries themselves, and the moment of opening a float32 base.
"""

from dataclasses import dataclass, fields

from transformers import PreTrainedModel

from .subnet import FLOAT, Subnet, linear_shapes

FLOAT_BYTES = 4
UNPACK_BYTES = 1.125  # of a weight's byte row while a layer is read; see `unpacking`
# In glibc's heap tensors take 1.8 times their size (measured with 2.36, 64 to 1,024 tokens), for a
# freed block does not serve the next tensor of that size, since tensors are aligned. Beyond 32 MB
# a tensor is mapped on its own, without loss; and so are the logits.
HEAP, MAPPED = 1.8, 32 << 20
LOGITS = 3  # copies at the peak: logits, their log-softmax, and a gradient


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that one training step holds at its peak.

    Attributes:
        weights: of the subnet's modules, as stored.
        embeddings: every other parameter of the base, in float32.
        side: side paths and group offsets.
        adapters: LoRA factors.
        optimizer: AdamW's two moments of each.
        gradients: of the factors.
        activations: what waits for the backward pass, logits, and one layer's dense weight.
    """

    weights: int
    embeddings: int
    side: int
    adapters: int
    optimizer: int
    gradients: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def predict_memory(
    base: PreTrainedModel,
    subnet: Subnet,
    rank: int,
    batch_size: int,
    length: int,
    group: int = 64,
    side_rank: int = 0,
    offsets: bool = False,
) -> MemoryNeed:
    """What a node needs to train LoRA on all modules of a subnet.

    Args:
        base: a decoder in float32, not quantized; on the meta device will do.
        subnet: the widths; its modules are those that are adapted.
        rank: of the adapters.
        batch_size: sequences in a forward pass.
        length: tokens in a sequence, all of them learned.
        group: weights that share a scale.
        side_rank: of the side paths.
        offsets: whether there are offsets per group.
    """
    shapes = linear_shapes(base, list(subnet.widths))
    all_parameters = sum(parameter.numel() for parameter in base.parameters())
    rest = all_parameters - sum(shape.weights for shape in shapes.values())
    sides = sum(shape.out_features + shape.in_features for shape in shapes.values())
    grouped = sum(shapes[n].weights // group for n, bits in subnet.widths.items() if bits < FLOAT)
    factors = FLOAT_BYTES * rank * sides
    read = max((shapes[n].weights for n, bits in subnet.widths.items() if bits < FLOAT), default=0)
    waiting = _activations(base, rank * len(shapes), batch_size, length)
    return MemoryNeed(
        weights=subnet.weight_bytes(shapes, group),
        embeddings=FLOAT_BYTES * rest,
        side=FLOAT_BYTES * (side_rank * sides + (grouped if offsets else 0)),
        adapters=factors,
        optimizer=2 * factors,
        gradients=factors,
        activations=waiting + int(read * (FLOAT_BYTES + UNPACK_BYTES)),
    )


def _activations(base: PreTrainedModel, inner: int, batch_size: int, length: int) -> int:
    """Bytes that wait for backward, as the heap holds them: per token and layer, and the logits.

    A layer keeps its two residual streams and their norms (hidden each), queries, keys and values
    (keys and values repeated for every head) and the attention's output, and four of the gated
    feed-forward's size: gate, its activation, up, and their product. `inner` are the numbers
    between the factors A and B, of all modules.
    """
    config = base.config.get_text_config()
    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    attention = heads * int(getattr(config, "head_dim", None) or hidden // heads)
    layer = 4 * hidden + 4 * attention + 4 * int(config.intermediate_size)
    tokens = batch_size * length
    mask = batch_size * length * length
    waiting = tokens * (int(config.num_hidden_layers) * layer + inner) + mask
    waste = HEAP if FLOAT_BYTES * tokens * hidden < MAPPED else 1.0
    return int(FLOAT_BYTES * (waste * waiting + tokens * LOGITS * int(config.vocab_size)))
