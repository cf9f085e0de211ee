"""A conversation as clients write it, in the form the chat template sees."""

from __future__ import annotations

from collections.abc import Sequence

from halcyon.errors import InvalidRequest
from halcyon.wire.frames import ChatMessage
from halcyon.wire.openai import ChatTurn

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def messages_of(turns: Sequence[ChatTurn], *, field: str) -> tuple[ChatMessage, ...]:
    """The messages; text parts joined, `developer` read as `system`.

    Raises:
        InvalidRequest: there are none, or one has an unknown role or no text; the message names it by its path under `field`.
    """
    if not turns:
        raise InvalidRequest(f"`{field}` is empty; send at least one message", param=field)
    return tuple(_message(turn, f"{field}[{i}]") for i, turn in enumerate(turns))


def _message(turn: ChatTurn, path: str) -> ChatMessage:
    role = _ROLES.get(turn.role)
    if role is None:
        raise InvalidRequest(f"`{path}.role` must be one of {', '.join(_ROLES)}; tools are not supported", param=f"{path}.role")
    if turn.content is None:
        raise InvalidRequest(f"`{path}.content` is missing; send a string or text parts", param=f"{path}.content")
    if isinstance(turn.content, str):
        return ChatMessage(role, turn.content)
    for i, part in enumerate(turn.content):
        if part.type != "text":
            field = f"{path}.content[{i}].type"
            raise InvalidRequest(f'`{field}` must be "text": nothing else is supported', param=field)
    return ChatMessage(role, "".join(part.text for part in turn.content))


def text_bytes(text: str) -> int:
    """Length in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def messages_bytes(messages: Sequence[ChatMessage]) -> int:
    """Length of all contents in UTF-8."""
    return sum(text_bytes(message.content) for message in messages)
