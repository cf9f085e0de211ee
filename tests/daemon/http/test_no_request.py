"""What is not HTTP, what unpacks itself, and bodies that never come."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request
from scripted import ScriptedService, serving, spoken

from halcyon.daemon.http.body import read_body
from halcyon.errors import ClientTooSlow

SECRET = b"seeded-prompt-7731"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
BROKEN = {
    "garbage": SECRET + b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version": b"GET /" + SECRET + b" HTTP/9.9\r\nHost: x\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "target": b"GET http://[::1/" + SECRET + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "long line": b"GET /" + SECRET * 600 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "long header": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + SECRET * 600 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 1000 + b"\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + SECRET,
    "length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "endless length": POST + b"Content-Length: 1" + b"0" * 30 + b"\r\n\r\n",
    "chunks": POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n" + SECRET + b"\r\n0\r\n\r\n",
}


async def answer_to(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Everything that comes back until the connection's end: the status line, and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.splitlines()[0], body


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_request_is_refused_in_the_one_form(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Thirteen kinds of broken HTTP get 400, our JSON and the end of the connection; nothing of them is repeated, and nothing is logged as
    an error of ours (Python services; Secrets)."""
    async with serving(ScriptedService()) as server:
        status, body = await answer_to(server.port, BROKEN[name])
    assert status.split()[1] == b"400"
    assert json.loads(body)["error"]["code"] == "invalid_request"
    assert SECRET not in body
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "what"])
async def test_a_packed_body_is_refused_before_it_unpacks(encoding: str) -> None:
    """A body that would unpack to 50 MB is 400 and names the header: the bound on bodies is a bound on what is held (Python services)."""
    packed = gzip.compress(b" " * 50_000_000)
    request = POST + f"Content-Encoding: {encoding}\r\nConnection: close\r\nContent-Length: {len(packed)}\r\n\r\n".encode() + packed
    async with serving(ScriptedService()) as server:
        status, body = await answer_to(server.port, request)
    assert status.split()[1] == b"400"
    assert json.loads(body)["error"]["param"] == "content-encoding"


async def test_identity_is_no_packing() -> None:
    """`Content-Encoding: identity` changes nothing."""
    data = b'{"model":"tiny","prompt":"x"}'
    request = POST + b"Content-Encoding: identity\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    async with serving(ScriptedService(spoken("Hel", "lo"))) as server:
        status, _ = await answer_to(server.port, request)
    assert status.split()[1] == b"200"


async def test_a_body_that_never_comes_gives_its_place_back() -> None:
    """A client that announces a body and sends none of it is told so when its time is up (Queue overflow leaves connections open)."""
    loop = asyncio.get_running_loop()
    connection = BaseProtocol(loop)
    connection.connection_made(asyncio.Transport())
    nothing = StreamReader(connection, 2**16, loop=loop)
    request = make_mocked_request("POST", "/", headers={"Content-Length": "10"}, payload=nothing)
    with pytest.raises(ClientTooSlow, match="did not come within 0"):
        await read_body(request, max_body_bytes=100, timeout_s=0)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("completions", b'{"model":"tiny","prompt":"ab \\ud800 cdefghijklm"}', "prompt"),
        ("completions", b'{"model":"tiny","prompt":["x","ab \\udc00 cdefghijklm"]}', "prompt[1]"),
        ("completions", b'{"model":"tiny","prompt":"x","stop":["\\ud83d\\ude00","\\ud83d now here"]}', "stop[1]"),
        ("completions", b'{"model":"tiny","prompt":"x","user":"\\udfff now here"}', "user"),
        ("chat/completions", b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800\\ud800 twice"}]}', "messages[0].content"),
        ("infer", b'{"model":"tiny","input":"x","sessionKey":"\\ud800 and more"}', "sessionKey"),
    ],
)
async def test_half_a_surrogate_pair_is_refused_by_its_field(path: str, body: bytes, field: str) -> None:
    """No text that a worker could not be sent gets past validation; the error names where it stands."""
    request = b"POST /v1/%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body
    service = ScriptedService()
    async with serving(service) as server:
        status, answer = await answer_to(server.port, request)
    error = json.loads(answer)["error"]
    assert (status.split()[1], error["param"]) == (b"400", field)
    assert field in error["message"]
    assert service.calls == []


@pytest.mark.parametrize("field", ["metadata", "unheard_of", "prompt", "stop"])
async def test_a_body_nested_too_deeply_is_400(field: str) -> None:
    """A hundred thousand brackets are refused, wherever they stand, also where their content is not read."""
    body = b'{"model":"tiny","prompt":"x","%s":' % field.encode() + b"[" * 100_000 + b"]" * 100_000 + b"}"
    request = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with serving(ScriptedService()) as server:
        status, answer = await answer_to(server.port, request)
    assert status.split()[1] == b"400"
    assert json.loads(answer)["error"]["code"] == "invalid_request"
