"""`python -m halcyon.worker --fd N --parent PID [--log PATH]`: started by the daemon, never by hand."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import socket
import sys

from halcyon.worker.outbox import WorkerExit
from halcyon.worker.parent import die_with
from halcyon.worker.process import serve


def main() -> None:
    """Reads the arguments, ties this process's life to its parent's, and serves."""
    parser = argparse.ArgumentParser(prog="halcyon.worker", description="One replica of one model, served to the daemon that started it.")
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of the socket to the daemon")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="pid of the daemon; the worker exits when its parent is another")
    parser.add_argument("--log", default="", help="file that takes standard output and error; inherited when empty")
    arguments = parser.parse_args()
    if arguments.log:
        _send_output_to(arguments.log)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    faulthandler.enable()
    os.set_inheritable(arguments.fd, False)  # a child of ours that held it would hide our death from the daemon
    if not die_with(arguments.parent):
        sys.exit(WorkerExit.DAEMON_GONE)
    serve(socket.socket(fileno=arguments.fd))


def _send_output_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)


if __name__ == "__main__":
    main()
