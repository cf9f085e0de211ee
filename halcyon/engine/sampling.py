"""Draws the next token of each row of a batch by that row's own rules, and scores tokens for those who ask.

Rules: row by row, so that the batch around a row changes nothing. Greedy rows never come here. top_k cuts first, then top_p over what
is left (the smallest set of best tokens whose mass reaches top_p, at least one token).
Two ways to the same token: on a CPU each row is narrowed to the tokens that can still win before noise is made for them; on an
accelerator all rows are drawn at once without waiting for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from halcyon.engine.noise import HIGH_NOISE, gumbel, likely_high, noise_key
from halcyon.engine.request import SamplingRules, TokenScore

_REACH = 8.0
"""Scaled logits within this of the best are looked at one by one; of the others only those with high noise."""

_NUCLEUS_REACH = 12.0
"""Scaled logits within this of the best are sorted for top_p before a whole row is."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the logits that needs more than argmax. `position`: absolute position of the token to draw."""

    index: int
    rules: SamplingRules
    position: int


def draw(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """Token ids (int64, one per row of `rows`) from `logits` (float32, rows × vocabulary). Every row must have temperature > 0."""
    if logits.device.type == "cpu":
        drawn = [_draw_narrowed(logits[row.index], row) for row in rows]
        return torch.tensor(drawn, dtype=torch.int64)
    return _draw_together(logits, rows)


def score(logits: torch.Tensor, rows: list[Row], token_ids: list[int]) -> list[TokenScore]:
    """Scores `token_ids` (one per row of `rows`) under the raw distribution of their rows."""
    if not rows:
        return []
    chosen = logits[torch.tensor([row.index for row in rows], device=logits.device)]
    total = torch.logsumexp(chosen, dim=-1, keepdim=True)
    picked = (chosen.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1)) - total).squeeze(1).tolist()
    width = min(max(row.rules.top_logprobs for row in rows), logits.shape[1])
    values, ids = torch.topk(chosen, width, dim=-1)
    best, best_ids = (values - total).tolist(), ids.tolist()
    return [
        TokenScore(token_ids[at], picked[at], tuple(zip(best_ids[at], best[at], strict=True))[: row.rules.top_logprobs])
        for at, row in enumerate(rows)
    ]


def _draw_narrowed(logits: torch.Tensor, row: Row) -> int:
    key = noise_key(row.rules.seed, row.position)
    if _filters(row.rules):
        return _winner(logits, _kept(logits, row.rules), row.rules.temperature, key)[0]
    return _draw_unfiltered(logits, row.rules.temperature, key)


def _winner(logits: torch.Tensor, token_ids: torch.Tensor, temperature: float, key: tuple[int, int]) -> tuple[int, float]:
    """The token with the highest noisy score among `token_ids`, and that score."""
    scores = logits[token_ids].double() / temperature + gumbel(token_ids, *key)
    at = int(torch.argmax(scores))
    return int(token_ids[at]), float(scores[at])


def _draw_unfiltered(logits: torch.Tensor, temperature: float, key: tuple[int, int]) -> int:
    """Looks at the tokens near the best and at those with high noise. Any other scores less than (best − reach) + high noise; in the rare
    draw where even that could win, at all of them."""
    size, best = logits.shape[0], float(logits.max())
    near = torch.nonzero(logits >= best - temperature * _REACH).squeeze(1)
    token_id, winning = _winner(logits, torch.cat([near, likely_high(size, *key)]), temperature, key)
    if winning > best / temperature - _REACH + HIGH_NOISE:
        return token_id
    return _winner(logits, torch.arange(size), temperature, key)[0]


def _filters(rules: SamplingRules) -> bool:
    return rules.top_k > 0 or rules.top_p < 1.0


def _kept(logits: torch.Tensor, rules: SamplingRules) -> torch.Tensor:
    """Ids that top_k and top_p leave, best first."""
    if 0 < rules.top_k < logits.shape[0]:
        best, token_ids = torch.topk(logits, rules.top_k)
        scaled = best.double() / rules.temperature
        return token_ids if rules.top_p >= 1.0 else token_ids[_nucleus(scaled, torch.logsumexp(scaled, dim=0), rules.top_p)]
    total = torch.logsumexp(logits / rules.temperature, dim=0).double()
    near = torch.nonzero(logits >= logits.max() - rules.temperature * _NUCLEUS_REACH).squeeze(1)
    for token_ids in (near, torch.arange(logits.shape[0])):
        best, order = torch.sort(logits[token_ids], descending=True, stable=True)
        scaled = best.double() / rules.temperature
        if float(torch.exp(scaled - total).sum()) >= rules.top_p:
            break
    return token_ids[order][_nucleus(scaled, total, rules.top_p)]


def _nucleus(scaled: torch.Tensor, total: torch.Tensor, top_p: float) -> torch.Tensor:
    """Which of the scaled logits, best first, are needed to reach `top_p` of a distribution with that log-sum."""
    mass = torch.exp(scaled - total).cumsum(0)
    return torch.cat([mass.new_zeros(1), mass[:-1]]) < top_p


def _draw_together(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    device = logits.device
    scaled = logits[torch.tensor([row.index for row in rows], device=device)].double()
    scaled = scaled / torch.tensor([row.rules.temperature for row in rows], dtype=torch.float64, device=device).unsqueeze(1)
    if any(_filters(row.rules) for row in rows):
        scaled = _masked(scaled, [row.rules for row in rows])
    keys = torch.tensor([noise_key(row.rules.seed, row.position) for row in rows], device=device)
    token_ids = torch.arange(logits.shape[1], device=device).unsqueeze(0)
    return torch.argmax(scaled + gumbel(token_ids, keys[:, :1], keys[:, 1:]), dim=-1)


def _masked(scaled: torch.Tensor, rules: list[SamplingRules]) -> torch.Tensor:
    """`scaled` (rows × vocabulary) with −inf where top_k or top_p cut."""
    size, device = scaled.shape[1], scaled.device
    best, order = torch.sort(scaled, dim=-1, descending=True, stable=True)
    top_k = torch.tensor([rule.top_k or size for rule in rules], device=device).unsqueeze(1)
    top_p = torch.tensor([rule.top_p for rule in rules], dtype=torch.float64, device=device).unsqueeze(1)
    best = best.masked_fill(torch.arange(size, device=device).unsqueeze(0) >= top_k, float("-inf"))
    mass = torch.softmax(best, dim=-1).cumsum(-1)
    before = torch.cat([mass.new_zeros(mass.shape[0], 1), mass[:, :-1]], dim=1)
    best = best.masked_fill((before >= top_p) & (top_p < 1.0), float("-inf"))
    return torch.full_like(scaled, float("-inf")).scatter(1, order, best)
