"""Turns token ids into text as they come: complete characters only, no byte lost, constant work per token.

Bytes go through an incremental UTF-8 decoder, so a character spread over tokens appears when its last byte does, and a byte that can
never become a character appears as U+FFFD as soon as that is certain (at the latest on `flush`). Tokenizers whose tokens are not
bytes are decoded as text over a short window instead.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

from halcyon.engine.token_bytes import TokenBytes, special_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"
_PENDING_LIMIT_TOKENS = 8
"""Tokens after which a text decoder stops waiting for a character to complete."""


class Detokenizer(Protocol):
    """One per sequence."""

    def push(self, token_id: int) -> str:
        """The characters that this token completed; may be empty."""
        ...

    def flush(self) -> str:
        """What was pending; incomplete characters as U+FFFD."""
        ...


class ByteDetokenizer:
    """For tokenizers whose tokens spell bytes."""

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_next = table.strips_leading_space

    def push(self, token_id: int) -> str:
        """The characters that this token completed."""
        if token_id in self._table.special:
            return ""
        return self._stripped(self._decoder.decode(self._table[token_id]))

    def flush(self) -> str:
        """What was pending."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip_next and text:
            self._strip_next = False
            return text.removeprefix(" ")
        return text


class TextDetokenizer:
    """For other tokenizers: decodes a window that begins at the last complete text, and releases what grew."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """The characters that this token completed."""
        if token_id in self._special:
            return ""
        self._pending.append(token_id)
        grown = self._grown()
        if grown.endswith(_REPLACEMENT) and len(self._pending) < _PENDING_LIMIT_TOKENS:
            return ""
        self._settle()
        return grown

    def flush(self) -> str:
        """What was pending."""
        grown = self._grown()
        self._settle()
        return grown

    def _grown(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._pending)[len(before) :]

    def _settle(self) -> None:
        self._context, self._pending = (self._pending or self._context)[-_PENDING_LIMIT_TOKENS:], []


class DetokenizerFactory:
    """Picks the kind once for a tokenizer and makes one detokenizer per sequence."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._table = TokenBytes.of(tokenizer)

    def new(self) -> Detokenizer:
        """A fresh one, for one sequence."""
        return ByteDetokenizer(self._table) if self._table is not None else TextDetokenizer(self._tokenizer)

    def spell(self, token_id: int) -> tuple[str, bytes]:
        """One token alone: (its bytes decoded with replacement, its exact bytes). Special tokens give their name."""
        if self._table is not None and token_id not in self._table.special:
            exact = self._table[token_id]
            return exact.decode("utf-8", "replace"), exact
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text, text.encode()
