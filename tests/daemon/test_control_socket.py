"""Who may speak on the control socket, and that it answers in one form."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import msgspec
import pytest
from daemon_rig import PATIENCE_S, Rigs, completion, sim_model

from halcyon.wire.control import ErrorReply, ModelList, ReplicaList, Status

_NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
async def test_another_user_is_refused_even_where_the_files_would_let_them(rigs: Rigs) -> None:
    """With directory and socket opened to all, another user still gets 403 forbidden, by the kernel's word on who they are."""
    rig = await rigs.start(sim_model())
    rig.state_dir.chmod(0o755)
    socket_file = rig.state_dir / "halcyon.sock"
    socket_file.chmod(0o666)
    stranger = socket.socket(socket.AF_UNIX)
    os.seteuid(_NOBODY)
    try:
        stranger.connect(str(socket_file))
    finally:
        os.seteuid(0)
    reader, writer = await asyncio.open_unix_connection(sock=stranger)
    writer.write(b"GET /v1/control/status HTTP/1.1\r\nHost: halcyon\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert (head.split()[1], json.loads(body)["error"]["code"]) == (b"403", "forbidden")


async def test_replies_are_the_structs_of_the_wire(rigs: Rigs) -> None:
    """Status, replicas and models decode strictly into the structs that the CLI reads."""
    rig = await rigs.start(sim_model(replicas=2), sim_model("other"))
    status = msgspec.json.decode((await rig.control.get("/v1/control/status")).content, type=Status)
    replicas = msgspec.json.decode((await rig.control.get("/v1/control/replicas")).content, type=ReplicaList)
    models = msgspec.json.decode((await rig.control.get("/v1/control/models")).content, type=ModelList)
    assert (status.state, status.pid, status.queued, status.running) == ("ready", os.getpid(), 0, 0)
    assert [r.replica_id for r in replicas.replicas] == ["toy-v1-0", "toy-v1-1", "other-v1-0"]
    assert [(m.name, m.replicas, m.ready, m.default) for m in models.models] == [("toy", 2, 2, True), ("other", 1, 1, True)]


async def test_it_serves_inference_without_a_key(rigs: Rigs) -> None:
    """The API is mounted on the control socket too, where the socket itself says who is asking."""
    rig = await rigs.start(sim_model())
    answer = await rig.control.post("/v1/completions", json=completion(tokens=3, stream=False))
    assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("content", [b"{", b'{"now": "yes"}', b"[]", b"[" * 100_000, b'{"x":' * 100_000, b'{"now": "\xff"}'])
async def test_a_body_that_is_no_order_is_refused(rigs: Rigs, content: bytes) -> None:
    """400 invalid_request in the one form, and nothing happens."""
    rig = await rigs.start(sim_model())
    answer = await rig.control.post("/v1/control/down", content=content)
    error = msgspec.json.decode(answer.content, type=ErrorReply).error
    assert (answer.status_code, error.code) == (400, "invalid_request")
    assert rig.daemon.status().state == "ready"
