"""A simulated continuous replica: iterations planned by the product's own policy, timed by a law the policy is not told.

Each iteration gives every decoding sequence one token and processes prompt tokens as planned; a prompt that is complete yields its first
token at the end of that iteration. Preempted sequences (KV cache full) start over with all they had generated as part of their prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from halcyon.core.batching.iteration import EngineView, IterationPlan, IterationPolicy, SequenceView
from halcyon.sim.blocks import Blocks, KvMode
from halcyon.sim.chance import Mulberry32
from halcyon.sim.clock import NS_PER_MS, TimeStalled

IDLE_LIMIT = 1000
"""Plans in a row that do nothing although work waits, after which time counts as stalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request of a trace: true lengths (the answer's is known to nobody before it ends) and objectives from arrival."""

    index: int
    arrived_ns: int
    prompt_tokens: int
    output_tokens: int
    most_output: int
    ttft_ns: int
    tpot_ns: int
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationLaw:
    """duration = (overhead + per_running·running + per_prompt_token·tokens)·noise; jitter is the half-width of the uniform noise."""

    overhead_ms: float = 8.0
    per_running_ms: float = 0.10
    per_prompt_token_ms: float = 0.045
    jitter: float = 0.0

    def duration_ns(self, running: int, prompt_tokens: int, chance: Mulberry32) -> int:
        """One iteration; at least 1 ns."""
        ms = self.overhead_ms + self.per_running_ms * running + self.per_prompt_token_ms * prompt_tokens
        noise = 1.0 + self.jitter * (2.0 * chance.uniform() - 1.0) if self.jitter else 1.0
        return max(1, round(ms * noise * NS_PER_MS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSize:
    """Slots, tokens of one iteration, KV cache."""

    max_batch: int = 32
    max_batch_tokens: int = 8192
    kv_blocks: int = 100_000
    kv_block_tokens: int = 16
    kv_mode: KvMode = "reserve"


@dataclass(slots=True)
class Fate:
    """What became of a prompt; instants in ns, `None` for what never happened."""

    prompt: Prompt
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    worst_gap_ns: int = 0
    given_up: bool = False
    preemptions: int = 0

    @property
    def tpot_ns(self) -> float:
        """Mean time per further token; 0 for an answer of one."""
        if self.first_token_ns is None or self.finished_ns is None or self.prompt.output_tokens < 2:
            return 0.0
        return (self.finished_ns - self.first_token_ns) / (self.prompt.output_tokens - 1)

    @property
    def good(self) -> bool:
        """Within both objectives."""
        on_time = self.first_token_ns is not None and self.first_token_ns - self.prompt.arrived_ns <= self.prompt.ttft_ns
        return on_time and self.finished_ns is not None and self.tpot_ns <= self.prompt.tpot_ns


@dataclass(slots=True, eq=False)
class _Sequence:
    """A sequence in the replica."""

    fate: Fate
    left: int
    generated: int = 0
    last_token_ns: int = 0
    view: SequenceView = field(init=False)

    def __post_init__(self) -> None:
        self.look()

    def look(self) -> None:
        """Takes the view anew; needed whenever a count changed."""
        prompt = self.fate.prompt
        self.view = SequenceView(
            sequence_id=str(prompt.index),
            arrived_ns=prompt.arrived_ns,
            remaining_prefill=self.left,
            generated=self.generated,
            max_output_tokens=prompt.most_output,
            first_token_ns=self.fate.first_token_ns,
            ttft_deadline_ns=prompt.arrived_ns + prompt.ttft_ns,
            tpot_ns=prompt.tpot_ns,
        )


class ContinuousReplica:
    """Runs one trace to its end."""

    def __init__(self, policy: IterationPolicy, law: IterationLaw, prompts: Sequence[Prompt], *, size: ReplicaSize, seed: int) -> None:
        self._policy = policy
        self._law = law
        self._size = size
        self._chance = Mulberry32(seed)
        self._pending = deque(prompts)
        self._waiting: dict[str, _Sequence] = {}
        self._prefilling: dict[str, _Sequence] = {}
        self._decoding: dict[str, _Sequence] = {}
        self.blocks = Blocks(size.kv_blocks, size.kv_block_tokens, size.kv_mode)
        self.fates = [Fate(prompt) for prompt in prompts]
        self.now = 0
        self.busy_ns = 0
        self.wasted_prefill_tokens = 0
        self.slot_steps = 0
        self.useful_steps = 0

    def run(self) -> list[Fate]:
        """Every prompt to its end."""
        idle = 0
        while self._pending or self._waiting or self._prefilling or self._decoding:
            self._arrive()
            if not (self._waiting or self._prefilling or self._decoding):
                self.now = self._pending[0].arrived_ns
                continue
            idle = 0 if self._iterate() else idle + 1
            if idle and self._pending:
                self.now = max(self.now, self._pending[0].arrived_ns)
            if idle > IDLE_LIMIT:
                raise TimeStalled(f"{len(self._waiting)} sequences wait at {self.now} ns and none is ever planned")
        return self.fates

    def _arrive(self) -> None:
        while self._pending and self._pending[0].arrived_ns <= self.now:
            prompt = self._pending.popleft()
            self._waiting[str(prompt.index)] = _Sequence(self.fates[prompt.index], max(1, prompt.prompt_tokens))

    def _iterate(self) -> bool:
        """One iteration; whether anything was done."""
        plan = self._policy.plan(self._view(), now=self.now)
        for sequence_id in plan.give_up:
            self._waiting.pop(sequence_id).fate.given_up = True
        chunks = self._chunks(plan)
        self._make_room()
        running = len(self._decoding) + len(chunks)
        if not running:
            return bool(plan.give_up)
        prompt_tokens = sum(chunks.values())
        duration_ns = self._law.duration_ns(running, prompt_tokens, self._chance)
        self.now += duration_ns
        self.busy_ns += duration_ns
        decoded = list(self._decoding.values())
        self._finish_chunks(chunks)
        self.slot_steps += len(decoded)
        for sequence in decoded:
            self.useful_steps += sequence.generated < sequence.fate.prompt.output_tokens
            self._token(sequence)
        self._policy.observe(duration_ns=duration_ns, running=running, prefill_tokens=prompt_tokens)
        return True

    def _view(self) -> EngineView:
        return EngineView(
            decoding=[s.view for s in self._decoding.values()],
            prefilling=[s.view for s in self._prefilling.values()],
            waiting=[s.view for s in self._waiting.values()],
            max_batch=self._size.max_batch,
            max_batch_tokens=self._size.max_batch_tokens,
            kv_blocks_free=self.blocks.free,
            kv_blocks_total=self._size.kv_blocks,
            kv_block_tokens=self._size.kv_block_tokens,
        )

    def _chunks(self, plan: IterationPlan) -> dict[str, int]:
        """Admits in the plan's order as far as slots, budget and blocks last; who does not fit is skipped. Prompt tokens by id."""
        left = min(plan.prefill_budget, self._size.max_batch_tokens - len(self._decoding))
        chunks: dict[str, int] = {}
        for sequence_id in plan.prefill_order:
            if left < 1:
                break
            if sequence_id in self._waiting and not self._admit(sequence_id):
                continue
            chunk = min(self._prefilling[sequence_id].left, left)
            chunks[sequence_id] = chunk
            left -= chunk
        return chunks

    def _admit(self, sequence_id: str) -> bool:
        sequence = self._waiting[sequence_id]
        prompt = sequence.fate.prompt
        most_output = max(1, prompt.most_output - sequence.generated)
        slots = self._size.max_batch - len(self._decoding) - len(self._prefilling)
        if slots < 1 or not self.blocks.can_admit(sequence.left, most_output):
            return False
        self.blocks.admit(prompt.index, sequence.left, most_output)
        self._prefilling[sequence_id] = self._waiting.pop(sequence_id)
        if sequence.fate.admitted_ns is None:
            sequence.fate.admitted_ns = self.now
        return True

    def _make_room(self) -> None:
        """Blocks for this iteration's tokens; where they run out the newest sequence of all starts over."""
        for sequence_id, sequence in list(self._decoding.items()):
            prompt = sequence.fate.prompt
            while sequence_id in self._decoding and not self.blocks.can_grow(prompt.index, prompt.prompt_tokens + sequence.generated + 1):
                self._preempt(next(reversed(self._decoding)))
            if sequence_id in self._decoding:
                self.blocks.grow(prompt.index, prompt.prompt_tokens + sequence.generated + 1)

    def _preempt(self, sequence_id: str) -> None:
        sequence = self._decoding.pop(sequence_id)
        prompt = sequence.fate.prompt
        self.blocks.release(prompt.index)
        sequence.left = prompt.prompt_tokens + sequence.generated
        self.wasted_prefill_tokens += sequence.left
        sequence.fate.preemptions += 1
        sequence.look()
        self._waiting = {sequence_id: sequence, **self._waiting}

    def _finish_chunks(self, chunks: dict[str, int]) -> None:
        for sequence_id, chunk in chunks.items():
            sequence = self._prefilling[sequence_id]
            sequence.left -= chunk
            sequence.look()
            if sequence.left == 0:
                self._decoding[sequence_id] = self._prefilling.pop(sequence_id)
                self._token(sequence)

    def _token(self, sequence: _Sequence) -> None:
        fate = sequence.fate
        sequence.generated += 1
        if fate.first_token_ns is None:
            fate.first_token_ns = self.now
        else:
            fate.worst_gap_ns = max(fate.worst_gap_ns, self.now - sequence.last_token_ns)
        sequence.last_token_ns = self.now
        if sequence.generated >= fate.prompt.output_tokens:
            fate.finished_ns = self.now
            self.blocks.release(fate.prompt.index)
            del self._decoding[str(fate.prompt.index)]
        else:
            sequence.look()
