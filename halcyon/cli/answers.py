"""Reading what `/v1/infer` sends: one document, or a stream of events that ends with the account and `[DONE]`."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from halcyon.cli.client import error_of_reply
from halcyon.cli.events import ServerEvent
from halcyon.errors import HalcyonError, UpstreamFailure
from halcyon.wire.api_infer import InferAnswer, InferEnd, InferPart
from halcyon.wire.inference import Account

_DONE = "[DONE]"
_T = TypeVar("_T")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `infer --json` prints. finish_reason: `stop`, `length` or `cancelled`."""

    output: str
    finish_reason: str
    account: Account


class _Kind(msgspec.Struct, frozen=True):
    """The keys that tell events apart."""

    replica_id: str | None = None
    error: dict[str, object] | None = None


def read_answer(body: bytes) -> Answer:
    """The answer in one document.

    Raises:
        HalcyonError: it is not an answer of ours.
    """
    found = _decode(body, InferAnswer)
    return Answer(output=_single(found.output), finish_reason=_single(found.finish_reason), account=_account_of(found))


class AnswerReader:
    """Puts a stream's events together."""

    def __init__(self) -> None:
        self.output = ""
        self._end: InferEnd | None = None
        self._done = False

    def take(self, event: ServerEvent) -> str:
        """Adds one event and returns the text it brought.

        Raises:
            RequestError: the event says that the request failed.
            HalcyonError: it is not an event of ours.
        """
        if event.data == _DONE:
            self._done = True
            return ""
        kind = _decode(event.data, _Kind)
        if kind.error is not None:
            raise error_of_reply(event.data, what="The stream broke off")
        if kind.replica_id is not None:
            self._end = _decode(event.data, InferEnd)
            return ""
        text = _decode(event.data, InferPart).text
        self.output += text
        return text

    def answer(self) -> Answer:
        """The whole answer.

        Raises:
            UpstreamFailure: the stream was cut before its end.
        """
        if self._end is None or not self._done:
            raise UpstreamFailure("The daemon cut the stream before the answer's end: what was printed is incomplete. Ask again.")
        return Answer(output=self.output, finish_reason=_single(self._end.finish_reason), account=_account_of(self._end))


def _single(value: str | list[str]) -> str:
    """This command asks for one answer, so a list has one element."""
    return value if isinstance(value, str) else "".join(value)


def _account_of(reply: Account) -> Account:
    """The account alone, without what stands beside it in a reply."""
    return msgspec.convert(reply, Account, from_attributes=True)


def _decode(data: bytes | str, expected: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=expected)
    except msgspec.DecodeError as error:
        message = f"The daemon's answer cannot be read by this halcyon ({error})."
        raise HalcyonError(f"{message} Compare `halcyon version` with the daemon's, and restart the older one.") from None
