"""The engine's promises to whoever submits: ends, cancels, refusals, logprobs, counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engine_harness import GAVE_UP, EngineHarness, alone, mixed_prompts

from halcyon.core.batching.cost import IterationCost
from halcyon.core.batching.orders.deadline import DeadlineOrder
from halcyon.engine.loading import LoadedModel
from halcyon.errors import InvalidRequest

Build = Callable[..., EngineHarness]
PROMPT = list(range(10, 30))


def text_of(loaded: LoadedModel, token_ids: list[int]) -> str:
    """The whole text of an answer."""
    return str(loaded.tokenizer.decode(token_ids, skip_special_tokens=True))


def test_text_and_tokens_agree(tiny: LoadedModel, engine_of: Build) -> None:
    """The pieces of text of sixteen streams join to the text of their tokens, each delta with one token more than the last."""
    harness = engine_of(tiny)
    for at, prompt in enumerate(mixed_prompts(256)):
        harness.submit(str(at), prompt, max_output_tokens=40, ignore_eos=True)
    for answer in harness.finish().values():
        assert answer.text == text_of(tiny, answer.token_ids)
        assert [delta.output_tokens for delta in answer.deltas] == list(range(1, 41))
        assert answer.last.finish_reason == "length"


@pytest.mark.parametrize("bound", [1, 2, 33])
def test_the_output_bound_is_a_maximum(tiny: LoadedModel, engine_of: Build, bound: int) -> None:
    """Exactly max_output_tokens tokens come when nothing else ends the answer. (Streams: max_tokens is not a maximum.)"""
    harness = engine_of(tiny)
    harness.submit("a", PROMPT, max_output_tokens=bound, ignore_eos=True)
    assert len(harness.finish()["a"].token_ids) == bound


def test_the_end_token_ends_unless_ignored(tiny: LoadedModel, engine_of: Build) -> None:
    """With the answer's eighth token as end token, seven tokens of text come and eight are counted; ignored, the answer goes on."""
    said = alone(tiny, PROMPT, 20)
    eighth = next(at for at in range(4, 20) if said[at] not in said[:at])
    harness = engine_of(tiny)
    harness.engine.loaded = _with_eos(tiny, said[eighth])
    harness.submit("ends", PROMPT, max_output_tokens=20)
    harness.submit("goes on", PROMPT, max_output_tokens=20, ignore_eos=True)
    answers = harness.finish()
    assert answers["ends"].token_ids == said[: eighth + 1]
    assert answers["ends"].text == text_of(tiny, said[:eighth])
    assert (answers["ends"].last.finish_reason, answers["ends"].last.stop_reason) == ("stop", None)
    assert answers["goes on"].token_ids == said


def _with_eos(loaded: LoadedModel, token_id: int) -> LoadedModel:
    from dataclasses import replace

    return replace(loaded, eos_token_ids=frozenset({token_id}))


def test_a_stop_token_id_ends_the_answer(tiny: LoadedModel, engine_of: Build) -> None:
    """A stop token id ends the answer, is counted, is no part of the text and is named as the reason."""
    said = alone(tiny, PROMPT, 20)
    at = next(at for at in range(4, 20) if said[at] not in said[:at])
    harness = engine_of(tiny)
    harness.submit("a", PROMPT, max_output_tokens=20, ignore_eos=True, stop_token_ids=frozenset({said[at]}))
    answer = harness.finish()["a"]
    assert answer.token_ids == said[: at + 1]
    assert answer.text == text_of(tiny, said[:at])
    assert (answer.last.finish_reason, answer.last.stop_reason) == ("stop", said[at])


def test_a_stop_string_over_tokens_ends_the_answer_at_once(tiny: LoadedModel, engine_of: Build) -> None:
    """A stop string of three one-byte tokens: no part of it comes out, the text before it does, and no token after it is produced."""
    said = alone(tiny, PROMPT, 30)
    text = text_of(tiny, said)
    stop = text[12:15]
    begins = text.find(stop)
    harness = engine_of(tiny)
    harness.submit("a", PROMPT, max_output_tokens=30, ignore_eos=True, stop=(stop,))
    answer = harness.finish()["a"]
    assert answer.text == text[:begins]
    assert (answer.last.finish_reason, answer.last.stop_reason) == ("stop", stop)
    assert text_of(tiny, answer.token_ids).endswith(stop)
    assert len(answer.token_ids) < 30
    assert harness.reports[-1].kv.used == 0


def test_logprobs_are_the_model_s_own(tiny: LoadedModel, engine_of: Build) -> None:
    """Logprobs of a greedy answer in a batch equal log_softmax of one plain forward pass within 1e-4, with the best five in order."""
    harness = engine_of(tiny)
    harness.submit("asked", PROMPT, max_output_tokens=12, ignore_eos=True, logprobs=True, top_logprobs=5)
    harness.submit("beside", PROMPT[:7], max_output_tokens=12, ignore_eos=True)
    answers = harness.finish()
    said = answers["asked"].token_ids
    with torch.inference_mode():
        logits = tiny.model(torch.tensor([PROMPT + said])).logits[0].float()
    expected = torch.log_softmax(logits[len(PROMPT) - 1 : -1], dim=-1)
    scores = [score for delta in answers["asked"].deltas for score in delta.scores]
    assert [score.token_id for score in scores] == said
    for at, score in enumerate(scores):
        assert score.logprob == pytest.approx(float(expected[at, said[at]]), abs=1e-4)
        assert [token_id for token_id, _ in score.top] == torch.topk(expected[at], 5).indices.tolist()
    assert not any(delta.scores for delta in answers["beside"].deltas)


def test_cancel_ends_within_one_iteration(tiny: LoadedModel, engine_of: Build) -> None:
    """Cancelled in decode, in prefill and in the queue: one last delta each, at most one token more, and every block is free.
    (Disconnects: the client leaves and the engine works on.)"""
    harness = engine_of(tiny, max_batch=2, prefill_chunk=16, prefix_sharing=False)
    harness.submit("decode", PROMPT, max_output_tokens=400, ignore_eos=True)
    harness.wait_for_tokens("decode", 3)
    harness.submit("prefill", mixed_prompts(256)[14], max_output_tokens=100, ignore_eos=True)
    harness.submit("queue", PROMPT, max_output_tokens=100, ignore_eos=True)
    harness.step()
    for sequence_id in ("decode", "prefill", "queue", "nobody"):
        harness.engine.cancel(sequence_id)
    answers = harness.finish()
    assert {answer.last.finish_reason for answer in answers.values()} == {"cancelled"}
    assert answers["queue"].last.prompt_tokens == len(PROMPT)
    assert harness.reports[-1].kv.used == 0
    assert harness.engine.counts() == (0, 0)


def test_a_storm_of_cancels_leaves_nothing_behind(tiny: LoadedModel, engine_of: Build) -> None:
    """Two hundred sequences, each cancelled after a while or left to end: every one ends once, no block, slot or gauge stays."""
    harness = engine_of(tiny, prefill_chunk=64)
    prompts = mixed_prompts(256)
    for at in range(200):
        harness.submit(str(at), prompts[at % 16], max_output_tokens=1 + at % 7, ignore_eos=True)
        if at % 3 == 0:
            harness.engine.cancel(str(at - at % 5))
    answers = harness.finish()
    assert all(sum(delta.finish_reason is not None for delta in answer.deltas) == 1 for answer in answers.values())
    assert harness.engine.kv.used == 0
    assert harness.engine.counts() == (0, 0)


def test_waiting_goes_on_after_the_preempting_ones_are_cancelled(tiny: LoadedModel, engine_of: Build) -> None:
    """When the sequence for whose sake others were preempted is cancelled, the preempted ones start again and finish."""
    harness = engine_of(tiny, kv_blocks=12, page_tokens=16, prefill_chunk=64, max_context=190, prefix_sharing=False)
    for at in range(4):
        harness.submit(str(at), mixed_prompts(256)[13] + [at + 5], max_output_tokens=100, ignore_eos=True)
    while not any(report.preempted for report in harness.reports):
        harness.step()
    running = next(name for name, answer in harness.answers.items() if not answer.is_over)
    harness.engine.cancel(running)
    answers = harness.finish()
    assert [answer.last.finish_reason for answer in answers.values()].count("length") == 3


def test_what_cannot_fit_is_refused_by_name(tiny: LoadedModel, engine_of: Build) -> None:
    """A prompt over the context, a bound that does not fit and values out of range raise InvalidRequest naming the field."""
    harness = engine_of(tiny, max_context=64)
    wrong: list[tuple[str, dict[str, object]]] = [
        ("input", {"token_ids": [5] * 64}),
        ("max_output_tokens", {"max_output_tokens": 45}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("temperature", {"temperature": -0.1}),
        ("top_p", {"top_p": 0.0}),
        ("top_k", {"top_k": -1}),
        ("top_logprobs", {"top_logprobs": 21}),
    ]
    for field, change in wrong:
        with pytest.raises(InvalidRequest) as refused:
            harness.submit("a", **{"token_ids": PROMPT, "max_output_tokens": 4, **change})  # type: ignore[arg-type]  # wrong on purpose
        assert refused.value.param == field
        del harness.answers["a"]
    harness.submit("a", PROMPT, max_output_tokens=None, ignore_eos=True)
    assert len(harness.finish()["a"].token_ids) == 64 - len(PROMPT)


def test_a_broken_model_fails_every_sequence_and_says_so(tiny: LoadedModel, engine_of: Build) -> None:
    """When the forward pass raises, each live sequence fails once, the engine reports its end, and no prompt token is in the words."""
    harness = engine_of(tiny)
    harness.submit("a", PROMPT, max_output_tokens=400, ignore_eos=True)
    harness.submit("b", PROMPT, max_output_tokens=400, ignore_eos=True)
    harness.wait_for_tokens("b", 2)

    def broken(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("the device fell off the bus")

    harness.engine.loop.rows.sample = broken  # type: ignore[method-assign]  # a fault of the device, as the loop would see it
    harness.engine.loop._manager.batch_processor.model_runner._sample = broken
    while harness.fatal_message is None:
        harness.step()
    assert "RuntimeError: the device fell off the bus" in harness.fatal_message
    assert all(answer.failure == "the engine could not run the sequence (RuntimeError)" for answer in harness.answers.values())


def test_iterations_add_up(tiny: LoadedModel, engine_of: Build) -> None:
    """Over a run, prefill tokens reported are the prompts', decode tokens one less than each answer's, and numbers count from 1."""
    harness = engine_of(tiny, prefix_sharing=False, prefill_chunk=64)
    prompts = mixed_prompts(256)
    for at, prompt in enumerate(prompts):
        harness.submit(str(at), prompt, max_output_tokens=5, ignore_eos=True)
    harness.finish()
    assert sum(report.prefill_tokens for report in harness.reports) == sum(len(prompt) for prompt in prompts)
    assert sum(report.decode_tokens for report in harness.reports) == 16 * 4
    assert [report.number for report in harness.reports] == list(range(1, len(harness.reports) + 1))
    assert all(report.kv.total == harness.reports[0].kv.total for report in harness.reports)


def test_who_is_given_up_ends_before_it_begins_and_disturbs_nobody(tiny: LoadedModel, engine_of: Build) -> None:
    """A first token that was due before it arrived: its sequence ends without a token, idle or beside others, and theirs stay exact."""
    harness = engine_of(tiny, policy=DeadlineOrder(cost=IterationCost()))
    harness.submit("late alone", PROMPT, ttft_deadline_ns=1)
    assert harness.finish()["late alone"].failure == GAVE_UP
    harness.submit("patient", PROMPT, max_output_tokens=30, ignore_eos=True)
    harness.wait_for_tokens("patient")
    harness.submit("late beside", PROMPT, ttft_deadline_ns=1)
    answers = harness.finish()
    assert answers["late beside"].failure == GAVE_UP
    assert answers["late beside"].deltas == []
    assert answers["patient"].token_ids == alone(tiny, PROMPT, 30)
    kv = harness.engine.loop.kv_usage()
    assert kv.used == 0
