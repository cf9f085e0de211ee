"""When a worker counts as lost, by numbers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.clock import NS_PER_S
from halcyon.wire.frames import Heartbeat
from halcyon.worker.health import LATE_LOOK_NS, STARTING_PATIENCE, HealthLimits, HealthWatch

START = 1_000 * NS_PER_S
LIMITS = HealthLimits(start_ns=900 * NS_PER_S, silence_ns=10 * NS_PER_S, progress_ns=60 * NS_PER_S)


def at(seconds: float) -> int:
    """The instant so many seconds after the launch."""
    return START + round(seconds * NS_PER_S)


def ready_watch() -> HealthWatch:
    """A watch whose worker became ready at its launch."""
    watch = HealthWatch(LIMITS, now=START)
    watch.became_ready(now=START)
    return watch


def beat(now: int, *, progress: int, running: int = 1, waiting: int = 0) -> Heartbeat:
    """A heartbeat."""
    return Heartbeat(sent_ns=now, engine_progress_ns=progress, running=running, waiting=waiting)


def test_silence_is_lost_at_its_bound_and_not_before() -> None:
    """One silent backend: 10 s of silence lose a ready worker at exactly 10 s."""
    watch = ready_watch()
    assert watch.next_check() == at(10)
    assert watch.verdict(now=at(10) - 1) is None
    assert watch.verdict(now=at(10)) == "it was silent for 10 s"


def test_any_frame_postpones_the_silence() -> None:
    """A worker that answers every 9 s is never silent."""
    watch = ready_watch()
    for second in range(9, 900, 9):
        watch.heard(now=at(second))
        assert watch.verdict(now=at(second)) is None
        assert watch.next_check() == at(second + 10)


def test_no_progress_is_lost_although_heartbeats_go_on() -> None:
    """A faulted GPU: the process answers every second, its engine last advanced at 5 s; it is out at 65 s."""
    watch = ready_watch()
    for second in range(1, 65):
        watch.heard(now=at(second), heartbeat=beat(at(second), progress=at(5)))
        assert watch.verdict(now=at(second)) is None
    assert watch.next_check() == at(65)
    assert watch.verdict(now=at(65)) == "it answers, but its engine made no progress for 60 s"


@pytest.mark.parametrize(("running", "waiting"), [(1, 0), (0, 1)])
def test_waiting_sequences_count_as_work(running: int, waiting: int) -> None:
    """An engine stuck before its first iteration holds only waiting sequences, and is found all the same."""
    watch = ready_watch()
    watch.heard(now=at(55), heartbeat=beat(at(55), progress=at(0), running=running, waiting=waiting))
    assert watch.next_check() == at(60)
    assert watch.verdict(now=at(60)) is not None


def test_an_idle_engine_need_not_progress() -> None:
    """A worker without work is never lost for lack of progress."""
    watch = ready_watch()
    for second in range(1, 1_000):
        watch.heard(now=at(second), heartbeat=beat(at(second), progress=at(0), running=0))
        assert watch.verdict(now=at(second)) is None


def test_a_busy_worker_is_not_a_dead_one() -> None:
    """Saturated for an hour with slow iterations of 50 s: heartbeats and progress keep it, no flap."""
    watch = ready_watch()
    for second in range(1, 3_600):
        watch.heard(now=at(second), heartbeat=beat(at(second), progress=at(second - second % 50), running=32, waiting=500))
        assert watch.verdict(now=at(second)) is None


def test_a_progress_bound_already_past_is_judged_at_the_next_look() -> None:
    """A heartbeat that reports progress long past (the daemon heard late) is not mistaken for the daemon's own sleep."""
    watch = ready_watch()
    watch.heard(now=at(100), heartbeat=beat(at(100), progress=at(1)))
    assert watch.next_check() == at(100)
    assert watch.verdict(now=at(100)) is not None


def test_not_ready_in_time_is_lost() -> None:
    """A worker that still loads after 900 s is lost, however alive it is."""
    watch = HealthWatch(LIMITS, now=START)
    for second in range(1, 900):
        watch.heard(now=at(second), heartbeat=beat(at(second), progress=at(second), running=0))
    assert watch.next_check() == at(900)
    assert watch.verdict(now=at(900)) == "it was not ready 900 s after its start"


def test_loading_may_be_silent_for_longer() -> None:
    """A call that holds the interpreter while weights load does not lose a worker at 10 s; 60 s do."""
    watch = HealthWatch(LIMITS, now=START)
    assert watch.next_check() == at(10 * STARTING_PATIENCE)
    assert watch.verdict(now=at(59)) is None
    assert watch.verdict(now=at(60)) == "it was silent for 60 s"


def test_a_worker_that_does_not_read_is_lost() -> None:
    """Heartbeats come, but what we send stays with us: lost 10 s after our buffer filled, unless it drains."""
    watch = ready_watch()
    watch.stopped_reading(now=at(3))
    watch.heard(now=at(12), heartbeat=beat(at(12), progress=at(12)))
    watch.stopped_reading(now=at(12.5))  # still full: the bound does not move
    assert watch.next_check() == at(13)
    assert watch.verdict(now=at(13)) == "it has not read what it was sent for 10 s"
    watch.resumed_reading()
    assert watch.verdict(now=at(13)) is None


def test_a_late_look_blames_the_daemon_not_the_worker() -> None:
    """The daemon slept 5 minutes (a stopped process, a frozen machine): its workers get their silence anew, then are judged."""
    watch = ready_watch()
    assert watch.verdict(now=at(310)) is None
    assert watch.next_check() > at(310)
    assert watch.verdict(now=watch.next_check()) == "it was silent for 10 s"


def test_a_look_a_little_late_still_judges() -> None:
    """Ordinary lateness of a timer does not postpone a verdict."""
    assert ready_watch().verdict(now=at(10) + LATE_LOOK_NS) is not None


@given(gaps=st.lists(st.integers(0, 120 * NS_PER_S), max_size=40), busy=st.booleans())
def test_looking_when_told_always_ends(gaps: list[int], busy: bool) -> None:
    """Whatever was heard, looking at each `next_check()` reaches a verdict within three looks of the last frame: no endless postponing."""
    watch = ready_watch()
    now = START
    for gap in gaps:
        now += gap
        watch.heard(now=now, heartbeat=beat(now, progress=now - gap, running=int(busy)))
    verdicts = [watch.verdict(now=max(now, watch.next_check())) for _ in range(3)]
    assert any(verdicts)


@pytest.mark.parametrize("field", ["start_ns", "silence_ns", "progress_ns"])
def test_bounds_must_be_positive(field: str) -> None:
    """A bound of zero would lose every worker at once; it is refused by name."""
    with pytest.raises(ValueError, match=field):
        HealthLimits(**{field: 0})
