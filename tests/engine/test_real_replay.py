"""The serving suite on a real engine: the same trace and figures, real iterations, idle gaps skipped."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # `bench` is a directory of scripts, not a part of what is installed

from bench.real_replay import AtOnce, InBatches
from bench.serving_real import ALONE, CONTENDERS, serve, token_ids_for
from halcyon.engine.loading import LoadedModel
from halcyon.sim.clock import NS_PER_MS, NS_PER_S
from halcyon.sim.continuous import Prompt
from halcyon.sim.prompts import PromptWorkload, seeded

REQUESTS = 10


def prompts_at(rate_per_s: float) -> list[Prompt]:
    """Ten prompts of the suite with short answers."""
    return seeded(PromptWorkload(requests=REQUESTS, rate_per_s=rate_per_s, output_median=6, output_cap=16), 7)


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_answer_is_the_one_its_prompt_gets_alone(tiny: LoadedModel, name: str) -> None:
    """Static or continuous, in any order: every request is served to its length, with the tokens it gets alone."""
    prompts = prompts_at(200.0)
    token_ids = token_ids_for(prompts, random.Random(7), 256)
    alone = serve(tiny, prompts, token_ids, ALONE)
    replay = serve(tiny, prompts, token_ids, CONTENDERS[name])
    assert replay.answers == alone.answers
    assert [len(answer) for answer in replay.answers] == [prompt.output_tokens for prompt in prompts]
    assert (replay.useful_steps == replay.slot_steps) is name.startswith("continuous")
    for fate in replay.fates:
        assert fate.prompt.arrived_ns <= (fate.admitted_ns or 0) < (fate.first_token_ns or 0) <= (fate.finished_ns or 0)


def test_idle_gaps_take_no_time(tiny: LoadedModel) -> None:
    """Ten requests a minute apart end in ten minutes of virtual time and seconds of real time; each enters as it arrives."""
    prompts = prompts_at(1 / 60)
    replay = serve(tiny, prompts, token_ids_for(prompts, random.Random(7), 256), CONTENDERS["continuous"])
    assert replay.ended_ns > 120 * NS_PER_S
    assert all((fate.admitted_ns or 0) - fate.prompt.arrived_ns < 60 * NS_PER_S for fate in replay.fates)


def test_static_batches_wait_for_size_or_patience() -> None:
    """Two that are there fill a batch of two at the second's arrival; a lone one leaves after its wait; nobody joins a running batch."""
    first, second, third = (
        Prompt(index=i, arrived_ns=i * NS_PER_S, prompt_tokens=1, output_tokens=1, most_output=1, ttft_ns=1, tpot_ns=1) for i in range(3)
    )
    two = InBatches(2, 100 * NS_PER_MS)
    assert two.instant_ns([first, second]) == 100 * NS_PER_MS
    assert InBatches(2, 5 * NS_PER_S).instant_ns([first, second, third]) == NS_PER_S
    assert InBatches(2, 5 * NS_PER_S).entering([first, second, third], running=0, now=2 * NS_PER_S) == 2
    assert two.entering([first, second], running=0, now=100 * NS_PER_MS) == 1
    assert two.entering([first, second], running=1, now=9 * NS_PER_S) == 0
    assert AtOnce().entering([first, second, third], running=7, now=NS_PER_S) == 2
