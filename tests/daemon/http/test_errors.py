"""Every failure has one body, the right status, and the official client's own exception class."""

from __future__ import annotations

import aiohttp
import openai
import pytest
from scripted import ScriptedService, data_of, serving, spoken

from halcyon import errors

USER = [{"role": "user", "content": "hi"}]

KINDS = [
    (errors.InvalidRequest, openai.BadRequestError, 400),
    (errors.Unauthorized, openai.AuthenticationError, 401),
    (errors.Forbidden, openai.PermissionDeniedError, 403),
    (errors.ModelNotFound, openai.NotFoundError, 404),
    (errors.PayloadTooLarge, openai.APIStatusError, 413),
    (errors.QuotaExceeded, openai.RateLimitError, 429),
    (errors.UpstreamFailure, openai.InternalServerError, 502),
    (errors.Overloaded, openai.InternalServerError, 503),
    (errors.QueueFull, openai.InternalServerError, 503),
    (errors.NoCapacity, openai.InternalServerError, 503),
    (errors.DeadlineUnreachable, openai.InternalServerError, 503),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "sdk_class", "status"), KINDS)
async def test_a_refusal_has_its_status_also_for_streams(
    kind: type[errors.RequestError], sdk_class: type[openai.APIStatusError], status: int, stream: bool
) -> None:
    """A refusal at admission is a proper HTTP status with the one error body, for streams too (Overload signals)."""
    refusal = kind("because", retry_after_ms=1001, param="model", details={"predicted_ms": 5})
    async with serving(ScriptedService(refusal=refusal)) as server, server.sdk() as client:
        with pytest.raises(sdk_class, match="because") as caught:
            await client.chat.completions.create(model="tiny", messages=USER, stream=stream)
    error = caught.value
    assert (error.status_code, error.code, error.type, error.param) == (status, kind.code, kind.type, "model")
    assert error.response.headers["retry-after"] == "2"
    assert error.body["retry_after_ms"] == 1001  # type: ignore[index]
    assert error.body["details"] == {"predicted_ms": 5}  # type: ignore[index]
    assert error.body["request_id"] == error.response.headers["x-halcyon-request"]  # type: ignore[index]
    assert server.metrics.endings == [("chat", status, kind.code)]


@pytest.mark.parametrize(("retry_after_ms", "header"), [(None, None), (0, "1"), (1, "1"), (1000, "1"), (59_001, "60")])
async def test_retry_after_is_whole_seconds_and_at_least_one(retry_after_ms: int | None, header: str | None) -> None:
    """Retry-After is the computed wait in whole seconds, rounded up, never 0, and absent when a retry cannot help (Overload signals)."""
    service = ScriptedService(refusal=errors.QueueFull("full", retry_after_ms=retry_after_ms))
    async with (
        serving(service) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json={"model": "tiny", "prompt": "x"}) as response,
    ):
        assert response.headers.get("Retry-After") == header


@pytest.mark.parametrize("failure", [errors.UpstreamFailure("the replica died"), RuntimeError("secret words")])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/infer", {"input": "hi"}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": USER}),
    ],
)
async def test_a_failure_mid_stream_is_one_event_then_a_clean_end(path: str, body: dict[str, object], failure: Exception) -> None:
    """After the first byte a failure is one error event, then [DONE], then the end, in all three shapes (Streams)."""
    service = ScriptedService([*spoken("Hel", "lo")[:1], failure])
    async with (
        serving(service) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post(path, json={"model": "tiny", "stream": True} | body) as response,
    ):
        *_, text, error, done = data_of(await response.text())  # reading to the end proves that it is clean
    assert response.status == 200
    assert "Hel" in text
    assert error.startswith('{"error":{"code":')
    assert done == "[DONE]"
    assert "secret" not in error
    code = "upstream_failure" if isinstance(failure, errors.UpstreamFailure) else "internal_error"
    assert f'"code":"{code}"' in error
    assert server.metrics.endings[0][1:] == (200, code)


async def test_the_sdk_raises_on_an_error_event() -> None:
    """The official client turns the error event into its APIError, after the text that was sent."""
    service = ScriptedService([*spoken("Hel", "lo")[:1], errors.UpstreamFailure("the replica died")])
    async with serving(service) as server, server.sdk() as client:
        stream = await client.chat.completions.create(model="tiny", messages=USER, stream=True)
        seen = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIError, match="the replica died") as caught:
            await anext(stream)
    assert seen == ["", "Hel"]
    assert caught.value.code == "upstream_failure"


async def test_a_cancelled_answer_is_an_error() -> None:
    """An answer that was cut short by the daemon is never passed off as complete, streamed or not (Dead and draining workers)."""
    service = ScriptedService(spoken("Hel", "lo", finish="cancelled"))
    async with serving(service) as server, server.sdk() as client:
        with pytest.raises(openai.InternalServerError, match="before it was complete"):
            await client.chat.completions.create(model="tiny", messages=USER)
        stream = await client.chat.completions.create(model="tiny", messages=USER, stream=True)
        with pytest.raises(openai.APIError, match="before it was complete"):
            [chunk async for chunk in stream]


async def test_a_failure_before_the_first_part_of_a_plain_answer_is_a_status() -> None:
    """Refused while queued, a plain request still gets the proper status."""
    async with serving(ScriptedService([errors.DeadlineUnreachable("late", retry_after_ms=5)])) as server, server.sdk() as client:
        with pytest.raises(openai.InternalServerError, match="late"):
            await client.completions.create(model="tiny", prompt="x")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "invalid_request"),
        ("DELETE", "/v1/models", 405, "invalid_request"),
    ],
)
async def test_paths_and_verbs_that_do_not_exist_answer_in_our_form(method: str, path: str, status: int, code: str) -> None:
    """Unknown paths and verbs get the one error body, and 405 says what is allowed."""
    async with (
        serving(ScriptedService()) as server,
        aiohttp.ClientSession(server.url) as client,
        client.request(method, path) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (status, code)
    assert error["request_id"] == response.headers["x-halcyon-request"]
    assert ("Allow" in response.headers) == (status == 405)
    assert server.metrics.endings == [("other", status, code)]


@pytest.mark.parametrize(("sent", "kept"), [("abc-1.2_3", True), ("x" * 65, False), ("a b", False), ("", False)])
async def test_a_request_id_of_the_client_is_a_label_only(sent: str, kept: bool) -> None:
    """x-request-id comes back when it is harmless; the id that the service sees is ours and unique."""
    service = ScriptedService()
    async with serving(service) as server, aiohttp.ClientSession(server.url) as client:
        for _ in range(2):
            body = {"model": "tiny", "prompt": "x"}
            async with client.post("/v1/completions", json=body, headers={"x-request-id": sent}) as response:
                assert (response.headers["x-request-id"] == sent) == kept
                assert response.headers["x-halcyon-request"] == service.generations[-1].request_id
    first, second = (generation.request_id for generation in service.generations)
    assert first != second
    assert sent not in (first, second)
