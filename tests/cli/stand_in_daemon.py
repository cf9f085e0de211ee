"""Stands where `python -m halcyon.daemon` stands: writes down how it was called, then follows `plan.json` in its state directory.

Plan: `statuses` (the last one stays), or `last_words` and `log` to die with. `down` ends it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

STATE = Path(sys.argv[sys.argv.index("--state-dir") + 1])
PLAN = json.loads((STATE / "plan.json").read_text())


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


def main() -> None:
    """Follows the plan."""
    called = {"arguments": sys.argv[1:], "pid": os.getpid(), "session": os.getsid(0), "stdin": os.readlink("/proc/self/fd/0")}
    (STATE / "called.json").write_text(json.dumps(called))
    if "last_words" in PLAN:
        (STATE / "halcyond.log").open("a").write(PLAN["log"])
        sys.exit(PLAN["last_words"])
    ThreadingUnixStreamServer.daemon_threads = True
    with ThreadingUnixStreamServer(str(STATE / "halcyon.sock"), Handler) as server:
        server.serve_forever(poll_interval=0.01)


main()
