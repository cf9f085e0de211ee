"""`halcyond`: the daemon's command line. One of the three places that may catch everything: a daemon never dies without a word."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import halcyon
from halcyon.config.load import DEMO_FLEET, load_fleet
from halcyon.config.paths import state_dir
from halcyon.daemon.app import Daemon, DaemonOptions
from halcyon.daemon.logs import EventLog
from halcyon.errors import ExitCode, HalcyonError

_log = EventLog("main")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The command line. ready_fd: written to, once, when the fleet has settled; `None` without."""

    fleet: Path | None
    state_dir: str
    listen: str
    foreground: bool
    ready_fd: int | None


def main(argv: list[str] | None = None) -> None:
    """Runs the daemon until it is told to go. Exits with an `ExitCode`."""
    sys.exit(run(_read(argv)))


def run(arguments: Arguments) -> int:
    """The exit status of one daemon's life."""
    os.umask(0o077)
    _allow_many_connections()
    try:
        return int(_run_loop(_options(arguments), arguments.ready_fd))
    except KeyboardInterrupt:
        print("interrupted before the daemon was up", file=sys.stderr)
        return int(ExitCode.FAILURE)
    except HalcyonError as error:
        print(error.message, file=sys.stderr)
        return int(getattr(error, "exit_code", ExitCode.FAILURE))
    except Exception as error:  # noqa: BLE001 - the boundary of the command: type and place, never what the exception quotes
        _log.error("daemon_died", error=error)
        print(f"halcyond died of {type(error).__name__}; its log has the place", file=sys.stderr)
        return int(ExitCode.FAILURE)


def _allow_many_connections() -> None:
    """Raises the limit of open files as far as we may: a shell's default of 1,024 is fewer than the clients we serve."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _options(arguments: Arguments) -> DaemonOptions:
    settings = load_fleet(arguments.fleet)
    return DaemonOptions(
        settings=settings,
        fleet=str((arguments.fleet or DEMO_FLEET).resolve()),
        state_dir=state_dir(arguments.state_dir or settings.daemon.state_dir),
        listen=arguments.listen,
        stderr=arguments.foreground,
    )


def _run_loop(options: DaemonOptions, ready_fd: int | None) -> ExitCode:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(options, ready_fd))


async def _serve(options: DaemonOptions, ready_fd: int | None) -> ExitCode:
    async with Daemon(options) as daemon:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.signalled)
        loop.add_signal_handler(signal.SIGHUP, daemon.reopen_log)
        ended = asyncio.ensure_future(daemon.ended())
        settled = asyncio.ensure_future(daemon.settled())
        await asyncio.wait((ended, settled), return_when=asyncio.FIRST_COMPLETED)
        if settled.done():
            _tell(ready_fd, settled.result().state)
        settled.cancel()
        return await ended


def _tell(ready_fd: int | None, state: str) -> None:
    """One line for whoever started us. A starter that has gone is no trouble of ours."""
    if ready_fd is not None:
        with contextlib.suppress(OSError), open(ready_fd, "w") as starter:
            starter.write(f"{state}\n")


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    loop: type[asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return loop


def _read(argv: list[str] | None) -> Arguments:
    parser = argparse.ArgumentParser(prog="halcyond", description="The Halcyon daemon: serves one fleet of models.")
    parser.add_argument("--fleet", type=Path, metavar="PATH", help="fleet file (default: the demo fleet)")
    parser.add_argument("--state-dir", default="", metavar="DIR", help="where socket, lock, log and history live")
    parser.add_argument("--listen", default="", metavar="HOST:PORT", help="instead of the fleet's; port 0 takes a free one")
    parser.add_argument("--foreground", action="store_true", help="log to standard error too")
    parser.add_argument("--ready-fd", type=int, metavar="N", help="descriptor that gets one line when the fleet has settled")
    parser.add_argument("--version", action="version", version=f"halcyond {halcyon.__version__}")
    given = parser.parse_args(argv)
    return Arguments(
        fleet=given.fleet, state_dir=given.state_dir, listen=given.listen, foreground=given.foreground, ready_fd=given.ready_fd
    )
