"""Bodies that are too large, malformed, or ask for what there is not."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Mapping

import aiohttp
import msgspec
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import ScriptedService, serving

from halcyon.config.settings import Limits
from halcyon.daemon.http.chat import read_chat
from halcyon.daemon.http.completions import read_completion
from halcyon.daemon.http.infer import read_infer
from halcyon.errors import InvalidRequest

MIB = 1024 * 1024
COMPLETION = {"model": "tiny", "prompt": "x"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def _raw(port: int, request: bytes) -> tuple[bytes, asyncio.StreamWriter]:
    """Sends bytes and returns the status line of what comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    return await reader.readline(), writer


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
async def test_an_announced_size_over_the_limit_is_413_before_a_byte_of_it(expect: bytes) -> None:
    """A terabyte that is only announced is refused at once, and `Expect: 100-continue` is not told to go on (Python services)."""
    async with serving(ScriptedService()) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: 1000000000000\r\n\r\n" % expect
        status, writer = await _raw(server.port, head)
        writer.transport.abort()
    assert status == b"HTTP/1.1 413 Request Entity Too Large\r\n"


async def test_an_expectation_within_the_limit_is_told_to_go_on() -> None:
    """`Expect: 100-continue` with a body that fits gets 100 and then its answer; any other expectation gets 400."""
    async with serving(ScriptedService()) as server, aiohttp.ClientSession(server.url) as client:
        async with client.post("/v1/completions", json=COMPLETION, expect100=True) as response:
            assert response.status == 200
        async with client.post("/v1/completions", json=COMPLETION, headers={"Expect": "miracles"}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_request")


async def test_an_endless_chunked_body_is_413_while_it_is_still_coming() -> None:
    """A chunked body that never ends is answered 413 as soon as it is over the limit (Python services)."""
    async with serving(ScriptedService(), limits=Limits(max_body_bytes=MIB)) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n" % MIB + b"x" * MIB + b"\r\n"
        status, writer = await _raw(server.port, head + 2 * chunk)
        writer.transport.abort()
    assert status == b"HTTP/1.1 413 Request Entity Too Large\r\n"
    assert server.metrics.endings[0] == ("completions", 413, "payload_too_large")


async def test_the_sdk_sees_413_for_a_real_oversized_body() -> None:
    """A body that is really sent and too large raises the official client's status error, not a broken connection (Python services)."""
    async with serving(ScriptedService(), limits=Limits(max_body_bytes=MIB)) as server, server.sdk() as client:
        with pytest.raises(openai.APIStatusError, match="limit of this daemon") as caught:
            await client.completions.create(model="tiny", prompt="x" * 3 * MIB)
    assert (caught.value.status_code, caught.value.code) == (413, "payload_too_large")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"model":"\xff"}',
        b'{"model":"\\ud800"}',
        b"[" * 2 * MIB,
        b'{"zz":' + b"[" * 2 * MIB,
        b'{"prompt":"' + b"x" * 2 * MIB,
        b'{"model":"tiny","prompt":[' + b"0," * MIB,
    ],
    ids=range(12),
)
async def test_a_malformed_body_is_400(data: bytes) -> None:
    """Whatever is not a JSON object of ours is a 400 in our form, also when it is megabytes or a million levels deep (Python services)."""
    async with (
        serving(ScriptedService()) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", data=io.BytesIO(data), headers={"Content-Type": "application/json"}) as response,
    ):
        assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_request")


async def test_a_large_body_of_any_content_type_is_read() -> None:
    """Five megabytes of prompt are within the limit, and the content type does not matter as long as the body is JSON."""
    service = ScriptedService()
    data = json.dumps(COMPLETION | {"prompt": "é" * 2 * MIB}, ensure_ascii=False).encode()
    async with (
        serving(service) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", data=io.BytesIO(data), headers={"Content-Type": "text/plain"}) as response,
    ):
        assert response.status == 200
    assert service.call.input_bytes == 4 * MIB


async def test_a_megabyte_of_image_is_refused_by_name() -> None:
    """A 1 MB base64 image is a 400 that names the part, and its data is not repeated (Python services)."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * MIB}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]}]
    async with serving(ScriptedService()) as server, server.sdk() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="tiny", messages=messages)  # type: ignore[arg-type]
    assert caught.value.param == "messages[0].content[1].image_url"
    assert len(caught.value.message) < 300


LIMITS = Limits(max_output_tokens=100, max_stop_strings=2, max_choices=4)

BAD_CHAT: list[tuple[Mapping[str, object], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": None}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": None}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": "x", "nmae": "y"}]}, "messages[0].nmae"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    ({"max_tokens": 101}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"n": 5}, "n"),
    ({"n": 0}, "n"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"seed": 2**70}, "seed"),
    ({"stop": ["a", "b", "c"]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usgae": True}}, "stream_options.include_usgae"),
    ({"min_tokens": 3}, "min_tokens"),
    ({"min_tokens": 3, "ignore_eos": True, "max_tokens": 2}, "min_tokens"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"presence_penalty": 0.1}, "presence_penalty"),
    ({"frequency_penalty": -1}, "frequency_penalty"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"store": True}, "store"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"user": 5}, "user"),
    ({"temprature": 1}, "temprature"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT, ids=lambda value: value if isinstance(value, str) else "")
def test_what_chat_cannot_do_is_refused_by_name(fields: Mapping[str, object], param: str) -> None:
    """Every unsupported, unknown or out-of-range field of a chat body is refused with its own path, never ignored."""
    with pytest.raises(InvalidRequest) as caught:
        read_chat(json.dumps(CHAT | dict(fields)).encode(), limits=LIMITS, request_id="r")
    assert caught.value.param == param
    assert f"`{param}`" in caught.value.message


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "x"}, {"best_of": 2}, {"logprobs": 6}, {"logprobs": True}, {"tools": []}])
def test_what_completions_cannot_do_is_refused_by_name(fields: Mapping[str, object]) -> None:
    """The legacy endpoint's own extras are refused by name."""
    (name,) = fields
    with pytest.raises(InvalidRequest) as caught:
        read_completion(json.dumps(COMPLETION | dict(fields)).encode(), limits=LIMITS, request_id="r")
    assert caught.value.param == name


def test_an_unknown_field_is_answered_with_the_nearest_known_one() -> None:
    """A typo is told what was probably meant."""
    with pytest.raises(InvalidRequest, match="did you mean `max_tokens`"):
        read_chat(json.dumps(CHAT | {"max_token": 5}).encode(), limits=LIMITS, request_id="r")


NEUTRAL_CHAT = {
    "temperature": None,
    "top_p": None,
    "n": None,
    "stop": None,
    "seed": None,
    "max_tokens": None,
    "stream": None,
    "stream_options": None,
    "logprobs": None,
    "top_logprobs": None,
    "user": None,
    "metadata": None,
    "tools": None,
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "functions": [],
    "response_format": {"type": "text"},
    "logit_bias": {},
    "presence_penalty": 0.0,
    "frequency_penalty": 0,
    "modalities": ["text"],
    "audio": None,
    "store": False,
    "service_tier": "default",
    "reasoning_effort": None,
    "min_tokens": 0,
}


def test_neutral_values_pass() -> None:
    """Fields at a value that changes nothing, as clients send them by default, do not get in the way."""
    asked = read_chat(json.dumps(CHAT | NEUTRAL_CHAT).encode(), limits=LIMITS, request_id="r")
    assert asked.calls[0].sampling.max_output_tokens is None


def test_min_tokens_passes_where_it_is_met_anyway() -> None:
    """Benchmarks ask for exactly n tokens with min_tokens = max_tokens and ignore_eos: that is served."""
    fields = {"min_tokens": 8, "max_tokens": 8, "ignore_eos": True}
    call = read_completion(json.dumps(COMPLETION | fields).encode(), limits=LIMITS, request_id="r").calls[0]
    assert (call.sampling.max_output_tokens, call.sampling.ignore_eos) == (8, True)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KNOWN = st.sampled_from(
    ["model", "messages", "prompt", "input", "stop", "n", "stream", "stream_options", "max_tokens", "logprobs", "tools"]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.binary(max_size=64) | st.dictionaries(_KNOWN, _JSON, max_size=6).map(lambda body: json.dumps(body).encode()))
def test_any_body_is_read_or_refused(data: bytes) -> None:
    """No body, however odd, gets anything but a call or an InvalidRequest from the three endpoints."""
    for read in (read_chat, read_completion, read_infer):
        with contextlib.suppress(InvalidRequest):
            assert read(data, limits=LIMITS, request_id="r").calls


@pytest.mark.parametrize(
    ("said", "unsaid"),
    [({}, ("temperature", "top_p")), ({"temperature": 0}, ("top_p",)), ({"temperature": None, "top_p": 1}, ("temperature",))],
)
def test_what_a_client_leaves_out_is_left_to_the_model(said: dict[str, object], unsaid: tuple[str, ...]) -> None:
    """A null is as good as nothing; what is said, even the API's own default, stands."""
    body = msgspec.json.encode({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **said})
    (call,) = read_chat(body, limits=Limits(), request_id="r").calls
    assert call.unsaid == unsaid
