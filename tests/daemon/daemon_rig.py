"""A daemon in this process, with real simulated workers, in a state directory of its own. Everything is awaited; nothing sleeps."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from halcyon.config.settings import DaemonSettings, FleetSettings, ModelSettings, SimSettings, TenantSettings
from halcyon.core.restart import RestartSettings
from halcyon.daemon.app import Daemon, DaemonOptions
from halcyon.daemon.generation import LiveGeneration
from halcyon.wire.control import ReplicaStatus, Status
from halcyon.wire.frames import Sampling
from halcyon.wire.inference import InferenceCall, Part

QUICK_RESTARTS = RestartSettings(first_delay_ns=1_000_000, longest_delay_ns=2_000_000, jitter=0.0)
PATIENCE_S = 30.0
"""How long a test waits for what must come; it is never reached when the code is right."""


def sim_model(
    name: str = "toy", *, replicas: int = 1, max_batch: int = 8, sim: SimSettings | None = None, deadline_ms: int | None = None
) -> ModelSettings:
    """A simulated model with iterations of one millisecond."""
    law = sim or SimSettings(overhead_ms=1.0, per_token_ms=0.0)
    return ModelSettings(
        name=name, runtime="sim", replicas=replicas, max_batch=max_batch, max_context=4096, sim=law, deadline_ms=deadline_ms
    )


def asked(
    text: str = "hello", *, tokens: int = 5, stream: bool = True, model: str = "toy", n: int = 1, replica_id: str = ""
) -> InferenceCall:
    """A call for exactly `tokens` tokens."""
    sampling = Sampling(max_output_tokens=tokens, ignore_eos=True, temperature=0.0)
    return InferenceCall(
        model=model, text=text, sampling=sampling, stream=stream, input_bytes=len(text.encode()), n=n, replica_id=replica_id
    )


@dataclass
class Rig:
    """One running daemon."""

    daemon: Daemon
    state_dir: Path
    http: httpx.AsyncClient
    control: httpx.AsyncClient
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def open(self, call: InferenceCall, *, tenant: str = "") -> LiveGeneration:
        """Opens a generation under a fresh request id."""
        return await self.daemon.fleet.service.open(call, tenant=tenant, request_id=f"req-{next(self._numbers)}")

    async def answer(self, call: InferenceCall) -> tuple[str, LiveGeneration]:
        """The whole text of one call."""
        generation = await self.open(call)
        return await read(generation), generation

    async def until(self, holds: Callable[[Status], bool]) -> Status:
        """The first status for which `holds(status)`."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.daemon.until(holds)

    def replica(self, replica_id: str) -> ReplicaStatus:
        """One replica's status."""
        return next(r for r in self.daemon.status().replicas if r.replica_id == replica_id)

    def gauges(self) -> dict[str, float]:
        """Every sample of the daemon's own gauges that must be zero in an idle daemon, by its full name."""
        idle_at_zero = ("halcyon_queued", "halcyon_running", "halcyon_outstanding")
        lines = self.daemon.fleet.metrics.text().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line.startswith(idle_at_zero) or 'state="used"' in line)
        return {name: float(value) for name, value in samples}

    async def until_idle(self) -> None:
        """Waits until every one of those gauges is zero."""
        await self.until(lambda status: not any(self.gauges().values()) and not status.running)


async def read(generation: LiveGeneration) -> str:
    """The generation's whole text, all answers in a row."""
    parts: list[Part] = []
    async with asyncio.timeout(PATIENCE_S), generation:
        async for step in generation:
            parts += step
    return "".join(part.text for part in sorted(parts, key=lambda part: part.index))


class Rigs:
    """Starts daemons and ends them all."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._daemons = AsyncExitStack()

    def new_state_dir(self) -> Path:
        """A short path, for a Unix socket's sake; removed at the end."""
        path = Path(tempfile.mkdtemp(prefix="hd-", dir="/tmp"))
        self._stack.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    async def start(
        self,
        *models: ModelSettings,
        daemon: DaemonSettings | None = None,
        tenants: tuple[TenantSettings, ...] = (),
        state_dir: Path | None = None,
        restarts: RestartSettings = QUICK_RESTARTS,
        settle: bool = True,
    ) -> Rig:
        """A daemon that serves these models; settled unless told otherwise."""
        state_dir = state_dir or self.new_state_dir()
        settings = FleetSettings(daemon=daemon or DaemonSettings(worker_heartbeat_s=0.05), models=models, tenants=tenants)
        options = DaemonOptions(settings=settings, fleet="test.toml", state_dir=state_dir, listen="127.0.0.1:0", seed=1, restarts=restarts)
        running = await self._daemons.enter_async_context(Daemon(options))
        if settle:
            async with asyncio.timeout(PATIENCE_S):
                await running.settled()
        status = running.status()
        unlimited = httpx.Limits(max_connections=None)
        http = httpx.AsyncClient(base_url=f"http://{status.listen}", timeout=PATIENCE_S, limits=unlimited, trust_env=False)
        control = httpx.AsyncClient(
            base_url="http://halcyon", timeout=PATIENCE_S, transport=httpx.AsyncHTTPTransport(uds=status.socket), trust_env=False
        )
        await self._daemons.enter_async_context(http)
        await self._daemons.enter_async_context(control)
        return Rig(running, state_dir, http, control)

    async def close_daemons(self) -> None:
        """Ends the daemons; their state directories stay."""
        await self._daemons.aclose()

    async def close(self) -> None:
        """Ends everything that was started."""
        await self.close_daemons()
        await self._stack.aclose()


def completion(text: str = "hello", *, tokens: int = 5, stream: bool = True, model: str = "toy") -> dict[str, Any]:
    """The body of a completion of exactly `tokens` tokens."""
    return {"model": model, "prompt": text, "max_tokens": tokens, "stream": stream, "ignore_eos": True}


async def events(response: httpx.Response) -> AsyncIterator[str]:
    """The data of each event of a stream, `[DONE]` included."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line[6:]


def written(rig: Rig) -> str:
    """Everything a daemon has written, as text."""
    files = (path for path in rig.state_dir.rglob("*") if path.is_file())
    return "".join(path.read_bytes().decode("utf-8", "replace") for path in files)
