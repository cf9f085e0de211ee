"""Writes small synthetic workload traces for tests, in the layouts of the public traces that the benches read. Seeded: the same every time.

    python scripts/make_test_traces.py [DIRECTORY]      default tests/data/traces

No row comes from a real trace; only the columns do, and roughly the shape of their values:

    azure_like.csv.gz      arrival_s, prompt_tokens, output_tokens                                     near Poisson arrivals
    bursty_like.csv.gz     the same                                                                    bursts with long pauses
    mooncake_like.csv.gz   arrival_s, prompt_tokens, output_tokens, hash_ids                           512-token blocks, shared prefixes
    lengths_like.csv.gz    prompt_tokens, output_tokens                                                long prompts, short answers
    minutes_like.csv.gz    function, app, avg_ms, p99_ms, mem_mb, per_minute_counts_1440               calls a minute over one day
    clients_like.csv.gz    client, window_start_s, rate_rps, iat_cv, dist, param1, param2              fits of inter-arrival times
"""

from __future__ import annotations

import csv
import gzip
import io
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROWS = 50
BLOCK_TOKENS = 512
MINUTES_PER_DAY = 1440
TARGET = Path(__file__).resolve().parent.parent / "tests" / "data" / "traces"

Values = tuple[object, ...]


def azure_like(rng: random.Random) -> Iterator[Values]:
    """Chat at about five requests a second."""
    yield ("arrival_s", "prompt_tokens", "output_tokens")
    arrival_s = 0.0
    for _ in range(ROWS):
        yield (f"{arrival_s:.6f}", _lognormal(rng, 6.5, 0.9), _lognormal(rng, 5.0, 0.6))
        arrival_s += rng.expovariate(5.0)


def bursty_like(rng: random.Random) -> Iterator[Values]:
    """Code completion: seven requests in a moment, then a pause."""
    yield ("arrival_s", "prompt_tokens", "output_tokens")
    arrival_s = 0.0
    for index in range(ROWS):
        yield (f"{arrival_s:.6f}", _lognormal(rng, 7.4, 0.7), _lognormal(rng, 2.8, 0.9))
        arrival_s += rng.expovariate(0.2 if index % 7 == 6 else 100.0)


def mooncake_like(rng: random.Random) -> Iterator[Values]:
    """Long conversations: every third request begins with the blocks of an earlier one."""
    yield ("arrival_s", "prompt_tokens", "output_tokens", "hash_ids")
    arrival_ms, next_block = 0, 0
    earlier: list[list[int]] = []
    for index in range(ROWS):
        prompt_tokens = _lognormal(rng, 8.5, 0.7)
        wanted = -(-prompt_tokens // BLOCK_TOKENS)
        shared = rng.choice(earlier)[: rng.randrange(1, wanted + 1)] if index % 3 == 2 else []
        fresh = list(range(next_block, next_block + wanted - len(shared)))
        next_block += len(fresh)
        earlier.append(shared + fresh)
        yield (f"{arrival_ms / 1000:.3f}", prompt_tokens, _lognormal(rng, 5.8, 0.6), " ".join(map(str, shared + fresh)))
        arrival_ms += rng.randrange(0, 3) * 1000


def lengths_like(rng: random.Random) -> Iterator[Values]:
    """Summaries: long prompts, short answers, no times."""
    yield ("prompt_tokens", "output_tokens")
    for _ in range(ROWS):
        yield (_lognormal(rng, 8.0, 0.5), _lognormal(rng, 4.8, 0.5))


def minutes_like(rng: random.Random) -> Iterator[Values]:
    """Calls a minute: most functions sleep most of the day."""
    yield ("function", "app", "avg_ms", "p99_ms", "mem_mb", "per_minute_counts_1440")
    for index in range(ROWS):
        busy = rng.random() ** 3
        counts = [_lognormal(rng, 1.0, 1.0) if rng.random() < busy else 0 for _ in range(MINUTES_PER_DAY)]
        avg_ms = _lognormal(rng, 5.0, 1.2)
        name = f"{index:012x}"
        yield (name, name, avg_ms, avg_ms * rng.randrange(1, 6), rng.randrange(128, 2048), " ".join(map(str, counts)))


def clients_like(rng: random.Random) -> Iterator[Values]:
    """Five clients over ten windows each, with the fitted law of the time between requests."""
    yield ("client", "window_start_s", "rate_rps", "iat_cv", "dist", "param1", "param2")
    for index in range(ROWS):
        rate_rps = rng.lognormvariate(-0.5, 1.0)
        fit = (rng.choice(["Gamma", "Weibull"]), f"{rng.uniform(0.2, 2.0):.4g}", f"{1 / rate_rps:.4g}")
        yield (index // 10, index % 10 * 600, f"{rate_rps:.4g}", f"{rng.uniform(0.5, 8.0):.4g}", *fit)


TRACES: dict[str, Callable[[random.Random], Iterator[Values]]] = {
    "azure_like": azure_like,
    "bursty_like": bursty_like,
    "mooncake_like": mooncake_like,
    "lengths_like": lengths_like,
    "minutes_like": minutes_like,
    "clients_like": clients_like,
}


def text_of(name: str) -> str:
    """The CSV text of a trace: one header row and `ROWS` rows."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(TRACES[name](random.Random(f"halcyon {name}")))
    return out.getvalue()


def write(directory: Path) -> None:
    """Writes every trace, compressed, without a time stamp in the file."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in TRACES:
        (directory / f"{name}.csv.gz").write_bytes(gzip.compress(text_of(name).encode(), mtime=0))


def _lognormal(rng: random.Random, mu: float, sigma: float) -> int:
    """A whole number of at least 1."""
    return max(1, round(rng.lognormvariate(mu, sigma)))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
