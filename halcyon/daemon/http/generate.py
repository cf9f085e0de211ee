"""The one handler behind `/v1/infer`, `/v1/completions` and `/v1/chat/completions`.

Order of refusals, cheapest first: key → size of the body → its shape → the tenant's models → headers → the service. A client that leaves
cancels the handler at whatever `await` it stands; leaving `async with generation` then ends the request down to its KV blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from aiohttp import web

from halcyon.config.settings import Limits, TenantSettings
from halcyon.daemon.http.answers import Answers
from halcyon.daemon.http.asked import Asked, Dialect
from halcyon.daemon.http.body import decode_body, read_body
from halcyon.daemon.http.exchange import Exchange
from halcyon.daemon.http.keys import KeyRing, check_model
from halcyon.daemon.http.several import open_calls
from halcyon.daemon.http.sse import DONE, EventStream
from halcyon.daemon.http.wishes import with_wishes
from halcyon.daemon.service import Generation, InferenceService
from halcyon.errors import UpstreamFailure
from halcyon.wire.inference import Account, Part


class GenerateHandler:
    """Serves one endpoint; `dialect` is all that tells it from the others."""

    def __init__(self, service: InferenceService, dialect: Dialect, *, keys: KeyRing, limits: Limits, flush_timeout_s: float) -> None:
        self._service = service
        self._dialect = dialect
        self._keys = keys
        self._limits = limits
        self._flush_timeout_s = flush_timeout_s

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        exchange = Exchange.current()
        tenant = self._keys.tenant_of(request)
        asked = await self._read(request, exchange)
        generation = await self._open(request, asked, tenant, exchange)
        if asked.stream:
            return await self._answer_stream(request, exchange, asked, generation)
        return await _answer_whole(asked, generation)

    async def _read(self, request: web.Request, exchange: Exchange) -> Asked:
        data = await read_body(request, max_body_bytes=self._limits.max_body_bytes)
        return await decode_body(functools.partial(self._dialect, limits=self._limits, request_id=exchange.request_id), data)

    async def _open(self, request: web.Request, asked: Asked, tenant: TenantSettings, exchange: Exchange) -> Generation:
        check_model(tenant, asked.calls[0].model)
        calls = [with_wishes(call, request) for call in asked.calls]
        return await open_calls(self._service, calls, tenant=tenant.name, request_id=exchange.request_id)

    async def _answer_stream(self, request: web.Request, exchange: Exchange, asked: Asked, generation: Generation) -> web.StreamResponse:
        stream = EventStream(
            request,
            headers=exchange.headers,
            heartbeat_s=self._limits.heartbeat_s,
            buffer_tokens=self._limits.stream_buffer_tokens,
            flush_timeout_s=self._flush_timeout_s,
        )
        async with generation as running:
            async with stream:
                exchange.stream = stream
                await _relay(running, asked, stream)
            ending = asked.reply.ending(running.account())
        await stream.finish(ending + DONE)
        return stream.response


async def _relay(generation: Generation, asked: Asked, stream: EventStream) -> None:
    """Passes every step on in one write."""
    sent = False
    seen = [0] * asked.choices
    async for parts in generation:
        _check_ending(parts)
        tokens = _new_tokens(parts, seen)
        events = asked.reply.step(parts)
        if not events:
            continue
        if not sent:
            generation.mark_sent()
            sent = True
        await stream.send(events, tokens=tokens)


def _check_ending(parts: Sequence[Part]) -> None:
    """An answer that was cut short is not an answer: clients know `stop` and `length` only.

    Raises:
        UpstreamFailure: a part says `cancelled`.
    """
    if any(part.finish_reason == "cancelled" for part in parts):
        raise UpstreamFailure("the answer was ended before it was complete; ask again")


def _new_tokens(parts: Sequence[Part], seen: list[int]) -> int:
    """Tokens that these parts add, from the running totals; updates `seen`."""
    new = 0
    for part in parts:
        new += max(0, part.output_tokens - seen[part.index])
        seen[part.index] = part.output_tokens
    return new


async def _answer_whole(asked: Asked, generation: Generation) -> web.StreamResponse:
    answers = Answers(asked.choices)
    async with generation as running:
        async for parts in running:
            _check_ending(parts)
            answers.add(parts)
        account = running.account()
    return web.Response(
        body=asked.reply.whole(answers, account), headers=_served_by(account), content_type="application/json", charset="utf-8"
    )


def _served_by(account: Account) -> dict[str, str]:
    return {"x-halcyon-replica": account.replica_id, "x-halcyon-version": account.version}
