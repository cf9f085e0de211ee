"""`/v1/infer`, Halcyon's own endpoint."""

from __future__ import annotations

import json

import aiohttp
import msgspec
import pytest
from scripted import PROMPT_TOKENS, ScriptedService, data_of, serving, spoken

from halcyon.wire.api_infer import InferAnswer, InferEnd
from halcyon.wire.frames import ChatMessage


async def test_the_answer_carries_the_account() -> None:
    """A plain answer holds output, version, replica, usage, timings in ms, batch size and reason, and the request's id."""
    async with (
        serving(service := ScriptedService()) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/infer", json={"model": "tiny", "input": "hi"}) as response,
    ):
        answer = await response.json()
        headers = response.headers
    assert answer["output"] == "Hello"
    assert answer["finish_reason"] == "stop"
    assert (answer["version"], answer["replica_id"], answer["batch_size"], answer["batch_reason"]) == ("v2", "tiny-0", 3, "slot_free")
    assert answer["timings"] == {"queue_ms": 1.5, "ttft_ms": 2.5, "tpot_ms": 3.5, "total_ms": 4.5}
    assert answer["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert answer["hedged"] is False
    assert answer["request_id"] == service.generation.request_id == headers["x-halcyon-request"]
    assert (headers["x-halcyon-replica"], headers["x-halcyon-version"]) == ("tiny-0", "v2")
    assert "token_ids" not in answer
    assert msgspec.json.decode(json.dumps(answer).encode(), type=InferAnswer).output == "Hello"


async def test_several_answers_are_lists() -> None:
    """With n=2, output and what goes with it are lists."""
    body = {"model": "tiny", "input": "hi", "n": 2, "logprobs": True, "returnTokenIds": True}
    service = ScriptedService(spoken("a", "b", n=2, logprobs=0))
    async with serving(service) as server, aiohttp.ClientSession(server.url) as client, client.post("/v1/infer", json=body) as response:
        answer = await response.json()
    assert answer["output"] == ["ab", "ab"]
    assert answer["finish_reason"] == ["stop", "stop"]
    assert answer["token_ids"] == [[100, 101], [100, 101]]
    assert [[token["token"] for token in tokens] for tokens in answer["logprobs"]] == [["a", "b"], ["a", "b"]]


async def test_a_stream_is_parts_then_the_account_then_done() -> None:
    """A stream is one object a part, a last one with the account, and [DONE]; a heartbeat or event name never mixes in."""
    body = {"model": "tiny", "input": "hi", "stream": True}
    async with (
        serving(ScriptedService()) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/infer", json=body) as response,
    ):
        assert response.content_type == "text/event-stream"
        *parts, end, done = data_of(await response.text())
    assert [json.loads(part)["text"] for part in parts] == ["Hel", "lo"]
    assert [json.loads(part)["output_tokens"] for part in parts] == [1, 2]
    account = msgspec.json.decode(end, type=InferEnd)
    assert (account.finish_reason, account.usage.completion_tokens, account.version) == ("stop", 2, "v2")
    assert done == "[DONE]"


_FIELDS = {
    "version": ("version", "v2"),
    "session_key": ("sessionKey", "s"),
    "deadline_ms": ("deadlineMs", 900),
    "ttft_ms": ("ttftMs", 80),
    "tpot_ms": ("tpotMs", 20),
    "lane": ("lane", "bulk"),
    "replica_id": ("replicaId", "tiny-1"),
}


@pytest.mark.parametrize("camel", [False, True])
async def test_both_spellings_mean_the_same(camel: bool) -> None:
    """Every field of /v1/infer may be written in snake_case or camelCase."""
    body = {"model": "tiny", "input": [{"role": "user", "content": "hi"}]}
    body |= {(pair[0] if camel else name): pair[1] for name, pair in _FIELDS.items()}
    body |= {"maxOutputTokens" if camel else "max_output_tokens": 5, "topP" if camel else "top_p": 0.5}
    service = ScriptedService()
    async with serving(service) as server, aiohttp.ClientSession(server.url) as client, client.post("/v1/infer", json=body) as response:
        assert response.status == 200, await response.text()
    assert {name: getattr(service.call, name) for name in _FIELDS} == {name: pair[1] for name, pair in _FIELDS.items()}
    assert (service.call.sampling.max_output_tokens, service.call.sampling.top_p) == (5, 0.5)
    assert service.call.messages == (ChatMessage("user", "hi"),)


async def test_two_spellings_of_one_field_are_refused() -> None:
    """A field given in both spellings is a 400 that names it."""
    body = {"model": "tiny", "input": "hi", "deadline_ms": 5, "deadlineMs": 5}
    async with (
        serving(ScriptedService()) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/infer", json=body) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (400, "invalid_request", "deadline_ms")


async def test_the_body_wins_over_headers() -> None:
    """Where body and header both speak, /v1/infer believes the body."""
    service = ScriptedService()
    body = {"model": "tiny", "input": "hi", "deadline_ms": 5, "session_key": "body"}
    headers = {"x-halcyon-deadline-ms": "7", "x-halcyon-ttft-ms": "3", "x-halcyon-session": "header"}
    async with (
        serving(service) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/infer", json=body, headers=headers) as response,
    ):
        assert response.status == 200
    assert (service.call.deadline_ms, service.call.ttft_ms, service.call.session_key) == (5, 3, "body")
