"""The pictures of the suites over continuous replicas: share of requests within their objectives, against load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halcyon.sim.plot_panel import BLUE, FAINT, GREEN, LEFT, ORANGE, PURPLE, TOP, Curve, draw_curves, dress, figure
from halcyon.sim.suites import serving, traces
from halcyon.sim.suites.registry import Options

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCHEDULERS = {
    "continuous_deadline": ("continuous, deadline", BLUE, 3.0),
    "continuous": ("continuous, fcfs", ORANGE, 1.8),
    "static_32": ("static, 32", GREEN, 1.8),
    "static_8": ("static, 8", PURPLE, 1.8),
}
ORDERS = {
    "deadline": ("deadline", BLUE, 3.0),
    "fcfs": ("fcfs", ORANGE, 1.8),
    "shortest_prompt": ("shortest", GREEN, 1.8),
    "edf": ("edf", PURPLE, 1.8),
}
"""Name, colour and width of each curve, the most important first."""


def draw_serving(result: serving.Result, options: Options) -> Figure:
    """Goodput and the tail of the time to first token, against load, for the longest run; means over the seeds."""
    most = max(s.requests for s in result.scenarios)
    found = [s for s in result.scenarios if s.requests == most]
    loads = list(dict.fromkeys(s.load for s in found))
    drawn = figure(
        "Continuous against static batching",
        f"{most} requests on a device that bears {result.capacity_per_s:.1f} a second.\n"
        f"Objectives: first token in 1 s, 100 ms a token. Seed {options.seed} and those after it, means.",
    )
    left, right = drawn.subplots(1, 2)
    drawn.subplots_adjust(left=LEFT, right=0.84, top=TOP, bottom=0.1, wspace=0.6)
    means = {name: [serving.mean([s.schedulers[name] for s in found if s.load == load]) for load in loads] for name in SCHEDULERS}
    _shares(left, "Within both objectives")
    draw_curves(left, [_curve(SCHEDULERS[name], loads, [m.goodput for m in of]) for name, of in means.items()], least_gap=0.05)
    _first_tokens(right, [_curve(SCHEDULERS[name], loads, [m.ttft_p99_ms / 1000 for m in of]) for name, of in means.items()])
    return drawn


def draw_traces(result: traces.Result, options: Options) -> Figure:
    """One panel a recorded trace."""
    names = list(dict.fromkeys(s.trace for s in result.scenarios))
    drawn = figure(
        "Recorded traffic at and over capacity",
        f"One replica with {traces.SIZE.kv_blocks:,} KV blocks.\n60 % interactive (600 ms to the first token, 40 ms a token), "
        f"40 % bulk (6 s, 120 ms). Seed {options.seed}.",
        width_in=5.0 * len(names) + 1.0,
    )
    panels = drawn.subplots(1, len(names), squeeze=False)[0]
    drawn.subplots_adjust(left=LEFT, right=0.92, top=TOP, bottom=0.1, wspace=0.4)
    for name, axes in zip(names, panels, strict=True):
        found = [s for s in result.scenarios if s.trace == name]
        _shares(axes, f"{name}: within both objectives")
        curves = [_curve(look, [s.load for s in found], [s.orders[order].goodput for s in found]) for order, look in ORDERS.items()]
        draw_curves(axes, curves, least_gap=0.05)
    return drawn


def _first_tokens(axes: Axes, curves: list[Curve]) -> None:
    """Seconds on a logarithmic axis, and the objective across it."""
    seconds = [value for curve in curves for value in curve.ys]
    axes.set_yscale("log")
    axes.set_ylim(0.7 * min(seconds), 1.5 * max(seconds))
    dress(axes, title="Time to first token, 99th percentile, s", x_label="offered, shares of capacity")
    axes.axhline(1.0, color=FAINT, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.annotate(
        "objective", (0.01, 1.0), xycoords=axes.get_yaxis_transform(), xytext=(0, -11), textcoords="offset points", color=FAINT, fontsize=9
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    draw_curves(axes, curves, least_gap=0.05)


def _shares(axes: Axes, title: str) -> None:
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    dress(axes, title=title, x_label="offered, shares of capacity")


def _curve(look: tuple[str, str, float], xs: list[float], ys: list[float]) -> Curve:
    name, colour, width = look
    return Curve(name=name, xs=xs, ys=ys, colour=colour, width=width)
