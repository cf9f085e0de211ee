"""Strict bodies: typed where they fit, explained where they do not."""

from __future__ import annotations

import json

import msgspec
import pytest

from halcyon.errors import InvalidRequest
from halcyon.wire.api_body import MAX_ITEMS, Body, Fields
from halcyon.wire.api_infer import INFER_BODY, InferAnswer, InferEnd
from halcyon.wire.inference import Timings, Usage
from halcyon.wire.openai import CHAT_BODY, COMPLETION_BODY


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    """A nested object."""

    size: int = 0


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    """A body with everything a body may have."""

    name: str
    inner: Inner | None = None
    inners: list[Inner] = []


INNER = Fields(Inner, neutral={"weight": (1, None)})
BODY: Body[Outer] = Body(
    Outer, Fields(Outer, neutral={"old": (False, "off")}, spellings={"theName": "name"}, nested={"inner": INNER, "inners": INNER})
)


def _refusal(body: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        BODY.decode(json.dumps(body).encode())
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a", "inner": {"size": 3}},
        {"theName": "a", "inner": {"size": 3}},
        {"name": "a", "inner": {"size": 3}, "old": False},
        {"name": "a", "inner": {"size": 3}, "old": "off"},
        {"name": "a", "inner": {"size": 3}, "old": None},
        {"name": "a", "inner": {"size": 3, "weight": 1.0}},
    ],
)
def test_spellings_and_neutral_values_do_not_matter(body: object) -> None:
    """A body decodes to the same struct in any spelling, and with neutral fields at any depth or without."""
    assert BODY.decode(json.dumps(body).encode()) == Outer("a", Inner(3))


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"name": "a", "theName": "b"}, "name", "two spellings"),
        ({"name": "a", "old": True}, "old", "not supported; leave it out or send false"),
        ({"name": "a", "old": 0}, "old", "not supported"),
        ({"name": "a", "old": "x" * 1000}, "old", "not supported"),
        ({"name": "a", "nmae": 1}, "nmae", "did you mean `name`?"),
        ({"name": "a", "zzzzzz": 1}, "zzzzzz", "leave it out"),
        ({"name": "a", "inner": {"sise": 1}}, "inner.sise", "did you mean `size`?"),
        ({"name": "a", "inners": [{}, {"weight": 2}]}, "inners[1].weight", "not supported"),
        ({"name": "a", "inners": [{}, {"size": "x"}]}, "inners[1].size", "expected `int`, got `str`"),
        ({"name": "a", "inners": [{}] * MAX_ITEMS + [{"weight": 1}]}, "inners", f"at most {MAX_ITEMS}"),
        ({"name": 5}, "name", "`name` is 5: expected `str`"),
        ({}, "name", "missing required field `name`"),
        ({"name": "a", "y" * 500: 1}, "y" * 48, "not a known field"),
    ],
)
def test_a_refusal_names_the_field_and_what_to_do(body: object, param: str, says: str) -> None:
    """Every refusal carries the path of the field and says what was expected or what to do."""
    error = _refusal(body)
    assert error.param == param
    assert says in error.message
    assert len(error.message) < 200


@pytest.mark.parametrize("data", [b"", b"{", b"nul", b"\xff", b'{"name":"\xc3"}', b"{}{}"])
def test_what_is_not_json_is_said_to_be_so(data: bytes) -> None:
    """Broken JSON and broken UTF-8 are told apart from wrong fields, without repeating any of it."""
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        BODY.decode(data)


@pytest.mark.parametrize("open_", [b"[", b'{"a":'])
@pytest.mark.parametrize("head", [b"", b'{"name":"a","zz":', b'{"name":"a","inner":', b'{"name":"a","old":'])
def test_any_depth_of_nesting_is_survived(head: bytes, open_: bytes) -> None:
    """A hundred thousand levels, anywhere in the body, are an InvalidRequest and no crash (Python services)."""
    with pytest.raises(InvalidRequest):
        BODY.decode(head + open_ * 100_000)


SECRET = "secret-4711"
SECRETS: list[object] = [SECRET, [SECRET], {"secret": SECRET}, [{"role": SECRET, "content": {"a": SECRET}}]]
NAMES = ["model", "messages", "prompt", "input", "stop", "n", "seed", "user", "metadata", "tools", "lane", "version", "stream_options"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("body", [CHAT_BODY, COMPLETION_BODY, INFER_BODY])
def test_strings_of_a_body_are_never_repeated(body: Body[object], name: str) -> None:
    """Whatever field a secret stands in, the complaint about the body does not contain it (Secrets)."""
    for secret in SECRETS:
        with pytest.raises(InvalidRequest) as caught:
            body.decode(json.dumps({"model": 5, name: secret}).encode())
        assert "4711" not in caught.value.message + str(caught.value.param)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("max_tokens", 3, "it is `max_output_tokens`"),
        ("prompt", "x", "it is `input`"),
        ("messages", [], "it is `input`"),
        ("temperature", 99, "`temperature` is 99: expected at most 2"),
        ("top_p", 0, "`top_p` is 0: expected above 0"),
        ("seed", 2**63, f"expected at most {2**62}"),
    ],
)
def test_infer_names_its_own_fields_and_bounds(field: str, value: object, says: str) -> None:
    """What other endpoints call otherwise is told by its name here, and a number out of range by its bound, in words."""
    with pytest.raises(InvalidRequest) as caught:
        INFER_BODY.decode(json.dumps({"model": "m", "input": "x"} | {field: value}).encode())
    assert says in caught.value.message


def test_answers_of_infer_read_back() -> None:
    """What the daemon writes on /v1/infer decodes into the same structs on the other side of the socket."""
    account = {
        "request_id": "r",
        "model": "m",
        "version": "v1",
        "replica_id": "m-0",
        "usage": Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3),
        "timings": Timings(ttft_ms=1.5),
    }
    answer = InferAnswer(**account, output=["a", "b"], finish_reason=["stop", "length"], token_ids=[[1], [2]])
    end = InferEnd(**account, finish_reason="stop")
    assert msgspec.json.decode(msgspec.json.encode(answer), type=InferAnswer) == answer
    assert msgspec.json.decode(msgspec.json.encode(end), type=InferEnd) == end
