"""One daemon put together: who owns what, in which order it comes up and goes down.

Up: state directory → lock → log → left-over workers → history → core → control socket → HTTP → replicas. Down is the reverse, and every
step that came up goes down whatever happens between. What must not be here: any decision about requests or replicas.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from halcyon import clock
from halcyon.config.address import is_loopback, parse_listen
from halcyon.config.load import fleet_digest
from halcyon.config.paths import cache_dir, history_path, lock_path, log_path, make_private_dir, socket_path
from halcyon.config.settings import FleetSettings
from halcyon.core.restart import RestartSettings
from halcyon.daemon.assembly import Assembly, Surroundings
from halcyon.daemon.changes import Changes
from halcyon.daemon.launcher import Launcher, LaunchSettings, threads_each
from halcyon.daemon.listeners import Listeners
from halcyon.daemon.lock import InstanceLock
from halcyon.daemon.logs import EventLog, LogFile
from halcyon.daemon.operator import FleetOperator, remote_model
from halcyon.daemon.status import Identity
from halcyon.daemon.systemd import ServiceNotifier
from halcyon.daemon.tasks import Tasks
from halcyon.errors import ConfigError, ExitCode, InvalidRequest
from halcyon.store.file import HistoryUnavailable
from halcyon.store.history import Store
from halcyon.wire.control import Status
from halcyon.worker import orphans

_log = EventLog("daemon")


@dataclass(frozen=True, kw_only=True)
class DaemonOptions:
    """How one daemon is run.

    Attributes:
        fleet: the file's name, for `status`. listen: '' takes the fleet's. stderr: log there too.
        seed: of every coin the daemon flips; `None` draws one. restarts: bounds of a local replica's restarts.
    """

    settings: FleetSettings
    fleet: str
    state_dir: Path
    listen: str = ""
    stderr: bool = False
    seed: int | None = None
    restarts: RestartSettings = field(default_factory=RestartSettings)


class Daemon:
    """Use as `async with Daemon(options) as daemon: await daemon.ended()`. Entered, it serves; left, nothing of it is left.

    Raises (on entering):
        DaemonAlreadyRunning: the state directory has a live owner.
        ConfigError: a directory, socket or address cannot be used.
    """

    def __init__(self, options: DaemonOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._changes = Changes()
        self._has_settled = False
        self._exit_code = ExitCode.OK
        self._identity: Identity | None = None
        self._notifier = ServiceNotifier()
        self._watchdog_timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks(self._crashed)

    async def __aenter__(self) -> Daemon:
        try:
            await self._come_up()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._stack.aclose()

    # ---- while it runs -----------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """The daemon at a glance."""
        assert self._identity is not None, "a daemon has a status once it is entered"
        return self.fleet.report.status(self._identity)

    async def settled(self) -> Status:
        """Waits until every replica's first start came to an end, well or badly."""
        return await self.until(lambda status: status.state != "starting")

    async def until(self, holds: Callable[[Status], bool]) -> Status:
        """The first status that `holds`. Looks whenever a replica says something or a request ends."""
        await self._changes.until(lambda: holds(self.status()))
        return self.status()

    async def ended(self) -> ExitCode:
        """Waits until the daemon may end: it was drained, hurried, or cannot go on."""
        await self.fleet.drain.finished()
        return self._exit_code

    def signalled(self) -> None:
        """SIGTERM or SIGINT: the first drains, the second hurries."""
        _log.info("signalled", again=self.fleet.drain.is_begun)
        self.fleet.drain.begin()

    def reopen_log(self) -> None:
        """SIGHUP: the log's name is opened anew."""
        self._log_file.reopen()

    # ---- up ----------------------------------------------------------------------------------------------------------

    async def _come_up(self) -> None:
        options, settings = self._options, self._options.settings
        self._stack.callback(self._notifier.close)
        host, port = self._address()
        make_private_dir(options.state_dir)
        lock = InstanceLock.acquire(lock_path(options.state_dir))
        self._stack.callback(lock.release)
        self._open_log()
        self._reap()
        store = self._open_store()
        self._listeners = Listeners(settings)
        self.fleet = Assembly(settings, self._surroundings(store))
        self._stack.callback(self.fleet.loop.close)
        self._stack.push_async_callback(self._tasks.cancel_all)
        self._stack.push_async_callback(self.fleet.supervisor.shut_down)
        operator = FleetOperator(self.fleet, store, self.status)
        self._stack.push_async_callback(self._listeners.close)
        socket_file = socket_path(options.state_dir)
        await self._listeners.open_control(socket_file, self.fleet, operator)
        listen = await self._listeners.open_http(host, port, self.fleet)
        self._identity = Identity(
            listen=listen,
            socket=str(socket_file),
            state_dir=str(options.state_dir),
            fleet=options.fleet,
            started_ns=clock.now_ns(),
            fleet_digest=fleet_digest(settings),
        )
        self._stack.callback(self._going_down)
        _log.info("listening", listen=listen, socket=str(socket_file), fleet=options.fleet)
        self._start_replicas()
        await self._readmit_registered(store, operator)
        self._watchdog()

    def _address(self) -> tuple[str, int]:
        listen = self._options.listen or self._options.settings.daemon.listen
        try:
            host, port = parse_listen(listen)
        except ValueError as error:
            raise ConfigError([f"listen: {listen!r}: {error}"]) from None
        if not is_loopback(host) and not self._options.settings.tenants:
            raise ConfigError(
                [f"listen: {listen!r} can be reached from other machines, which needs at least one [[tenant]] in the fleet file"]
            )
        return host, port

    def _open_log(self) -> None:
        daemon, path = self._options.settings.daemon, log_path(self._options.state_dir)
        try:
            self._log_file = LogFile(
                path, level=daemon.log_level, max_bytes=daemon.log_max_bytes, old_files=daemon.log_files, stderr=self._options.stderr
            )
        except OSError as error:
            raise ConfigError([f"{path}: cannot be written: {error.strerror}; choose another --state-dir"]) from error
        self._stack.callback(self._log_file.close)
        asyncio.get_running_loop().set_exception_handler(_log_loop_exception)

    def _reap(self) -> None:
        killed = orphans.reap(self._options.state_dir)
        if killed:
            _log.warning("orphans_ended", pids=[str(pid) for pid in killed])

    def _open_store(self) -> Store:
        daemon = self._options.settings.daemon
        store = Store.open(history_path(self._options.state_dir), max_rows=daemon.history_rows, max_days=daemon.history_days)
        self._stack.push_async_callback(asyncio.to_thread, store.close)
        return store

    def _surroundings(self, store: Store) -> Surroundings:
        options = self._options
        launch = Launcher(
            LaunchSettings(
                daemon=options.settings.daemon,
                state_dir=options.state_dir,
                cache_dir=cache_dir(),
                threads=threads_each(options.settings.models),
            )
        )
        return Surroundings(
            launch=launch,
            store=store,
            tasks=self._tasks,
            rng=random.Random(options.seed),
            restarts=options.restarts,
            connections=self._listeners.connections,
            on_broken=self._broken,
            drain_began=self._drain_began,
            changed=self._changed,
        )

    def _start_replicas(self) -> None:
        for model in self._options.settings.models:
            for index in range(model.replicas):
                self.fleet.supervisor.add(model, index=index)

    async def _readmit_registered(self, store: Store, operator: FleetOperator) -> None:
        """Replicas that operators registered with earlier daemons. A history that cannot be read costs them, not the start."""
        try:
            await asyncio.wrap_future(store.commit_now())  # the file is open and migrated from here on
            rows = await asyncio.to_thread(store.queries.registrations)
        except HistoryUnavailable as error:
            _log.warning("registrations_unreadable", reason=error.message)
            return
        for row in rows:
            try:
                operator.readmit(remote_model(row, version=row.version), row.replica_id)
            except InvalidRequest as error:
                _log.warning("registration_invalid", replica=row.replica_id, reason=str(error))

    # ---- what happens to it ------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """A replica said something or a request ended. The first settlement is told to the service manager."""
        self._changes.tell()
        if self._has_settled or self._identity is None:
            return
        state = self.fleet.report.state()
        if state == "starting":
            self._notifier.starting("; ".join(f"{r.replica_id} {r.lifecycle.state} {r.detail}" for r in self.fleet.supervisor.replicas()))
        else:
            self._has_settled = True
            self._notifier.ready(f"{state}, listening on {self._identity.listen}")
            _log.info("settled", state=state)

    def _drain_began(self) -> None:
        self._notifier.stopping()
        _log.info("drain_began", running=len(self.fleet.traffic.alive))

    def _going_down(self) -> None:
        _log.info("going_down", exit_code=int(self._exit_code))
        if self._watchdog_timer is not None:
            self._watchdog_timer.cancel()

    def _broken(self, error: BaseException) -> None:
        _log.error("core_broken", error=error)
        self._end_badly()

    def _crashed(self, name: str, error: BaseException) -> None:
        _log.error("task_crashed", task=name, error=error)
        self._end_badly()

    def _end_badly(self) -> None:
        self._exit_code = ExitCode.FAILURE
        self.fleet.drain.hurry()

    def _watchdog(self) -> None:
        interval_s = self._notifier.watchdog_interval_s
        if interval_s is not None:
            self._notifier.watchdog()
            self._watchdog_timer = asyncio.get_running_loop().call_later(interval_s, self._watchdog)


def _log_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """What would otherwise be printed: an exception nobody awaited. Its text may quote a client, so only type and place are written."""
    del loop
    error = context.get("exception")
    _log.error("loop_exception", error=error if isinstance(error, BaseException) else None, what=str(context.get("message", ""))[:200])
