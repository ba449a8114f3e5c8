"""Knowledge on the wire: to tensors and back, believed only when it holds together.

Either side reads the other's with the same checks. A node that overstates how well it did is told
by its own guesses: a loss below what they allow is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedlora.adapters import WireError
from fedlora.models.knowledge import Knowledge, summed
from fedlora.protos import Limits, Manifest, decode, encode

_TYPES = {
    "vocabulary": (torch.uint8, 1),
    "samples": (torch.int32, 1),
    "lengths": (torch.int32, 1),
    "losses": (torch.float32, 1),
    "labels": (torch.int32, 1),
    "tokens": (torch.int32, 2),
    "values": (torch.float16, 2),
    "ids": (torch.int32, 1),
    "pieces": (torch.uint8, 1),
    "ends": (torch.int32, 1),
}
_ROUNDING = 2e-3  # relative, of a loss that is computed again from float16


@dataclass(frozen=True)
class Bounds:
    """What knowledge of a batch may be.

    Attributes:
        samples: examples in the batch.
        top_k: guesses for a label.
        max_length: labels of an example.
    """

    samples: int
    top_k: int
    max_length: int

    @property
    def limits(self) -> Limits:
        """The most that a payload may hold: each guess another token, of 16 bytes on average."""
        labels = self.samples * self.max_length
        guess, label = 4 + 2 + 4 + 4 + 16, 4 + 4 + 4 + 16
        return Limits(labels * (self.top_k * guess + label) + (1 << 16), tensors=len(_TYPES))


def pack_knowledge(knowledge: Knowledge) -> bytes:
    """Knowledge as safetensors bytes; the same gives the same bytes."""
    ends = torch.tensor([len(piece) for piece in knowledge.pieces]).cumsum(0).int()
    tensors = {name: getattr(knowledge, name) for name in _TYPES.keys() & vars(knowledge).keys()}
    tensors |= {
        "vocabulary": _bytes(bytes.fromhex(knowledge.vocabulary)),
        "pieces": _bytes(b"".join(knowledge.pieces)),
        "ends": ends,
    }
    return encode(tensors)


def read_knowledge(payload: bytes, manifest: Manifest, bounds: Bounds) -> Knowledge:
    """The knowledge that `pack_knowledge` packed.

    Raises:
        WireError: naming what is wrong with it.
    """
    tensors = decode(payload, manifest, bounds.limits)
    if odd := sorted(tensors.keys() ^ _TYPES.keys()):
        raise WireError(f"knowledge with other tensors than expected: {odd[:3]}")
    for name, (dtype, axes) in _TYPES.items():
        if tensors[name].dtype != dtype or tensors[name].ndim != axes:
            found = f"{tensors[name].dtype} with {tensors[name].ndim} axes"
            raise WireError(f"knowledge: {name} is {found}, expected {dtype} with {axes}")
    _check_shapes(tensors, bounds)
    _check_numbers(tensors, bounds)
    flat, ends = tensors["pieces"].numpy().tobytes(), tensors["ends"].tolist()
    made = Knowledge(
        vocabulary=tensors["vocabulary"].numpy().tobytes().hex(),
        samples=tensors["samples"],
        lengths=tensors["lengths"],
        losses=tensors["losses"],
        labels=tensors["labels"],
        tokens=tensors["tokens"],
        values=tensors["values"],
        ids=tensors["ids"],
        pieces=tuple(flat[start:end] for start, end in pairwise([0, *ends])),
    )
    _check_losses(made)
    return made


def least_losses(knowledge: Knowledge) -> Tensor:
    """(n,) the least loss of each example that its guesses allow.

    A label among the guesses has the probability given there; any other at most the last one's.
    """
    values = knowledge.values.float()
    hit = knowledge.tokens == knowledge.labels[:, None]
    given = (values * hit).sum(-1)
    surprise = -torch.where(hit.any(-1), given, values.min(-1).values)
    return summed(surprise, knowledge.lengths) / knowledge.text_bytes()


def _check_shapes(tensors: Mapping[str, Tensor], bounds: Bounds) -> None:
    count, labels = len(tensors["samples"]), len(tensors["labels"])
    guesses = tensors["tokens"].shape[1]
    if not 1 <= count <= bounds.samples or not 1 <= guesses <= bounds.top_k:
        raise WireError(
            f"knowledge of {count} examples with {guesses} guesses each, expected up to "
            f"{bounds.samples} with up to {bounds.top_k}"
        )
    expected = {
        "vocabulary": (32,),
        "lengths": (count,),
        "losses": (count,),
        "tokens": (labels, guesses),
        "values": (labels, guesses),
        "ends": (len(tensors["ids"]),),
    }
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            found = tuple(tensors[name].shape)
            raise WireError(f"knowledge: {name} has the shape {found}, expected {shape}")
    lengths = tensors["lengths"]
    if not _within(lengths, 1, bounds.max_length) or int(lengths.sum()) != labels:
        raise WireError(f"knowledge: lengths don't add up to the {labels} labels that came")


def _check_numbers(tensors: Mapping[str, Tensor], bounds: Bounds) -> None:
    pieces, ends = len(tensors["ids"]), tensors["ends"]
    for name, most in (("samples", bounds.samples), ("labels", pieces), ("tokens", pieces)):
        if not _within(tensors[name], 0, most - 1):
            raise WireError(f"knowledge: {name} out of range, expected 0 to {most - 1}")
    if not bool((tensors["samples"].diff() > 0).all()):
        raise WireError("knowledge: samples are not ascending")
    if not bool((ends.diff(prepend=ends.new_zeros(1)) > 0).all()) or int(ends[-1]) != len(
        tensors["pieces"]
    ):
        raise WireError("knowledge: pieces without bytes, or bytes without pieces")
    for name in ("losses", "values"):
        if not bool(torch.isfinite(tensors[name]).all()):
            raise WireError(f"knowledge: {name} with NaN or infinite numbers")
    values, tokens = tensors["values"].float(), tensors["tokens"].sort(-1).values
    if bool((values > 0).any()) or bool((values.exp().sum(-1) > 1 + _ROUNDING).any()):
        raise WireError("knowledge: guesses with probabilities of more than 1")
    if bool((tokens.diff(dim=-1) == 0).any()):
        raise WireError("knowledge: one token guessed twice for a label")


def _check_losses(knowledge: Knowledge) -> None:
    least = least_losses(knowledge) * (1 - _ROUNDING) - 1e-6
    if bool((bad := knowledge.losses < least).any()):
        place = int(bad.nonzero()[0])
        raise WireError(
            f"knowledge of example {int(knowledge.samples[place])} claims a loss of "
            f"{float(knowledge.losses[place]):.4g} nats per byte; its own guesses allow no less "
            f"than {float(least[place]):.4g}"
        )


def _within(values: Tensor, least: int, most: int) -> bool:
    return bool(((values >= least) & (values <= most)).all())


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
