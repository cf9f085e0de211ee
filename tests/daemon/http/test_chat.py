"""`/v1/chat/completions`, read with the official client."""

from __future__ import annotations

import aiohttp
import pytest
from openai import BadRequestError
from scripted import CACHED_TOKENS, PROMPT_TOKENS, ScriptedService, serving, spoken

from halcyon.wire.frames import ChatMessage
from halcyon.wire.inference import Part

USER = [{"role": "user", "content": "hi"}]


async def test_plain_answer_carries_text_finish_reason_and_exact_usage() -> None:
    """A plain chat answer holds the whole text, why it ended, and the exact counts."""
    async with serving(ScriptedService(spoken("Hel", "lo", finish="length"))) as server, server.sdk() as client:
        answer = await client.chat.completions.create(model="tiny", messages=USER)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello", "length")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (PROMPT_TOKENS, 2, PROMPT_TOKENS + 2)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == CACHED_TOKENS


async def test_stream_begins_with_the_role_and_ends_with_a_reason() -> None:
    """A chat stream is role, text as it comes, finish reason; nothing carries usage unless asked (Streams)."""
    async with serving(service := ScriptedService(spoken("Hel", "lo"))) as server, server.sdk() as client:
        stream = await client.chat.completions.create(model="tiny", messages=USER, stream=True)
        chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "Hel", "lo"]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    assert service.generation.sent_after_steps == 1


async def test_include_usage_adds_a_last_chunk_without_choices() -> None:
    """With include_usage every chunk has `usage`: null, and the last one, without choices, the exact counts (Streams)."""
    async with serving(ScriptedService(spoken("Hel", "lo"))) as server, server.sdk() as client:
        stream = await client.chat.completions.create(model="tiny", messages=USER, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


async def test_continuous_usage_counts_on_every_chunk() -> None:
    """With continuous_usage_stats every chunk carries the counts so far, over all choices (Streams)."""
    async with serving(ScriptedService(spoken("a", "b", n=2))) as server, server.sdk() as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=USER,
            n=2,
            stream=True,
            extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        )
        chunks = [chunk async for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [1, 2, 3, 4]
    assert {chunk.usage.prompt_tokens for chunk in chunks if chunk.usage} == {PROMPT_TOKENS}


async def test_several_answers_keep_their_numbers() -> None:
    """n=2 gives two choices with their own text, and two roles in a stream."""

    def script(call: object) -> list[tuple[Part, ...]]:
        return [
            (Part(index=1, text="B", prompt_tokens=3, output_tokens=1),),
            (Part(index=0, text="A", prompt_tokens=3, output_tokens=1, finish_reason="stop"),),
            (Part(index=1, text="b", output_tokens=2, finish_reason="length"),),
        ]

    async with serving(ScriptedService(script)) as server, server.sdk() as client:
        plain = await client.chat.completions.create(model="tiny", messages=USER, n=2)
        stream = await client.chat.completions.create(model="tiny", messages=USER, n=2, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
    assert [(c.index, c.message.content, c.finish_reason) for c in plain.choices] == [(0, "A", "stop"), (1, "Bb", "length")]
    assert [(c.index, c.delta.role, c.delta.content) for c in chunks] == [
        (1, "assistant", ""),
        (1, None, "B"),
        (0, "assistant", ""),
        (0, None, "A"),
        (1, None, "b"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_carry_exact_bytes_and_alternatives(stream: bool) -> None:
    """Chat logprobs hold token, natural log, exact bytes and the alternatives, streamed or not."""
    service = ScriptedService(spoken("né", "e", logprobs=2))
    async with serving(service) as server, server.sdk() as client:
        answer = await client.chat.completions.create(model="tiny", messages=USER, logprobs=True, top_logprobs=2, stream=stream)
        if stream:
            tokens = [t async for chunk in answer if chunk.choices[0].logprobs for t in chunk.choices[0].logprobs.content]
        else:
            tokens = answer.choices[0].logprobs.content
    assert [(t.token, t.logprob, bytes(t.bytes)) for t in tokens] == [("né", -0.5, "né".encode()), ("e", -0.5, b"e")]
    assert [(top.token, top.logprob) for top in tokens[0].top_logprobs] == [("né", -0.5), ("alt1", -1.0)]
    assert (service.call.sampling.logprobs, service.call.sampling.top_logprobs) == (True, 2)


async def test_every_supported_field_reaches_the_service() -> None:
    """Sampling, bounds, session and messages arrive as they were written; developer means system; text parts are joined."""
    service = ScriptedService()
    async with serving(service) as server, server.sdk() as client:
        await client.chat.completions.create(
            model="tiny@v2",
            messages=[
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "é"}]},
                {"role": "assistant", "content": "b", "refusal": None},
            ],
            temperature=0,
            top_p=0.5,
            seed=-3,
            stop=["X", "YY"],
            max_completion_tokens=9,
            user="session-1",
            metadata={"k": "v"},
            store=False,
            service_tier="auto",
            frequency_penalty=0,
            extra_body={"top_k": -1, "ignore_eos": True, "stop_token_ids": [5], "min_tokens": None, "return_token_ids": True},
        )
    call = service.call
    assert call.messages == (ChatMessage("system", "be brief"), ChatMessage("user", "aé"), ChatMessage("assistant", "b"))
    assert (call.model, call.session_key, call.input_bytes, call.endpoint, call.return_token_ids) == (
        "tiny@v2",
        "session-1",
        8 + 3 + 1,
        "chat",
        True,
    )
    sampling = call.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.0, 0.5, 0, -3)
    assert (sampling.stop, sampling.stop_token_ids, sampling.ignore_eos, sampling.max_output_tokens) == (("X", "YY"), (5,), True, 9)


async def test_headers_carry_objectives_lane_and_session() -> None:
    """The x-halcyon headers reach the call, and the session header wins over `user`."""
    service = ScriptedService()
    headers = {
        "x-halcyon-deadline-ms": "900",
        "x-halcyon-ttft-ms": "80",
        "x-halcyon-tpot-ms": "20",
        "x-halcyon-lane": "bulk",
        "x-halcyon-session": "from-header",
    }
    async with serving(service) as server, server.sdk() as client:
        await client.chat.completions.create(model="tiny", messages=USER, user="from-body", extra_headers=headers)
    call = service.call
    assert (call.deadline_ms, call.ttft_ms, call.tpot_ms, call.lane, call.session_key) == (900, 80, 20, "bulk", "from-header")


@pytest.mark.parametrize(("header", "value"), [("deadline-ms", "soon"), ("ttft-ms", "0"), ("tpot-ms", "1.5"), ("lane", "fast")])
async def test_a_header_that_cannot_be_read_is_named(header: str, value: str) -> None:
    """A bad x-halcyon header is a 400 that names it, not ignored."""
    async with serving(ScriptedService()) as server, server.sdk() as client:
        with pytest.raises(BadRequestError) as caught:
            await client.chat.completions.create(model="tiny", messages=USER, extra_headers={f"x-halcyon-{header}": value})
    assert caught.value.param == f"x-halcyon-{header}"


async def test_token_ids_are_returned_where_asked_for() -> None:
    """return_token_ids adds every choice's ids, streamed or not."""
    body = {"model": "tiny", "messages": USER, "return_token_ids": True}
    async with serving(ScriptedService(spoken("a", "b"))) as server, aiohttp.ClientSession(server.url) as client:
        async with client.post("/v1/chat/completions", json=body) as response:
            assert (await response.json())["choices"][0]["token_ids"] == [100, 101]
        async with client.post("/v1/chat/completions", json=body | {"stream": True}) as response:
            text = await response.text()
    assert '"token_ids":[100]' in text
    assert '"token_ids":[101]' in text


async def test_a_replayed_request_is_answered_once() -> None:
    """Answers that begin again, after their replica was lost unseen, replace what came before (Streams: no repeated tokens)."""
    script = [*spoken("lost", "half")[:1], *spoken("whole", " answer")]
    async with serving(ScriptedService(script)) as server, server.sdk() as client:
        answer = await client.chat.completions.create(model="tiny", messages=USER)
    assert answer.choices[0].message.content == "whole answer"
