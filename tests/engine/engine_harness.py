"""An engine with a sink that a test can wait on. No clock, no sleep: every wait is for a report of the engine."""

from __future__ import annotations

import queue
import random
from dataclasses import dataclass, field

import torch

from halcyon.core.batching.iteration import FirstComeFirstServed, IterationPolicy
from halcyon.engine.cb_adapter import LoopSizes
from halcyon.engine.engine import TorchEngine
from halcyon.engine.loading import LoadedModel
from halcyon.engine.request import IterationReport, SamplingRules, SequenceDelta, SequenceRequest

GENEROUS_S = 120


@dataclass
class Answer:
    """What came for one sequence."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    deltas: list[SequenceDelta] = field(default_factory=list)
    failure: str | None = None

    @property
    def last(self) -> SequenceDelta:
        """The newest delta."""
        return self.deltas[-1]

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come."""
        return self.failure is not None or bool(self.deltas and self.last.finish_reason)


GAVE_UP = "gave up"


class EngineHarness:
    """A running `TorchEngine` over `loaded`."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_batch: int = 16,
        max_context: int = 512,
        kv_blocks: int = 256,
        page_tokens: int = 32,
        prefill_chunk: int = 512,
        prefix_sharing: bool = True,
        policy: IterationPolicy | None = None,
    ) -> None:
        self.answers: dict[str, Answer] = {}
        self.reports: list[IterationReport] = []
        self.fatal_message: str | None = None
        self._queue: queue.Queue[IterationReport | tuple[str, str]] = queue.Queue()
        sizes = LoopSizes(
            max_batch=max_batch,
            max_batch_tokens=max_batch + prefill_chunk,
            page_tokens=page_tokens,
            kv_blocks=kv_blocks,
            prefix_sharing=prefix_sharing,
        )
        policy = policy or FirstComeFirstServed(prefill_chunk=prefill_chunk)
        self.engine = TorchEngine(loaded, sizes, policy, self, max_context=max_context, rng=random.Random(0))
        self.engine.start()

    # the engine's sink

    def iteration(self, report: IterationReport) -> None:
        """Queues the report for the test's thread."""
        self._queue.put(report)

    def gave_up(self, sequence_id: str) -> None:
        """Queues the end as a failure."""
        self._queue.put((sequence_id, GAVE_UP))

    def failed(self, sequence_id: str, message: str) -> None:
        """Queues the failure."""
        self._queue.put((sequence_id, message))

    def fatal(self, message: str) -> None:
        """Queues the end."""
        self._queue.put(("", message))

    # the test's side

    def submit(
        self,
        sequence_id: str,
        token_ids: list[int],
        *,
        max_output_tokens: int | None = 16,
        seed: int | None = 0,
        ttft_deadline_ns: int | None = None,
        **rules: object,
    ) -> None:
        """Submits one sequence; `rules` are fields of `SamplingRules`. Ids of tokens are always returned."""
        self.answers[sequence_id] = Answer()
        self.engine.submit(
            SequenceRequest(
                sequence_id=sequence_id,
                token_ids=tuple(token_ids),
                sampling=SamplingRules(**rules),  # type: ignore[arg-type]  # the test's own words
                arrived_ns=len(self.answers),
                ttft_deadline_ns=ttft_deadline_ns,
                return_token_ids=True,
            ),
            max_output_tokens=max_output_tokens,
            seed=seed,
        )

    def step(self) -> IterationReport | None:
        """Waits for the next report and files it; `None` for a failure."""
        report = self._queue.get(timeout=GENEROUS_S)
        if isinstance(report, tuple):
            if report[0]:
                self.answers[report[0]].failure = report[1]
            else:
                self.fatal_message = report[1]
            return None
        self.reports.append(report)
        for delta in report.deltas:
            answer = self.answers[delta.sequence_id]
            answer.deltas.append(delta)
            answer.text += delta.text
            answer.token_ids.extend(delta.token_ids)
        return report

    def wait_for_tokens(self, sequence_id: str, count: int = 1) -> None:
        """Returns once the sequence has that many tokens or is over."""
        while not self.answers[sequence_id].is_over and len(self.answers[sequence_id].token_ids) < count:
            self.step()

    def finish(self) -> dict[str, Answer]:
        """Returns once every sequence is over."""
        while not all(answer.is_over for answer in self.answers.values()):
            self.step()
        return self.answers

    def close(self) -> None:
        """Ends the engine's thread."""
        self.engine.stop()
        assert self.engine.loop.join(GENEROUS_S), "the engine's thread did not end"


def alone(loaded: LoadedModel, prompt: list[int], count: int) -> list[int]:
    """What `model.generate` says to the prompt by itself, greedy, going on past end tokens."""
    ids = torch.tensor([prompt], device=loaded.device)
    with torch.inference_mode():
        out = loaded.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, eos_token_id=-1, pad_token_id=0
        )
    return [int(token_id) for token_id in out[0, len(prompt) :]]


def mixed_prompts(
    vocabulary: int, seed: int = 5, lengths: tuple[int, ...] = (1, 2, 31, 32, 33, 64, 65, 7, 100, 150, 3, 90, 128, 17, 200, 40)
) -> list[list[int]]:
    """One prompt of each length; the last three share a prefix of 70 tokens with the one of 150 where they are long enough."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(5, vocabulary) for _ in range(length)] for length in lengths]
    shared = prompts[9][:70]
    return [*prompts[:-3], *((shared + prompt)[: max(len(prompt), 71)] for prompt in prompts[-3:])]
