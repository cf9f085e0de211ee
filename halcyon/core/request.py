"""What the core knows of a request: sizes, objectives and standing; never its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lane = Literal["interactive", "bulk"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One client request, which may be several sequences (n > 1) that are served together on one replica.

    Attributes:
        arrived_ns: monotonic instant of arrival.
        deadline_ns / ttft_deadline_ns: absolute instants; `None` without the objective. tpot_ns: duration per token.
        prompt_tokens: estimate on arrival (bytes / 4 where nothing better is known). max_output_tokens: the client's bound, if any.
        sequences: how many answers; each takes one slot of a replica.
        priority: higher is more important. weight: worth where the objective is weighted; > 0. session_key: empty without one.
        replica_id: pinned to this replica (operators' tests); empty for the router's choice.
    """

    request_id: str
    model: str
    version: str
    arrived_ns: int
    prompt_tokens: int
    max_output_tokens: int | None = None
    deadline_ns: int | None = None
    ttft_deadline_ns: int | None = None
    tpot_ns: int | None = None
    lane: Lane = "interactive"
    priority: int = 0
    weight: float = 1.0
    sequences: int = 1
    tenant: str = ""
    session_key: str = ""
    replica_id: str = ""
