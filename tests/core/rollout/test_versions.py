"""What a client means by a model's name."""

from __future__ import annotations

import pytest

from halcyon.core.actions import Refusal
from halcyon.core.rollout.versions import ModelVersions, Resolved, resolve, with_version

MODELS = (ModelVersions("llama", ("v1", "v2")), ModelVersions("org@home", ("v1",)))


@pytest.mark.parametrize(
    ("model", "version", "meant"),
    [
        ("llama", "", ("llama", "v1")),
        ("llama", "v2", ("llama", "v2")),
        ("llama@v2", "", ("llama", "v2")),
        ("llama@v2", "v2", ("llama", "v2")),
        ("org@home", "", ("org@home", "v1")),
        ("org@home@v1", "", ("org@home", "v1")),
    ],
)
def test_names_that_mean_something(model: str, version: str, meant: tuple[str, str]) -> None:
    """The default is the first declared; an inline and a separate version mean the same; an `@` in a name is no trap."""
    assert resolve(MODELS, model, version) == Resolved(*meant)


@pytest.mark.parametrize(
    ("model", "version", "code", "says"),
    [
        ("gpt", "", "model_not_found", "llama, org@home"),
        ("gpt@v1", "", "model_not_found", "llama, org@home"),
        ("", "", "model_not_found", "llama, org@home"),
        ("llama", "v9", "model_not_found", "v1, v2"),
        ("llama@v9", "", "model_not_found", "v1, v2"),
        ("llama@v1", "v2", "invalid_request", "v1"),
        ("llama@", "v9", "model_not_found", "v1, v2"),
    ],
)
def test_names_that_mean_nothing(model: str, version: str, code: str, says: str) -> None:
    """The refusal names what exists, or what contradicts what."""
    refusal = resolve(MODELS, model, version)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code
    assert says in refusal.message


def test_without_models_the_refusal_says_so() -> None:
    """An empty fleet is named as such."""
    refusal = resolve((), "llama")
    assert isinstance(refusal, Refusal)
    assert refusal.message.endswith("there are: none")


def test_a_new_version_is_last_and_never_the_default() -> None:
    """Adding a version keeps the order, adding it twice changes nothing, and a new model begins with it."""
    grown = with_version(MODELS, "llama", "v3")
    assert grown[0].versions == ("v1", "v2", "v3")
    assert with_version(grown, "llama", "v3") == grown
    assert with_version(MODELS, "new", "v1") == (*MODELS, ModelVersions("new", ("v1",)))


def test_a_model_needs_a_version() -> None:
    """No version, no default: it raises, naming the model."""
    with pytest.raises(ValueError, match="'empty' has no version"):
        ModelVersions("empty", ())
