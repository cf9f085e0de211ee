"""Draws the next token of each row of a batch by that row's own rules, and scores tokens for those who ask.

Rules: row by row, so that the batch around a row changes nothing. Greedy rows never come here. top_k cuts first, then top_p over what
is left (the smallest set of best tokens whose mass reaches top_p, at least one token).
Two ways to the same token: on a CPU each row is narrowed to the tokens that can still win before noise is made for them; on an
accelerator all rows are drawn at once without waiting for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from halcyon.engine.noise import LARGEST_NOISE, gumbel, noise_key
from halcyon.engine.request import SamplingRules, TokenScore

_NUCLEUS_GUESS = 1024
"""Best tokens looked at before a whole row is sorted for top_p."""


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
    logprobs = torch.log_softmax(chosen, dim=-1)
    picked = logprobs.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1)).squeeze(1).tolist()
    width = min(max(row.rules.top_logprobs for row in rows), logits.shape[1])
    best, best_ids = (part.tolist() for part in torch.topk(logprobs, width, dim=-1))
    return [
        TokenScore(token_ids[at], picked[at], tuple(zip(best_ids[at], best[at], strict=True))[: row.rules.top_logprobs])
        for at, row in enumerate(rows)
    ]


def _draw_narrowed(logits: torch.Tensor, row: Row) -> int:
    low, high = noise_key(row.rules.seed, row.position)
    token_ids = _kept(logits, row.rules) if _filters(row.rules) else _contenders(logits, row.rules.temperature, low, high)
    scores = logits[token_ids].double() / row.rules.temperature + gumbel(token_ids, low, high)
    return int(token_ids[torch.argmax(scores)])


def _filters(rules: SamplingRules) -> bool:
    return rules.top_k > 0 or rules.top_p < 1.0


def _contenders(logits: torch.Tensor, temperature: float, low: int, high: int) -> torch.Tensor:
    """Ids that can win: those not further below the best logit than the difference between the largest noise and the best one's own."""
    best = torch.argmax(logits)
    own = float(gumbel(best, low, high))
    bar = float(logits[best]) - temperature * (LARGEST_NOISE - own)
    return torch.nonzero(logits >= bar - 1e-3 * abs(bar)).squeeze(1)


def _kept(logits: torch.Tensor, rules: SamplingRules) -> torch.Tensor:
    """Ids that top_k and top_p leave."""
    size = logits.shape[0]
    limit = min(rules.top_k or size, size)
    if rules.top_p >= 1.0:
        return torch.topk(logits, limit).indices
    scaled = logits.double() / rules.temperature
    floor = torch.logsumexp(torch.topk(scaled, limit).values if limit < size else scaled, dim=0)
    for width in (min(limit, _NUCLEUS_GUESS), limit):
        best, token_ids = torch.topk(scaled, width)
        mass = torch.exp(best - floor).cumsum(0)
        if width == limit or float(mass[-1]) >= rules.top_p:
            break
    before = torch.cat([mass.new_zeros(1), mass[:-1]])
    return token_ids[before < rules.top_p]


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
