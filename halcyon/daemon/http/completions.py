"""`POST /v1/completions`: bodies in, completions and chunks out. Several prompts are served side by side, choices in OpenAI's order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from halcyon import clock
from halcyon.config.settings import Limits
from halcyon.daemon.http.answers import Answer, Answers
from halcyon.daemon.http.asked import Asked
from halcyon.daemon.http.messages import text_bytes
from halcyon.daemon.http.sampling import agreed_max_tokens, choices_of, sampling_of, unsaid_of
from halcyon.daemon.http.streamed_usage import StreamedUsage, check_stream_options
from halcyon.daemon.http.wording import LegacyLogprobs, usage_of
from halcyon.errors import InvalidRequest
from halcyon.wire.inference import Account, InferenceCall, Part
from halcyon.wire.openai import COMPLETION_BODY, CompletionAnswer, CompletionChoice, CompletionRequest

DEFAULT_MAX_TOKENS = 16
"""What the OpenAI API gives a completion without `max_tokens`."""
MAX_PROMPT_TOKEN_IDS = 1_048_576
"""More than any context holds; keeps a hostile list from costing anything further on."""
_BYTES_PER_TOKEN = 4
_encode = msgspec.json.Encoder().encode
Prompt = str | tuple[int, ...]


def read_completion(data: bytes, *, limits: Limits, request_id: str) -> Asked:
    """A `Dialect`."""
    body = COMPLETION_BODY.decode(data)
    check_stream_options(body.stream_options, stream=bool(body.stream))
    prompts = prompts_of(body.prompt)
    n = choices_of(body, limits)
    if len(prompts) * n > limits.max_queue:
        raise InvalidRequest(f"`prompt` asks for {len(prompts) * n} answers: at most {limits.max_queue} a request", param="prompt")
    sampling = sampling_of(
        body,
        limits=limits,
        max_output_tokens=_max_tokens_of(body),
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
    )
    shared = InferenceCall(
        model=body.model,
        sampling=sampling,
        n=n,
        stream=bool(body.stream),
        session_key=body.user or "",
        return_token_ids=bool(body.return_token_ids),
        endpoint="completions",
        unsaid=unsaid_of(body),
    )
    calls = tuple(_with_prompt(shared, prompt) for prompt in prompts)
    return Asked(calls=calls, reply=CompletionReply(body, request_id, prompts=len(prompts)))


def _max_tokens_of(body: CompletionRequest) -> int | None:
    if body.max_tokens is UNSET:
        return body.max_completion_tokens or DEFAULT_MAX_TOKENS
    return agreed_max_tokens(body.max_tokens, body.max_completion_tokens)


def prompts_of(prompt: str | list[str | int | list[int]]) -> list[Prompt]:
    """The prompts, each text or token ids.

    Raises:
        InvalidRequest: there is none, one is empty, or the forms are mixed.
    """
    prompts: list[Prompt] = []
    if isinstance(prompt, str):
        prompts = [prompt]
    elif prompt and all(isinstance(item, int) for item in prompt):
        prompts = [tuple(item for item in prompt if isinstance(item, int))]
    else:
        prompts = [_one_prompt(item) for item in prompt]
    if not prompts or not all(prompts):
        raise InvalidRequest("`prompt` is empty; send text or token ids", param="prompt")
    if any(len(item) > MAX_PROMPT_TOKEN_IDS for item in prompts if isinstance(item, tuple)):
        raise InvalidRequest(f"`prompt` holds more than {MAX_PROMPT_TOKEN_IDS} token ids; send fewer", param="prompt")
    if len({type(item) for item in prompts}) > 1:
        raise InvalidRequest("`prompt` mixes text and token ids; send one form", param="prompt")
    return prompts


def _one_prompt(item: str | int | list[int]) -> Prompt:
    if isinstance(item, int):
        raise InvalidRequest("`prompt` mixes single token ids with prompts; send a list of one kind", param="prompt")
    return item if isinstance(item, str) else tuple(item)


def _with_prompt(shared: InferenceCall, prompt: Prompt) -> InferenceCall:
    if isinstance(prompt, str):
        return msgspec.structs.replace(shared, text=prompt, input_bytes=text_bytes(prompt))
    return msgspec.structs.replace(shared, token_ids=prompt, input_bytes=_BYTES_PER_TOKEN * len(prompt))


class CompletionReply:
    """A `Reply`. One chunk for every part that shows something."""

    def __init__(self, body: CompletionRequest, request_id: str, *, prompts: int) -> None:
        choices = (body.n or 1) * prompts
        self._id = f"cmpl-{request_id}"
        self._model = body.model
        self._created_s = int(clock.wall_s())
        self._logprobs = [LegacyLogprobs() for _ in range(choices)] if body.logprobs is not None else None
        self._token_ids = bool(body.return_token_ids)
        self._usage = StreamedUsage(body.stream_options, choices=choices, choices_per_prompt=body.n or 1)

    def whole(self, answers: Answers, account: Account) -> bytes:
        """The body of a plain answer."""
        choices = tuple(self._choice(index, answer) for index, answer in enumerate(answers))
        usage = usage_of(account.usage)
        return _encode(CompletionAnswer(id=self._id, created=self._created_s, model=self._model, choices=choices, usage=usage))

    def step(self, parts: Sequence[Part]) -> bytes:
        """The chunks for one step."""
        events: list[bytes] = []
        for part in parts:
            self._usage.add(part)
            if part.text or part.finish_reason or part.logprobs or (self._token_ids and part.token_ids):
                events.append(self._event(part))
        return b"".join(events)

    def ending(self, account: Account) -> bytes:
        """The usage chunk, where it was asked for."""
        if not self._usage.at_end:
            return b""
        usage = usage_of(account.usage)
        chunk = CompletionAnswer(id=self._id, created=self._created_s, model=self._model, choices=(), usage=usage)
        return b"data: " + _encode(chunk) + b"\n\n"

    def _event(self, part: Part) -> bytes:
        choice = CompletionChoice(
            index=part.index,
            text=part.text,
            logprobs=self._logprobs[part.index].of(part.logprobs) if self._logprobs and part.logprobs else None,
            finish_reason=part.finish_reason,
            stop_reason=part.stop_reason,
            token_ids=list(part.token_ids) if self._token_ids else UNSET,
        )
        usage = self._usage.for_chunk()
        chunk = CompletionAnswer(id=self._id, created=self._created_s, model=self._model, choices=(choice,), usage=usage)
        return b"data: " + _encode(chunk) + b"\n\n"

    def _choice(self, index: int, answer: Answer) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=answer.text,
            logprobs=self._logprobs[index].of(answer.logprobs) if self._logprobs else None,
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._token_ids else UNSET,
        )
