"""Text from tokens as they come: complete characters, no byte lost, on each family of tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from halcyon.engine.detokenize import ByteDetokenizer, DetokenizerFactory, TextDetokenizer

REPLACEMENT = "\ufffd"


@pytest.fixture(scope="module")
def byte_level(tiny_directory: Path) -> Tokenizer:
    """The tiny model's tokenizer: one byte a token."""
    return Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """A tokenizer of the other family: words with `▁`, and `<0x..>` for bytes."""
    words = ["▁Hello", "▁world", "é", "!", "\n"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + at for at, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


def pieces_of(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    """What each token released, and the flush."""
    detokenizer = DetokenizerFactory(tokenizer).new()
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


def test_characters_come_whole(byte_level: Tokenizer) -> None:
    """`日本🙂é` byte by byte: each character with its last byte, never U+FFFD. (Streams: a multi-byte character split across tokens.)"""
    text = "日本🙂é"
    pieces = pieces_of(byte_level, byte_level.encode(text, add_special_tokens=False).ids)
    assert pieces == ["", "", "日", "", "", "本", "", "", "", "🙂", "", "é", ""]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_no_byte_is_lost(byte_level: Tokenizer, text: str) -> None:
    """Any text comes out as it went in, and no piece holds U+FFFD unless the text does."""
    pieces = pieces_of(byte_level, byte_level.encode(text, add_special_tokens=False).ids)
    assert "".join(pieces) == text
    assert any(REPLACEMENT in piece for piece in pieces) == (REPLACEMENT in text)


@settings(max_examples=100, deadline=None)
@given(token_ids=st.lists(st.integers(0, 258), max_size=60))
def test_any_tokens_decode_as_the_tokenizer_decodes_them(byte_level: Tokenizer, token_ids: list[int]) -> None:
    """For any tokens, valid bytes or not, the pieces join to what the tokenizer says of the whole; special tokens are left out."""
    assert "".join(pieces_of(byte_level, token_ids)) == byte_level.decode(token_ids, skip_special_tokens=True)


def test_a_broken_character_appears_when_it_is_certain(byte_level: Tokenizer) -> None:
    """A byte that starts a character and is followed by a letter is U+FFFD with that letter; at the end, with the flush."""
    start, letter = byte_level.encode("日", add_special_tokens=False).ids[0], byte_level.encode("a", add_special_tokens=False).ids[0]
    assert pieces_of(byte_level, [start, letter, start]) == ["", REPLACEMENT + "a", "", REPLACEMENT]


def test_byte_fallback_tokenizers(byte_fallback: Tokenizer) -> None:
    """`▁` is a space except at the very start, byte tokens join to characters, special tokens are left out."""
    ids = [256, 257, 0xE6, 0x97, 0xA5, 259, byte_fallback.token_to_id("</s>")]
    assert isinstance(DetokenizerFactory(byte_fallback).new(), ByteDetokenizer)
    assert pieces_of(byte_fallback, ids) == ["Hello", " world", "", "", "日", "!", "", ""]
    assert byte_fallback.decode(ids) == "Hello world日!"


def test_other_tokenizers_decode_text() -> None:
    """A word-piece tokenizer, whose tokens are no bytes, gives each word with its space."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "now": 3}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    assert isinstance(DetokenizerFactory(tokenizer).new(), TextDetokenizer)
    assert pieces_of(tokenizer, [1, 2, 3, 1]) == ["play", "ing", " now", " play", ""]


def test_a_token_is_spelled_with_its_exact_bytes(byte_level: Tokenizer) -> None:
    """For logprobs a part of a character shows as U+FFFD beside its exact byte, and a special token by its name."""
    factory = DetokenizerFactory(byte_level)
    first = byte_level.encode("日", add_special_tokens=False).ids[0]
    assert factory.spell(first) == (REPLACEMENT, b"\xe6")
    assert factory.spell(257) == ("</s>", b"</s>")
