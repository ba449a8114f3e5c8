"""The tensor codec: lossless for every dtype, and nothing malformed gets through."""

import hashlib
import json
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlora.adapters import WireError
from fedlora.protos import Limits, Manifest, decode, describe, encode
from fedlora.protos.generate import generate

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2], dtype=torch.int8)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (4, 3)])
def test_every_dtype_and_shape_returns_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    tensor = (10 * torch.randn(shape, generator=generator)).to(dtype)
    payload = encode({"x": tensor})
    (back,) = decode(payload, describe(payload)).values()
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert torch.equal(back.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_nan_and_infinity_survive_and_views_are_copied() -> None:
    tensor = torch.tensor([[float("nan"), float("inf")], [-0.0, 1e-45]])
    payload = encode({"x": tensor.T})
    back = decode(payload, describe(payload))["x"]
    assert torch.equal(back.view(torch.int32), tensor.T.contiguous().view(torch.int32))


def test_the_same_tensors_give_the_same_bytes_in_any_order() -> None:
    assert encode(TENSORS) == encode(dict(reversed(TENSORS.items())))


def header_only(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def announce(payload: bytes) -> Manifest:
    """The manifest of an attacker, who can hash."""
    return Manifest(size=len(payload), digest=hashlib.sha256(payload).digest())


OVERLAP = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
}
NEGATIVE = {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}
PAST_END = {"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}
BYTE = b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
DUPLICATE = b"{" + BYTE + b"," + BYTE + b"}"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80\x04pickle",
        struct.pack("<Q", 1 << 63) + b"{}",
        struct.pack("<Q", 100) + b"{}",
        header_only(b"[1, 2]"),
        header_only(b"{" * 10_000),
        header_only(b'{"a": 1}'),
        header_only(b'{"a": {"dtype": "F32"}}'),
        header_only(b"\xff\xfe"),
        header_only(json.dumps(OVERLAP).encode(), bytes(12)),
        header_only(json.dumps(NEGATIVE).encode(), bytes(4)),
        header_only(json.dumps(PAST_END).encode(), bytes(4)),
        header_only(DUPLICATE, bytes(2)),
    ],
    ids=range(13),
)
def test_S1_S2_a_malformed_payload_is_refused(payload: bytes) -> None:
    manifest = announce(payload)
    with suppress(WireError):
        manifest = describe(payload)
    with pytest.raises(WireError):
        decode(payload, manifest)


def test_S1_limits_on_bytes_header_and_tensors() -> None:
    payload = encode({str(i): torch.zeros(1) for i in range(50)})
    manifest = describe(payload)
    for limits in (Limits(payload_bytes=100), Limits(header_bytes=100), Limits(tensors=49)):
        with pytest.raises(WireError):
            decode(payload, manifest, limits)
    assert len(decode(payload, manifest, Limits(tensors=50))) == 50


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("size", 3, "bytes"),
        ("digest", b"x" * 32, "altered"),
    ],
)
def test_S9_a_manifest_that_says_otherwise(field: str, value: object, reason: str) -> None:
    payload = encode(TENSORS)
    manifest = describe(payload)
    setattr(manifest, field, value)
    with pytest.raises(WireError, match=reason):
        decode(payload, manifest)


def test_S4_names_dtypes_and_shapes_must_be_those_announced() -> None:
    payload = encode(TENSORS)
    for change in ("name", "dtype", "shape", "missing"):
        manifest = describe(payload)
        if change == "missing":
            del manifest.tensors[1]
        elif change == "shape":
            manifest.tensors[0].shape[:] = [3, 2]
        else:
            setattr(manifest.tensors[0], change, "other")
        with pytest.raises(WireError, match="differ in tensor"):
            decode(payload, manifest)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_raise_our_error(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode(payload, announce(payload + b"x"))
    with suppress(WireError):
        decode(payload, describe(payload))


@given(st.integers(0, 200), st.integers(0, 255))
def test_any_single_altered_byte_is_found(position: int, value: int) -> None:
    payload = encode(TENSORS)
    manifest = describe(payload)
    altered = bytearray(payload)
    altered[position % len(payload)] = value
    if bytes(altered) != payload:
        with pytest.raises(WireError):
            decode(bytes(altered), manifest)


def test_the_generated_code_is_what_the_proto_files_give(tmp_path: Path) -> None:
    generate(tmp_path)
    here = Path(__file__).resolve().parents[2] / "protos"
    made = sorted((tmp_path / "fedlora" / "protos").iterdir())
    assert {one.name for one in made} >= {"messages_pb2.py", "messages_pb2.pyi"}
    for one in made:
        kept = (here / one.name).read_text()
        assert one.read_text() == kept, f"run `python protos/generate.py` for {one.name}"
