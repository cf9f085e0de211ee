"""`batching`: one batch device, Poisson arrivals of two cohorts, four strategies and the lines they are read against.

Pure: the same arguments give the same result to the last byte. The schedulers learn device and traffic; the arguments that describe the
world are given to the devices and the traces only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from halcyon.core.batching.scheduler import BatchScheduler
from halcyon.core.batching.settings import BatchSettings
from halcyon.errors import ConfigError
from halcyon.sim.arrivals import Arrival, Workload, seeded
from halcyon.sim.baselines import FixedBatch
from halcyon.sim.bounds import count_only, deadline_aware_per_s
from halcyon.sim.clock import NS_PER_MS, NS_PER_S
from halcyon.sim.devices import BatchDevice, BatchLaw
from halcyon.sim.ledger import Ledger
from halcyon.sim.station import BatchStation, Scheduler
from halcyon.sim.suites.steps import Progress, Steps, ignore

RATES_PER_S = (40.0, 90.0, 200.0, 260.0)
HORIZON_S = 120.0
QUICK_HORIZON_S = 12.0
MAX_QUEUE = 512
FIXED_WAIT_NS = 25 * NS_PER_MS
NOISE_SALT = 0x9E3779B9
DIGITS = 6
MOST_MS = 10_000.0
MOST_PER_S = 10_000.0
"""A rate whose trace still fits in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the schedulers are not told. `drift` is the factor on the device's times in the second half.

    Raises ConfigError with every value that describes no world.
    """

    overhead_ms: float = 18.0
    per_token_ms: float = 0.022
    jitter: float = 0.08
    drift: float = 1.0
    rates_per_s: tuple[float, ...] = RATES_PER_S
    urgent_share: float = 0.30
    max_batch: int = 32
    horizon_s: float = HORIZON_S

    def __post_init__(self) -> None:
        limits = [
            ("overhead-ms", self.overhead_ms, 0.0 <= self.overhead_ms < MOST_MS, f"in [0, {MOST_MS:g})"),
            ("per-token-ms", self.per_token_ms, 0.0 < self.per_token_ms < MOST_MS, f"over 0 and under {MOST_MS:g}"),
            ("jitter", self.jitter, 0.0 <= self.jitter < 1.0, "in [0, 1)"),
            ("drift", self.drift, 0.0 < self.drift < MOST_MS, f"over 0 and under {MOST_MS:g}"),
            ("urgent", self.urgent_share, 0.0 <= self.urgent_share <= 1.0, "in [0, 1]"),
            ("max-batch", self.max_batch, self.max_batch >= 1, "at least 1"),
            *(("rate", rate, 0.0 < rate <= MOST_PER_S, f"over 0 and at most {MOST_PER_S:g}") for rate in self.rates_per_s),
        ]
        problems = [f"--{name} is {value:g}; it must be {wanted}." for name, value, holds, wanted in limits if not holds]
        if problems:
            raise ConfigError(problems)

    def law(self) -> BatchLaw:
        """The device."""
        return BatchLaw(
            overhead_ms=self.overhead_ms,
            per_token_ms=self.per_token_ms,
            jitter=self.jitter,
            drift=self.drift,
            drift_at_ns=round(self.horizon_s * NS_PER_S / 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one strategy did. Latencies of served requests, late ones included; shares in [0, 1]; goodput is on-time requests a second."""

    goodput_per_s: float
    bound_share: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    slo_urgent: float
    slo_relaxed: float
    slo_by_size_quartile: tuple[float, ...]
    utilisation: float
    mean_batch: float
    shed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One offered rate. `bound_goodput_per_s` is blind to deadlines, `fluid_goodput_per_s` is the deadline-aware line."""

    rate_per_s: float
    requests: int
    bound_goodput_per_s: float
    fluid_goodput_per_s: float
    strategies: dict[str, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The suite's result."""

    suite: str
    seed: int
    scenarios: tuple[Scenario, ...]


def strategies(max_batch: int) -> dict[str, Callable[[], Scheduler]]:
    """Makers of fresh schedulers, in the order of the rows."""
    return {
        "no_batching": lambda: FixedBatch(size=1, wait_ns=0, max_queue=MAX_QUEUE),
        "fixed_batch": lambda: FixedBatch(size=max_batch, wait_ns=FIXED_WAIT_NS, max_queue=MAX_QUEUE),
        "edf": lambda: BatchScheduler(BatchSettings(policy="edf", max_queue=MAX_QUEUE), now=0),
        "halcyon": lambda: BatchScheduler(BatchSettings(max_queue=MAX_QUEUE), now=0),
    }


def run(seed: int, world: World, *, progress: Progress = ignore, only: tuple[str, ...] = ()) -> Result:
    """Runs every strategy at every rate. `progress` hears what begins; `only` restricts the strategies."""
    scenarios: list[Scenario] = []
    makers = {name: make for name, make in strategies(world.max_batch).items() if not only or name in only}
    steps = Steps(len(world.rates_per_s) * len(makers), progress)
    for rate in world.rates_per_s:
        workload = Workload(rate_per_s=rate, horizon_s=world.horizon_s, urgent_share=world.urgent_share)
        arrivals = seeded(workload, seed)
        bound = count_only(arrivals, world.law(), max_batch=world.max_batch, horizon_s=world.horizon_s) / world.horizon_s
        fluid = deadline_aware_per_s(arrivals, world.law(), max_batch=world.max_batch, horizon_s=world.horizon_s)
        outcomes: dict[str, Outcome] = {}
        for name, make in makers.items():
            steps.begin(f"{name} at {rate:g}/s")
            device = BatchDevice(world.law(), seed ^ NOISE_SALT)
            ledger = BatchStation(make(), [device], arrivals, max_batch=world.max_batch).run()
            outcomes[name] = judge(ledger, bound_per_s=bound, horizon_s=world.horizon_s)
        scenarios.append(
            Scenario(
                rate_per_s=rate,
                requests=len(arrivals),
                bound_goodput_per_s=round(bound, DIGITS),
                fluid_goodput_per_s=round(fluid, DIGITS),
                strategies=outcomes,
            )
        )
    return Result(suite="batching", seed=seed, scenarios=tuple(scenarios))


def judge(ledger: Ledger, *, bound_per_s: float, horizon_s: float) -> Outcome:
    """Sums a run up."""
    arrivals = ledger.arrivals
    good = [arrival for arrival in arrivals if ledger.on_time(arrival)]
    latencies = sorted((ledger.finished_ns[a.index] - a.arrived_ns) / NS_PER_MS for a in arrivals if a.index in ledger.finished_ns)
    ended_ns = max(ledger.finished_ns.values(), default=1)
    goodput = len(good) / horizon_s
    return Outcome(
        goodput_per_s=round(goodput, DIGITS),
        bound_share=round(goodput / bound_per_s, DIGITS) if bound_per_s else 0.0,
        p50_ms=_quantile(latencies, 50),
        p95_ms=_quantile(latencies, 95),
        p99_ms=_quantile(latencies, 99),
        slo_urgent=_share(ledger, [a for a in arrivals if a.urgent]),
        slo_relaxed=_share(ledger, [a for a in arrivals if not a.urgent]),
        slo_by_size_quartile=tuple(_share(ledger, part) for part in _quartiles(arrivals)),
        utilisation=round(ledger.busy_ns / max(ended_ns, round(horizon_s * NS_PER_S)), DIGITS),
        mean_batch=round(sum(ledger.batch_sizes) / max(1, len(ledger.batch_sizes)), DIGITS),
        shed=len(ledger.refused),
    )


def _share(ledger: Ledger, part: list[Arrival]) -> float:
    return round(sum(ledger.on_time(arrival) for arrival in part) / len(part), DIGITS) if part else 1.0


def _quartiles(arrivals: list[Arrival]) -> list[list[Arrival]]:
    ordered = sorted(arrivals, key=lambda arrival: (arrival.tokens, arrival.index))
    cuts = [len(ordered) * quarter // 4 for quarter in range(5)]
    return [ordered[low:high] for low, high in pairwise(cuts)]


def _quantile(ordered: list[float], percent: int) -> float:
    """Nearest rank."""
    return round(ordered[max(0, -(-len(ordered) * percent // 100) - 1)], DIGITS) if ordered else 0.0
