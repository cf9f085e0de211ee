"""Which version of which model a client means.

Rules: pure. A model's versions stand in the order they were declared; the first is the default. A client may write `name`,
`name@version`, or a name with a version beside it; a model whose own name holds an `@` is found by its whole name first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halcyon.core.actions import Refusal


@dataclass(frozen=True, slots=True)
class ModelVersions:
    """One model. versions: at least one, the default first."""

    name: str
    versions: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.versions:
            raise ValueError(f"model {self.name!r} has no version; declare at least one")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the client's words mean."""

    model: str
    version: str


def resolve(models: Sequence[ModelVersions], model: str, version: str = "") -> Resolved | Refusal:
    """The (model, version) that `model`, perhaps with `version`, names; a refusal that names what exists otherwise."""
    by_name = {known.name: known for known in models}
    name, _, inline = (model, "", "") if model in by_name else model.rpartition("@")
    known = by_name.get(name)
    if known is None:
        return Refusal(code="model_not_found", message=f"no model {model!r} here; there are: {_listed([*by_name])}")
    if version and inline and version != inline:
        message = f"model {model!r} names version {inline!r}, but version {version!r} is asked for beside it; give one of the two"
        return Refusal(code="invalid_request", message=message)
    wanted = version or inline or known.versions[0]
    if wanted not in known.versions:
        message = f"model {name!r} has no version {wanted!r}; there are: {_listed(known.versions)}"
        return Refusal(code="model_not_found", message=message)
    return Resolved(name, wanted)


def with_version(models: Sequence[ModelVersions], name: str, version: str) -> tuple[ModelVersions, ...]:
    """`models` with this version in it: unchanged if it is there, else the last of its model, or a new model."""
    names = [known.name for known in models]
    if name not in names:
        return (*models, ModelVersions(name, (version,)))
    return tuple(
        ModelVersions(known.name, (*known.versions, version)) if known.name == name and version not in known.versions else known
        for known in models
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
