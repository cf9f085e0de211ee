"""Where a command writes, and in what dress.

    a terminal   tables, colour, live progress
    a pipe       plain aligned columns on stdout; no colour, no progress, nothing that a script would have to strip
    --json       one JSON document on stdout and nothing else

Errors and remarks go to stderr in every case.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import msgspec
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

FOLDING_COLUMNS = {"why", "source", "found"}
"""Headings of columns that hold sentences or paths."""
_READABLE = 20
"""Cells that a folding column needs at least, unless what it holds is shorter."""
_GAP = 2
"""Cells between columns."""

_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_HARMLESS = _PICTURES | {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""}


def harmless(text: str) -> str:
    """Text that a terminal shows and does not obey: control characters become their pictures. An answer may hold anything."""
    return text.translate(_HARMLESS)


@dataclass(frozen=True)
class Cell:
    """One cell of a table. `style` is rich's and is dropped in a pipe; `terminal`, where set, replaces the text on a terminal."""

    text: str
    style: str = ""
    terminal: str | None = None

    @property
    def on_terminal(self) -> str:
        """The text that a terminal shows."""
        return self.text if self.terminal is None else self.terminal


@dataclass(frozen=True)
class Screen:
    """The streams of one command."""

    as_json: bool = False

    @property
    def is_terminal(self) -> bool:
        """Whether a person watches stdout."""
        return not self.as_json and sys.stdout.isatty()

    def document(self, value: object) -> None:
        """Writes the command's JSON document."""
        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), flush=True)

    def say(self, line: str = "", *, style: str = "") -> None:
        """One line for people and pipes; nothing under --json."""
        if self.is_terminal:
            self.draw(Text(line, style=style))
        elif not self.as_json:
            print(line, flush=True)

    def hint(self, line: str = "") -> None:
        """One line for people only: how to go on."""
        if self.is_terminal:
            Console(highlight=False).print(Text(line), soft_wrap=True)

    def remark(self, line: str) -> None:
        """One line on stderr; nothing under --json."""
        if not self.as_json:
            print(line, file=sys.stderr, flush=True)

    def draw(self, renderable: RenderableType) -> None:
        """Something of rich's, on a terminal."""
        Console(highlight=False).print(renderable)

    def busy(self, what: str) -> AbstractContextManager[object]:
        """Shows that something takes a moment, on a terminal."""
        return Console(highlight=False).status(what) if self.is_terminal else nullcontext()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """A table: rich on a terminal, aligned columns with upper-case headings in a pipe. Where a terminal is too narrow for the
        columns, each row is a list of its own: nothing is cut off or left out."""
        if self.is_terminal:
            width = Console().width
            self.draw(_rich_table(columns, rows) if _width_of(columns, rows) <= width else _rich_lists(columns, rows))
        elif not self.as_json:
            print("\n".join(plain_lines(columns, rows)), flush=True)


def plain_lines(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Columns aligned by spaces, two between; an empty cell is a dash, so that every line has the same number of words' columns."""
    lines = [[column.upper().replace(" ", "_") for column in columns], *([cell.text or "-" for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _shown(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    """The columns that say something in some row."""
    return [index for index in range(len(columns)) if any(row[index].on_terminal for row in rows)]


def _width_of(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> int:
    """The least width, in cells, that keeps whole what must not fold and leaves each folding column enough to be read."""
    widths = [max(cell_len(text) for text in (columns[i], *(row[i].on_terminal for row in rows))) for i in _shown(columns, rows)]
    names = [columns[i] for i in _shown(columns, rows)]
    return sum(_GAP + (min(width, _READABLE) if name in FOLDING_COLUMNS else width) for name, width in zip(names, widths, strict=True))


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Columns that say nothing are left out; those of free text fold, the rest are kept whole."""
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    shown = _shown(columns, rows)
    for index in shown:
        table.add_column(columns[index], overflow="fold", no_wrap=columns[index] not in FOLDING_COLUMNS)
    for row in rows:
        table.add_row(*(Text(row[index].on_terminal, style=row[index].style) for index in shown))
    return table


def _rich_lists(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Group:
    """Every row as label and value, one a line; the first value heads its list."""
    lists: list[RenderableType] = []
    for first, *rest in rows:
        lists.append(Text(first.on_terminal, style="bold"))
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for name, cell in zip(columns[1:], rest, strict=True):
            if cell.on_terminal:
                table.add_row(f" {name}", Text(cell.on_terminal, style=cell.style))
        lists.append(table)
    return Group(*lists)
