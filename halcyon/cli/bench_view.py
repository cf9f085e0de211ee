"""How a benchmark is shown: a bar a suite while it runs, then its tables and one line of summary.

A table too wide for the terminal leaves out its last columns and says which; the process orders them by importance. In a pipe and under
--json nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from halcyon.cli.screen import Cell, Screen

GAP = 2
"""Blanks between two columns."""
OURS = {"halcyon", "continuous_deadline", "deadline"}
"""Rows that stand out: what is benchmarked, among what it is compared with."""


class StepLine(msgspec.Struct, frozen=True):
    """One line of the process's progress: the step that begins, steps done, steps in all."""

    suite: str
    step: str
    done: int
    of: int


class ReportTable(msgspec.Struct, frozen=True):
    """A table of one suite; the most important columns come first."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class SuiteReport(msgspec.Struct, frozen=True):
    """What one suite found, for people."""

    suite: str
    summary: str
    tables: list[ReportTable]


class BenchReport(msgspec.Struct, frozen=True):
    """What the process prints without --json. `plots` are the files it drew."""

    reports: list[SuiteReport]
    plots: list[str]


def show_bars(steps: Iterable[StepLine]) -> None:
    """One bar a suite, as each begins."""
    columns = (
        TextColumn("{task.description:<9}", markup=False),
        BarColumn(bar_width=24, complete_style="blue", finished_style="green"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[step]}", markup=False, style="dim"),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(highlight=False)) as progress:
        for line in steps:
            if line.suite not in tasks:
                tasks[line.suite] = progress.add_task(line.suite, step="")
            progress.update(tasks[line.suite], total=line.of, completed=line.done, step=line.step)


def show_report(screen: Screen, found: BenchReport) -> None:
    """The tables of every suite, each suite's summary under them, and the files drawn."""
    for report in found.reports:
        for table in report.tables:
            screen.say(table.title, style="bold")
            _show_table(screen, table)
            screen.say()
        screen.say(report.summary, style="bold green")
        screen.say()
    for path in found.plots:
        screen.say(f"Drew {path}.")


def _show_table(screen: Screen, table: ReportTable) -> None:
    if not screen.is_terminal:
        screen.table(table.columns, [[Cell(text) for text in row] for row in table.rows])
        return
    count = _fitting(table, Console().width)
    drawn = Table(box=None, padding=(0, GAP, 0, 0), header_style="bold")
    for index, column in enumerate(table.columns[:count]):
        justify = "right" if table.rows and all(row[index][:1].isdigit() for row in table.rows) else "left"
        drawn.add_column(column.replace(" ", "\n"), justify=justify, vertical="bottom", no_wrap=True)  # type: ignore[arg-type]  # a str of two
    for row in table.rows:
        style = "bold" if OURS & set(row) else ""
        drawn.add_row(*(Text(text, style=style) for text in row[:count]))
    screen.draw(drawn)
    if count < len(table.columns):
        screen.say(f"not shown for want of width: {', '.join(table.columns[count:])}", style="dim")


def _fitting(table: ReportTable, width: int) -> int:
    """How many columns fit; at least one."""
    left = width
    for index, column in enumerate(table.columns):
        left -= GAP + max(len(text) for text in (*column.split(), *_cells(table.rows, index)))
        if left < 0:
            return max(1, index)
    return len(table.columns)


def _cells(rows: Sequence[Sequence[str]], index: int) -> list[str]:
    return [row[index] for row in rows]
