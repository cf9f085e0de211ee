"""One look for all pictures: little ink, and a name at the end of each curve instead of a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2933"
FAINT = "#7b8794"
GRID = "#e4e7eb"
BLUE, ORANGE, GREEN, PURPLE = "#0b62a8", "#d9730d", "#2a8a5f", "#8e5ba6"
PLAIN_WIDTH = 1.8
"""Width of a curve, points. The name of a wider one is bold."""
LEFT = 0.065
TOP = 0.77
"""Where titles and the first panel begin, in widths of the figure, and panels end, in heights of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line with its name."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    width: float = PLAIN_WIDTH
    dashes: str | tuple[int, tuple[float, ...]] = "-"
    marker: str = "o"


def figure(title: str, subtitle: str, *, width_in: float = 12.0, height_in: float = 6.0) -> Figure:
    """An empty figure under its title and at most two lines of subtitle. Panels go below `TOP`."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width_in, height_in), facecolor="white")
    drawn.text(LEFT, 0.95, title, fontsize=16, fontweight="bold", color=INK, va="center")
    drawn.text(LEFT, 0.915, subtitle, fontsize=10, color=FAINT, va="top", linespacing=1.5)
    return drawn


def dress(axes: Axes, *, title: str, x_label: str) -> None:
    """Title, axis label and grid of one panel."""
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=10)
    axes.set_xlabel(x_label, fontsize=10, color=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=FAINT, labelsize=9, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(FAINT)


def draw_curves(axes: Axes, curves: Sequence[Curve], *, least_gap: float) -> None:
    """The lines, each with its name at its right end; names keep `least_gap` of the panel's height between them."""
    for rank, curve in enumerate(curves):
        axes.plot(
            curve.xs,
            curve.ys,
            color=curve.colour,
            linewidth=curve.width,
            linestyle=curve.dashes,
            marker=curve.marker,
            markersize=4.5,
            markeredgecolor="white",
            markeredgewidth=0.8,
            zorder=3 + len(curves) - rank,
            clip_on=False,
        )
    to_height = axes.transData + axes.transAxes.inverted()
    ends = [float(to_height.transform((curve.xs[-1], curve.ys[-1]))[1]) for curve in curves]
    for curve, height in zip(curves, spread(ends, least_gap), strict=True):
        weight = "bold" if curve.width > PLAIN_WIDTH else "normal"
        axes.annotate(
            curve.name,
            (curve.xs[-1], height),
            xycoords=axes.get_xaxis_transform(),
            xytext=(9, 0),
            textcoords="offset points",
            color=curve.colour,
            fontsize=10,
            va="center",
            fontweight=weight,
            annotation_clip=False,
        )


def spread(heights: Sequence[float], least_gap: float) -> list[float]:
    """The heights moved apart just enough: those too close share a block around their mean, and none goes below zero."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    blocks: list[list[int]] = []
    for index in order:
        blocks.append([index])
        while len(blocks) > 1 and _bottom(blocks[-1], heights, least_gap) < _top(blocks[-2], heights, least_gap) + least_gap:
            last = blocks.pop()
            blocks[-1] += last
    placed = dict.fromkeys(order, 0.0)
    for block in blocks:
        bottom = _bottom(block, heights, least_gap)
        placed |= {index: bottom + rank * least_gap for rank, index in enumerate(block)}
    return [placed[index] for index in range(len(heights))]


def _bottom(block: Sequence[int], heights: Sequence[float], least_gap: float) -> float:
    return max(0.0, sum(heights[index] for index in block) / len(block) - (len(block) - 1) / 2 * least_gap)


def _top(block: Sequence[int], heights: Sequence[float], least_gap: float) -> float:
    return _bottom(block, heights, least_gap) + (len(block) - 1) * least_gap
