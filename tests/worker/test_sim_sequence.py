"""What one simulated sequence says: sampling fields, stop strings and token counts, exactly."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from worker_rig import sequence

from halcyon.core.simulated_answer import SimulatedAnswer
from halcyon.wire.frames import ChatMessage, Delta, Sampling, Sequence
from halcyon.worker.sim_sequence import SimulatedSequence


def deltas_of(asked: Sequence, *, mean_tokens: int = 20) -> list[Delta]:
    """Everything it says, token by token."""
    running = SimulatedSequence(asked, version="v1", mean_tokens=mean_tokens, max_context=10_000)
    deltas = []
    while running.finish_reason is None:
        deltas.append(running.step(now=0))
    return deltas


def text_of(asked: Sequence) -> str:
    """Its whole answer."""
    return "".join(d.text for d in deltas_of(asked))


def test_an_answer_ends_by_itself_where_the_law_says() -> None:
    """Without a maximum it ends as `stop` after its natural length, a function of prompt and version."""
    deltas = deltas_of(sequence("r/0", text="why", tokens=None))
    target = SimulatedAnswer(b"why", version="v1", mean_tokens=20).target_tokens
    assert (len(deltas), deltas[-1].finish_reason, deltas[-1].stop_reason) == (target, "stop", None)
    assert [d.output_tokens for d in deltas] == list(range(1, target + 1))


def test_max_output_tokens_is_a_real_maximum() -> None:
    """`max_tokens` is a maximum: 3 means 3, and the reason is `length`."""
    deltas = deltas_of(sequence("r/0", tokens=3, ignore_eos=False))
    assert (len(deltas), deltas[-1].finish_reason) == (3, "length")


def test_ignore_eos_goes_on_to_the_maximum() -> None:
    """With `ignore_eos` an answer of about 20 tokens goes on to 100."""
    assert len(deltas_of(sequence("r/0", tokens=100, ignore_eos=True))) == 100


def test_a_stop_string_over_tokens_is_never_emitted() -> None:
    """Part of a stop string is sent before the match: a stop string that spans three tokens ends the answer, and no part of it leaves."""
    whole = text_of(sequence("r/0", tokens=12))
    stop = whole[20:34]
    cut = deltas_of(sequence("r/0", tokens=12, stop=(stop,)))
    assert "".join(d.text for d in cut) == whole[: whole.index(stop)]
    assert (cut[-1].finish_reason, cut[-1].stop_reason) == ("stop", stop)


@given(start=st.integers(0, 60), size=st.integers(1, 20), tail=st.text(max_size=3))
def test_no_stop_string_ever_leaks(start: int, size: int, tail: str) -> None:
    """Whatever the stop string, what was sent is a prefix of the whole answer, without the stop string and without a piece of a match."""
    whole = text_of(sequence("r/0", tokens=20))
    stop = whole[start : start + size] + tail
    if not stop:
        return
    said = text_of(sequence("r/0", tokens=20, stop=(stop,)))
    assert said == (whole[: whole.index(stop)] if stop in whole else whole)


def test_a_stop_token_ends_without_its_text() -> None:
    """A stop token id ends the answer, is counted and named, and its own text is not part of it."""
    first, second, *_ = (d.token_ids[0] for d in deltas_of(sequence("r/0", tokens=12, logprobs=True)))
    deltas = deltas_of(sequence("r/0", tokens=12, stop_token_ids=(second,)))
    assert (len(deltas), deltas[-1].finish_reason, deltas[-1].stop_reason) == (2, "stop", second)
    assert deltas[-1].text == ""
    assert first != second


def test_the_prompt_is_reported_once() -> None:
    """Prompt tokens stand on the first delta only: bytes/4 for text, a count for ids, at least one."""
    deltas = deltas_of(sequence("r/0", text="x" * 41))
    assert [d.prompt_tokens for d in deltas] == [11, 0, 0, 0]
    assert deltas_of(Sequence(sequence_id="r/0", token_ids=(5, 6, 7)))[0].prompt_tokens == 3
    assert deltas_of(Sequence(sequence_id="r/0", text=""))[0].prompt_tokens == 1


def test_text_messages_and_ids_are_different_prompts() -> None:
    """Each form is read whole: another message, another answer."""
    ask = [
        Sequence(sequence_id="r/0", text="hello", sampling=Sampling(temperature=0.0)),
        Sequence(sequence_id="r/0", messages=(ChatMessage("user", "hello"),), sampling=Sampling(temperature=0.0)),
        Sequence(sequence_id="r/0", messages=(ChatMessage("system", "hello"),), sampling=Sampling(temperature=0.0)),
        Sequence(sequence_id="r/0", token_ids=(1, 2), sampling=Sampling(temperature=0.0)),
    ]
    assert len({text_of(a) for a in ask}) == 4
    assert [text_of(a) for a in ask] == [text_of(a) for a in ask]


def test_a_seed_matters_only_where_there_is_chance() -> None:
    """Greedy answers ignore the seed and the place among n; sampled ones follow the seed, or the place without one."""
    greedy = {text_of(sequence(f"r/{i}", seed=i)) for i in range(3)}
    seeded = [text_of(sequence(f"r/{i}", temperature=1.0, seed=7)) for i in range(3)]
    drawn = {text_of(sequence(f"r/{i}", temperature=1.0, tokens=8)) for i in range(3)}
    assert len(greedy) == 1
    assert len(set(seeded)) == 1
    assert len(drawn) == 3
    assert seeded[0] != text_of(sequence("r/0", temperature=1.0, seed=8))


def test_logprobs_are_a_distribution() -> None:
    """With 5 top log-probabilities, the chosen token leads them, they fall, and their mass stays within 1; the bytes spell the text."""
    for delta in deltas_of(sequence("r/0", tokens=12, logprobs=True, top_logprobs=5)):
        (one,) = delta.logprobs
        assert delta.token_ids == (one.token_id,)
        assert one.top[0] == (one.token_id, one.text, one.bytes_, one.logprob)
        shares = [math.exp(logprob) for *_, logprob in one.top]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= 1.0
        assert len({token_id for token_id, *_ in one.top}) == 5
        assert one.bytes_.decode() == one.text


def test_ids_come_only_when_asked_for() -> None:
    """Plain deltas carry neither ids nor log-probabilities."""
    assert all(d.token_ids == () and d.logprobs == () for d in deltas_of(sequence("r/0")))
    asked = Sequence(sequence_id="r/0", text="x", return_token_ids=True, sampling=Sampling(max_output_tokens=2, ignore_eos=True))
    assert [len(d.token_ids) for d in deltas_of(asked)] == [1, 1]
