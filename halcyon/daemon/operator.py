"""What an operator may do over the control socket; `halcyon.daemon.control_socket.Operator` over a running daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from halcyon import clock
from halcyon.config.settings import ModelSettings
from halcyon.config.sources import remote_source_problem
from halcyon.daemon.assembly import Assembly
from halcyon.errors import Conflict, InvalidRequest, ModelNotFound
from halcyon.store.file import HistoryUnavailable
from halcyon.store.history import Store
from halcyon.store.rows import RegistrationRow
from halcyon.wire.control import ModelList, RegisterRequest, ReplicaList, ReplicaStatus, Status

_FIRST_VERSION = "v1"


class FleetOperator:
    """status_of: builds the status. Registrations are committed before they are answered."""

    def __init__(self, fleet: Assembly, store: Store, status_of: Callable[[], Status]) -> None:
        self._fleet = fleet
        self._store = store
        self._status_of = status_of
        self._promised: set[str] = set()

    def status(self) -> Status:
        """The daemon at a glance."""
        return self._status_of()

    def down(self, *, now: bool) -> None:
        """Begins the drain, or hurries it."""
        if now or not self._fleet.drain.is_begun:
            self._fleet.drain.begin(now=now)

    def model_list(self) -> ModelList:
        """All versions."""
        return ModelList(models=self._fleet.report.models())

    def replica_list(self) -> ReplicaList:
        """All replicas."""
        return ReplicaList(replicas=self._fleet.report.replicas())

    async def register(self, asked: RegisterRequest) -> ReplicaStatus:
        """Adds a remote replica.

        Raises:
            ModelNotFound: nobody serves such a model, and it was not said to be new.
            InvalidRequest: a field is wrong. Conflict: it cannot be kept for the next daemon, or the daemon goes down.
        """
        if self._fleet.drain.is_begun:
            raise Conflict("the daemon is going down; register with the next one")
        self._refuse_typing_error(asked)
        version = asked.version or self._fleet.catalog.default_version(asked.model) or _FIRST_VERSION
        model = remote_model(asked, version=version)
        replica_id = self._fleet.supervisor.free_id(model, registered=True, promised=self._promised)
        self._promised.add(replica_id)  # the next registration may come while this one is written
        try:
            await self._commit(self._store.register, _row(asked, version=version, replica_id=replica_id))
            self.readmit(model, replica_id)
        finally:
            self._promised.discard(replica_id)
        return self._status(replica_id)

    def readmit(self, model: ModelSettings, replica_id: str) -> None:
        """Starts a registered replica, now or when the next daemon finds it in the history."""
        self._fleet.catalog.add(model)
        self._fleet.supervisor.add(model, replica_id=replica_id, registered=True)

    def drain_replica(self, replica_id: str) -> ReplicaStatus:
        """Takes it out of selection."""
        return self._status(self._fleet.supervisor.drain(replica_id).replica_id)

    async def remove_replica(self, replica_id: str) -> ReplicaStatus:
        """Drains and forgets it."""
        replica = self._fleet.supervisor.find(replica_id)
        if replica.registered:
            await self._commit(self._store.unregister, replica_id)
        replica = self._fleet.supervisor.remove(replica_id)
        outstanding = self._fleet.loop.core.outstanding().get(replica_id, 0)
        return replica.status(outstanding=outstanding, now=self._fleet.loop.now())

    def _refuse_typing_error(self, asked: RegisterRequest) -> None:
        """A registration outlives the daemon: a misspelt name must not become a model."""
        known = dict.fromkeys(model.name for model in self._fleet.report.models())
        if not asked.new and asked.model not in known:
            there = ", ".join(known) or "none"
            raise ModelNotFound(
                f"no model {asked.model!r} here; there are: {there}. Pass `new` (--new) to add one of this name", param="model"
            )

    def _status(self, replica_id: str) -> ReplicaStatus:
        outstanding = self._fleet.loop.core.outstanding().get(replica_id, 0)
        return self._fleet.supervisor.find(replica_id).status(outstanding=outstanding, now=self._fleet.loop.now())

    async def _commit(self, keep: Callable[..., object], what: RegistrationRow | str) -> None:
        try:
            await asyncio.wrap_future(keep(what))  # type: ignore[arg-type]  # both give a concurrent future
        except HistoryUnavailable as error:
            raise Conflict(f"nothing was changed, because it could not be kept for the next start: {error.message}") from None


def remote_model(asked: RegisterRequest | RegistrationRow, *, version: str) -> ModelSettings:
    """The settings of a registered remote replica.

    Raises:
        InvalidRequest: a field is wrong; the message names it.
    """
    problem = remote_source_problem(asked.url)
    if problem:
        raise InvalidRequest(f"url: {problem}", param="url")
    try:
        return msgspec.convert(
            {
                "name": asked.model,
                "version": version,
                "runtime": "openai",
                "source": asked.url,
                "max_batch": asked.max_batch,
                "max_context": asked.max_context,
                "openai": {"remote_model": asked.remote_model, "api_key_env": asked.api_key_env},
            },
            ModelSettings,
        )
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the registration is not valid: {error}") from None


def _row(asked: RegisterRequest, *, version: str, replica_id: str) -> RegistrationRow:
    return RegistrationRow(
        replica_id=replica_id,
        at=clock.wall_s(),
        model=asked.model,
        version=version,
        url=asked.url,
        remote_model=asked.remote_model,
        api_key_env=asked.api_key_env,
        max_batch=asked.max_batch,
        max_context=asked.max_context,
    )
