"""What stands between the replica that produces a request's tokens and the client that reads them.

Rules:
- A streaming reader gets the parts that gathered since it last looked, and from that step on the request is never replayed: whatever was
  handed over counts as sent. Parts without anything to show wait for the next visible one, so that a replica lost before its first
  visible token costs nothing.
- A reader that wants the whole answer gets all parts in one step at the end; until then the request may start again elsewhere.
- The buffer of a stream is bounded; a reader that is too slow loses its request, not the daemon its memory. It is judged by what waited for
  it before, not by what comes at once: a batch may bring a whole answer in one frame.
- An answer that its replica cut short unasked is no answer: the request fails.
- Each generation ends exactly once (`ok`, `cancelled` or the code of its error), and says so through `on_end`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from halcyon import clock
from halcyon.core.actions import Dispatch
from halcyon.errors import ClientTooSlow, RequestError, UpstreamFailure
from halcyon.wire.frames import Delta, FinishReason
from halcyon.wire.inference import Account, Part, Timings, Usage

OUTCOME_OK = "ok"
OUTCOME_CANCELLED = "cancelled"


@dataclass(slots=True)
class _Answer:
    """Exact counts of one answer. Instants are monotonic ns, `None` before the first token."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    finish_reason: FinishReason | None = None

    def add(self, delta: Delta, now: int) -> int:
        """Counts the delta in; returns how many tokens it brought."""
        grown = max(0, delta.output_tokens - self.output_tokens)
        self.output_tokens = delta.output_tokens if delta.finish_reason else self.output_tokens + grown
        self.prompt_tokens = max(self.prompt_tokens, delta.prompt_tokens)
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        if grown:
            self.first_token_ns = now if self.first_token_ns is None else self.first_token_ns
            self.last_token_ns = now
        self.finish_reason = delta.finish_reason
        return grown


@dataclass(slots=True)
class _Service:
    """How the schedulers served the request: the last dispatch, when it was, and how many there were."""

    dispatch: Dispatch | None = None
    dispatched_ns: int | None = None
    attempts: int = 0


@dataclass(slots=True)
class GenerationPorts:
    """What a generation reports to its owner. Each is called from the event loop, synchronously.

    on_sent: the client has (or is about to have) part of the answer; once. on_gone: its reader left or was too slow, and nothing of it
    may run on. on_end: it ended, in whatever way; once.
    """

    on_sent: Callable[[str], None]
    on_gone: Callable[[str], None]
    on_end: Callable[[LiveGeneration], None]
    clock: Callable[[], int] = field(default=clock.now_ns)


class LiveGeneration:
    """One running request, as `halcyon.daemon.service.Generation` asks. The control loop feeds it, one handler reads it."""

    def __init__(
        self,
        request_id: str,
        *,
        model: str,
        version: str,
        arrived_ns: int,
        answers: int,
        stream: bool,
        buffer_tokens: int,
        ports: GenerationPorts,
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.version = version
        self.arrived_ns = arrived_ns
        self.parts_seen = 0
        self.outcome = ""
        self.error: RequestError | None = None
        self.ended_ns: int | None = None
        self._stream = stream
        self._buffer_tokens = buffer_tokens
        self._ports = ports
        self._answers = [_Answer() for _ in range(answers)]
        self._parts: list[Part] = []
        self._buffered_tokens = 0
        self._left_unread_tokens = 0
        self._pushed_ns = arrived_ns
        self._visible = False
        self._sent = False
        self._service = _Service()
        self._wakeup = asyncio.Event()

    # ---- what the handler does --------------------------------------------------------------------------------------

    async def __aenter__(self) -> LiveGeneration:
        """The generation itself."""
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Cancels whatever still runs. Never waits for the replica."""
        self.abandon()

    def __aiter__(self) -> LiveGeneration:
        """The generation itself."""
        return self

    async def __anext__(self) -> tuple[Part, ...]:
        """The parts that gathered since the last step.

        Raises:
            RequestError: refused while queued, or failed.
        """
        while True:
            if self._readable():
                return self._take()
            if self.error is not None:
                raise self.error
            if self.outcome:
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()

    def mark_sent(self) -> None:
        """The client has been sent part of the answer: the request must not be replayed from now on.

        Without any part handed over there is nothing of this request the client could have: one of several prompts of a call that still
        waits may be told this, and stays free to go anywhere.
        """
        if not self.parts_seen or self._sent:
            return
        self._sent = True
        if not self.outcome:
            self._ports.on_sent(self.request_id)

    def account(self) -> Account:
        """How it was served so far; exact counts."""
        service = self._service
        dispatch = service.dispatch
        return Account(
            request_id=self.request_id,
            model=self.model,
            version=self.version,
            replica_id=dispatch.replica_id if dispatch else "",
            usage=self._usage(),
            timings=self._timings(),
            batch_size=dispatch.batch_size if dispatch else 0,
            batch_reason=dispatch.reason if dispatch else "",
            queue_depth=dispatch.queue_depth if dispatch else 0,
            eligible_replicas=dispatch.eligible_replicas if dispatch else 0,
            attempts=service.attempts,
        )

    # ---- what the control loop does ---------------------------------------------------------------------------------

    @property
    def sent(self) -> bool:
        """Whether the client has seen part of the answer."""
        return self._sent

    @property
    def dispatched(self) -> bool:
        """Whether a replica has (or had) it."""
        return self._service.dispatch is not None

    @property
    def finish_reason(self) -> str:
        """Of the last answer; empty while it has none."""
        return self._answers[-1].finish_reason or ""

    @property
    def first_token_ns(self) -> int | None:
        """When the first token of any answer came."""
        return min((answer.first_token_ns for answer in self._answers if answer.first_token_ns is not None), default=None)

    def start_attempt(self, dispatch: Dispatch, *, now: int) -> None:
        """The request goes to a replica. What an earlier attempt left unsent is dropped, so that no token is seen twice."""
        self._service.dispatch = dispatch
        self._service.attempts += 1
        self._service.dispatched_ns = now
        self._answers = [_Answer() for _ in self._answers]
        self._drop_parts()

    def lose_attempt(self) -> None:
        """The replica that had it is gone: what it produced and nobody was sent is dropped."""
        if not self._sent and not self.outcome:
            self._drop_parts()
            self._answers = [_Answer() for _ in self._answers]

    def push(self, index: int, delta: Delta, *, now: int) -> None:
        """One more piece of one answer. Wakes the reader when there is something to hand over."""
        if self.outcome:
            return
        if now != self._pushed_ns:
            self._left_unread_tokens, self._pushed_ns = self._buffered_tokens, now
        self._buffered_tokens += self._answers[index].add(delta, now)
        self._parts.append(_part(index, delta))
        self._visible = self._visible or bool(delta.text or delta.token_ids or delta.logprobs or delta.finish_reason)
        if all(answer.finish_reason for answer in self._answers):
            self._finish(now)
        elif self._stream and self._left_unread_tokens > self._buffer_tokens:
            self._overflow(now)
        if self._readable():
            self._wakeup.set()

    def fail(self, error: RequestError, *, now: int) -> None:
        """Ends it with an error; of a stream, what was produced before is still handed over when the client has seen its beginning."""
        if self.outcome:
            return
        self.error = error
        if not (self._sent and self._stream):
            self._drop_parts()
        self._end(error.code, now)

    def abandon(self) -> None:
        """Its reader left. Does nothing once it ended."""
        if self.outcome:
            return
        self._end(OUTCOME_CANCELLED, self._ports.clock())
        self._drop_parts()
        self._ports.on_gone(self.request_id)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _readable(self) -> bool:
        return self._visible and bool(self._parts) and (self._stream or self.outcome == OUTCOME_OK)

    def _take(self) -> tuple[Part, ...]:
        parts = tuple(self._parts)
        self._drop_parts()
        self.parts_seen += len(parts)
        self.mark_sent()
        return parts

    def _drop_parts(self) -> None:
        self._parts.clear()
        self._buffered_tokens = self._left_unread_tokens = 0
        self._visible = False

    def _finish(self, now: int) -> None:
        if any(answer.finish_reason == "cancelled" for answer in self._answers):
            self.fail(UpstreamFailure("the replica ended the answer before it was complete; ask again"), now=now)
        else:
            self._end(OUTCOME_OK, now)

    def _overflow(self, now: int) -> None:
        self.error = ClientTooSlow(
            f"the stream was read too slowly: over {self._buffer_tokens} tokens were waiting to be sent; read faster or ask for less"
        )
        self._drop_parts()
        self._end(self.error.code, now)
        self._ports.on_gone(self.request_id)

    def _end(self, outcome: str, now: int) -> None:
        self.outcome = outcome
        self.ended_ns = now
        self._wakeup.set()
        self._ports.on_end(self)

    def _usage(self) -> Usage:
        prompt = max(answer.prompt_tokens for answer in self._answers)
        completion = sum(answer.output_tokens for answer in self._answers)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            cached_tokens=self._answers[0].cached_tokens,
        )

    def _timings(self) -> Timings:
        return Timings(
            queue_ms=self._since_arrival_ms(self._service.dispatched_ns),
            ttft_ms=self._since_arrival_ms(self.first_token_ns),
            tpot_ms=self._tpot_ms(),
            total_ms=self._since_arrival_ms(self.ended_ns),
        )

    def _since_arrival_ms(self, instant_ns: int | None) -> float | None:
        return None if instant_ns is None else (instant_ns - self.arrived_ns) / clock.NS_PER_MS

    def _tpot_ms(self) -> float | None:
        """Mean time per token after each answer's first."""
        spans = [
            (answer.last_token_ns - answer.first_token_ns, answer.output_tokens - 1)
            for answer in self._answers
            if answer.first_token_ns is not None and answer.last_token_ns is not None and answer.output_tokens > 1
        ]
        tokens = sum(count for _, count in spans)
        return sum(span for span, _ in spans) / tokens / clock.NS_PER_MS if tokens else None


def _part(index: int, delta: Delta) -> Part:
    return Part(
        index=index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=delta.logprobs,
        prompt_tokens=delta.prompt_tokens,
        cached_tokens=delta.cached_tokens,
        output_tokens=delta.output_tokens,
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
    )
