"""A generation's promises: what is handed over, what is dropped, what is counted, and that it ends once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from halcyon.core.actions import Dispatch
from halcyon.daemon.generation import GenerationPorts, LiveGeneration
from halcyon.errors import ClientTooSlow, UpstreamFailure
from halcyon.wire.frames import Delta
from halcyon.wire.inference import Part

MS = 1_000_000


@dataclass
class Told:
    """What a generation reported."""

    sent: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def generation(self, *, stream: bool = True, answers: int = 1, buffer_tokens: int = 100) -> LiveGeneration:
        """A generation that arrived at instant 0 and reports here."""
        ports = GenerationPorts(
            on_sent=self.sent.append, on_gone=self.gone.append, on_end=lambda g: self.ended.append(g.outcome), clock=lambda: 99 * MS
        )
        return LiveGeneration(
            "r", model="m", version="v1", arrived_ns=0, answers=answers, stream=stream, buffer_tokens=buffer_tokens, ports=ports
        )


def dispatch(replica_id: str = "a") -> Dispatch:
    """A dispatch of one request."""
    return Dispatch(
        batch_id=1, replica_id=replica_id, request_ids=("r",), reason="slot_free", batch_size=1, queue_depth=0, eligible_replicas=1
    )


def token(number: int, text: str = "x", **last: str) -> Delta:
    """The `number`-th token; the first brings the prompt's length."""
    return Delta(sequence_id="r/0", text=text, prompt_tokens=7 if number == 1 else 0, output_tokens=number, **last)  # type: ignore[arg-type]


def text_of(parts: tuple[Part, ...]) -> str:
    """The parts' text in a row."""
    return "".join(part.text for part in parts)


async def test_many_deltas_make_one_step() -> None:
    """Three tokens that gathered before the reader looked are one step, and the reader is told of the end after the last."""
    generation = Told().generation()
    generation.start_attempt(dispatch(), now=0)
    for number in (1, 2, 3):
        generation.push(0, token(number, finish_reason="stop") if number == 3 else token(number), now=number * MS)
    assert [len(parts) async for parts in generation] == [3]


async def test_a_stream_under_way_is_marked_sent_once() -> None:
    """Handing the first visible parts over reports `on_sent` once, and `mark_sent` after that adds nothing."""
    told = Told()
    generation = told.generation()
    generation.start_attempt(dispatch(), now=0)
    generation.push(0, token(1), now=MS)
    await anext(generation)
    generation.mark_sent()
    generation.push(0, token(2), now=2 * MS)
    await anext(generation)
    assert told.sent == ["r"]


async def test_nothing_handed_over_is_nothing_sent() -> None:
    """`mark_sent` on a generation that gave no part yet (one prompt of several) reports nothing: the request may still go anywhere."""
    told = Told()
    generation = told.generation()
    generation.mark_sent()
    assert (told.sent, generation.sent) == ([], False)


async def test_parts_without_anything_to_show_wait() -> None:
    """A first token that is half a character is not handed over before the character is whole, so a loss before it costs nothing."""
    told = Told()
    generation = told.generation()
    generation.start_attempt(dispatch(), now=0)
    generation.push(0, token(1, text=""), now=MS)
    reader = asyncio.create_task(anext(generation))
    await asyncio.sleep(0)
    assert (reader.done(), told.sent) == (False, [])
    generation.push(0, token(2, text="é"), now=2 * MS)
    assert text_of(await reader) == "é"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_unsent_attempt_leaves_no_token_behind(stream: bool) -> None:
    """Three tokens of a lost attempt that nobody was sent are dropped; text and counts are the second attempt's alone. (Fault: a retry
    repeats tokens.)"""
    told = Told()
    generation = told.generation(stream=stream)
    generation.start_attempt(dispatch("a"), now=0)
    for number in (1, 2, 3):
        generation.push(0, token(number, text="old"), now=MS)
    generation.lose_attempt()
    generation.start_attempt(dispatch("b"), now=5 * MS)
    generation.push(0, token(1, text="new"), now=6 * MS)
    generation.push(0, token(2, text="er", finish_reason="length"), now=8 * MS)
    steps = [text_of(parts) async for parts in generation]
    account = generation.account()
    assert steps == ["newer"]
    assert (account.usage.completion_tokens, account.usage.prompt_tokens, account.attempts, account.replica_id) == (2, 7, 2, "b")
    assert (account.timings.queue_ms, account.timings.ttft_ms, account.timings.tpot_ms, account.timings.total_ms) == (5.0, 6.0, 2.0, 8.0)


async def test_a_failure_after_the_first_byte_comes_after_what_was_produced() -> None:
    """A sent stream that fails still brings its last tokens, then raises; an unsent one raises at once."""
    told = Told()
    generation = told.generation()
    generation.start_attempt(dispatch(), now=0)
    generation.push(0, token(1), now=MS)
    await anext(generation)
    generation.push(0, token(2, text="last"), now=2 * MS)
    generation.fail(UpstreamFailure("lost"), now=3 * MS)
    assert text_of(await anext(generation)) == "last"
    with pytest.raises(UpstreamFailure):
        await anext(generation)
    assert told.ended == ["upstream_failure"]
    unsent = told.generation()
    unsent.push(0, token(1), now=MS)
    unsent.fail(UpstreamFailure("lost"), now=2 * MS)
    with pytest.raises(UpstreamFailure):
        await anext(unsent)


async def test_a_reader_that_does_not_read_is_cut_off_at_the_bound() -> None:
    """With a bound of 10 tokens, 11 left unread end the request down to the replica when the next comes; nothing is kept for it."""
    told = Told()
    generation = told.generation(buffer_tokens=10)
    generation.start_attempt(dispatch(), now=0)
    for number in range(1, 12):
        generation.push(0, token(number), now=number * MS)
    assert told.gone == []
    generation.push(0, token(12), now=12 * MS)
    assert (told.gone, told.ended) == (["r"], ["client_too_slow"])
    with pytest.raises(ClientTooSlow, match="10 tokens"):
        await anext(generation)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_cut_short_unasked_is_a_failure(stream: bool) -> None:
    """A replica that ends one of two answers as cancelled without being told to: the request fails, and is not counted as served."""
    told = Told()
    generation = told.generation(stream=stream, answers=2)
    generation.start_attempt(dispatch(), now=0)
    generation.push(0, token(3, finish_reason="stop"), now=MS)
    generation.push(1, token(2, finish_reason="cancelled"), now=MS)
    with pytest.raises(UpstreamFailure, match="before it was complete"):
        await anext(generation)
    assert told.ended == ["upstream_failure"]


async def test_an_answer_that_comes_at_once_is_no_slow_reader() -> None:
    """With a bound of 10 tokens, three answers of 20 tokens each in one frame, as a batch replica brings them, are all handed over."""
    told = Told()
    generation = told.generation(buffer_tokens=10, answers=3)
    generation.start_attempt(dispatch(), now=0)
    for index in range(3):
        generation.push(index, token(20, "all", finish_reason="length"), now=MS)
    steps = [text_of(parts) async for parts in generation]
    assert (steps, told.ended) == (["allallall"], ["ok"])


async def test_it_ends_once_whatever_comes_after() -> None:
    """Leaving, failing and pushing after the end report nothing more."""
    told = Told()
    async with told.generation() as generation:
        generation.start_attempt(dispatch(), now=0)
    generation.abandon()
    generation.fail(UpstreamFailure("late"), now=MS)
    generation.push(0, token(1), now=MS)
    assert (told.gone, told.ended) == (["r"], ["cancelled"])
    assert generation.account().timings.total_ms == 99.0


async def test_a_departed_reader_of_a_finished_answer_cancels_nothing() -> None:
    """An answer that is complete when its reader leaves counts as served."""
    told = Told()
    async with told.generation() as generation:
        generation.start_attempt(dispatch(), now=0)
        generation.push(0, token(1, finish_reason="stop"), now=MS)
    assert (told.gone, told.ended) == ([], ["ok"])


async def test_several_answers_end_together_and_count_apart() -> None:
    """With n = 2 the generation ends with the second answer; tokens add up, the prompt counts once."""
    generation = Told().generation(answers=2, stream=False)
    generation.start_attempt(dispatch(), now=0)
    generation.push(0, token(1), now=1 * MS)
    generation.push(1, token(1), now=2 * MS)
    generation.push(0, token(2, finish_reason="stop"), now=3 * MS)
    assert generation.outcome == ""
    generation.push(1, token(2, finish_reason="length"), now=6 * MS)
    (parts,) = [step async for step in generation]
    usage = generation.account().usage
    assert len(parts) == 4
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 4, 11)
    assert (generation.account().timings.tpot_ms, generation.finish_reason) == (3.0, "length")
