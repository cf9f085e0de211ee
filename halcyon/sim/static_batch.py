"""Static batching of generations: the baseline that continuous batching replaced.

A batch is formed when `size` prompts wait or the oldest has waited `wait_ns` and the device is free; all prompts are processed together,
then every slot decodes until the longest answer is done, whether its own is or not. Nobody joins, nobody leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from halcyon.sim.chance import Mulberry32
from halcyon.sim.continuous import Fate, IterationLaw, Prompt


class StaticBatching:
    """One device, one trace."""

    def __init__(self, law: IterationLaw, prompts: Sequence[Prompt], *, size: int, wait_ns: int, seed: int) -> None:
        self._law = law
        self._size = size
        self._wait_ns = wait_ns
        self._chance = Mulberry32(seed)
        self._pending = deque(prompts)
        self.fates = [Fate(prompt) for prompt in prompts]
        self.now = 0
        self.busy_ns = 0
        self.slot_steps = 0
        self.useful_steps = 0

    def run(self) -> list[Fate]:
        """Every prompt to its end."""
        while self._pending:
            self._wait()
            arrived = [prompt for prompt in self._pending if prompt.arrived_ns <= self.now][: self._size]
            for _ in arrived:
                self._pending.popleft()
            self._serve(arrived)
        return self.fates

    def _wait(self) -> None:
        """Until the batch is full or its oldest prompt has waited long enough; compares instants."""
        leaves_ns = self._pending[0].arrived_ns + self._wait_ns
        full_ns = self._pending[self._size - 1].arrived_ns if len(self._pending) >= self._size else leaves_ns
        self.now = max(self.now, min(leaves_ns, full_ns))

    def _serve(self, batch: list[Prompt]) -> None:
        prompt_tokens = sum(prompt.prompt_tokens for prompt in batch)
        last_ns = self.now
        for prompt in batch:
            self.fates[prompt.index].admitted_ns = self.now
        for step in range(max(prompt.output_tokens for prompt in batch)):
            duration_ns = self._law.duration_ns(len(batch), 0 if step else prompt_tokens, self._chance)
            self.now += duration_ns
            self.busy_ns += duration_ns
            self.slot_steps += len(batch)
            for prompt in batch:
                if step < prompt.output_tokens:
                    self.useful_steps += 1
                    self._token(self.fates[prompt.index], last_ns, step)
            last_ns = self.now

    def _token(self, fate: Fate, last_ns: int, step: int) -> None:
        if step == 0:
            fate.first_token_ns = self.now
        else:
            fate.worst_gap_ns = max(fate.worst_gap_ns, self.now - last_ns)
        if step == fate.prompt.output_tokens - 1:
            fate.finished_ns = self.now
