"""The life of a replica, as a table. Anyone who keeps a replica's state keeps it in a `Lifecycle`.

Rules: `TRANSITIONS` is the whole truth; the diagram in the docs is drawn from it. A transition that is not in it raises and changes
nothing. Only `ready` is ever selected; `draining` and `removed` are never left for a serving state, so a replica that was asked to
empty cannot come back by a late report of its process.
"""

from __future__ import annotations

from typing import Literal

ReplicaState = Literal["starting", "preparing", "loading", "warming", "ready", "draining", "waiting", "failed", "removed"]
"""`waiting`: lost, and expected back; `failed`: given up, an operator must act; `removed`: the end."""

TRANSITIONS: dict[ReplicaState, tuple[ReplicaState, ...]] = {
    "starting": ("preparing", "loading", "warming", "ready", "draining", "waiting", "failed", "removed"),
    "preparing": ("loading", "warming", "ready", "draining", "waiting", "failed", "removed"),
    "loading": ("warming", "ready", "draining", "waiting", "failed", "removed"),
    "warming": ("ready", "draining", "waiting", "failed", "removed"),
    "ready": ("draining", "waiting", "failed", "removed"),
    "draining": ("failed", "removed"),
    "waiting": ("starting", "ready", "draining", "failed", "removed"),  # a remote server comes back without a start
    "failed": ("starting", "removed"),
    "removed": (),
}
"""Where each state may lead. A runtime without a stage skips it, so every state of a start leads to all later ones."""

LIVING: tuple[ReplicaState, ...] = ("starting", "preparing", "loading", "warming", "ready", "waiting")
"""States from which a replica serves or may be expected to."""


class IllegalTransition(RuntimeError):
    """The caller's fault: the table has no such transition. Nothing changed."""

    def __init__(self, before: ReplicaState, after: ReplicaState) -> None:
        allowed = ", ".join(TRANSITIONS[before]) or "nothing"
        super().__init__(f"a replica cannot go from {before} to {after}; from {before} it may go to: {allowed}")


class Lifecycle:
    """The state of one replica."""

    def __init__(self) -> None:
        self._state: ReplicaState = "starting"

    @property
    def state(self) -> ReplicaState:
        """Where it is now."""
        return self._state

    @property
    def is_living(self) -> bool:
        """Whether it serves, or may be expected to."""
        return self._state in LIVING

    def may_move(self, after: ReplicaState) -> bool:
        """Whether `move` would succeed."""
        return after in TRANSITIONS[self._state]

    def move(self, after: ReplicaState) -> None:
        """Goes to `after`.

        Raises:
            IllegalTransition: the table has no such transition.
        """
        if not self.may_move(after):
            raise IllegalTransition(self._state, after)
        self._state = after
