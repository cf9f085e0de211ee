"""An answer ends at its deadline: refused whole, or cut with an error, and its slot and KV blocks are given back."""

from __future__ import annotations

import json

from daemon_rig import Rigs, completion, events, sim_model

from halcyon.config.settings import SimSettings

SLOW = SimSettings(overhead_ms=10.0, per_token_ms=0.0)


async def test_a_whole_answer_that_cannot_be_in_time_is_refused_at_its_deadline(rigs: Rigs) -> None:
    """4,000 tokens of 10 ms under a deadline of 150 ms: 503 deadline_unreachable without a time to retry, and the replica is idle again."""
    rig = await rigs.start(sim_model(sim=SLOW))
    reply = await rig.http.post(
        "/v1/completions", json=completion(tokens=4000, stream=False), headers={"x-halcyon-deadline-ms": "150"}, timeout=60
    )
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "deadline_unreachable"
    assert "retry_after_ms" not in reply.json()["error"]
    assert "Retry-After" not in reply.headers
    await rig.until_idle()


async def test_a_stream_under_way_is_cut_at_its_deadline(rigs: Rigs) -> None:
    """Its pieces come until the deadline, then one error event, then a clean end."""
    rig = await rigs.start(sim_model(sim=SLOW))
    async with rig.http.stream(
        "POST", "/v1/completions", json=completion(tokens=4000), headers={"x-halcyon-deadline-ms": "400"}, timeout=60
    ) as response:
        seen = [event async for event in events(response)]
    assert seen[-1] == "[DONE]"
    assert json.loads(seen[-2])["error"]["code"] == "deadline_unreachable"
    assert 0 < len(seen) < 200
    await rig.until_idle()
