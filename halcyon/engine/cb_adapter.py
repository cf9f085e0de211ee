"""The one file that knows the insides of transformers' continuous batching (version range below).

What is taken from there: the paged KV cache, prefix sharing, batch assembly, the forward pass, soft reset on overflow. What is put in:
our scheduler (an `IterationPolicy` decides what is prefilled), our sampling, our request state, and a sink that hears of every iteration
once. `tests/engine/test_cb_adapter_contract.py` checks each name and signature used here, so that an upgrade fails there and not in a
running engine.

How the pieces hang together, per iteration, all on the engine's thread:
    loop body → `_PlannedScheduler.schedule_batch` (policy) → `_SamplingRows.prepare_tensor_args` (which row is whose)
    → forward → `_SamplingRows.sample` → `_State.update_and_check_completion` (one `LiveSequence.accept` per new token)
    → `BatchingLoop._report`.

CUDA graphs and the asynchronous double buffer are off: with masked (sdpa) attention the padding they need costs more than they save.
On the CPU `attention` replaces the masked way; it reads the bounds between sequences that the forward pass is given here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.continuous_api import BackgroundThreadStatus, ContinuousBatchingManager
from transformers.generation.continuous_batching.model_runner import infer_max_single_request_tokens
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, Scheduler

from halcyon.clock import now_ns
from halcyon.core.batching.iteration import EngineView, IterationPlan, IterationPolicy
from halcyon.engine import attention
from halcyon.engine.request import EngineSink, IterationReport, KvUsage, SequenceDelta, TokenScore
from halcyon.engine.sampling import Row, draw, score
from halcyon.engine.sequence import LiveSequence
from halcyon.errors import ModelUnavailable

SUPPORTED_TRANSFORMERS = ("5.24", "5.25")
"""From (included) and to (excluded)."""

_SCHEDULER_NAME = "halcyon"
_SAFETY_MARGIN = 0.1
"""Share of free KV under which no new prompt begins beside running ones."""

logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)  # it prints prompt tokens when it refuses a request


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSizes:
    """Sizes of one loop. page_tokens: tokens in a KV block; kv_blocks: blocks asked for (rounded up to what the layout needs)."""

    max_batch: int
    max_batch_tokens: int
    page_tokens: int
    kv_blocks: int
    prefix_sharing: bool


class _State(RequestState):  # type: ignore[misc]  # transformers is not typed for us
    """A request of transformers that hands each token to its `LiveSequence` and lets that decide about the end."""

    live: LiveSequence
    loop: BatchingLoop

    def update_and_check_completion(self, token_id: int, logprob: float | None) -> bool:
        del logprob  # scored in `_SamplingRows`, under the raw distribution
        self.generated_tokens.append(token_id)
        self.tokens_to_process = [token_id]
        if self.loop.accept(self.live, token_id):
            self.status = RequestStatus.FINISHED
            return True
        return False

    def create_equivalent_initial_request(self) -> _State:
        """Preempted: the same sequence again, its answer so far now part of the prompt."""
        self.loop.preempted += 1
        return _new_state(self.loop, self.live, self.initial_tokens + self.generated_tokens)

    def to_generation_output(self) -> LiveSequence:
        """What transformers hands to its router when a request ends; ours needs no copy of the tokens."""
        return self.live


def _new_state(loop: BatchingLoop, live: LiveSequence, token_ids: list[int]) -> _State:
    state = _State(request_id=live.request.sequence_id, initial_tokens=token_ids, max_new_tokens=None)
    state.live, state.loop = live, loop
    return state


class _PlannedScheduler(Scheduler):  # type: ignore[misc]  # transformers is not typed for us
    """Stands where the FIFO scheduler stands: decodes first, then prompts as the policy plans them."""

    loop: BatchingLoop

    def __init__(self, cache: Any, safety_margin: float | None, max_requests_per_batch: int) -> None:  # noqa: ANN401 - transformers' own type
        super().__init__(cache, _SAFETY_MARGIN if safety_margin is None else safety_margin, max_requests_per_batch)

    def schedule_batch(self, token_budget: int, cache_budget: int) -> tuple[list[Any] | None, bool, int, int]:
        """The next batch; see `Scheduler.schedule_batch` for the shape. `None` in front asks for preemption."""
        decoding = [state for state in self.active_requests.values() if state.status == RequestStatus.DECODING]
        prompts, prefill_budget = self._planned_prompts(decoding, token_budget)
        left_waiting: set[str] = set()
        budget = min(token_budget, len(decoding) + prefill_budget)
        scheduled, one_failed, fast_path, query_tokens, kv_read = self._process_candidates(
            decoding + prompts, budget, cache_budget, left_waiting
        )
        self._cleanup_waiting_queue(left_waiting)
        for state in prompts:
            if state.live.cached_tokens is None and state.request_id in self.active_requests:
                state.live.cached_tokens = state.position_offset
        if not scheduled and one_failed:
            return None, fast_path, 0, 0
        decodes = sum(1 for future in scheduled if future.state.generated_tokens)
        self.loop.scheduled(running=len(scheduled), decode_tokens=decodes, prefill_tokens=query_tokens - decodes)
        return scheduled, fast_path, query_tokens, kv_read

    def clear_cancelled_requests(self) -> list[Any]:
        """Ends cancelled requests; with nothing else to run, says so at once instead of after the idle wait."""
        if not self._requests_to_cancel:
            return []
        cancelled: list[Any] = super().clear_cancelled_requests()
        for state in cancelled:
            self.loop.cancelled(state.live)
        self.block_new_requests = False  # whoever was waited for may be gone; without this nothing would ever be admitted again
        if cancelled and not self.has_pending_requests():
            self.loop.report_idle()
        return cancelled

    def _planned_prompts(self, decoding: list[Any], token_budget: int) -> tuple[list[Any], int]:
        """Prompts in order of service and how many of their tokens may be processed. Asks the policy only when there is a choice."""
        prefilling = [state for state in self.active_requests.values() if state.status == RequestStatus.PREFILLING]
        admits = not (self.block_new_requests and self.active_requests)
        waiting = sorted(self.waiting_requests.values(), key=_arrival) if admits else []
        if not prefilling and not waiting:
            return [], 0
        plan = self.loop.plan(self._view(decoding, prefilling, waiting, token_budget))
        waiting = self._without_given_up(waiting, plan.give_up)
        by_id = {state.request_id: state for state in (*prefilling, *waiting)}
        order = [by_id[sequence_id] for sequence_id in plan.prefill_order if sequence_id in by_id]
        budget = plan.prefill_budget
        if not decoding and (not order or budget < 1):  # an engine with work never stands still, whatever the policy says
            order, budget = [*prefilling, *waiting], token_budget
        return self._within_slots(order, len(decoding) + len(prefilling)), min(budget, token_budget - len(decoding))

    def _without_given_up(self, waiting: list[Any], give_up: tuple[str, ...]) -> list[Any]:
        """Ends those of the waiting that the policy gives up and that have produced nothing; returns the others."""
        ended = [state for state in waiting if state.request_id in give_up and not state.live.output_tokens]
        for state in ended:
            del self.waiting_requests[state.request_id]
            self.cache.free_blocks(state.request_id)
            self.loop.gave_up(state.live)
        gone = {state.request_id for state in ended}
        if gone:
            self._cleanup_waiting_queue(gone)
        return [state for state in waiting if state.request_id not in gone]

    def _within_slots(self, order: list[Any], active: int) -> list[Any]:
        free_slots = max(0, self.max_requests_per_batch - active)
        kept = []
        for state in order:
            if state.request_id not in self.active_requests:
                if free_slots == 0:
                    continue
                free_slots -= 1
            kept.append(state)
        return kept

    def _view(self, decoding: list[Any], prefilling: list[Any], waiting: list[Any], token_budget: int) -> EngineView:
        kv = self.loop.kv_usage()
        return EngineView(
            decoding=[state.live.view(0) for state in decoding],
            prefilling=[state.live.view(len(state.remaining_prefill_tokens)) for state in prefilling],
            waiting=[state.live.view(len(state.remaining_prefill_tokens)) for state in waiting],
            max_batch=self.max_requests_per_batch,
            max_batch_tokens=token_budget,
            kv_blocks_free=kv.free + kv.cached,
            kv_blocks_total=kv.total,
            kv_block_tokens=self.loop.sizes.page_tokens,
        )


def _arrival(state: _State) -> int:
    return state.live.request.arrived_ns


SCHEDULER_MAPPING[_SCHEDULER_NAME] = _PlannedScheduler


class _SamplingRows:
    """Stands where the logits processors stand: remembers which row of the next logits belongs to whom, and samples them."""

    tensors_required = 0
    do_processing = False

    def __init__(self) -> None:
        self._lives: list[LiveSequence] = []
        self.scores: dict[str, TokenScore] = {}

    def check_kwargs(self, kwargs: dict[str, object]) -> None:
        """Nothing is passed this way."""

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """No static tensors."""

    def prepare_tensor_args(self, requests_in_batch: list[Any], arg_storage: torch.Tensor) -> torch.Tensor:
        """Called with the batch that is about to run, in row order."""
        self._lives = [future.state.live for future in requests_in_batch if future.has_new_token]
        return arg_storage

    def sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """Stands where `ModelRunner._sample` stands. scores: [1, rows, vocabulary] raw float32; output_ids: [1, ≥ rows] int32."""
        logits = scores[0]
        output_ids[0, : logits.shape[0]].copy_(torch.argmax(logits, dim=-1))
        rows = [
            Row(at, live.request.sampling, live.next_position) for at, live in enumerate(self._lives) if not live.request.sampling.is_plain
        ]
        if rows:
            self._sample_rows(logits, output_ids, rows)

    def _sample_rows(self, logits: torch.Tensor, output_ids: torch.Tensor, rows: list[Row]) -> None:
        drawn = [row for row in rows if row.rules.temperature > 0.0]
        if drawn:
            at = torch.tensor([row.index for row in drawn], device=output_ids.device)
            output_ids[0].index_copy_(0, at, draw(logits, drawn).to(output_ids.dtype))
        asked = [row for row in rows if row.rules.logprobs]
        if asked:
            chosen = output_ids[0].tolist()
            found = score(logits, asked, [chosen[row.index] for row in asked])
            self.scores = {self._lives[row.index].request.sequence_id: one for row, one in zip(asked, found, strict=True)}


class _Manager(ContinuousBatchingManager):  # type: ignore[misc]  # transformers is not typed for us
    """The generation loop of transformers with our parts in it."""

    loop: BatchingLoop

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:  # noqa: ANN401 - any causal LM
        """Our own attention on the CPU; elsewhere what the model was loaded with."""
        if model.device.type == "cpu":
            model.set_attn_implementation(attention.NAME)
        else:
            super().switch_to_cb_friendly_attn(model, auto_switch_to_flash)

    def _create_batch_processor(self) -> Any:  # noqa: ANN401 - transformers' own type
        processor = super()._create_batch_processor()
        processor.scheduler.loop = self.loop
        processor.model_runner._sample = self.loop.rows.sample
        return processor

    def _generation_loop_body(self, batch_processor: Any, bootstrapping: bool) -> bool:  # noqa: ANN401 - transformers' own type
        before, started_ns = self.current_batch, now_ns()
        goes_on: bool = super()._generation_loop_body(batch_processor, bootstrapping)
        if self.current_batch != before:
            self.loop.iteration_ended(started_ns)
        return goes_on

    def _handle_critical_error(self, error: Exception, batch_processor: Any) -> None:  # noqa: ANN401 - transformers' own type
        super()._handle_critical_error(error, batch_processor)
        self.loop.broke(error)


class _Router:
    """Stands where the output router stands. Tokens do not come this way; only failures do."""

    def __init__(self, on_failure: Callable[[LiveSequence, Exception], None]) -> None:
        self._on_failure = on_failure

    def deliver(self, output: LiveSequence) -> None:
        """Ended sequences were reported by the iteration."""

    def deliver_batch(self, outputs: list[LiveSequence]) -> None:
        """Ended sequences were reported by the iteration."""

    def fail_and_deliver(self, state: _State, error: Exception) -> None:
        """A request that transformers could not run."""
        state.status = RequestStatus.FAILED
        self._on_failure(state.live, error)


class BatchingLoop:
    """A running continuous-batching loop over one model.

    `submit` and `cancel` may be called from any thread; everything else here happens on the loop's own thread and ends in `sink`.
    """

    def __init__(self, model: Any, sizes: LoopSizes, policy: IterationPolicy, sink: EngineSink) -> None:  # noqa: ANN401 - any causal LM
        self.sizes = sizes
        self.rows = _SamplingRows()
        self.preempted = 0
        self._policy, self._sink = policy, sink
        self._deltas: list[SequenceDelta] = []
        self._number = 0
        self._batch = (0, 0, 0)  # running, decode tokens, prefill tokens of the batch in work
        self._manager = _Manager(model, GenerationConfig(do_sample=False, eos_token_id=-1), _config(sizes))
        self._manager.loop = self
        self._manager.logit_processor = self.rows
        self._manager.output_router = _Router(self._failed)
        self._cache = self._prepare()

    # ---- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread. Call inside `torch.inference_mode()` to run the model in it."""
        self._manager.start()

    def submit(self, live: LiveSequence) -> None:
        """Queues a sequence; it is seen before the next iteration."""
        self._manager.input_queue.put(_new_state(self, live, list(live.request.token_ids)))
        self._manager._wake_up_loop.set()

    def cancel(self, sequence_id: str) -> None:
        """Ends a sequence before the next iteration and frees its blocks; unknown ids are ignored."""
        self._manager.cancel_request(sequence_id)

    def stop(self) -> None:
        """Ends the thread after the iteration in work; returns at once."""
        self._manager.background_thread_status.request_stop(BackgroundThreadStatus.HARD_STOP, 0)
        self._manager._wake_up_loop.set()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread to end; whether it did."""
        thread = self._manager._generation_thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def restart_numbering(self) -> None:
        """The next iteration is number 1. Call only while idle."""
        self._number = 0

    def kv_usage(self) -> KvUsage:
        """Blocks by state, in blocks of `page_tokens` tokens for every layer of the model."""
        cache, pool = self._cache, self._cache.pool
        free = len(pool.free_sectors) * cache.bytes_per_sector
        cached = 0
        for allocator in cache.cache_allocators.values():
            free += pool.count_free_blocks(allocator.index) * allocator.bytes_per_block
            cached += len(allocator.ledger.cached_blocks) * allocator.bytes_per_block
        total = cache.num_sectors * cache.bytes_per_sector
        block = max(1, total // self.kv_blocks_total)
        used_blocks = -(-(total - free - cached) // block)
        cached_blocks = min(cached // block, self.kv_blocks_total - used_blocks)
        return KvUsage(used=used_blocks, cached=cached_blocks, free=self.kv_blocks_total - used_blocks - cached_blocks)

    def counts(self) -> tuple[int, int]:
        """(running, waiting) sequences of this instant."""
        scheduler = self._manager.batch_processor.scheduler
        return len(scheduler.active_requests), len(scheduler.waiting_requests) + self._manager.input_queue.qsize()

    @property
    def kv_blocks_total(self) -> int:
        """Blocks of the cache."""
        return max(1, int(self._cache.num_blocks))

    @property
    def kv_bytes(self) -> int:
        """Bytes of the cache."""
        return int(self._cache.cache_tensor.nbytes)

    @property
    def longest_sequence(self) -> int:
        """Tokens that one sequence can have on an empty cache."""
        return int(infer_max_single_request_tokens(self._cache))

    # ---- on the loop's thread, called by the parts above ---------------------------------------------------------------

    def plan(self, view: EngineView) -> IterationPlan:
        """Asks the policy."""
        return self._policy.plan(view, now=now_ns())

    def scheduled(self, *, running: int, decode_tokens: int, prefill_tokens: int) -> None:
        """Notes what the batch in work consists of."""
        self._batch = (running, decode_tokens, prefill_tokens)

    def accept(self, live: LiveSequence, token_id: int) -> bool:
        """Gives one new token to its sequence; whether that was its last."""
        scored = self.rows.scores.get(live.request.sequence_id) if live.request.sampling.logprobs else None
        delta = live.accept(token_id, scored, now=now_ns())
        self._deltas.append(delta)
        return delta.finish_reason is not None

    def cancelled(self, live: LiveSequence) -> None:
        """Notes the end of a cancelled sequence."""
        self._deltas.append(live.cancelled())

    def gave_up(self, live: LiveSequence) -> None:
        """Passes on that a sequence was given up before it began."""
        self._sink.gave_up(live.request.sequence_id)

    def iteration_ended(self, started_ns: int) -> None:
        """Reports the iteration that has just run."""
        running, decode_tokens, prefill_tokens = self._batch
        duration_ns = now_ns() - started_ns
        self._policy.observe(duration_ns=duration_ns, running=running, prefill_tokens=prefill_tokens)
        self._report(started_ns, duration_ns, running, decode_tokens, prefill_tokens)

    def report_idle(self) -> None:
        """Reports cancelled sequences when no iteration will."""
        self._report(now_ns(), 0, 0, 0, 0)

    def broke(self, error: Exception) -> None:
        """The thread is about to end. Errors of torch carry no prompt text; anything else is named by its kind alone."""
        self._deltas = [delta for delta in self._deltas if delta.finish_reason is not None]  # the others were reported as failed
        if self._deltas:
            self.report_idle()
        first_line = str(error).partition("\n")[0][:200] if isinstance(error, RuntimeError | MemoryError) else ""
        self._sink.fatal(f"the engine stopped: {type(error).__name__}{': ' if first_line else ''}{first_line}")

    def _report(self, started_ns: int, duration_ns: int, running: int, decode_tokens: int, prefill_tokens: int) -> None:
        self._number += 1
        deltas, self._deltas = tuple(self._deltas), []
        preempted, self.preempted = self.preempted, 0
        self.rows.scores = {}
        self._sink.iteration(
            IterationReport(
                number=self._number,
                started_ns=started_ns,
                duration_ns=duration_ns,
                running=running,
                waiting=self.counts()[1],
                decode_tokens=decode_tokens,
                prefill_tokens=prefill_tokens,
                preempted=preempted,
                kv=self.kv_usage(),
                deltas=deltas,
            )
        )

    def _failed(self, live: LiveSequence, error: Exception) -> None:
        self._sink.failed(live.request.sequence_id, f"the engine could not run the sequence ({type(error).__name__})")

    def _prepare(self) -> Any:  # noqa: ANN401 - transformers' own type
        """Builds the KV cache now, so that a lack of memory shows while loading and sizes are known before the thread starts."""
        try:
            self._manager.batch_processor = self._manager._create_batch_processor()
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise ModelUnavailable(
                f"{self.sizes.kv_blocks} KV blocks of {self.sizes.page_tokens} tokens, and the work space of an iteration do not fit; "
                "expected a smaller max_batch or max_context, or a memory_bytes that leaves room"
            ) from error
        return self._manager.batch_processor.cache


def _config(sizes: LoopSizes) -> ContinuousBatchingConfig:
    return ContinuousBatchingConfig(
        page_size=sizes.page_tokens,
        num_blocks=sizes.kv_blocks,
        max_batch_tokens=sizes.max_batch_tokens,
        max_requests_per_batch=sizes.max_batch,
        max_blocks_per_request=0,
        allow_block_sharing=sizes.prefix_sharing,
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
        scheduler_type=_SCHEDULER_NAME,
        max_memory_percent=1.0,
        seed=0,
    )
