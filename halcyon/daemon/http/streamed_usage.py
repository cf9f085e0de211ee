"""`stream_options`: which chunks of an OpenAI stream carry usage."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from halcyon.daemon.http.answers import Counts
from halcyon.daemon.http.wording import usage_of
from halcyon.errors import InvalidRequest
from halcyon.wire.inference import Part
from halcyon.wire.openai import OpenAIUsage, StreamOptions


def check_stream_options(options: StreamOptions | None, *, stream: bool) -> None:
    """Refuses options for a stream that was not asked for.

    Raises:
        InvalidRequest: `stream` is not true.
    """
    if options is not None and not stream:
        raise InvalidRequest("`stream_options` needs `stream`: true", param="stream_options")


class StreamedUsage:
    """What the `usage` of each chunk is: absent, null until the end, or the counts so far."""

    def __init__(self, options: StreamOptions | None, *, choices: int, choices_per_prompt: int) -> None:
        self._continuous = options is not None and bool(options.continuous_usage_stats)
        self.at_end = options is not None and bool(options.include_usage)
        self._counts = Counts(choices=choices, choices_per_prompt=choices_per_prompt)

    def add(self, part: Part) -> None:
        """Counts one part, where anybody wants to know before the end."""
        if self._continuous:
            self._counts.add(part)

    def for_chunk(self) -> OpenAIUsage | UnsetType | None:
        """The `usage` of an ordinary chunk."""
        if self._continuous:
            return usage_of(self._counts.usage())
        return None if self.at_end else UNSET
