"""What a simulated model says."""

from __future__ import annotations

from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.simulated_answer import WORDS, SimulatedAnswer


def test_an_answer_is_fixed_for_ever() -> None:
    """One recorded answer, word for word: it must not change between releases, machines or hash seeds."""
    answer = SimulatedAnswer(b"hello", version="v1")
    assert answer.text(6) == "Amber delta cedar ember pearl acorn"
    assert answer.target_tokens == 61


@given(st.binary(max_size=64), st.sampled_from(["v1", "v2"]), st.integers(0, 7), st.integers(-5, 5))
def test_the_same_four_give_the_same_answer(prompt: bytes, version: str, index: int, seed: int) -> None:
    """A retry on another replica says the same, token by token, and joined tokens are the text."""
    twins = [SimulatedAnswer(prompt, version=version, index=index, seed=seed) for _ in range(2)]
    assert twins[0].text(40) == twins[1].text(40) == "".join(twins[0].token_text(place) for place in range(40))
    assert twins[0].target_tokens == twins[1].target_tokens
    assert all(0 <= twins[0].token_id(place) < len(WORDS) for place in range(40))


def test_each_of_the_four_changes_the_answer() -> None:
    """Another prompt, version, index or seed says something else."""
    answers = [
        SimulatedAnswer(prompt, version=version, index=index, seed=seed).text(32)
        for prompt in (b"", b"a")
        for version in ("v1", "v2")
        for index in (0, 1)
        for seed in (0, 1)
    ]
    assert len({*answers}) == 16


def test_lengths_have_the_mean_that_was_asked_for() -> None:
    """Over 4,000 prompts the mean length is within 2 % of 64, and no answer is outside half to one and a half of it."""
    lengths = [SimulatedAnswer(number.to_bytes(4, "little"), version="v1", mean_tokens=64).target_tokens for number in range(4000)]
    assert abs(mean(lengths) - 64) < 64 * 0.02
    assert (min(lengths), max(lengths)) == (32, 96)


@given(st.integers(0, 10_000), st.binary(max_size=8))
def test_an_answer_has_at_least_one_token(mean_tokens: int, prompt: bytes) -> None:
    """Whatever mean is asked for, there is something to send."""
    assert 1 <= SimulatedAnswer(prompt, version="v1", mean_tokens=mean_tokens).target_tokens <= max(1, mean_tokens * 3 / 2)


def test_nothing_of_the_prompt_is_in_the_answer() -> None:
    """Fault: prompts in what is written. Every word comes from the fixed vocabulary."""
    text = SimulatedAnswer(b"a secret prompt", version="v1").text(200)
    assert {word.lower() for word in text.split()} <= {*WORDS}
