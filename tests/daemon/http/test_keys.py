"""Who may call, and which models."""

from __future__ import annotations

import asyncio
import hashlib
import json

import aiohttp
import openai
import pytest
from scripted import ScriptedService, serving

from halcyon.config.settings import TenantSettings


def _tenant(name: str, key: str, *models: str) -> TenantSettings:
    return TenantSettings(name=name, key_sha256=hashlib.sha256(key.encode()).hexdigest(), models=models)


TENANTS = (_tenant("alpha", "key-alpha"), _tenant("beta", "ключ-β", "tiny"))
BODY = {"model": "tiny@v2", "prompt": "x"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer key-alpha"},
        {"authorization": "bearer  key-alpha "},
        {"x-api-key": "key-alpha"},
        {"Authorization": "Basic zzz", "x-api-key": "key-alpha"},
    ],
)
async def test_a_key_names_its_tenant(headers: dict[str, str]) -> None:
    """A key, in either header, makes its tenant known to the service."""
    service = ScriptedService()
    async with (
        serving(service, tenants=TENANTS) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json=BODY, headers=headers) as response,
    ):
        assert response.status == 200
    assert service.tenants == ["alpha"]


async def test_a_key_beyond_ascii_works() -> None:
    """A key is its UTF-8 bytes."""
    service = ScriptedService()
    async with (
        serving(service, tenants=TENANTS) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json=BODY, headers={"x-api-key": "ключ-β"}) as response,
    ):
        assert response.status == 200
    assert service.tenants == ["beta"]


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}, {"x-api-key": ""}, {"x-api-key": "key-alph"}]
)
async def test_no_key_or_an_unknown_one_is_401(headers: dict[str, str]) -> None:
    """Without a known key nothing is read and nothing is served."""
    service = ScriptedService()
    async with (
        serving(service, tenants=TENANTS) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", data=b"{not even json", headers=headers) as response,
    ):
        assert (response.status, (await response.json())["error"]["code"]) == (401, "unauthorized")
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert service.calls == []


async def test_the_sdk_raises_its_own_classes_for_keys() -> None:
    """A wrong key is the official client's AuthenticationError; a model off the key's list its PermissionDeniedError."""
    async with serving(ScriptedService(), tenants=TENANTS) as server:
        async with server.sdk(key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with server.sdk(key="key-alpha") as client:
            assert len((await client.models.list()).data) == 4


async def test_a_tenant_sees_and_uses_only_its_models() -> None:
    """A tenant with a list of models may use those, in any version, and sees no others; asking for another is 403."""
    service = ScriptedService()
    headers = {"x-api-key": "ключ-β"}
    async with serving(service, tenants=TENANTS) as server, aiohttp.ClientSession(server.url, headers=headers) as client:
        async with client.post("/v1/completions", json={"model": "other/solo", "prompt": "x"}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (403, "forbidden")
        async with client.get("/v1/models") as response:
            assert [card["id"] for card in (await response.json())["data"]] == ["tiny", "tiny@v1", "tiny@v2"]
        async with client.get("/v1/models/other/solo") as response:
            assert response.status == 404
    assert service.calls == []


async def test_a_trusted_socket_needs_no_key() -> None:
    """On the control socket everybody is the operator: no key is asked for, and the tenant is empty."""
    service = ScriptedService()
    async with (
        serving(service, tenants=TENANTS, trusted=True) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json=BODY, headers={"x-api-key": "wrong"}) as response,
    ):
        assert response.status == 200
    assert service.tenants == [""]


async def test_without_tenants_any_key_passes() -> None:
    """A daemon without tenants does not read keys: clients that always send one work."""
    service = ScriptedService()
    async with serving(service) as server, server.sdk(key="anything") as client:
        await client.completions.create(model="tiny", prompt="x")
    assert service.tenants == [""]


async def test_a_session_header_of_any_bytes_is_text() -> None:
    """A session header that is not UTF-8 becomes a key that can be encoded again, rather than a failure further in."""
    service = ScriptedService()
    async with serving(service) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps(BODY).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-halcyon-session: a\xffb\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
    assert service.call.session_key.encode() == "a\ufffdb".encode()
