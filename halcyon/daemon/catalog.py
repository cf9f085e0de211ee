"""The models this daemon knows: one `ModelSettings` for each version, in fleet order, registered ones last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from halcyon.config.settings import ModelSettings
from halcyon.core.batching.settings import BatchSettings
from halcyon.core.rollout.versions import ModelVersions, with_version


class Catalog:
    """Versions by (model, version)."""

    def __init__(self, models: Iterable[ModelSettings] = ()) -> None:
        self._versions: dict[tuple[str, str], ModelSettings] = {}
        for settings in models:
            self.add(settings)
        self._of_fleet = frozenset(self._versions)

    def is_of_fleet(self, model: str, version: str) -> bool:
        """Whether the fleet file names it: it is served, or missing. A registered one exists as long as its replicas."""
        return (model, version) in self._of_fleet

    def add(self, settings: ModelSettings) -> None:
        """Makes a version known; what is known of it already stays."""
        self._versions.setdefault((settings.name, settings.version), settings)

    def find(self, model: str, version: str) -> ModelSettings | None:
        """The settings of a version."""
        return self._versions.get((model, version))

    def default_version(self, model: str) -> str:
        """The first version of the model; '' for an unknown one."""
        return next((version for name, version in self._versions if name == model), "")

    def model_versions(self) -> tuple[ModelVersions, ...]:
        """The same as the core wants it."""
        known: tuple[ModelVersions, ...] = ()
        for name, version in self._versions:
            known = with_version(known, name, version)
        return known

    def batching(self) -> dict[tuple[str, str], BatchSettings]:
        """How each version's batches are formed."""
        return {serves: BatchSettings(policy=model.policy, objective=model.objective) for serves, model in self._versions.items()}

    def __iter__(self) -> Iterator[ModelSettings]:
        return iter(self._versions.values())
