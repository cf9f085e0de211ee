"""An `InferenceService` that plays scripts, and the loopback server that puts the API in front of it.

Trustworthy: it checks what the API owes a service. A generation is entered once and read only inside its `async with`; nothing is read
after its end; `live` counts the generations that are open. A script is a list of steps: parts to yield, an `asyncio.Event` to wait for,
or an exception to raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType

from aiohttp import web
from openai import AsyncOpenAI

from halcyon.config.settings import DaemonSettings, FleetSettings, Limits, TenantSettings
from halcyon.daemon.http import build_api
from halcyon.daemon.http.server import ApiRunner
from halcyon.wire.control import ModelStatus
from halcyon.wire.frames import TokenLogprob
from halcyon.wire.inference import Account, InferenceCall, Part, Timings, Usage

PROMPT_TOKENS = 7
CACHED_TOKENS = 2
LONGEST_TEST_S = 300.0
"""A broken promise may show as a wait that never ends; this ends it."""
Step = tuple[Part, ...] | asyncio.Event | Exception
Script = Sequence[Step]


def spoken(*texts: str, n: int = 1, finish: str = "stop", logprobs: int | None = None) -> list[Step]:
    """A script: every answer says the texts, one token a text and a step, and ends with the last of them."""
    steps: list[Step] = []
    for position, text in enumerate(texts):
        last = position == len(texts) - 1
        steps.append(
            tuple(
                Part(
                    index=index,
                    text=text,
                    token_ids=(100 + position,),
                    logprobs=() if logprobs is None else (token(text, alternatives=logprobs),),
                    prompt_tokens=PROMPT_TOKENS if position == 0 else 0,
                    cached_tokens=CACHED_TOKENS if position == 0 else 0,
                    output_tokens=position + 1,
                    finish_reason=finish if last else None,  # type: ignore[arg-type]
                )
                for index in range(n)
            )
        )
    return steps


def token(text: str, *, alternatives: int = 0) -> TokenLogprob:
    """A token of probability 1/2, and alternatives that halve each time."""
    top = tuple((k, text if k == 0 else f"alt{k}", (text if k == 0 else f"alt{k}").encode(), -0.5 * (k + 1)) for k in range(alternatives))
    return TokenLogprob(token_id=1, text=text, bytes_=text.encode(), logprob=-0.5, top=top)


class ScriptedGeneration:
    """Plays one script. `closed` is set when its owner left it; `waiting` when it has come to an event of the script."""

    def __init__(self, service: ScriptedService, call: InferenceCall, request_id: str, script: Script) -> None:
        self.request_id = request_id
        self.closed = asyncio.Event()
        self.waiting = asyncio.Event()
        self.steps_read = 0
        self.sent_after_steps: int | None = None
        self.finished = False
        self._service = service
        self._call = call
        self._script = script
        self._inside = False
        self._output_tokens: dict[int, int] = {}

    async def __aenter__(self) -> ScriptedGeneration:
        assert not self._inside
        assert not self.closed.is_set()
        self._inside = True
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._inside
        self._inside = False
        self.closed.set()
        self._service.live -= 1

    async def __aiter__(self) -> AsyncIterator[tuple[Part, ...]]:
        for step in self._script:
            assert self._inside
            await asyncio.sleep(0)  # a real generation lets the loop run between steps
            if isinstance(step, asyncio.Event):
                self.waiting.set()
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                self.steps_read += 1
                for part in step:
                    self._output_tokens[part.index] = part.output_tokens
                yield step
        self.finished = True

    def mark_sent(self) -> None:
        """Remembers after how many steps it came."""
        assert self._inside
        assert self.sent_after_steps is None, "mark_sent is called once"
        self.sent_after_steps = self.steps_read

    def account(self) -> Account:
        """Exact counts of what was read."""
        output = sum(self._output_tokens.values())
        usage = Usage(
            prompt_tokens=PROMPT_TOKENS, completion_tokens=output, total_tokens=PROMPT_TOKENS + output, cached_tokens=CACHED_TOKENS
        )
        return Account(
            request_id=self.request_id,
            model=self._call.model,
            version="v2",
            replica_id="tiny-0",
            usage=usage,
            timings=Timings(queue_ms=1.5, ttft_ms=2.5, tpot_ms=3.5, total_ms=4.5),
            batch_size=3,
            batch_reason="slot_free",
        )


MODELS = (
    ModelStatus(name="tiny", version="v1", runtime="sim", source="", default=True, replicas=1, ready=1, max_context=512),
    ModelStatus(name="tiny", version="v2", runtime="sim", source="", default=False, replicas=1, ready=0, max_context=256),
    ModelStatus(name="other/solo", version="v1", runtime="sim", source="", default=True, replicas=1, ready=1, max_context=128),
)


@dataclass
class ScriptedService:
    """script: played by every generation, or chosen by the call. refusal: raised by `open` instead."""

    script: Script | Callable[[InferenceCall], Script] = field(default_factory=lambda: spoken("Hel", "lo"))
    refusal: Exception | None = None
    ready: tuple[bool, str] = (True, "")
    calls: list[InferenceCall] = field(default_factory=list)
    tenants: list[str] = field(default_factory=list)
    generations: list[ScriptedGeneration] = field(default_factory=list)
    live: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, call: InferenceCall, *, tenant: str, request_id: str) -> ScriptedGeneration:
        """Refuses, or opens the next generation."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)  # one object raised many times would keep every frame
        generation = ScriptedGeneration(self, call, request_id, self.script(call) if callable(self.script) else self.script)
        self.live += 1
        self.calls.append(call)
        self.tenants.append(tenant)
        self.generations.append(generation)
        self.opened.set()
        return generation

    def models(self) -> tuple[ModelStatus, ...]:
        """Two versions of one model, and another model."""
        return MODELS

    def is_ready(self) -> tuple[bool, str]:
        """As told."""
        return self.ready

    @property
    def call(self) -> InferenceCall:
        """The one call that came."""
        assert len(self.calls) == 1
        return self.calls[0]

    @property
    def generation(self) -> ScriptedGeneration:
        """The one generation there is."""
        assert len(self.generations) == 1
        return self.generations[0]


@dataclass
class CountingMetrics:
    """An `HttpMetrics` that keeps every label it was given."""

    started_endpoints: list[str] = field(default_factory=list)
    endings: list[tuple[str, int, str]] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def started(self, *, endpoint: str) -> None:
        """Keeps the label."""
        self.started_endpoints.append(endpoint)
        self.begun.set()

    def finished(self, *, endpoint: str, status: int, code: str, duration_ns: int) -> None:
        """Keeps the labels."""
        assert duration_ns >= 0
        self.endings.append((endpoint, status, code))
        self.ended.set()


@dataclass(frozen=True)
class Server:
    """A running API. port: on 127.0.0.1."""

    port: int
    metrics: CountingMetrics

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def sdk(self, *, key: str = "unused") -> AsyncOpenAI:
        """The official client, without retries. Use as an async context manager."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)


@asynccontextmanager
async def serving(
    service: ScriptedService,
    *,
    limits: Limits | None = None,
    tenants: tuple[TenantSettings, ...] = (),
    metrics_text: Callable[[], str] | None = None,
    trusted: bool = False,
    loopback: bool = True,
    flush_timeout_s: float = 30.0,
) -> AsyncIterator[Server]:
    """Serves the API on a free loopback port, and checks at the end that no generation was left open.

    Raises:
        TimeoutError: the test hangs.
    """
    settings = FleetSettings(daemon=DaemonSettings(limits=limits or Limits()), tenants=tenants)
    metrics = CountingMetrics()
    app = build_api(
        service,
        settings=settings,
        metrics=metrics,
        metrics_text=metrics_text,
        trusted=trusted,
        loopback=loopback,
        flush_timeout_s=flush_timeout_s,
    )
    runner = ApiRunner(app, farewell_s=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        async with asyncio.timeout(LONGEST_TEST_S):
            yield Server(port=runner.addresses[0][1], metrics=metrics)
    finally:
        await runner.cleanup()
    assert service.live == 0, "a generation was left open"


def data_of(stream: str) -> list[str]:
    """The data of a stream's events, in order; comments left out."""
    return [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
