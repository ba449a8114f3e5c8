"""Tokens as the bytes that they stand for, so that tokens of different tokenizers can be compared.

`Ġkey` of a byte-level vocabulary and `▁key` of another are the same five bytes. What is no text
(the end of a sequence, a turn's mark) begins with a byte that no UTF-8 has.
"""

import hashlib
import re
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from fedlora.adapters.errors import ModelError

MARK = b"\xff"
END = MARK + b"<end>"  # of a sequence, whatever a tokenizer calls it
_UNUSED = MARK + b"<unused>"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """All tokens of a tokenizer.

    Attributes:
        digest: SHA-256 over them, in hex: equal for equal vocabularies alone.
        pieces: the bytes of each token, by id.
    """

    digest: str
    pieces: tuple[bytes, ...] = field(compare=False, repr=False)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "Vocabulary":
        """The vocabulary of a tokenizer.

        Raises:
            ModelError: if it is not one of the `tokenizers` library, which alone says how it
                writes bytes.
        """
        if not tokenizer.is_fast:
            raise ModelError(
                f"the tokenizer {type(tokenizer).__name__} does not say which bytes its tokens "
                "stand for; use a model with a tokenizer.json"
            )
        by_bytes = "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)
        tokens = tokenizer.get_vocab()
        pieces = [_UNUSED] * (max(tokens.values()) + 1)
        for token, number in tokens.items():
            pieces[number] = _from_bytes(token) if by_bytes else _from_text(token)
        for number, added in tokenizer.added_tokens_decoder.items():
            pieces[number] = MARK * added.special + added.content.encode()
        if tokenizer.eos_token_id is not None:
            pieces[tokenizer.eos_token_id] = END
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        return cls(digest.hexdigest(), tuple(pieces))


def text_bytes(piece: bytes) -> int:
    """How many bytes of text a piece stands for; none if it is a mark."""
    return 0 if piece.startswith(MARK) and len(piece) > 1 else len(piece)


def _alphabet() -> dict[str, int]:
    """The printable characters by which byte-level vocabularies write the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    named = {chr(byte): byte for byte in printable}
    return named | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _from_bytes(token: str) -> bytes:
    if any(letter not in _ALPHABET for letter in token):
        return token.encode()
    return bytes(_ALPHABET[letter] for letter in token)


def _from_text(token: str) -> bytes:
    if byte := _BYTE.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace("▁", " ").encode()
