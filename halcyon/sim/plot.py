"""Pictures of what the suites found. matplotlib is wanted for them alone, so it is imported where something is drawn.

One picture a suite that has one: the first is FILE, the others are named after it (FILE `b.png` → `b-serving.png`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halcyon.errors import ConfigError
from halcyon.sim import plot_batching, plot_generation
from halcyon.sim.suites.registry import Options

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWERS: dict[str, Callable[[Any, Options], Figure]] = {
    "batching": plot_batching.draw,
    "serving": plot_generation.draw_serving,
    "traces": plot_generation.draw_traces,
}
"""Suites that have a picture: those with an axis of offered load."""

FORMATS = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 130


def check(path: Path, names: list[str]) -> None:
    """Raises ConfigError where nothing could be drawn or written, before anything is run."""
    problems = []
    if find_spec("matplotlib") is None:
        problems.append("--plot needs matplotlib, which is not installed: pip install 'halcyon[plot]'.")
    if path.suffix.lower() not in FORMATS:
        problems.append(f"--plot {path}: the name must end in one of {', '.join(FORMATS)}.")
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        problems.append(f"--plot {path}: it is a directory, or is in none that exists and may be written to.")
    if not DRAWERS.keys() & set(names):
        problems.append(f"--plot draws {', '.join(DRAWERS)}; name one of these suites.")
    if problems:
        raise ConfigError(problems)


def draw(path: Path, results: Mapping[str, Any], options: Options) -> list[Path]:
    """Draws every suite that has a picture and returns the files written. Raises ConfigError where one cannot be."""
    names = [name for name in results if name in DRAWERS]
    paths = [path, *(path.with_stem(f"{path.stem}-{name}") for name in names[1:])]
    for name, target in zip(names, paths, strict=True):
        figure = DRAWERS[name](results[name], options)
        try:
            figure.savefig(target, dpi=DOTS_PER_INCH)
        except OSError as error:
            raise ConfigError([f"{target} cannot be written: {error.strerror}."]) from error
    return paths
