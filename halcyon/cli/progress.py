"""How a fleet's way to ready is shown: bars on a terminal, one line per change in a pipe, nothing under --json."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from halcyon.cli.fleet_table import STATE_STYLES, remarks
from halcyon.cli.screen import Screen
from halcyon.wire.control import ReplicaStatus, Status


class FleetView(Protocol):
    """Shows one status after another. Use as a context manager."""

    def __enter__(self) -> FleetView:
        """Begins showing."""
        ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Leaves the last picture standing."""
        ...

    def show(self, status: Status) -> None:
        """Shows the fleet as it is now."""
        ...


def fleet_view(screen: Screen) -> FleetView:
    """The view that suits the screen."""
    if screen.is_terminal:
        return BarsView(Console(highlight=False))
    return LinesView(screen)


class LinesView:
    """One line whenever a replica's state changes. Silent under --json, as the screen is."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._seen: dict[str, str] = {}

    def __enter__(self) -> LinesView:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Nothing to put away."""

    def show(self, status: Status) -> None:
        """Prints what changed since the last status."""
        for replica in status.replicas:
            if self._seen.get(replica.replica_id) != replica.state:
                self._seen[replica.replica_id] = replica.state
                reason = "" if replica.state == "failed" else remarks(replica)  # the end says why, once
                self._screen.say(f"{replica.replica_id}: {replica.state}{f' ({reason})' if reason else ''}")


class _Remarks(ProgressColumn):
    """What a replica does, cut to what is left of the line: names, states and bars are never shortened for it."""

    def render(self, task: Task) -> Text:
        """The remarks on one line."""
        return Text(task.fields["remarks"], style="dim", no_wrap=True, overflow="ellipsis")


class BarsView:
    """One bar for each replica; it pulses where the stage has no measure."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[replica]}", markup=False),
            TextColumn("[{task.fields[style]}]{task.fields[state]:<10}"),
            BarColumn(bar_width=16, complete_style="blue", finished_style="green", pulse_style="blue", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            _Remarks(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> BarsView:
        self._progress.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        for task in self._progress.tasks:
            if task.fields["state"] == "waiting":
                self._progress.update(task.id, remarks="")  # the end says why, once
        self._progress.stop()

    def show(self, status: Status) -> None:
        """Moves every replica's bar."""
        for replica in status.replicas:
            self._move(replica)

    def _move(self, replica: ReplicaStatus) -> None:
        fields: dict[str, Any] = {
            "replica": replica.replica_id,
            "state": replica.state,
            "style": STATE_STYLES.get(replica.state, "blue"),
            "remarks": "" if replica.state == "failed" else remarks(replica),  # the end says why, once
        }
        task = self._tasks.get(replica.replica_id)
        if task is None:
            task = self._tasks[replica.replica_id] = self._progress.add_task("", total=None, **fields)
        done = 1.0 if replica.state == "ready" else replica.progress
        self._progress.update(task, total=None if done is None else 1.0, completed=done or 0.0, **fields)
        if replica.state in {"ready", "failed"}:
            self._progress.stop_task(task)
