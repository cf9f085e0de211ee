"""`/v1/completions`, read with the official client."""

from __future__ import annotations

import pytest
from openai import BadRequestError
from scripted import PROMPT_TOKENS, ScriptedService, serving, spoken

from halcyon.errors import QueueFull
from halcyon.wire.frames import TokenLogprob
from halcyon.wire.inference import InferenceCall, Part


async def test_plain_answer_carries_text_finish_reason_and_usage() -> None:
    """A plain completion holds text, reason and exact usage; sixteen tokens are the maximum nobody named."""
    service = ScriptedService(spoken("Hel", "lo", finish="length"))
    async with serving(service) as server, server.sdk() as client:
        answer = await client.completions.create(model="tiny", prompt="once")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == PROMPT_TOKENS + 2
    assert (service.call.text, service.call.input_bytes, service.call.sampling.max_output_tokens) == ("once", 4, 16)


@pytest.mark.parametrize(
    ("fields", "maximum"), [({}, 16), ({"max_tokens": None}, None), ({"max_tokens": 3}, 3), ({"max_completion_tokens": 4}, 4)]
)
async def test_null_means_no_maximum_and_silence_the_default(fields: dict[str, int | None], maximum: int | None) -> None:
    """An explicit null lifts the small default, as load generators expect; both names of the bound work."""
    async with serving(service := ScriptedService()) as server, server.sdk() as client:
        await client.completions.create(model="tiny", prompt="x", extra_body=fields)
    assert service.call.sampling.max_output_tokens == maximum


async def test_stream_carries_text_and_usage_at_its_end() -> None:
    """A completion stream is text as it comes, a reason, and usage where it was asked for (Streams)."""
    async with serving(ScriptedService(spoken("Hel", "lo"))) as server, server.sdk() as client:
        stream = await client.completions.create(model="tiny", prompt="once", stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].text for chunk in chunks[:-1]] == ["Hel", "lo"]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, "stop"]
    assert (chunks[-1].choices, chunks[-1].usage and chunks[-1].usage.completion_tokens) == ([], 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_have_the_legacy_shape(stream: bool) -> None:
    """Legacy logprobs are parallel lists; text offsets count characters also where a character spans tokens."""
    pieces = [("a", b"a"), ("\ufffd", b"\xc3"), ("\ufffd", b"\xa9"), ("z", b"z")]
    tokens = [TokenLogprob(token_id=i, text=text, bytes_=raw, logprob=-0.25) for i, (text, raw) in enumerate(pieces)]
    shown = ["a", "", "é", "z"]
    script = [
        (
            Part(
                index=0,
                text=shown[i],
                logprobs=(tokens[i],),
                prompt_tokens=1 if i == 0 else 0,
                output_tokens=i + 1,
                finish_reason="stop" if i == 3 else None,
            ),
        )
        for i in range(4)
    ]
    async with serving(service := ScriptedService(script)) as server, server.sdk() as client:
        answer = await client.completions.create(model="tiny", prompt="x", logprobs=0, stream=stream)
        found = [chunk.choices[0].logprobs async for chunk in answer] if stream else [answer.choices[0].logprobs]
    assert [offset for part in found for offset in part.text_offset] == [0, 1, 2, 2]
    assert [text for part in found for text in part.tokens] == ["a", "\ufffd", "\ufffd", "z"]
    assert [value for part in found for value in part.token_logprobs] == [-0.25] * 4
    assert found[0].top_logprobs[0] == {"a": -0.25}
    assert (service.call.sampling.logprobs, service.call.sampling.top_logprobs) == (True, 0)


async def test_token_ids_are_a_prompt() -> None:
    """A list of token ids is one prompt."""
    async with serving(service := ScriptedService()) as server, server.sdk() as client:
        await client.completions.create(model="tiny", prompt=[5, 6, 7])
    assert (service.call.token_ids, service.call.text, service.call.input_bytes) == ((5, 6, 7), None, 12)


def _echoing(call: InferenceCall) -> list[tuple[Part, ...]]:
    first = Part(index=0, text=f"<{call.text}", prompt_tokens=PROMPT_TOKENS, output_tokens=1)
    second = Part(index=1, text=f"<{call.text}", prompt_tokens=PROMPT_TOKENS, output_tokens=1, finish_reason="length")
    return [(first, second), (Part(index=0, text=">", output_tokens=2, finish_reason="stop"),)]


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_keep_openai_order(stream: bool) -> None:
    """Three prompts with n=2 give six choices: both answers of the first prompt, then of the second; usage adds up."""
    async with serving(service := ScriptedService(_echoing)) as server, server.sdk() as client:
        options = {"stream_options": {"include_usage": True}} if stream else {}
        answer = await client.completions.create(model="tiny", prompt=["a", "b", "c"], n=2, stream=stream, **options)
        texts = dict.fromkeys(range(6), "")
        if stream:
            chunks = [chunk async for chunk in answer]
            for chunk in chunks[:-1]:
                texts[chunk.choices[0].index] += chunk.choices[0].text
            usage = chunks[-1].usage
        else:
            texts = {choice.index: choice.text for choice in answer.choices}
            usage = answer.usage
    assert texts == {0: "<a>", 1: "<a", 2: "<b>", 3: "<b", 4: "<c>", 5: "<c"}
    assert (usage.prompt_tokens, usage.completion_tokens) == (3 * PROMPT_TOKENS, 9)
    assert len({generation.request_id for generation in service.generations}) == 3


async def test_a_refused_prompt_ends_its_siblings() -> None:
    """When one of several prompts fails, none runs on, and the client gets that error (Accounting)."""
    service = ScriptedService(lambda call: [QueueFull("full", retry_after_ms=10)] if call.text == "b" else _echoing(call))
    async with serving(service) as server, server.sdk() as client:
        with pytest.raises(Exception, match="full"):
            await client.completions.create(model="tiny", prompt=["a", "b"], n=2)
    assert all(generation.closed.is_set() for generation in service.generations)


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["a", [1]], [1, "a"], [-1]])
async def test_prompts_that_cannot_be_served_are_refused(prompt: object) -> None:
    """An empty, mixed or negative prompt is a 400 that names `prompt`."""
    async with serving(ScriptedService()) as server, server.sdk() as client:
        with pytest.raises(BadRequestError, match="prompt"):
            await client.completions.create(model="tiny", prompt=prompt)  # type: ignore[arg-type]
