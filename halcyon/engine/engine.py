"""`TorchEngine`: serves sequences on one loaded model.

It checks what a sequence asks for, keeps the list of live ones, and leaves the running to `cb_adapter.BatchingLoop`. What comes back
through the sink is per iteration, never per token.
"""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import torch

from halcyon.clock import now_ns
from halcyon.core.batching.iteration import IterationPolicy
from halcyon.engine.cb_adapter import BatchingLoop, LoopSizes
from halcyon.engine.chat import PromptEncoder
from halcyon.engine.detokenize import DetokenizerFactory
from halcyon.engine.loading import LoadedModel
from halcyon.engine.request import MAX_TOP_LOGPROBS, EngineSink, IterationReport, KvUsage, SamplingRules, SequenceRequest
from halcyon.engine.sequence import LiveSequence
from halcyon.errors import InvalidRequest, WorkerFailure

_WARM_UP_ID = "warm-up"
_WARM_UP_TOKENS = 4


class TorchEngine:
    """One model under continuous batching. `submit`, `cancel` and the figures may be used from any thread.

    Attributes:
        prompts: encodes what clients send. detokenizers: spells tokens.
        max_context: tokens of prompt and answer together, at most.
    """

    def __init__(
        self, loaded: LoadedModel, sizes: LoopSizes, policy: IterationPolicy, sink: EngineSink, *, max_context: int, rng: random.Random
    ) -> None:
        self.loaded = loaded
        self.prompts = PromptEncoder(loaded.tokenizer)
        self.detokenizers = DetokenizerFactory(loaded.tokenizer.backend_tokenizer)
        self._sink, self._rng = sink, rng
        self._live: dict[str, LiveSequence] = {}
        self._warmed = threading.Event()
        self._progress_ns = now_ns()
        self._kv = KvUsage()
        self._broken = ""
        self.loop = BatchingLoop(loaded.model, sizes, policy, self)
        self._kv = self.loop.kv_usage()
        self.max_context = min(max_context, loaded.context_limit or max_context, self.loop.longest_sequence)

    def start(self) -> None:
        """Starts the engine's thread and runs one short prompt through it, of which the sink hears nothing.

        Raises:
            WorkerFailure: the model does not run.
        """
        with torch.inference_mode():
            self.loop.start()
        prompt = SequenceRequest(sequence_id=_WARM_UP_ID, token_ids=(0,) * _WARM_UP_TOKENS, sampling=SamplingRules(ignore_eos=True))
        self.submit(prompt, max_output_tokens=2, seed=0)
        self._warmed.wait()
        if self._broken:
            raise WorkerFailure(self._broken)
        self.loop.restart_numbering()

    def stop(self) -> None:
        """Ends the engine's thread after the iteration in work; returns at once."""
        self.loop.stop()

    def submit(self, request: SequenceRequest, *, max_output_tokens: int | None, seed: int | None) -> None:
        """Takes a sequence in. `max_output_tokens` and `seed` are what the client asked for; `None` means what fits, and a fresh one.

        Raises:
            InvalidRequest: it cannot be served by this model at all; the message names the field.
        """
        if request.sequence_id in self._live:
            raise InvalidRequest(f"sequence_id: {request.sequence_id!r} is already running", param="sequence_id")
        rules = replace(
            request.sampling,
            max_output_tokens=self._output_bound(len(request.token_ids), max_output_tokens),
            seed=self._rng.getrandbits(63) if seed is None else seed,
        )
        check_sampling(rules)
        live = LiveSequence(replace(request, sampling=rules), self.detokenizers.new(), self.loaded.eos_token_ids)
        self._live[request.sequence_id] = live
        self.loop.submit(live)

    def cancel(self, sequence_id: str) -> None:
        """Ends a sequence before the next iteration; unknown ids are ignored."""
        if sequence_id in self._live:
            self.loop.cancel(sequence_id)

    @property
    def kv(self) -> KvUsage:
        """KV blocks as the last iteration left them."""
        return self._kv

    @property
    def progress_ns(self) -> int:
        """When the last iteration ended; now, when there is nothing to do."""
        return self._progress_ns if self._live else now_ns()

    def counts(self) -> tuple[int, int]:
        """(running, waiting) sequences of this instant."""
        return self.loop.counts()

    # ---- EngineSink, on the engine's thread ----------------------------------------------------------------------------

    def iteration(self, report: IterationReport) -> None:
        """Keeps the figures and passes the report on."""
        for delta in report.deltas:
            if delta.finish_reason is not None:
                self._live.pop(delta.sequence_id, None)
        self._kv = report.kv
        self._progress_ns = report.started_ns + report.duration_ns
        if self._warmed.is_set():
            self._sink.iteration(report)
        elif not self._live:
            self._warmed.set()

    def failed(self, sequence_id: str, message: str) -> None:
        """Forgets the sequence and passes the failure on."""
        self._live.pop(sequence_id, None)
        if self._warmed.is_set():
            self._sink.failed(sequence_id, message)

    def gave_up(self, sequence_id: str) -> None:
        """Forgets the sequence and passes that on."""
        self._live.pop(sequence_id, None)
        if self._warmed.is_set():
            self._sink.gave_up(sequence_id)

    def fatal(self, message: str) -> None:
        """Passes the end of the engine on."""
        self._broken = message
        if self._warmed.is_set():
            self._sink.fatal(message)
        self._warmed.set()

    # --------------------------------------------------------------------------------------------------------------------

    def _output_bound(self, prompt_tokens: int, asked: int | None) -> int:
        left = self.max_context - prompt_tokens
        if left < 1:
            raise InvalidRequest(
                f"input: the prompt has {prompt_tokens} tokens and the context of this model is {self.max_context}; "
                f"expected at most {self.max_context - 1}",
                param="input",
            )
        if asked is None:
            return left
        if not 1 <= asked <= left:
            raise InvalidRequest(
                f"max_output_tokens: {asked} does not fit; expected 1 to {left} (context {self.max_context}, prompt {prompt_tokens})",
                param="max_output_tokens",
            )
        return asked


def check_sampling(rules: SamplingRules) -> None:
    """Refuses values that mean nothing.

    Raises:
        InvalidRequest: names the field, its value and what was expected.
    """
    checks: tuple[tuple[str, object, bool, str], ...] = (
        ("temperature", rules.temperature, 0.0 <= rules.temperature < 1e3, "0 or more, less than 1000"),
        ("top_p", rules.top_p, 0.0 < rules.top_p <= 1.0, "more than 0, at most 1"),
        ("top_k", rules.top_k, rules.top_k >= 0, "0 or more"),
        ("top_logprobs", rules.top_logprobs, 0 <= rules.top_logprobs <= MAX_TOP_LOGPROBS, f"0 to {MAX_TOP_LOGPROBS}"),
    )
    for field, value, holds, expected in checks:
        if not holds:
            raise InvalidRequest(f"{field}: {value} is out of range; expected {expected}", param=field)
