"""How a simulated worker reads a sequence: its prompt as text and tokens, its answer, and made-up but consistent log-probabilities.

The answer itself is `halcyon.core.simulated_answer`'s law. Chance counts only where the sampling has any: at temperature 0 neither the seed
nor the place among n answers matters, as in a real model.
"""

from __future__ import annotations

import math

from halcyon.core.simulated_answer import WORDS, SimulatedAnswer
from halcyon.wire.frames import Sequence, TokenLogprob

_BYTES_PER_TOKEN = 4


def prompt_text(sequence: Sequence) -> str:
    """The prompt as one string, whichever form it came in."""
    if sequence.messages is not None:
        return "\n".join(f"{message.role}: {message.content}" for message in sequence.messages)
    if sequence.token_ids is not None:
        return " ".join(map(str, sequence.token_ids))
    return sequence.text or ""


def prompt_tokens(sequence: Sequence) -> int:
    """Token ids are counted; text has one token for every four bytes of UTF-8. At least 1."""
    if sequence.token_ids is not None:
        return max(1, len(sequence.token_ids))
    return max(1, math.ceil(len(_prompt_bytes(sequence)) / _BYTES_PER_TOKEN))


def answer_to(sequence: Sequence, *, version: str, mean_tokens: int) -> SimulatedAnswer:
    """The answer, of which every token is fixed from now on."""
    sampling = sequence.sampling
    index, seed = 0, 0
    if sampling.temperature > 0 and sampling.seed is not None:
        seed = sampling.seed
    elif sampling.temperature > 0:
        index = _index(sequence.sequence_id)
    return SimulatedAnswer(_prompt_bytes(sequence), version=version, index=index, seed=seed, mean_tokens=mean_tokens)


def token_logprob(answer: SimulatedAnswer, position: int, *, top: int) -> TokenLogprob:
    """The chosen token holds half to nine tenths of the mass, and each runner-up half of what the ones before it left."""
    token_id = answer.token_id(position)
    left = 0.5 - 0.4 * ((token_id * 7 + position) % 10) / 10
    best = [(token_id, 1.0 - left)]
    for rank in range(1, top):
        left /= 2
        best.append(((token_id + rank) % len(WORDS), left))
    text = answer.token_text(position)
    runners_up = tuple((i, _word(i, position), _word(i, position).encode(), math.log(share)) for i, share in best[:top])
    return TokenLogprob(token_id=token_id, text=text, bytes_=text.encode(), logprob=math.log(best[0][1]), top=runners_up)


def _word(token_id: int, position: int) -> str:
    return f" {WORDS[token_id]}" if position else WORDS[token_id].capitalize()


def _prompt_bytes(sequence: Sequence) -> bytes:
    return prompt_text(sequence).encode()


def _index(sequence_id: str) -> int:
    """Which of n answers: the number after the last slash; 0 where there is none."""
    tail = sequence_id.rpartition("/")[2]
    return int(tail) if tail.isdecimal() else 0
