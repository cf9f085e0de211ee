"""The picture of `batching`: goodput against offered load for every strategy, under the lines that bound it.

The suite's four loads make no curve, so the loads between are run for the picture, unless loads were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from halcyon.sim.plot_panel import BLUE, FAINT, GREEN, INK, LEFT, ORANGE, PURPLE, TOP, Curve, draw_curves, dress, figure
from halcyon.sim.suites import batching
from halcyon.sim.suites.registry import Options

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SWEEP_PER_S = (20.0, 65.0, 120.0, 145.0, 170.0, 185.0, 215.0, 230.0, 245.0, 280.0, 300.0)
LOOKS = {
    "halcyon": ("Halcyon", BLUE, 3.0),
    "edf": ("earliest deadline first", ORANGE, 1.8),
    "fixed_batch": ("fixed batch", GREEN, 1.8),
    "no_batching": ("no batching", PURPLE, 1.8),
}
"""Name, colour and width of each strategy's curve, the most important first."""


def draw(result: batching.Result, options: Options) -> Figure:
    """Two panels: requests on time a second, and the share of the urgent ones."""
    world = options.world()
    scenarios = list(result.scenarios)
    if options.rates_per_s is None:
        scenarios += batching.run(options.seed, replace(world, rates_per_s=SWEEP_PER_S)).scenarios
    scenarios.sort(key=lambda scenario: scenario.rate_per_s)
    drawn = figure("What stays on time as load rises", _subtitle(world, options.seed))
    left, right = drawn.subplots(1, 2, width_ratios=(3, 2))
    drawn.subplots_adjust(left=LEFT, right=0.85, top=TOP, bottom=0.1, wspace=0.66)
    _goodput(left, scenarios)
    _urgent(right, scenarios)
    return drawn


def _subtitle(world: batching.World, seed: int) -> str:
    drift = f", {world.drift:g} times as slow in the second half" if world.drift != 1.0 else ""
    device = f"{world.overhead_ms:g} ms + {world.per_token_ms:g} ms a token ± {world.jitter:.0%}{drift}"
    traffic = f"{world.horizon_s:g} s of Poisson arrivals a point, {world.urgent_share:.0%} due in 120 ms, the rest in 900 ms"
    return f"One device: {device}, at most {world.max_batch} requests a batch.\n{traffic}. Seed {seed}."


def _goodput(axes: Axes, scenarios: Sequence[batching.Scenario]) -> None:
    rates = [scenario.rate_per_s for scenario in scenarios]
    fluid = [scenario.fluid_goodput_per_s for scenario in scenarios]
    bound = [scenario.bound_goodput_per_s for scenario in scenarios]
    axes.set_xlim(0, rates[-1])
    axes.set_ylim(0, 1.08 * max(bound))
    dress(axes, title="Answered on time, requests a second", x_label="offered, requests a second")
    lines = [
        Curve(name="line with deadlines", xs=rates, ys=fluid, colour=INK, width=1.4, dashes=(0, (4, 2)), marker=""),
        Curve(name="bound, no deadlines", xs=rates, ys=bound, colour=FAINT, width=1.4, dashes=(0, (1, 1.5)), marker=""),
    ]
    draw_curves(axes, [*lines, *_curves(rates, scenarios, "goodput_per_s")], least_gap=0.05)


def _urgent(axes: Axes, scenarios: Sequence[batching.Scenario]) -> None:
    rates = [scenario.rate_per_s for scenario in scenarios]
    axes.set_xlim(0, rates[-1])
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    dress(axes, title="Urgent requests on time", x_label="offered, requests a second")
    draw_curves(axes, _curves(rates, scenarios, "slo_urgent"), least_gap=0.05)


def _curves(rates: Sequence[float], scenarios: Sequence[batching.Scenario], figure_name: str) -> list[Curve]:
    return [
        Curve(
            name=name, xs=rates, ys=[getattr(scenario.strategies[key], figure_name) for scenario in scenarios], colour=colour, width=width
        )
        for key, (name, colour, width) in LOOKS.items()
    ]
