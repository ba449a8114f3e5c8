"""Tokens as bytes: of a byte-level vocabulary, and of one that writes spaces as ▁."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from fedlora.models.pieces import END, MARK, Vocabulary, text_bytes

TEXT = "Grüße: the ferry leaves at 7 — “late”.\n"


def test_pieces_of_a_text_are_its_bytes(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    vocabulary = Vocabulary.of(tiny_tokenizer)
    ids = tiny_tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert b"".join(vocabulary.pieces[one] for one in ids) == TEXT.encode()
    assert len(vocabulary.pieces) == len(tiny_tokenizer)


def test_marks_are_no_text_and_every_end_is_the_same(
    tiny_tokenizer: PreTrainedTokenizerFast,
) -> None:
    pieces = Vocabulary.of(tiny_tokenizer).pieces
    assert pieces[tiny_tokenizer.eos_token_id] == END
    assert pieces[tiny_tokenizer.pad_token_id] == MARK + b"<pad>"
    assert [text_bytes(one) for one in (END, MARK, b" key")] == [0, 1, 4]


def test_spaces_and_bytes_of_a_sentencepiece_vocabulary() -> None:
    words = {"<unk>": 0, "</s>": 1, "▁key": 2, "<0x0A>": 3, "Ġ": 4}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )
    pieces = Vocabulary.of(fast).pieces
    assert pieces == (MARK + b"<unk>", END, b" key", b"\n", "Ġ".encode())


def test_the_digest_tells_vocabularies_apart(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    one, same = Vocabulary.of(tiny_tokenizer), Vocabulary.of(tiny_tokenizer)
    assert one == same
    assert hash(one) == hash(same)
    with pytest.raises(AttributeError):
        one.digest = "other"  # type: ignore[misc]
