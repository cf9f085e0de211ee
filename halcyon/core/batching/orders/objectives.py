"""What is owed to a sequence. Where nobody said so, plans reckon with 20 s to the first token and 200 ms a token, and bind nobody to it."""

from __future__ import annotations

from halcyon.core.batching.iteration import SequenceView

VIRTUAL_TTFT_NS = 20_000_000_000
VIRTUAL_TPOT_NS = 200_000_000


def ttft_deadline_ns(sequence: SequenceView) -> int:
    """Absolute instant by which the first token is due; a request with only a whole-answer deadline owes it by then."""
    if sequence.ttft_deadline_ns is not None:
        return sequence.ttft_deadline_ns
    if sequence.deadline_ns is not None:
        return sequence.deadline_ns
    return sequence.arrived_ns + VIRTUAL_TTFT_NS


def is_owed(sequence: SequenceView) -> bool:
    """Whether missing the first-token deadline is a miss at all."""
    return sequence.ttft_deadline_ns is not None or sequence.deadline_ns is not None


def tpot_ns(sequence: SequenceView) -> int:
    """Duration per further token."""
    return VIRTUAL_TPOT_NS if sequence.tpot_ns is None else sequence.tpot_ns
