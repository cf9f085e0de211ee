"""Stands where `python -m halcyon.daemon` stands: writes down how it was called, then follows `plan.json` in its state directory.

Plan: `statuses` (the last one stays); `down` ends it. Where `death.json` is, it dies at once, as that says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

STATE = Path(sys.argv[sys.argv.index("--state-dir") + 1])
DEATH = STATE / "death.json"
PLAN = json.loads((STATE / "plan.json").read_text()) if not DEATH.exists() else {}


class Handler(BaseHTTPRequestHandler):
    """Answers every call with the next status."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Status."""
        self._answer()

    def do_POST(self) -> None:
        """Down: answer, then end."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer()
        threading.Thread(target=self.server.shutdown).start()

    def _answer(self) -> None:
        statuses = PLAN["statuses"]
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        body = json.dumps(status | {"pid": os.getpid(), "state_dir": str(STATE), "fleet": sys.argv[sys.argv.index("--fleet") + 1]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


def _die(plan: dict[str, Any]) -> None:
    """Leaves its last words; a negative status is a signal."""
    if plan["once"]:
        DEATH.unlink()
    if plan["end"]:
        os.kill(plan["end"], signal.SIGKILL)
    with (STATE / "halcyond.log").open("a") as log:
        log.write(plan["log"])
    print(plan["last_words"], file=sys.stderr, flush=True)
    if plan["status"] < 0:
        os.kill(os.getpid(), -plan["status"])
    sys.exit(plan["status"])


def main() -> None:
    """Follows the plan."""
    called = {"arguments": sys.argv[1:], "pid": os.getpid(), "session": os.getsid(0), "stdin": os.readlink("/proc/self/fd/0")}
    (STATE / "called.json").write_text(json.dumps(called))
    if DEATH.exists():
        _die(json.loads(DEATH.read_text()))
    ThreadingUnixStreamServer.daemon_threads = True
    with ThreadingUnixStreamServer(str(STATE / "halcyon.sock"), Handler) as server:
        server.serve_forever(poll_interval=0.01)


main()
