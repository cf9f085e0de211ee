"""Whatever happens in whatever order, the books balance. A witness keeps its own account of every request and replica."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from core_story import MODELS, Story
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from halcyon.core.actions import Action, Cancel, Dispatch, DrainFinished, Fail, Refuse, ReplicaEmptied
from halcyon.core.control import ControlPlane, ControlSettings
from halcyon.core.events import (
    ClientGone,
    DrainStarted,
    FirstByteSent,
    ReplicaAdded,
    ReplicaDrainStarted,
    ReplicaLost,
    ReplicaReady,
    ReplicaRemoved,
    RequestArrived,
    RequestFailed,
    SequencesFinished,
    TimerFired,
)
from halcyon.core.request import Request
from halcyon.core.requests import MAX_ATTEMPTS

PICK = st.integers(min_value=0, max_value=2**16)


@dataclass
class WitnessedReplica:
    """What the shell knows of a replica."""

    version: str
    kind: str
    max_batch: int
    state: str = "starting"
    emptied: int = 0


@dataclass
class WitnessedRequest:
    """What the shell knows of a request. place: `queued`, `flying`, `adrift` (its replica failed, no order yet),
    `overdue` (cancelled at its deadline, no answer yet) or how it ended."""

    request: Request
    place: str = "queued"
    replica_id: str = ""
    remaining: int = 0
    byte_sent: bool = False
    dispatches: int = 0
    busy: int = 0


@dataclass
class Witness:
    """An account kept from events and orders alone."""

    requests: dict[str, WitnessedRequest] = field(default_factory=dict)
    replicas: dict[str, WitnessedReplica] = field(default_factory=dict)
    batch_ids: list[int] = field(default_factory=list)
    drains_finished: int = 0

    def on(self, replica_id: str) -> list[WitnessedRequest]:
        """Requests that hold slots there."""
        return [known for known in self.requests.values() if known.replica_id == replica_id and known.remaining]

    def outstanding(self, replica_id: str) -> int:
        """Slots taken there."""
        return sum(known.remaining for known in self.on(replica_id))

    def count(self, place: str) -> int:
        """Requests in a place."""
        return sum(known.place == place for known in self.requests.values())

    def obey(self, actions: list[Action], now: int) -> None:
        """Checks every order against the account and enters it."""
        targets = [action.replica_id for action in actions if isinstance(action, Dispatch)]
        assert len(targets) == len(dict.fromkeys(targets)), "at most one dispatch for each replica in one call"
        for action in actions:
            if isinstance(action, Dispatch):
                self._dispatch(action, now)
            elif isinstance(action, Refuse):
                known = self.requests[action.request_id]
                assert known.place in ("queued", "adrift", "overdue")
                assert not known.byte_sent, "an answer that began is failed, not refused"
                known.place = "refused"
            elif isinstance(action, Fail):
                known = self.requests[action.request_id]
                assert known.place in ("queued", "adrift", "overdue")
                assert known.place != "overdue" or known.byte_sent, "what nobody saw is refused, not failed"
                known.place = "failed"
            elif isinstance(action, Cancel):
                known = self.requests[action.request_id]
                assert known.replica_id == action.replica_id
                if known.place == "flying":
                    assert known.request.deadline_ns is not None
                    assert now > known.request.deadline_ns, "only what is late is cut"
                    known.place = "overdue"
                assert known.place in ("gone", "overdue")
            elif isinstance(action, ReplicaEmptied):
                replica = self.replicas[action.replica_id]
                replica.emptied += 1
                assert replica.state == "draining"
                assert replica.emptied == 1
                assert self.outstanding(action.replica_id) == 0
            elif isinstance(action, DrainFinished):
                self.drains_finished += 1

    def settle(self) -> None:
        """Requests whose replica failed and about which nothing was ordered wait again."""
        for known in self.requests.values():
            assert known.place != "overdue", "who is cut is told so in the same breath"
            if known.place == "adrift":
                assert not known.byte_sent, "an answer that began ends when its replica does"
                known.place = "queued"

    def _dispatch(self, action: Dispatch, now: int) -> None:
        self.batch_ids.append(action.batch_id)
        replica = self.replicas[action.replica_id]
        assert replica.state == "ready", "only ready replicas are sent anything"
        if replica.kind == "batch":
            assert self.outstanding(action.replica_id) == 0, "one batch at a time"
        for request_id in action.request_ids:
            known = self.requests[request_id]
            assert known.place in ("queued", "adrift")
            assert not known.byte_sent, "what the client saw is never replayed"
            assert known.remaining == 0
            assert known.request.version == replica.version
            assert known.request.replica_id in ("", action.replica_id)
            assert known.request.deadline_ns is None or now < known.request.deadline_ns
            known.place, known.replica_id, known.remaining = "flying", action.replica_id, known.request.sequences
            known.dispatches += 1
            assert known.dispatches - known.busy <= MAX_ATTEMPTS
        assert action.batch_size == sum(self.requests[request_id].request.sequences for request_id in action.request_ids)
        assert self.outstanding(action.replica_id) <= replica.max_batch


SOMETHING_RUNS = precondition(lambda self: any(known.remaining for known in self.witness.requests.values()))


class ControlPlaneMachine(RuleBasedStateMachine):
    """Every event in any order, late and unknown ones included. `unit_ns`: what deadlines and steps of time are counted in."""

    unit_ns = 1

    def __init__(self) -> None:
        super().__init__()
        self.story = Story(max_queue=6)
        self.witness = Witness()

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _tell(self, event: object) -> None:
        self.witness.obey(self.story.tell(event), self.story.now)  # type: ignore[arg-type]
        self.witness.settle()

    def _replica(self, pick: int) -> str:
        names = [*self.witness.replicas, "nobody"]
        return names[pick % len(names)]

    def _holding(self, pick: int) -> WitnessedRequest:
        holding = [known for known in self.witness.requests.values() if known.remaining]
        return holding[pick % len(holding)]

    @initialize(sizes=st.lists(st.integers(1, 4), min_size=0, max_size=3))
    def begin(self, sizes: list[int]) -> None:
        """Some stories begin with replicas that are ready."""
        for size in sizes:
            self.add_replica("continuous", size, "v1")
            self.ready(len(self.witness.replicas) - 1)

    @rule(kind=st.sampled_from(["continuous", "batch"]), max_batch=st.integers(1, 4), version=st.sampled_from(["v1", "v2"]))
    def add_replica(self, kind: str, max_batch: int, version: str) -> None:
        """A replica is added."""
        replica_id = f"replica-{len(self.witness.replicas)}"
        self.witness.replicas[replica_id] = WitnessedReplica(version, kind, max_batch)
        self._tell(ReplicaAdded(replica_id=replica_id, model="m", version=version, kind=kind, max_batch=max_batch))  # type: ignore[arg-type]

    @rule(pick=PICK)
    def ready(self, pick: int) -> None:
        """A replica reports that it is ready; possibly a removed, draining or ready one."""
        replica_id = self._replica(pick)
        replica = self.witness.replicas.get(replica_id, WitnessedReplica("v1", "continuous", 1))
        if replica.state in ("starting", "waiting"):
            replica.state = "ready"
        self._tell(ReplicaReady(replica_id=replica_id, kind=replica.kind, max_batch=replica.max_batch))  # type: ignore[arg-type]

    @rule(pick=PICK)
    def drain_replica(self, pick: int) -> None:
        """An operator wants a replica empty."""
        replica_id = self._replica(pick)
        replica = self.witness.replicas.get(replica_id)
        if replica is not None and replica.state != "removed":
            replica.state = "draining"
        self._tell(ReplicaDrainStarted(replica_id))

    @rule(pick=PICK, for_good=st.booleans())
    def lose(self, pick: int, for_good: bool) -> None:
        """A replica dies or is removed."""
        replica_id = self._replica(pick)
        replica = self.witness.replicas.get(replica_id)
        if replica is not None and replica.state != "removed":
            replica.state = "removed" if for_good else "draining" if replica.state == "draining" else "waiting"
            for known in self.witness.on(replica_id):
                known.remaining = 0
                known.place = "adrift" if known.place == "flying" else known.place
        self._tell(ReplicaRemoved(replica_id) if for_good else ReplicaLost(replica_id, "killed"))

    @rule(
        version=st.sampled_from(["", "v1", "v1", "v2", "v9"]),
        sequences=st.sampled_from([1, 1, 1, 2, 3, 5]),
        allowance=st.none() | st.integers(0, 60),
        lane=st.sampled_from(["interactive", "bulk"]),
        priority=st.integers(0, 2),
        pinned=st.none() | PICK,
    )
    def arrive(self, version: str, sequences: int, allowance: int | None, lane: str, priority: int, pinned: int | None) -> None:
        """A request arrives, possibly for a version, a size or a replica that does not exist."""
        request = Request(
            request_id=f"request-{len(self.witness.requests)}",
            model="m",
            version=version,
            arrived_ns=self.story.now,
            prompt_tokens=8,
            deadline_ns=None if allowance is None else self.story.now + allowance * self.unit_ns,
            lane=lane,  # type: ignore[arg-type]
            priority=priority,
            sequences=sequences,
            replica_id="" if pinned is None else self._replica(pinned),
        )
        known = Request(**{**_fields(request), "version": version or "v1"})
        self.witness.requests[request.request_id] = WitnessedRequest(known)
        self._tell(RequestArrived(request))

    @rule(count=st.integers(1, 6))
    def arrive_plainly(self, count: int) -> None:
        """Some ordinary requests arrive."""
        for _ in range(count):
            self.arrive("v1", 1, None, "interactive", 0, None)

    @SOMETHING_RUNS
    @rule(pick=PICK, everything=st.booleans())
    def finish(self, pick: int, everything: bool) -> None:
        """Sequences of a running request end."""
        known = self._holding(pick)
        count = known.remaining if everything else 1
        known.remaining -= count
        if not known.remaining and known.place == "flying":
            known.place = "finished"
        self._tell(SequencesFinished(request_id=known.request.request_id, replica_id=known.replica_id, count=count, output_tokens=count))

    @SOMETHING_RUNS
    @rule(pick=PICK)
    def first_byte(self, pick: int) -> None:
        """A client sees something."""
        known = self._holding(pick)
        if known.place == "flying":
            known.byte_sent = True
            self._tell(FirstByteSent(known.request.request_id))

    @SOMETHING_RUNS
    @rule(pick=PICK, retryable=st.booleans(), busy=st.booleans())
    def fail(self, pick: int, retryable: bool, busy: bool) -> None:
        """A replica cannot serve a request."""
        known = self._holding(pick)
        known.remaining = 0
        known.busy += busy
        known.place = "adrift" if known.place == "flying" else known.place
        self._tell(
            RequestFailed(
                request_id=known.request.request_id,
                replica_id=known.replica_id,
                code="upstream_failure",
                message="it broke",
                retryable=retryable,
                busy=busy,
            )
        )

    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        """A client leaves: queued, flying, ended or unknown."""
        names = [*self.witness.requests, "nobody"]
        request_id = names[pick % len(names)]
        known = self.witness.requests.get(request_id)
        if known is not None and known.place in ("queued", "flying", "adrift"):
            known.place = "gone"
        self._tell(ClientGone(request_id))

    @rule(pick=PICK, other=PICK)
    def late_news(self, pick: int, other: int) -> None:
        """A report of a request by a replica that does not hold it."""
        holding = [request_id for request_id, known in self.witness.requests.items() if known.remaining]
        names = holding or [*self.witness.requests, "nobody"]
        request_id, replica_id = names[pick % len(names)], self._replica(other)
        known = self.witness.requests.get(request_id)
        if known is None or known.replica_id != replica_id or not known.remaining:
            self._tell(SequencesFinished(request_id=request_id, replica_id=replica_id, count=1, output_tokens=1))

    @rule(steps=st.integers(1, 40))
    def pass_time(self, steps: int) -> None:
        """Time passes; the timer fires as the plane asked, and once more."""
        goal = self.story.now + steps * self.unit_ns
        while (wakeup := self.story.plane.next_wakeup()) is not None and wakeup <= goal:
            assert wakeup > self.story.now, "time must advance"
            self.story.at(wakeup)
            self._tell(TimerFired())
        self.story.at(goal)
        self._tell(TimerFired())

    @precondition(lambda self: len(self.witness.requests) > 8)
    @rule()
    def drain_daemon(self) -> None:
        """The daemon goes down."""
        self._tell(DrainStarted())

    # ---- what holds at every instant ---------------------------------------------------------------------------------

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        """arrived = queued + in flight + finished + refused + failed + gone, and the witness agrees on each."""
        totals, witness = self.story.plane.totals(), self.witness
        assert totals.arrived == len(witness.requests)
        assert totals.queued == witness.count("queued")
        assert totals.in_flight == witness.count("flying")
        for place in ("finished", "refused", "failed", "gone"):
            assert getattr(totals, place) == witness.count(place), place
        ended = totals.finished + totals.refused + totals.failed + totals.gone
        assert totals.arrived == totals.queued + totals.in_flight + ended

    @invariant()
    def slots_are_conserved(self) -> None:
        """A replica's count is exactly what its requests hold, never over its bound."""
        for replica_id, outstanding in self.story.plane.outstanding().items():
            assert outstanding == self.witness.outstanding(replica_id)
            assert outstanding <= self.witness.replicas[replica_id].max_batch

    @invariant()
    def nobody_waits_past_the_deadline(self) -> None:
        """The plane asks to be woken no later than the first deadline in a queue, and never for the past."""
        wakeup = self.story.plane.next_wakeup()
        assert wakeup is None or wakeup > self.story.now

    @invariant()
    def idle_replicas_leave_nothing_behind(self) -> None:
        """With every replica of a version ready and idle, nothing that was never failed waits for it."""
        for version in ("v1", "v2"):
            alive = {name: seen for name, seen in self.witness.replicas.items() if seen.version == version and seen.state != "removed"}
            if alive and all(seen.state == "ready" and not self.witness.outstanding(name) for name, seen in alive.items()):
                waiting = [k for k in self.witness.requests.values() if k.place == "queued" and k.request.version == version]
                assert not waiting or any(k.busy for k in self.witness.requests.values())

    def teardown(self) -> None:
        """At rest every slot is free, every request has ended, batch ids count from 1, and a replay gives the same orders."""
        for replica_id in self.witness.replicas:
            replica = self.witness.replicas[replica_id]
            if replica.state != "removed":
                self.lose([*self.witness.replicas].index(replica_id), for_good=True)
        assert not any(self.story.plane.outstanding().values())
        totals = self.story.plane.totals()
        assert (totals.queued, totals.in_flight) == (0, 0)
        assert self.story.plane.next_wakeup() is None
        assert self.witness.batch_ids == list(range(1, len(self.witness.batch_ids) + 1))
        assert self.witness.drains_finished == any(isinstance(event, DrainStarted) for _, event in self.story.told)
        replayed = ControlPlane(ControlSettings(models=MODELS, max_queue=6), rng=random.Random(0))
        assert [replayed.handle(event, now=now) for now, event in self.story.told] == self.story.ordered


def _fields(request: Request) -> dict[str, object]:
    return {name: getattr(request, name) for name in Request.__dataclass_fields__}


class InMilliseconds(ControlPlaneMachine):
    """The same where deadlines are long enough for a batch to be planned."""

    unit_ns = 1_000_000


ControlPlaneMachine.TestCase.settings = InMilliseconds.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestControlPlane = ControlPlaneMachine.TestCase
TestControlPlane.__doc__ = "Books balance, slots are conserved and a replay agrees, whatever happens in whatever order."
TestControlPlaneInMilliseconds = InMilliseconds.TestCase
TestControlPlaneInMilliseconds.__doc__ = "The same with deadlines that batches can make."
