"""The actor: order, time and failure of the loop around the core."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from halcyon import clock
from halcyon.core.actions import Action, Dispatch, Refuse
from halcyon.core.control import ControlPlane, ControlSettings
from halcyon.core.events import ReplicaAdded, ReplicaReady, RequestArrived, RequestFailed
from halcyon.core.request import Request
from halcyon.core.rollout.versions import ModelVersions
from halcyon.daemon.loop import ControlLoop

MS = 1_000_000


@dataclass
class Shell:
    """A control loop over a real core; its clock reads what the test says, then real time flows on."""

    instants: list[int]
    orders: list[tuple[Action, int]] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)
    timed_out: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        core = ControlPlane(ControlSettings(models=(ModelVersions("m", ("v1",)),)), rng=random.Random(1))
        self.loop = ControlLoop(core, carry_out=self._carry_out, on_broken=self.broken.append, read_clock=self._clock)

    def _clock(self) -> int:
        return self.instants.pop(0) if len(self.instants) > 1 else self.instants[0]

    def _carry_out(self, action: Action, now: int) -> None:
        self.orders.append((action, now))
        if isinstance(action, Refuse):
            self.timed_out.set()
        if isinstance(action, Dispatch) and action.request_ids == ("busy",):
            self.loop.handle(RequestFailed(request_id="busy", replica_id="a", code="upstream_failure", message="no", retryable=False))
            assert self.orders[-1][0] is action, "what an order brings about is handled after it, not inside it"

    def replica(self) -> None:
        """A ready replica `a`."""
        self.loop.handle(ReplicaAdded(replica_id="a", model="m", version="v1", kind="continuous", max_batch=4))
        self.loop.handle(ReplicaReady(replica_id="a", kind="continuous", max_batch=4))


def request(request_id: str, *, deadline_ns: int | None = None) -> RequestArrived:
    """A request at instant 0."""
    return RequestArrived(Request(request_id=request_id, model="m", version="v1", arrived_ns=0, prompt_tokens=1, deadline_ns=deadline_ns))


async def test_time_never_goes_back() -> None:
    """A clock that steps back from 9 ms to 4 ms leaves the loop at 9 ms."""
    shell = Shell([9 * MS, 4 * MS, 12 * MS])
    assert [shell.loop.now() for _ in range(3)] == [9 * MS, 9 * MS, 12 * MS]


async def test_what_an_order_brings_about_is_handled_after_it() -> None:
    """A dispatch that fails on the spot is followed by its refusal, in that order."""
    shell = Shell([MS])
    shell.replica()
    shell.loop.handle(request("busy"))
    assert [type(order).__name__ for order, _ in shell.orders] == ["Dispatch", "Refuse"]


async def test_a_queued_request_expires_by_the_loops_own_timer() -> None:
    """Without any other event a request whose deadline is 5 ms away is refused when it has come. (Fault: expiry waits for the batch.)"""
    start = clock.now_ns()
    shell = Shell([start])
    shell.loop = ControlLoop(shell.loop.core, carry_out=shell._carry_out, on_broken=shell.broken.append)
    shell.loop.handle(ReplicaAdded(replica_id="a", model="m", version="v1", kind="continuous", max_batch=4))
    shell.loop.handle(request("late", deadline_ns=start + 5 * MS))
    async with asyncio.timeout(10):
        await shell.timed_out.wait()
    (order, instant) = shell.orders[0]
    assert isinstance(order, Refuse)
    assert order.refusal.code == "deadline_unreachable"
    assert instant >= start + 5 * MS


async def test_a_broken_promise_is_reported_and_raised() -> None:
    """A fact that cannot be (a replica id used twice) raises in the caller and is told to the daemon."""
    shell = Shell([MS])
    shell.replica()
    with pytest.raises(ValueError, match="'a'"):
        shell.replica()
    assert len(shell.broken) == 1
