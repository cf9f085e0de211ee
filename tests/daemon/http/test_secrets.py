"""Prompts, answers and keys appear nowhere but where they belong."""

from __future__ import annotations

import hashlib
import json
import logging

import aiohttp
import pytest
from scripted import ScriptedService, serving, spoken

from halcyon.config.settings import Limits, TenantSettings
from halcyon.errors import QueueFull

PROMPT = "seeded-prompt-4711"
ANSWER = "seeded-answer-4711"
KEY = "seeded-key-4711"
TENANTS = (TenantSettings(name="alpha", key_sha256=hashlib.sha256(KEY.encode()).hexdigest()),)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}]}

BAD_BODIES = [
    {"model": "tiny", "messages": PROMPT},
    {"model": "tiny", "messages": [{"role": "user", "content": {"text": PROMPT}}]},
    {"model": "tiny", "messages": [{"role": "user", "content": [{"type": PROMPT, "text": PROMPT}]}]},
    {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "temperature": PROMPT},
    {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "stop": [PROMPT] * 99},
    {"model": "tiny", "messages": [{"role": "user", "content": PROMPT, "tool_calls": PROMPT}]},
]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_secret_is_logged_or_repeated_in_an_error(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Seeded prompt, answer and key stand in no log and no error, whatever goes wrong (Secrets)."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    failures: list[Exception | None] = [
        None,
        QueueFull("full", retry_after_ms=5),
        RuntimeError(PROMPT + ANSWER + KEY),
        UnicodeEncodeError("utf-8", PROMPT, 0, 1, ANSWER),
    ]
    for failure in failures:
        service = ScriptedService([*spoken(ANSWER), failure] if failure else spoken(ANSWER))
        async with serving(service, tenants=TENANTS) as server, aiohttp.ClientSession(server.url) as client:
            for key in (KEY, KEY + "-wrong"):
                headers = {"Authorization": f"Bearer {key}"}
                async with client.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers) as response:
                    said += [line for line in (await response.text()).splitlines() if '"error"' in line]
                    said += [f"{name}: {value}" for name, value in response.headers.items()]
            for body in BAD_BODIES:
                async with client.post("/v1/chat/completions", json=body, headers={"x-api-key": KEY}) as response:
                    assert response.status == 400
                    said.append(await response.text())
    written = "\n".join([*said, *(record.getMessage() + str(record.exc_text or "") for record in caplog.records)])
    assert "internal_error" in written
    assert "seeded-" not in written


async def test_a_body_over_the_limit_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """A refused body leaves nothing of itself behind (Secrets)."""
    caplog.set_level(logging.DEBUG)
    data = json.dumps({"model": "tiny", "prompt": PROMPT * 100})
    async with (
        serving(ScriptedService(), limits=Limits(max_body_bytes=100)) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", data=data) as response,
    ):
        assert response.status == 413
        assert "seeded-" not in await response.text() + caplog.text
