"""Reading what `/v1/infer` sends: one document, or a stream of events that ends with the account and `[DONE]`."""

from __future__ import annotations

import msgspec

from halcyon.cli.account import Answer
from halcyon.cli.client import error_of_reply
from halcyon.cli.events import ServerEvent
from halcyon.errors import HalcyonError, UpstreamFailure
from halcyon.wire.inference import Account

_DONE = "[DONE]"


class InferReply(Account, frozen=True, kw_only=True):
    """The whole answer: the account's fields beside the output."""

    output: str = ""
    finish_reason: str | None = None


class InferEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. The last one carries the account's fields; `usage` tells it from the rest."""

    output: str = ""
    finish_reason: str | None = None
    usage: msgspec.Raw | None = None
    error: msgspec.Raw | None = None


def read_answer(body: bytes) -> Answer:
    """The answer in one document.

    Raises:
        HalcyonError: it is not an answer of ours.
    """
    try:
        reply = msgspec.json.decode(body, type=InferReply)
    except msgspec.DecodeError as error:
        raise _unreadable(error) from None
    return Answer(output=reply.output, finish_reason=reply.finish_reason, account=_account(body))


class AnswerReader:
    """Puts a stream's events together."""

    def __init__(self) -> None:
        self.output = ""
        self._finish_reason: str | None = None
        self._account: Account | None = None
        self._ended = False

    def take(self, event: ServerEvent) -> str:
        """Adds one event and returns the text it brought.

        Raises:
            RequestError: the event says that the request failed.
            HalcyonError: it is not an event of ours.
        """
        if event.data == _DONE:
            self._ended = True
            return ""
        try:
            found = msgspec.json.decode(event.data, type=InferEvent)
        except msgspec.DecodeError as error:
            raise _unreadable(error) from None
        if found.error is not None:
            raise error_of_reply(event.data, what="The stream broke off")
        self._finish_reason = found.finish_reason or self._finish_reason
        if found.usage is not None:
            self._account = _account(event.data)
            return ""
        self.output += found.output
        return found.output

    def answer(self) -> Answer:
        """The whole answer.

        Raises:
            UpstreamFailure: the stream was cut before its end.
        """
        if not self._ended:
            raise UpstreamFailure("The daemon cut the stream before the answer's end; what stands above is incomplete. Ask again.")
        return Answer(output=self.output, finish_reason=self._finish_reason, account=self._account)


def _account(body: bytes | str) -> Account | None:
    try:
        return msgspec.json.decode(body, type=Account)
    except msgspec.ValidationError:
        return None  # an older daemon's; the answer itself is what was asked for


def _unreadable(error: Exception) -> HalcyonError:
    message = f"The daemon's answer cannot be read by this halcyon ({error})."
    return HalcyonError(f"{message} Compare `halcyon version` with the daemon's, and restart the older one.")
