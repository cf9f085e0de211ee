"""Known prompts, answers and keys are sent through the daemon; nothing that it writes or shows holds a piece of them."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from daemon_rig import Rigs, completion, sim_model, written

from halcyon.config.settings import DaemonSettings, SimSettings, TenantSettings

KEY = "sk-tenant-zanzibar-31415926"
PROMPT = "Zanzibar 27182818 clove harvest"
SYSTEM = "Kilimanjaro 16180339 snow line"
PIECES = ("zanzibar", "27182818", "clove", "kilimanjaro", "16180339")


async def test_no_prompt_and_no_key_is_written_or_shown(rigs: Rigs) -> None:
    """After answers, refusals, a wrong key, a bad body, a model named like a secret, a crashed worker and a departed client, at log level
    debug, every file of the state directory, the metrics and the status are free of prompt and key. (Fault: keys or prompts in logs.)"""
    tenant = TenantSettings(name="acme", key_sha256=hashlib.sha256(KEY.encode()).hexdigest())
    crashing = sim_model("bad", sim=SimSettings(overhead_ms=1.0, fault="crash"))
    rig = await rigs.start(sim_model(), crashing, daemon=DaemonSettings(log_level="debug"), tenants=(tenant,))
    keyed = {"authorization": f"Bearer {KEY}", "x-halcyon-session": PROMPT}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
    chat = {"model": "toy", "messages": messages, "max_tokens": 5}
    answers = [
        await rig.http.post("/v1/chat/completions", json=chat, headers=keyed),
        await rig.http.post("/v1/chat/completions", json=chat | {"stream": True}, headers=keyed),
        await rig.http.post("/v1/chat/completions", json=chat, headers={"authorization": f"Bearer {KEY}x"}),
        await rig.http.post("/v1/chat/completions", json=chat | {"temperature": PROMPT}, headers=keyed),
        await rig.http.post("/v1/chat/completions", json=chat | {"max_tokens": 100_000}, headers=keyed),
        await rig.http.post("/v1/completions", content=b'{"prompt": "' + PROMPT.encode(), headers=keyed),
        await rig.http.post("/v1/completions", json=completion(PROMPT, model="bad", stream=False), headers=keyed),
        await rig.http.get(f"/v1/{PROMPT}", headers=keyed),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 401, 400, 400, 400, 502, 404]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await rig.http.post("/v1/completions", json=completion(PROMPT, tokens=4000, stream=False), headers=keyed)
    await rig.until_idle()
    status = (await rig.control.get("/v1/control/status")).text
    metrics = rig.daemon.fleet.metrics.text().decode()
    await rigs.close_daemons()
    everything = (written(rig) + status + metrics).lower()
    assert "req-" in everything
    assert [piece for piece in (*PIECES, KEY) if piece in everything] == []
