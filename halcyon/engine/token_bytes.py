"""Which bytes a token stands for, read from the tokenizer's own decoder.

Two families cover the models we serve: byte-level BPE, where every character of a token spells one byte, and byte-fallback BPE, where
`▁` is a space and `<0x41>` is a byte. `TokenBytes.of` returns `None` for a tokenizer of another family; `detokenize` then decodes
text instead of bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """The byte-level alphabet: printable bytes stand for themselves, the others for characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


def _from_byte_level(token: str) -> bytes:
    table = byte_alphabet()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode("utf-8", "surrogatepass")


def _from_byte_fallback(token: str) -> bytes:
    match = _BYTE_TOKEN.match(token)
    if match:
        return bytes([int(match.group(1), 16)])
    return token.replace("▁", " ").encode("utf-8", "surrogatepass")


class TokenBytes:
    """Bytes of token ids, remembered as they are asked for.

    Attributes:
        special: ids that are never part of an answer's text.
        strips_leading_space: the decoder drops one space at the very start of a text.
    """

    def __init__(self, tokenizer: Tokenizer, spell: Callable[[str], bytes], *, strips_leading_space: bool) -> None:
        self._tokenizer = tokenizer
        self._spell = spell
        self._known: dict[int, bytes] = {}
        self.special = special_ids(tokenizer)
        self.strips_leading_space = strips_leading_space

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            token = self._tokenizer.id_to_token(token_id)
            known = self._known[token_id] = b"" if token is None else self._spell(token)
        return known

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenBytes | None:
        """The table of `tokenizer`, or `None` where its decoder is of neither family."""
        steps = _decoder_steps(tokenizer)
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            return cls(tokenizer, _from_byte_level, strips_leading_space=False)
        if "ByteFallback" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
            return cls(tokenizer, _from_byte_fallback, strips_leading_space="Strip" in kinds)
        return None


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of the tokens marked special: begin and end of text, turn markers, padding."""
    return frozenset(token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special)


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    decoder = json.loads(tokenizer.to_str())["decoder"]
    if decoder is None:
        return []
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return steps
