"""Prefill by deadlines: how much, for whom, and whom to give up. The default for continuous replicas.

Cost of an iteration, learned: a + b·running + c·prompt tokens. Every iteration, at `now`:

    1 budget   the next token of each running sequence that was promised a tpot is due at first_token + generated·tpot; the earliest of
               these, with a 5 % margin, is how long the iteration may take. A sequence that is late already is owed its next token one
               tpot from now: it must not stop all prefill. A tpot the replica cannot keep even for one counts as one and a half such
               iterations.
    2 give up  who cannot have a first token in time even alone. Until the costs were learned, and after ten seconds without any
               prompt, they only come last: a cost that is wrong would otherwise never hear of it.
    3 plan     Moore–Hodgson over what is worth its device cost (`demand`): in order of first-token deadline, and whenever the prompts so
               far cannot all be in time, the largest of them is relegated. Then the relegated by size, then the too costly by cost.
    4 admit    in that order while slots, the KV peak and every promised tpot (b of the newcomer included) allow it. A tpot that was not
               asked for, or that this replica cannot keep even for one sequence, keeps nobody out: it would make a slow device serve one
               at a time for nothing.

Prompts already begun keep their turn. Sequences without objectives are ordered as if they were owed a first token in 20 s
(`objectives`), bound no iteration, and are never given up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from halcyon.core.batching.cost import IterationCost
from halcyon.core.batching.iteration import EngineView, IterationPlan, SequenceView
from halcyon.core.batching.orders.demand import Demand
from halcyon.core.batching.orders.objectives import VIRTUAL_TPOT_NS, is_owed, tpot_ns, ttft_deadline_ns
from halcyon.core.batching.orders.peak import peak_tokens
from halcyon.core.batching.predict import OutputLength

TOKEN_MARGIN = 0.95
GUARD_SHARE = 0.90
KV_SHARE_PERCENT = 95
FLOOR_ITERATIONS = 1.5
DEFAULT_OUTPUT_TOKENS = 128
LEAST_PREFILLS = 8
"""Iterations with prompt tokens that must have been seen before anybody is given up."""
PROBE_AFTER_NS = 10_000_000_000


@dataclass(slots=True)
class _Iteration:
    """One iteration being planned; durations in ns as floats, instants as ints."""

    view: EngineView
    now: int
    a: float
    b: float
    c: float
    decoding: int
    tpot_ns: float
    time_ns: float

    def bare_ns(self, more: int) -> float:
        """The iteration without any prompt, with that many sequences more."""
        return self.a + self.b * (self.decoding + more)


class DeadlineOrder:
    """The rule of the module for one replica. It learns costs and answer lengths from what it sees.

    `output_tokens`: prior of an answer's length. `prefill_chunk`: prompt tokens of one iteration at most; 0 for no bound but the
    engine's. `gives_up`: false where the engine cannot end a sequence on a plan's word; the hopeless then come last.
    """

    def __init__(
        self,
        *,
        cost: IterationCost | None = None,
        output_tokens: int = DEFAULT_OUTPUT_TOKENS,
        prefill_chunk: int = 0,
        gives_up: bool = True,
    ) -> None:
        self._prefill_chunk = prefill_chunk
        self._gives_up = gives_up
        self._prefills_to_see = LEAST_PREFILLS if cost is None else 0
        self._prefilled_ns: int | None = None
        self._cost = cost or IterationCost()
        self._lengths = OutputLength(output_tokens)
        self._demand = Demand()
        self._prompt_tokens: dict[str, int] = {}
        self._generated: dict[str, int] = {}

    def plan(self, view: EngineView, *, now: int) -> IterationPlan:
        """Budget, order and whom to give up."""
        self._learn(view, now=now)
        iteration = self._iteration(view, now=now)
        self._demand.solve(max(0.0, 1.0 - iteration.a / (TOKEN_MARGIN * iteration.tpot_ns)), now=now)
        hopeful, hopeless = self._reachable(iteration)
        gives_up = self._may_give_up(now=now)
        begun = sorted(view.prefilling, key=_by_deadline)
        ordered = self._ordered(iteration, begun, hopeful)
        order, budget = self._admit(iteration, begun, ordered if gives_up else chain(ordered, hopeless))
        give_up = tuple(s.sequence_id for s in hopeless) if gives_up else ()
        if budget:
            self._prefilled_ns = now
        return IterationPlan(prefill_budget=budget, prefill_order=order, give_up=give_up)

    def observe(self, *, duration_ns: int, running: int, prefill_tokens: int) -> None:
        """Feeds the cost model."""
        if prefill_tokens and self._prefills_to_see:
            self._prefills_to_see -= 1
        self._cost.observe(running, prefill_tokens, duration_ns)

    # --- 1: budget

    def _iteration(self, view: EngineView, *, now: int) -> _Iteration:
        a, b, c = self._cost.coefficients_ns
        decoding = len(view.decoding)
        bare = a + b * (decoding + 1)
        floor = FLOOR_ITERATIONS * (a + b)
        tpots = [max(floor, tpot_ns(s)) for s in view.decoding]
        time_ns = math.inf
        for sequence, tpot in zip(view.decoding, tpots, strict=True):
            if sequence.tpot_ns is None:
                continue  # nobody waits for its next token: pacing prompts for it would only make batches smaller
            left = (sequence.first_token_ns or now) + sequence.generated * tpot - now
            time_ns = min(time_ns, left if left >= bare else max(tpot, FLOOR_ITERATIONS * bare))
        return _Iteration(view, now, a, b, max(c, 1.0), decoding, min(tpots, default=VIRTUAL_TPOT_NS * 1.0), TOKEN_MARGIN * time_ns)

    # --- 2: give up

    def _reachable(self, iteration: _Iteration) -> tuple[list[SequenceView], list[SequenceView]]:
        hopeful: list[SequenceView] = []
        hopeless: list[SequenceView] = []
        soonest = iteration.now + iteration.bare_ns(1)
        for sequence in iteration.view.waiting:
            late = soonest + iteration.c * sequence.remaining_prefill > ttft_deadline_ns(sequence)
            (hopeless if late and is_owed(sequence) and sequence.generated == 0 else hopeful).append(sequence)
        return hopeful, hopeless

    def _may_give_up(self, *, now: int) -> bool:
        """Whether the engine honours it, and the costs are known and fresh."""
        if self._prefilled_ns is None:
            self._prefilled_ns = now
        return self._gives_up and not self._prefills_to_see and now - self._prefilled_ns < PROBE_AFTER_NS

    # --- 3: order

    def _ordered(self, iteration: _Iteration, begun: list[SequenceView], hopeful: list[SequenceView]) -> Iterator[SequenceView]:
        """Core by deadline, relegated by size, too costly by cost."""
        costs = {s.sequence_id: self._device_cost_ns(iteration, s) for s in hopeful}
        core = sorted((s for s in hopeful if costs[s.sequence_id] <= self._demand.limit_ns), key=_by_deadline)
        costly = sorted(
            (s for s in hopeful if costs[s.sequence_id] > self._demand.limit_ns), key=lambda s: (costs[s.sequence_id], s.arrived_ns)
        )
        kept, relegated = self._relegate(iteration, begun, core)
        yield from kept
        yield from sorted(relegated, key=lambda s: (s.remaining_prefill, s.arrived_ns))
        yield from costly

    def _relegate(
        self, iteration: _Iteration, begun: list[SequenceView], core: list[SequenceView]
    ) -> tuple[list[SequenceView], list[SequenceView]]:
        """Moore–Hodgson on prompt tokens: at the first deadline that breaks, the largest prompt so far goes."""
        per_ns = self._tokens_per_ns(iteration)
        ahead = float(sum(s.remaining_prefill for s in begun))
        largest: list[tuple[int, int]] = []
        dropped: set[int] = set()
        for index, sequence in enumerate(core):
            ahead += sequence.remaining_prefill
            heapq.heappush(largest, (-sequence.remaining_prefill, index))
            while largest and iteration.now + ahead / per_ns > ttft_deadline_ns(sequence):
                tokens, victim = heapq.heappop(largest)
                ahead += tokens
                dropped.add(victim)
        kept = [s for index, s in enumerate(core) if index not in dropped]
        return kept, [core[index] for index in sorted(dropped)]

    def _tokens_per_ns(self, iteration: _Iteration) -> float:
        """Prompt tokens per ns that the running sequences' tpot leaves room for."""
        if not iteration.decoding:
            return 1.0 / iteration.c
        tau = TOKEN_MARGIN * iteration.tpot_ns
        return max(tau - iteration.bare_ns(1), 0.05 * tau) / (iteration.c * tau)

    # --- 4: admit

    def _admit(self, iteration: _Iteration, begun: list[SequenceView], ordered: Iterator[SequenceView]) -> tuple[tuple[str, ...], int]:
        """Ids in order and the prompt tokens they get."""
        view = iteration.view
        left_ns = iteration.time_ns - iteration.bare_ns(0)
        tokens_left = view.max_batch_tokens - iteration.decoding
        if self._prefill_chunk:
            tokens_left = min(tokens_left, self._prefill_chunk)
        order: list[str] = []
        budget = 0
        for sequence in begun:
            left_ns -= iteration.b
            chunk = self._chunk(iteration, sequence, left_ns, tokens_left - budget)
            order.append(sequence.sequence_id)
            budget += chunk
            left_ns -= iteration.c * chunk
        slots = view.max_batch - iteration.decoding - len(begun)
        guard = _Guard(self, iteration, begun)
        for sequence in ordered:
            if slots < 1 or left_ns < iteration.b + iteration.c or budget >= tokens_left:
                break
            if not guard.admits(sequence):
                continue
            left_ns -= iteration.b
            chunk = self._chunk(iteration, sequence, left_ns, tokens_left - budget)
            if chunk < 1:
                break
            slots -= 1
            order.append(sequence.sequence_id)
            budget += chunk
            left_ns -= iteration.c * chunk
        if order and not iteration.decoding and budget < 1:
            budget = 1  # something must move
        return tuple(order), budget

    def _chunk(self, iteration: _Iteration, sequence: SequenceView, left_ns: float, tokens_left: int) -> int:
        return max(0, int(min(max(1, sequence.remaining_prefill), left_ns / iteration.c, tokens_left)))

    # --- what is known of a sequence

    def remaining_output(self, sequence: SequenceView) -> int:
        """Predicted further tokens, at least 1."""
        return max(1, self._lengths.guess(sequence.max_output_tokens).tokens - sequence.generated)

    def held_tokens(self, sequence: SequenceView) -> int:
        """KV tokens the sequence holds once its prompt is in."""
        return self._prompt_tokens.get(sequence.sequence_id, sequence.remaining_prefill) + sequence.generated

    def _device_cost_ns(self, iteration: _Iteration, sequence: SequenceView) -> int:
        return int(iteration.c * sequence.remaining_prefill + iteration.b * self._lengths.mean(sequence.max_output_tokens))

    def _learn(self, view: EngineView, *, now: int) -> None:
        """New sequences enter the traffic; those that left decoding say how long their answers were."""
        a, b, c = self._cost.coefficients_ns
        del a
        prompts: dict[str, int] = {}
        for sequence in (*view.decoding, *view.prefilling, *view.waiting):
            known = self._prompt_tokens.get(sequence.sequence_id)
            if known is None:
                known = sequence.remaining_prefill
                self._demand.arrived(int(c * known + b * self._lengths.mean(sequence.max_output_tokens)), now=now)
            prompts[sequence.sequence_id] = known
        generated = {sequence.sequence_id: sequence.generated for sequence in view.decoding}
        for sequence_id, tokens in self._generated.items():
            if sequence_id not in prompts:
                self._lengths.observe(tokens + 1)
        self._prompt_tokens, self._generated = prompts, generated


class _Guard:
    """Whether one sequence more breaks a tpot or the KV cache."""

    def __init__(self, order: DeadlineOrder, iteration: _Iteration, begun: list[SequenceView]) -> None:
        view = iteration.view
        self._order = order
        self._iteration = iteration
        self._tpot_ns = min((self._promised_ns(s) for s in (*view.decoding, *begun)), default=math.inf)
        self._count = len(begun)
        self._held = [(order.held_tokens(s), order.remaining_output(s)) for s in (*view.decoding, *begun)]
        self._capacity = view.kv_blocks_total * view.kv_block_tokens * KV_SHARE_PERCENT // 100

    def admits(self, sequence: SequenceView) -> bool:
        """Asks, and counts the sequence in if the answer is yes."""
        iteration = self._iteration
        bare = iteration.bare_ns(self._count + 1)
        tightest = min(self._tpot_ns, self._promised_ns(sequence))
        alone = not iteration.decoding and not self._count
        if not alone and bare > GUARD_SHARE * tightest:
            return False
        held = [*self._held, (self._order.held_tokens(sequence), self._order.remaining_output(sequence))]
        if not alone and self._capacity and peak_tokens(held) > self._capacity:
            return False
        self._tpot_ns, self._held = tightest, held
        self._count += 1
        return True

    def _promised_ns(self, sequence: SequenceView) -> float:
        """The tpot it asked for, if this replica could keep it for one sequence; else without bound."""
        alone_ns = self._iteration.a + self._iteration.b
        return sequence.tpot_ns if sequence.tpot_ns is not None and alone_ns <= GUARD_SHARE * sequence.tpot_ns else math.inf


def _by_deadline(sequence: SequenceView) -> tuple[int, int]:
    return ttft_deadline_ns(sequence), sequence.arrived_ns
