"""Sampling: the right distribution, the same token whatever stands around the row, and two devices' ways that agree."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halcyon.engine import sampling
from halcyon.engine.noise import HIGH_NOISE, gumbel, likely_high, noise_key
from halcyon.engine.request import SamplingRules
from halcyon.engine.sampling import Row, draw, score


def rows(rules: SamplingRules, positions: range, *, index: int = 0) -> list[Row]:
    """One row of rules for each position."""
    return [Row(index, rules, position) for position in positions]


def frequencies(logits: torch.Tensor, rules: SamplingRules, draws: int) -> torch.Tensor:
    """How often each token was drawn over `draws` positions."""
    drawn = draw(logits.unsqueeze(0), rows(rules, range(draws)))
    return torch.bincount(drawn, minlength=logits.shape[0]) / draws


def random_logits(count: int, vocabulary: int, seed: int) -> torch.Tensor:
    """Logits with a spread like a language model's."""
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3.0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    """Over 4000 positions each token's share is within four standard errors of softmax(logits / temperature)."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -4.0])
    draws = 4000
    expected = torch.softmax(logits.double() / temperature, dim=0)
    found = frequencies(logits, SamplingRules(temperature=temperature, seed=11), draws)
    for share, probability in zip(found.tolist(), expected.tolist(), strict=True):
        assert abs(share - probability) <= 4 * math.sqrt(probability * (1 - probability) / draws)


def test_first_position_over_seeds_follows_the_softmax() -> None:
    """Over 4000 seeds at one position the shares are right as well: seeds are independent of each other."""
    logits = torch.tensor([1.5, 0.0, 0.0, -1.0])
    expected = torch.softmax(logits.double(), dim=0).tolist()
    drawn = [int(draw(logits.unsqueeze(0), [Row(0, SamplingRules(temperature=1.0, seed=seed), 7)])) for seed in range(4000)]
    for token_id, probability in enumerate(expected):
        assert abs(drawn.count(token_id) / 4000 - probability) <= 4 * math.sqrt(probability * (1 - probability) / 4000)


def test_top_k_keeps_only_the_best() -> None:
    """With top_k = 2 nothing but the two best tokens is ever drawn, in the right proportion."""
    found = frequencies(torch.tensor([1.0, 3.0, 2.5, 0.0]), SamplingRules(temperature=1.0, top_k=2, seed=3), 3000)
    assert found[0] == found[3] == 0
    assert abs(float(found[1]) - 1 / (1 + math.exp(-0.5))) < 0.04


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, {0}), (0.7, {0, 1}), (0.94, {0, 1, 2}), (1e-9, {0})])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: set[int]) -> None:
    """Of probabilities 0.6, 0.25, 0.1, 0.05 the nucleus holds exactly the tokens that are needed, and never none."""
    logits = torch.log(torch.tensor([0.6, 0.25, 0.1, 0.05]))
    found = frequencies(logits, SamplingRules(temperature=1.0, top_p=top_p, seed=3), 2000)
    assert {token_id for token_id, share in enumerate(found.tolist()) if share > 0} == kept


RULES = st.builds(
    SamplingRules,
    temperature=st.floats(0.05, 3.0),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    top_k=st.sampled_from([0, 1, 5, 40]),
    seed=st.integers(-(2**70), 2**70),
)


@settings(max_examples=60, deadline=None)
@given(RULES, st.integers(0, 4096), st.integers(0, 1000))
def test_the_batch_around_a_row_changes_nothing(rules: SamplingRules, position: int, seed: int) -> None:
    """A row draws the same token alone, as the fifth of nine, and in the way an accelerator draws."""
    logits = random_logits(9, 700, seed)
    row = Row(4, rules, position)
    others = [Row(at, SamplingRules(temperature=1.0, seed=at), at) for at in (0, 3, 8)]
    alone = int(draw(logits[4:5], [Row(0, rules, position)])[0])
    assert int(draw(logits, [others[0], row, *others[1:]])[1]) == alone
    assert int(sampling._draw_together(logits, [others[0], row, *others[1:]])[1]) == alone


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000))
def test_high_noise_is_found_without_computing_it(seed: int, position: int) -> None:
    """The short way finds exactly the tokens whose noise is in the top 256th, and none beyond exceeds the stated bound."""
    low, high = noise_key(seed, position)
    noise = gumbel(torch.arange(20_000), low, high)
    found = torch.zeros(20_000, dtype=torch.bool)
    found[likely_high(20_000, low, high)] = True
    assert float(noise[~found].max()) <= HIGH_NOISE
    assert float(noise[found].min()) >= HIGH_NOISE - 1e-4


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 10.0])
def test_looking_at_few_tokens_draws_what_looking_at_all_does(spread: float) -> None:
    """Over 300 draws from 5000 tokens, flat or steep, the narrowed draw is the argmax over all noisy scores."""
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(2)) * spread
    for position in range(300):
        everything = logits.double() / 0.8 + gumbel(torch.arange(5000), *noise_key(9, position))
        assert int(draw(logits.unsqueeze(0), [Row(0, SamplingRules(temperature=0.8, seed=9), position)])) == int(everything.argmax())


def test_the_rare_draw_looks_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tokens looked at do not settle the draw, all are: with a reach of nothing the result is still the same."""
    logits = torch.zeros(1, 400)
    rows_alike = rows(SamplingRules(temperature=1.0, seed=4), range(50))
    expected = draw(logits, rows_alike)
    monkeypatch.setattr(sampling, "_REACH", 0.0)
    logits[0, 0] = 1e-6
    assert torch.equal(draw(logits, rows_alike), expected)


def test_scores_are_the_raw_distribution() -> None:
    """Logprobs ignore temperature and filters, sum to one, and list the best tokens in order."""
    logits = random_logits(2, 50, 1)
    expected = torch.log_softmax(logits[1], dim=0)
    rules = SamplingRules(temperature=0.1, top_k=1, logprobs=True, top_logprobs=20)
    found = score(logits, [Row(1, rules, 0)], [17])[0]
    assert found.logprob == pytest.approx(float(expected[17]), abs=1e-6)
    assert [token_id for token_id, _ in found.top] == torch.topk(expected, 20).indices.tolist()
    everything = score(logits, [Row(1, SamplingRules(logprobs=True, top_logprobs=50), 0)], [17])[0]
    assert sum(math.exp(logprob) for _, logprob in everything.top) == pytest.approx(1.0, abs=1e-5)


def test_a_large_nucleus_is_found_too() -> None:
    """A flat distribution over 5000 tokens with top_p = 0.9 draws from about 4500 of them, none beyond."""
    logits = torch.linspace(0.0, 0.001, 5000)
    kept = sampling._kept(logits, SamplingRules(temperature=1.0, top_p=0.9))
    assert 4490 <= kept.numel() <= 4510
    assert int(kept.min()) >= 5000 - 4510
