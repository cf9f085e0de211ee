"""Putting parts together: whole answers for plain replies, running counts for streams.

A request that was lost with its replica before the client saw anything is served again from its start: its answers' first parts (those
that carry `prompt_tokens`) then come a second time, and what was collected before them is void.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from halcyon.wire.frames import TokenLogprob
from halcyon.wire.inference import Part, Usage


@dataclass(kw_only=True)
class Answer:
    """One answer as far as it has come. finish_reason: empty until its last part."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)

    def add(self, part: Part) -> None:
        """Appends what a part brought."""
        self.texts.append(part.text)
        self.logprobs += part.logprobs
        self.token_ids += part.token_ids
        if part.finish_reason is not None:
            self.finish_reason = part.finish_reason
            self.stop_reason = part.stop_reason


class Answers:
    """All answers of a request, by index."""

    def __init__(self, count: int) -> None:
        self._answers = [Answer() for _ in range(count)]

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._answers)

    def add(self, parts: Sequence[Part]) -> None:
        """Adds one step."""
        for part in parts:
            if part.prompt_tokens:
                self._answers[part.index] = Answer()
            self._answers[part.index].add(part)


class Counts:
    """Token counts of a stream so far, for `continuous_usage_stats`. `choices_per_prompt` answers share one prompt."""

    def __init__(self, *, choices: int, choices_per_prompt: int) -> None:
        self._output_tokens = [0] * choices
        self._prompt_tokens = [0] * (choices // choices_per_prompt)
        self._cached_tokens = [0] * (choices // choices_per_prompt)
        self._choices_per_prompt = choices_per_prompt

    def add(self, part: Part) -> None:
        """Counts one part."""
        self._output_tokens[part.index] = part.output_tokens
        if part.prompt_tokens:
            prompt = part.index // self._choices_per_prompt
            self._prompt_tokens[prompt] = part.prompt_tokens
            self._cached_tokens[prompt] = part.cached_tokens

    def usage(self) -> Usage:
        """The counts so far."""
        prompt, output = sum(self._prompt_tokens), sum(self._output_tokens)
        return Usage(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output, cached_tokens=sum(self._cached_tokens))
