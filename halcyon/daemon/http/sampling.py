"""The sampling fields of a body, checked against the daemon's limits."""

from __future__ import annotations

from typing import Literal

from halcyon.config.settings import Limits
from halcyon.errors import InvalidRequest
from halcyon.wire.frames import Sampling
from halcyon.wire.openai import SamplingFields

LONGEST_STOP_CHARS = 256
_MAX_STOP_TOKEN_IDS = 64
_LEFT_TO_MODELS: tuple[Literal["temperature", "top_p"], ...] = ("temperature", "top_p")


def sampling_of(fields: SamplingFields, *, limits: Limits, max_output_tokens: int | None, logprobs: bool, top_logprobs: int) -> Sampling:
    """The sampling that the fields ask for.

    Raises:
        InvalidRequest: a value is over a limit, or asks for what is not supported; the message names the field.
    """
    stop = _stop_of(fields, limits)
    _check_max_tokens(max_output_tokens, limits)
    _check_min_tokens(fields, stop=stop, max_output_tokens=max_output_tokens)
    defaults = Sampling()
    return Sampling(
        temperature=defaults.temperature if fields.temperature is None else fields.temperature,
        top_p=defaults.top_p if fields.top_p is None else fields.top_p,
        top_k=max(0, fields.top_k or 0),
        seed=fields.seed,
        max_output_tokens=max_output_tokens,
        ignore_eos=bool(fields.ignore_eos),
        stop=stop,
        stop_token_ids=_stop_token_ids_of(fields),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
    )


def unsaid_of(fields: SamplingFields) -> tuple[Literal["temperature", "top_p"], ...]:
    """What the model's own settings may say, because the client did not."""
    return tuple(name for name in _LEFT_TO_MODELS if getattr(fields, name) is None)


def choices_of(fields: SamplingFields, limits: Limits) -> int:
    """`n`.

    Raises:
        InvalidRequest: it is over the limit.
    """
    n = fields.n or 1
    if n > limits.max_choices:
        raise InvalidRequest(f"`n` is {n}: at most {limits.max_choices} answers a request", param="n")
    return n


def agreed_max_tokens(max_tokens: int | None, max_completion_tokens: int | None) -> int | None:
    """The two names of one bound.

    Raises:
        InvalidRequest: both are given and differ.
    """
    if max_tokens is not None and max_completion_tokens is not None and max_tokens != max_completion_tokens:
        message = f"`max_tokens` is {max_tokens} and `max_completion_tokens` is {max_completion_tokens}; send one of them"
        raise InvalidRequest(message, param="max_completion_tokens")
    return max_completion_tokens if max_tokens is None else max_tokens


def _stop_of(fields: SamplingFields, limits: Limits) -> tuple[str, ...]:
    stop = fields.stop
    strings = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > limits.max_stop_strings:
        raise InvalidRequest(f"`stop` holds {len(strings)} strings: at most {limits.max_stop_strings}", param="stop")
    if not all(0 < len(string) <= LONGEST_STOP_CHARS for string in strings):
        raise InvalidRequest(f"`stop` strings must have 1 to {LONGEST_STOP_CHARS} characters", param="stop")
    return strings


def _stop_token_ids_of(fields: SamplingFields) -> tuple[int, ...]:
    ids = tuple(fields.stop_token_ids or ())
    if len(ids) > _MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(f"`stop_token_ids` holds {len(ids)} ids: at most {_MAX_STOP_TOKEN_IDS}", param="stop_token_ids")
    return ids


def _check_max_tokens(max_output_tokens: int | None, limits: Limits) -> None:
    if max_output_tokens is not None and max_output_tokens > limits.max_output_tokens:
        message = f"`max_tokens` is {max_output_tokens}: at most {limits.max_output_tokens} output tokens a request"
        raise InvalidRequest(message, param="max_tokens")


def _check_min_tokens(fields: SamplingFields, *, stop: tuple[str, ...], max_output_tokens: int | None) -> None:
    """`min_tokens` is not supported, and is let through only where nothing could end the answer earlier."""
    if not fields.min_tokens:
        return
    runs_to_maximum = bool(fields.ignore_eos) and not stop and not fields.stop_token_ids
    if not runs_to_maximum or max_output_tokens is None or fields.min_tokens > max_output_tokens:
        message = "`min_tokens` is not supported, except with `ignore_eos` and no `stop`, up to `max_tokens`; leave it out"
        raise InvalidRequest(message, param="min_tokens")
