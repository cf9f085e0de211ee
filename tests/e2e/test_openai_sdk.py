"""The official `openai` SDK, unmodified, against a real daemon that runs the tiny Llama."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from fleet import RunningFleet
from openai import OpenAI

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]


@pytest.fixture
def client(tiny_fleet: RunningFleet) -> Iterator[OpenAI]:
    """An SDK client that never retries, so that each error shows as it is."""
    with OpenAI(base_url=f"{tiny_fleet.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_models_are_listed(client: OpenAI) -> None:
    """`models.list` names every model of the fleet."""
    assert {"tiny", "tiny-chunked"} <= {model.id for model in client.models.list()}


def test_chat_completion(client: OpenAI) -> None:
    """A chat completion has text, a finish reason and exact usage."""
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12, temperature=0, extra_body={"ignore_eos": True})
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.role == "assistant"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 12
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 12


def test_chat_stream_equals_whole(client: OpenAI) -> None:
    """A stream's pieces join to the unstreamed answer, and its last chunk carries the same exact counts of tokens."""
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    cached = {"prompt_tokens_details"}  # of the same prompt asked twice, more is found in the prefix cache the second time
    assert chunks[-1].usage.model_dump(exclude=cached) == whole.usage.model_dump(exclude=cached)
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [whole.choices[0].finish_reason]


def test_completion_and_stream(client: OpenAI) -> None:
    """The legacy completions endpoint answers the same text streamed and not."""
    options = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
    whole = client.completions.create(**options)
    streamed = client.completions.create(**options, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_stop_string_ends_the_answer(client: OpenAI) -> None:
    """Nothing of a stop string is sent, streamed or not, and the reason is `stop`."""
    options = {"model": "tiny", "prompt": "abc", "max_tokens": 48, "temperature": 0, "extra_body": {"ignore_eos": True}}
    text = client.completions.create(**options).choices[0].text
    stop = text[10:14]
    cut = client.completions.create(**options, stop=[stop])
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stop=[stop], stream=True))
    assert streamed == cut.choices[0].text


def test_two_choices(client: OpenAI) -> None:
    """`n=2` gives two answers with indices 0 and 1; with a seed they repeat, and they differ from one another."""
    options = {"model": "tiny", "messages": MESSAGES, "n": 2, "max_tokens": 16, "temperature": 1.0, "seed": 5}
    first, again = client.chat.completions.create(**options), client.chat.completions.create(**options)
    assert [choice.index for choice in first.choices] == [0, 1]
    assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]
    assert first.choices[0].message.content != first.choices[1].message.content


def test_logprobs(client: OpenAI) -> None:
    """Log-probabilities come one a token, the chosen greedy token is the best of `top_logprobs`, and none is positive."""
    reply = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True}
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 6
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)
        assert token.logprob <= 0


def test_errors_raise_the_sdk_classes(client: OpenAI, tiny_fleet: RunningFleet) -> None:
    """Each kind of error raises the SDK's own exception class and names what is wrong."""
    with pytest.raises(openai.NotFoundError, match="tiny-chunked"):
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model="tiny", prompt="x" * 5000, max_tokens=5)
    late = {"x-halcyon-deadline-ms": "1"}
    with pytest.raises(openai.InternalServerError, match="deadline") as raised:
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_headers=late, max_tokens=400)
    assert raised.value.status_code == 503
    with pytest.raises(openai.APIStatusError) as too_large:
        client.completions.create(model="tiny", prompt="x" * (9 * 1024 * 1024))
    assert too_large.value.status_code == 413
    assert tiny_fleet.status()["running"] == 0
