"""Models, liveness, readiness, metrics."""

from __future__ import annotations

import hashlib

import aiohttp
import openai
import pytest
from scripted import ScriptedService, serving

from halcyon.config.settings import TenantSettings

TENANTS = (TenantSettings(name="alpha", key_sha256=hashlib.sha256(b"key").hexdigest()),)


async def test_models_are_listed_by_name_and_by_version() -> None:
    """Each model stands under its name, at its default version, and each of several versions under name@version."""
    async with serving(ScriptedService()) as server, server.sdk() as client:
        cards = (await client.models.list()).data
    assert [card.id for card in cards] == ["tiny", "tiny@v1", "tiny@v2", "other/solo"]
    assert cards[0].model_dump(exclude={"shutdown_date"}) == {
        "id": "tiny",
        "object": "model",
        "owned_by": "halcyon",
        "created": 0,
        "version": "v1",
        "max_model_len": 512,
        "ready": 1,
    }


async def test_one_model_is_looked_up_by_its_id() -> None:
    """A model with a slash or a version in its id is found; an unknown one is 404 and names those that exist."""
    async with serving(ScriptedService()) as server, server.sdk() as client:
        assert (await client.models.retrieve("tiny@v2")).id == "tiny@v2"
        assert (await client.models.retrieve("other/solo")).id == "other/solo"
        with pytest.raises(openai.NotFoundError, match="tiny@v1, tiny@v2, other/solo"):
            await client.models.retrieve("nobody")


async def test_liveness_does_not_depend_on_workers_and_readiness_does() -> None:
    """With no replica alive /healthz and /health stay 200 and /readyz is 503 with the reason (Dead and unready workers)."""
    service = ScriptedService(ready=(False, "tiny has no ready replica"))
    async with serving(service, tenants=TENANTS) as server, aiohttp.ClientSession(server.url) as client:
        for path in ("/healthz", "/health"):
            async with client.get(path) as response:
                assert (response.status, await response.json()) == (200, {"status": "ok"})
        async with client.get("/readyz") as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["message"]) == (503, "no_capacity", "tiny has no ready replica")
        service.ready = (True, "")
        async with client.get("/readyz") as response:
            assert response.status == 200


@pytest.mark.parametrize(("loopback", "key", "status"), [(True, "", 200), (False, "", 401), (False, "key", 200)])
async def test_metrics_are_open_on_loopback_only(loopback: bool, key: str, status: int) -> None:
    """/metrics is open on this machine and asks for a key elsewhere."""
    async with (
        serving(ScriptedService(), tenants=TENANTS, loopback=loopback, metrics_text=lambda: "up 1\n") as server,
        aiohttp.ClientSession(server.url) as client,
        client.get("/metrics", headers={"x-api-key": key}) as response,
    ):
        assert response.status == status
        assert status != 200 or await response.text() == "up 1\n"


async def test_without_an_exporter_there_are_no_metrics() -> None:
    """A daemon that exports nothing says so."""
    async with serving(ScriptedService()) as server, aiohttp.ClientSession(server.url) as client, client.get("/metrics") as response:
        assert response.status == 404
