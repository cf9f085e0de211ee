"""What a model's operator wants most of within the deadline: requests, tokens, or weighted requests.

Rule: device time goes to what yields most worth per unit of it. `rank` orders requests by size per worth (small first), `worth` is what
the price solver adds up. Under `tokens` every token is worth the same: all rank alike, nobody is shed by size, only batch time is solved
for.
"""

from __future__ import annotations

from typing import Literal

from halcyon.core.batching.item import WorkItem

Objective = Literal["count", "tokens", "weighted"]

LARGEST_RANK = 1 << 40


def rank(objective: Objective, item: WorkItem, tokens: int) -> int:
    """Integer sort key, in tokens per unit of worth; the smaller, the better a use of the device."""
    if objective == "weighted":
        return max(1, min(LARGEST_RANK, int(tokens / max(item.weight, 1e-9))))
    return tokens if objective == "count" else 1


def worth(objective: Objective, item: WorkItem, tokens: int) -> float:
    """What serving the request on time adds to the objective."""
    if objective == "tokens":
        return float(tokens)
    return item.weight if objective == "weighted" else 1.0


def sheds_by_size(objective: Objective) -> bool:
    """Whether a size price exists at all."""
    return objective != "tokens"
