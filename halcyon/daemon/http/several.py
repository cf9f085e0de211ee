"""Several prompts of one request, served side by side and read as one generation.

Each prompt is a request of its own to the service, with an id of its own, so that admission, routing and history see them singly. Choice
numbers follow OpenAI's order: all answers of the first prompt, then all of the second. The first failure ends them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from types import TracebackType

import msgspec

from halcyon.daemon.service import Generation, InferenceService
from halcyon.wire.inference import Account, InferenceCall, Part, Usage


async def open_calls(service: InferenceService, calls: Sequence[InferenceCall], *, tenant: str, request_id: str) -> Generation:
    """Opens one generation for all calls.

    Raises:
        RequestError: one of them is refused; none runs then.
    """
    if len(calls) == 1:
        return await service.open(calls[0], tenant=tenant, request_id=request_id)
    async with AsyncExitStack() as opened:
        generations = []
        for number, call in enumerate(calls):
            generation = await service.open(call, tenant=tenant, request_id=f"{request_id}-{number}")
            generations.append(await opened.enter_async_context(generation))
        return SeveralGenerations(generations, opened.pop_all(), request_id=request_id, choices_each=calls[0].n)


class SeveralGenerations:
    """A `Generation` made of several that are already entered; leaving it leaves them all."""

    def __init__(self, generations: Sequence[Generation], opened: AsyncExitStack, *, request_id: str, choices_each: int) -> None:
        self.request_id = request_id
        self._generations = generations
        self._opened = opened
        self._choices_each = choices_each
        self._ready: asyncio.Queue[tuple[Part, ...] | asyncio.Task[None]] = asyncio.Queue()
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> SeveralGenerations:
        """Starts one reader for each prompt."""
        for number, generation in enumerate(self._generations):
            reader = asyncio.create_task(self._read(generation, number * self._choices_each))
            reader.add_done_callback(self._ready.put_nowait)
            self._readers.append(reader)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Stops the readers, then ends every generation."""
        for reader in self._readers:
            reader.cancel()
        async with self._opened:
            await asyncio.gather(*self._readers, return_exceptions=True)

    async def __aiter__(self) -> AsyncIterator[tuple[Part, ...]]:
        """Yields steps in the order in which they come."""
        running = len(self._readers)
        while running:
            item = await self._ready.get()
            if isinstance(item, asyncio.Task):
                item.result()  # raises what ended it, if anything did
                running -= 1
            else:
                yield item

    def mark_sent(self) -> None:
        """Marks them all: the client holds one answer with all of them in it."""
        for generation in self._generations:
            generation.mark_sent()

    def account(self) -> Account:
        """The first prompt's account under the whole request's id, with the usage of all."""
        accounts = [generation.account() for generation in self._generations]
        return msgspec.structs.replace(accounts[0], request_id=self.request_id, usage=_sum(accounts))

    async def _read(self, generation: Generation, first_index: int) -> None:
        async for parts in generation:
            moved = (msgspec.structs.replace(part, index=first_index + part.index) for part in parts)
            self._ready.put_nowait(tuple(moved))


def _sum(accounts: Sequence[Account]) -> Usage:
    usages = [account.usage for account in accounts]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        total_tokens=sum(usage.total_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )
