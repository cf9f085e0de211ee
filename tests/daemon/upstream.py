"""A small OpenAI-compatible server that does what the prompt says, well or badly."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from aiohttp import web

SECRET = "the upstream's own words"
DONE = b"data: [DONE]\n\n"


def chunk(text: str = "", *, finish: str | None = None) -> bytes:
    """One event with a piece of text."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}]}).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    """The event with the counts."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": {"cached_tokens": 1}}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


@dataclass
class Upstream:
    """Attributes:
    healthy: what probes are answered. seen: bodies of requests. keys: their Authorization headers. left: set when a client hung up.
    go_on: while clear, a stream stays where it is after its second word.
    """

    healthy: bool = True
    seen: list[dict[str, object]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    def __post_init__(self) -> None:
        self.go_on.set()

    def app(self) -> web.Application:
        """The server."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/completions", self._complete)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 500)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        refusals = {"busy": (429, "rate_limit_error"), "refuse": (400, "context_length_exceeded"), "broken": (500, SECRET)}
        if body["prompt"] in refusals:
            status, word = refusals[body["prompt"]]
            return web.json_response({"error": {"message": SECRET, "type": word}}, status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._stream(body["prompt"], request, response)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        return response

    async def _stream(self, prompt: str, request: web.Request, response: web.StreamResponse) -> None:
        if prompt != "cut at once":
            await response.write(chunk("Eins") + chunk(" zwei"))
        await self.go_on.wait()
        match prompt:
            case "well":
                smiley = chunk(" \N{GRINNING FACE}", finish="stop")
                await response.write(smiley[:40])
                await response.write(smiley[40:] + usage(11, 3) + DONE)
            case "cut" | "cut at once":
                request.transport.abort() if request.transport else None
            case "stall":
                await asyncio.Event().wait()
            case "stall after the end":
                await response.write(chunk(" drei", finish="stop"))
                await asyncio.Event().wait()
            case "cut after the end":
                await response.write(chunk(" drei", finish="stop"))
                request.transport.abort() if request.transport else None
            case "bad counts":
                await response.write(chunk(" drei", finish="stop") + usage(-4, -4) + DONE)
            case "bad chunk":
                await response.write(b"data: {no json\n\n")
            case "error":
                await response.write(b'data: {"error": {"message": "' + SECRET.encode() + b'", "type": "server_error"}}\n\n' + DONE)
            case _:
                pass  # ends early
