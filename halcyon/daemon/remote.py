"""A line to an OpenAI-compatible server elsewhere, which behaves like a worker: it reports `Ready`, iterations and failures as frames.

Rules
- It is ready once a probe succeeds and lost when the server refuses connections, or when probes fail three times in a row while no stream
  brings anything: a server too busy to answer a probe is alive as long as it produces tokens.
- A server that is merely full (429, 503) is busy, not faulty. What it says against the request itself is the client's, and no other replica
  is tried. Everything else might go better elsewhere; whether that is still possible is for the core to say, which knows what was sent.
- The key comes from the environment and goes into one header; it is never logged, and no redirect carries it anywhere else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import dataclass

import aiohttp
import msgspec

from halcyon.config.settings import ModelSettings
from halcyon.daemon.link import OnFrame, OnLost
from halcyon.daemon.logs import EventLog
from halcyon.daemon.remote_stream import AnswerStream, StreamBroken, body_of, error_class, path_of
from halcyon.wire.frames import Cancel, Delta, Fatal, Iteration, Ready, Sequence, SequenceFailed, Stage, Stop, Submit, ToWorker

MAX_PROBE_FAILURES = 3
_MAX_ERROR_BYTES = 64 * 1024
_BUSY = {429, 503}
_OURS = {401, 403, 404, 405, 408}
"""Statuses that blame the registration (its key, its model's name), not the client's request."""
_NO_SUCH_PATH = {404, 405, 501}
_log = EventLog("remote")


class _Refused(Exception):
    """The server answered a request with an error."""

    def __init__(self, failure: SequenceFailed) -> None:
        super().__init__(failure.code)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class _Stream:
    """One answer under way."""

    answer: AnswerStream
    task: asyncio.Task[None]


class RemoteLink:
    """One remote replica. `halcyon.daemon.link.Link`."""

    @classmethod
    def start(cls, replica_id: str, model: ModelSettings, *, on_frame: OnFrame, on_lost: OnLost) -> RemoteLink:
        """Begins probing; `on_frame(Ready)` or `on_lost` follows."""
        link = cls(replica_id, model, on_frame=on_frame, on_lost=on_lost)
        link._spawn("probe", link._probe_for_ever())
        return link

    def __init__(self, replica_id: str, model: ModelSettings, *, on_frame: OnFrame, on_lost: OnLost) -> None:
        self.replica_id = replica_id
        self._model = model
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._base = model.source.rstrip("/")
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=model.openai.connect_timeout_s, sock_read=model.openai.idle_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._streams: dict[str, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()
        self._lost = False
        self._iterations = 0
        self._heard = False
        self._closing: asyncio.Future[None] | None = None

    # ---- orders ------------------------------------------------------------------------------------------------------

    def send(self, frame: ToWorker) -> None:
        """Takes a frame as a worker would; returns at once."""
        if self._lost:
            return
        match frame:
            case Submit():
                for sequence in frame.sequences:
                    answer = AnswerStream(sequence.sequence_id)
                    self._streams[sequence.sequence_id] = _Stream(answer, self._spawn(sequence.sequence_id, self._serve(sequence, answer)))
            case Cancel():
                for sequence_id in frame.sequence_ids:
                    self._cancel(sequence_id)
            case Stop():
                self.stop()
            case _:
                pass  # a remote server is configured by its own operator

    def stop(self) -> None:
        """Hangs up. The server itself is not ours to end."""
        self._lose("it was asked to end")

    def terminate(self) -> None:
        """Hangs up."""
        self.stop()

    def kill(self) -> None:
        """Hangs up."""
        self.stop()

    async def wait_gone(self) -> None:
        """Waits until every connection is closed."""
        await self._gone.wait()

    # ---- life --------------------------------------------------------------------------------------------------------

    def _spawn(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"{self.replica_id}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        """A task that failed in a way nobody foresaw takes the whole line down, loudly; the supervisor opens a new one."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("remote_task_crashed", error=error, replica=self.replica_id)
            self._lose(f"the line to it failed inside the daemon ({type(error).__name__}); the log has the place")

    def _lose(self, reason: str, fatal: Fatal | None = None) -> None:
        if self._lost:
            return
        self._lost = True
        self._streams.clear()
        self._on_lost(reason, fatal)
        running = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        self._closing = asyncio.ensure_future(self._close(running))

    async def _close(self, running: list[asyncio.Task[None]]) -> None:
        try:
            await asyncio.gather(*running, return_exceptions=True)
            await self._http.close()
        finally:
            self._gone.set()

    # ---- probing -----------------------------------------------------------------------------------------------------

    async def _probe_for_ever(self) -> None:
        if self._model.openai.api_key_env and not os.environ.get(self._model.openai.api_key_env):
            reason = f"the environment variable {self._model.openai.api_key_env} is not set; set it and start the daemon again"
            self._lose(reason, Fatal(reason, retryable=False))
            return
        self._emit_stage(f"looking for {self._base}")
        failures, is_ready = 0, False
        while not self._lost:
            trouble, is_final = await self._probe()
            if not trouble:
                failures = 0
                if not is_ready:
                    is_ready = True
                    self._on_frame(self._ready())
            else:
                failures = 0 if self._heard and not is_final else failures + 1
                if is_final or not is_ready or failures >= MAX_PROBE_FAILURES:
                    self._lose(trouble)
                    return
            self._heard = False
            await asyncio.sleep(self._model.openai.probe_interval_s)

    async def _probe(self) -> tuple[str, bool]:
        """('', False) when the server is well; else what is wrong, and whether it is certain that nobody is there."""
        root = self._base.removesuffix("/v1")
        try:
            status = await self._probe_at(f"{root}/health")
            if status in _NO_SUCH_PATH:
                status = await self._probe_at(f"{self._base}/models")
        except aiohttp.ClientConnectorError as error:
            return f"{self._base} cannot be reached ({error.strerror or type(error).__name__})", True
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{self._base} does not answer probes ({type(error).__name__})", False
        return ("", False) if status < 400 else (f"{self._base} answers probes with status {status}", False)

    async def _probe_at(self, url: str) -> int:
        timeout = aiohttp.ClientTimeout(total=self._model.openai.connect_timeout_s)
        async with self._http.get(url, headers=self._headers(), timeout=timeout, allow_redirects=False) as response:
            return response.status

    def _emit_stage(self, detail: str) -> None:
        self._on_frame(Stage("starting", detail))

    def _ready(self) -> Ready:
        return Ready(kind="continuous", max_batch=self._model.max_batch, max_context=self._model.max_context, device="remote")

    # ---- serving -----------------------------------------------------------------------------------------------------

    def _cancel(self, sequence_id: str) -> None:
        """Hangs up on one answer. Its last delta does not wait for the task, which may not even have begun."""
        stream = self._streams.get(sequence_id)
        if stream is not None:
            stream.task.cancel()
            self._produced([stream.answer.cancelled()], is_last=True)

    async def _serve(self, sequence: Sequence, answer: AnswerStream) -> None:
        """One answer, which ends in exactly one last delta or one failure, unless it is cancelled or the line is lost first."""
        try:
            await self._relay(sequence, answer)
        except _Refused as refused:
            self._failed(refused.failure)
        except StreamBroken as broken:
            self._broke_off(sequence, answer, broken.message)
        except aiohttp.ConnectionTimeoutError:
            self._broke_off(sequence, answer, "the remote server could not be connected to in time")
        except TimeoutError:
            self._broke_off(sequence, answer, f"the remote server sent nothing for {self._model.openai.idle_timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            self._broke_off(sequence, answer, f"the connection to the remote server broke ({type(error).__name__})")

    def _broke_off(self, sequence: Sequence, answer: AnswerStream, message: str) -> None:
        """A break after the answer's own end takes nothing from it but the server's counts."""
        if answer.has_finished:
            self._produced(answer.end(), is_last=True)
        else:
            self._failed(_failure(sequence.sequence_id, message))

    async def _relay(self, sequence: Sequence, answer: AnswerStream) -> None:
        if sequence.return_token_ids:
            raise _Refused(_refusal(sequence.sequence_id, "return_token_ids: a remote replica cannot give token ids; leave it out"))
        body = msgspec.json.encode(body_of(sequence, self._model.openai.remote_model or self._model.name))
        url = f"{self._base}/{path_of(sequence)}"
        async with self._http.post(url, data=body, headers=self._headers(), allow_redirects=False) as response:
            if response.status != 200:
                raise _Refused(_failure_of(sequence.sequence_id, response.status, await response.content.read(_MAX_ERROR_BYTES)))
            async for data in response.content.iter_any():
                self._heard = True
                self._pass_on(answer, data)
                if answer.is_complete:
                    return
        self._produced(answer.end(), is_last=True)

    def _pass_on(self, answer: AnswerStream, data: bytes) -> None:
        """What came before a break in the same bytes is passed on all the same."""
        deltas: list[Delta] = []
        try:
            for delta in answer.feed(data):
                deltas.append(delta)  # noqa: PERF402 - not a copy: what came before an exception must be kept
        finally:
            self._produced(deltas, is_last=answer.is_complete)

    def _produced(self, deltas: list[Delta], *, is_last: bool) -> None:
        if is_last and deltas:
            self._streams.pop(deltas[-1].sequence_id, None)
        if deltas and not self._lost:
            self._iterations += 1
            self._on_frame(
                Iteration(number=self._iterations, started_ns=0, duration_ns=0, running=len(self._streams), deltas=tuple(deltas))
            )

    def _failed(self, failure: SequenceFailed) -> None:
        self._streams.pop(failure.sequence_id, None)
        if not self._lost:
            self._on_frame(failure)

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(self._model.openai.api_key_env, "").strip() if self._model.openai.api_key_env else ""
        headers = {"content-type": "application/json", "accept": "text/event-stream, application/json"}
        return headers | {"authorization": f"Bearer {key}"} if key else headers


def _failure(sequence_id: str, message: str) -> SequenceFailed:
    return SequenceFailed(sequence_id=sequence_id, code="upstream_failure", message=message, retryable=True)


def _refusal(sequence_id: str, message: str) -> SequenceFailed:
    return SequenceFailed(sequence_id=sequence_id, code="invalid_request", message=message)


def _failure_of(sequence_id: str, status: int, body: bytes) -> SequenceFailed:
    """What a status other than 200 means for the request. Of the server's words only their class is kept."""
    word = error_class(body)
    named = f"status {status}, {word}" if word else f"status {status}"
    if status in _BUSY:
        message = f"the remote server is busy ({named}); retry later"
        return SequenceFailed(sequence_id=sequence_id, code="overloaded", message=message, retryable=True, busy=True)
    if 400 <= status < 500 and status not in _OURS:
        return _refusal(sequence_id, f"the remote server refused the request ({named}); correct it")
    return _failure(sequence_id, f"the remote server failed ({named})")
