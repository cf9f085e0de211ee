"""The `torch` runtime of a worker: turns frames into what the engine takes and back, and says nothing else.

`start` runs on the process's main thread, `submit` and `cancel` on the reader's, `iteration`, `failed` and `fatal` on the engine's.
One `Iteration` frame leaves for every iteration of the engine.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from halcyon.clock import now_ns
from halcyon.config.settings import ModelSettings
from halcyon.core.batching.iteration import DEFAULT_PREFILL_BUDGET
from halcyon.core.batching.orders.choice import order_named
from halcyon.engine.request import IterationReport
from halcyon.errors import InvalidRequest
from halcyon.wire.frames import Cancel, Configure, FromWorker, Ready, Sequence, SequenceFailed, Stage, Submit
from halcyon.worker.runtime import Emit, Fail, RuntimeStats, given_up
from halcyon.worker.torch_frames import iteration_frame, prompt_ids, sequence_request

if TYPE_CHECKING:
    from halcyon.engine.engine import TorchEngine
    from halcyon.engine.loading import LoadedModel


class TorchRuntime:
    """One model under `TorchEngine`, for the life of one worker process."""

    def __init__(self) -> None:
        self._engine: TorchEngine | None = None
        self._emit: Emit = _nowhere
        self._fail: Fail | None = None

    def start(self, configure: Configure, emit: Emit, fail: Fail) -> None:
        """Prepares, loads and warms up; see `Runtime.start`."""
        started_ns = now_ns()
        self._emit, self._fail = emit, fail
        settings = msgspec.convert(configure.model, ModelSettings)
        loaded = self._load(settings, Path(configure.cache_dir))
        engine = self._build(loaded, settings)
        self._stage("warming", "one short prompt")
        self._engine = engine
        engine.start()
        emit(
            Ready(
                kind="continuous",
                max_batch=settings.max_batch,
                max_context=engine.max_context,
                kv_blocks_total=engine.loop.kv_blocks_total,
                kv_block_tokens=engine.loop.sizes.page_tokens,
                weights_bytes=loaded.weights_bytes,
                kv_bytes=engine.loop.kv_bytes,
                device=str(loaded.device),
                dtype=str(loaded.dtype).removeprefix("torch."),
                architecture=loaded.architecture,
                has_chat_template=engine.prompts.has_chat_template,
                load_ns=now_ns() - started_ns,
            )
        )

    def submit(self, message: Submit) -> None:
        """Takes the sequences in; those that cannot be served are answered with `SequenceFailed` at once."""
        for sequence in message.sequences:
            try:
                self._submit_one(sequence)
            except InvalidRequest as refused:
                self._emit(SequenceFailed(sequence_id=sequence.sequence_id, code=refused.code, message=str(refused), param=refused.param))

    def cancel(self, message: Cancel) -> None:
        """Ends these sequences before the next iteration."""
        if self._engine is not None:
            for sequence_id in message.sequence_ids:
                self._engine.cancel(sequence_id)

    def stats(self) -> RuntimeStats:
        """The figures of this instant."""
        engine = self._engine
        if engine is None:
            return RuntimeStats(running=0, waiting=0, kv_blocks_used=0, kv_blocks_free=0, kv_blocks_cached=0, engine_progress_ns=now_ns())
        running, waiting = engine.counts()
        kv = engine.kv
        return RuntimeStats(
            running=running,
            waiting=waiting,
            kv_blocks_used=kv.used,
            kv_blocks_free=kv.free,
            kv_blocks_cached=kv.cached,
            engine_progress_ns=engine.progress_ns,
        )

    def stop(self) -> None:
        """Ends the engine; returns at once."""
        if self._engine is not None:
            self._engine.stop()

    # ---- EngineSink, on the engine's thread ----------------------------------------------------------------------------

    def iteration(self, report: IterationReport) -> None:
        """One frame an iteration."""
        assert self._engine is not None
        self._emit(iteration_frame(report, self._engine.detokenizers))

    def failed(self, sequence_id: str, message: str) -> None:
        """The engine gave a sequence up; another replica may do better."""
        self._emit(SequenceFailed(sequence_id=sequence_id, code="upstream_failure", message=message, retryable=True))

    def gave_up(self, sequence_id: str) -> None:
        """The policy gave a sequence up; by the time another replica had it, it would be later still."""
        self._emit(given_up(sequence_id))

    def fatal(self, message: str) -> None:
        """The engine cannot go on."""
        if self._fail is not None:
            self._fail(message)

    # --------------------------------------------------------------------------------------------------------------------

    def _stage(self, stage: str, detail: str, progress: float | None = None) -> None:
        self._emit(msgspec.convert({"type": "stage", "stage": stage, "detail": detail, "progress": progress}, Stage))

    def _load(self, settings: ModelSettings, cache_dir: Path) -> LoadedModel:
        self._stage("preparing", settings.source)
        from halcyon.engine.loading import choose_device, choose_dtype, choose_threads, load_model
        from halcyon.engine.sources import prepare_source

        directory = prepare_source(settings.source, cache_dir, self._stage)
        import torch

        torch.set_num_threads(choose_threads(settings.threads, settings.replicas))
        device = choose_device(settings.device)
        dtype = choose_dtype(settings.dtype, device)
        self._stage("loading", f"{settings.name} {settings.version} as {str(dtype).removeprefix('torch.')} on {device}")
        return load_model(directory, dtype=dtype, device=device)

    def _build(self, loaded: LoadedModel, settings: ModelSettings) -> TorchEngine:
        from halcyon.engine.engine import TorchEngine
        from halcyon.engine.sizing import SizeLimits, choose_sizes

        chunk = settings.prefill_chunk or DEFAULT_PREFILL_BUDGET
        limits = SizeLimits(
            max_batch=settings.max_batch,
            max_context=settings.max_context,
            memory_bytes=settings.memory_bytes,
            prefill_chunk=chunk,
            prefix_sharing=settings.prefix_sharing,
        )
        policy = order_named(settings.order, prefill_chunk=settings.prefill_chunk)
        return TorchEngine(
            loaded,
            choose_sizes(loaded, limits),
            policy,
            self,
            max_context=settings.max_context,
            rng=random.Random(os.urandom(16)),
        )

    def _submit_one(self, sequence: Sequence) -> None:
        engine = self._engine
        assert engine is not None
        engine.submit(
            sequence_request(sequence, prompt_ids(sequence, engine.prompts)),
            max_output_tokens=sequence.sampling.max_output_tokens,
            seed=sequence.sampling.seed,
        )


def _nowhere(_frame: FromWorker) -> None:
    """Before `start` there is nobody to tell."""
