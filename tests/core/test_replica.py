"""The table of a replica's life."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.replica import LIVING, TRANSITIONS, IllegalTransition, Lifecycle, ReplicaState
from halcyon.wire import control

STATES = get_args(ReplicaState)


def test_the_table_names_exactly_the_states_of_the_wire() -> None:
    """Every state people can see has a row, and every row leads to states people can see."""
    assert set(TRANSITIONS) == set(STATES) == set(get_args(control.ReplicaState))
    assert {after for row in TRANSITIONS.values() for after in row} <= set(STATES)


@given(st.lists(st.sampled_from(STATES), max_size=20))
def test_an_illegal_transition_raises_and_changes_nothing(path: list[ReplicaState]) -> None:
    """Along any path, a step is taken exactly if the table has it; otherwise it raises, names both states, and nothing moved."""
    lifecycle = Lifecycle()
    for after in path:
        before = lifecycle.state
        assert lifecycle.may_move(after) == (after in TRANSITIONS[before])
        if lifecycle.may_move(after):
            lifecycle.move(after)
            assert lifecycle.state == after
        else:
            with pytest.raises(IllegalTransition, match=f"from {before} to {after}"):
                lifecycle.move(after)
            assert lifecycle.state == before


def test_a_drained_replica_never_serves_again() -> None:
    """Fault: a terminating worker gets requests. From `draining` no path leads to `ready` but by a new start after a failure."""
    assert set(TRANSITIONS["draining"]) == {"failed", "removed"}
    assert TRANSITIONS["removed"] == ()


def test_every_living_state_can_be_lost_drained_and_removed() -> None:
    """Whatever a replica does, its process may die, an operator may drain it, and it may be removed."""
    for state in LIVING:
        assert {"draining", "removed"} <= set(TRANSITIONS[state])
        assert state == "waiting" or "waiting" in TRANSITIONS[state]


def test_every_state_can_reach_the_end() -> None:
    """No state is a trap: each leads to `removed` directly, and each but `starting` can be reached."""
    reachable = {after for row in TRANSITIONS.values() for after in row}
    assert reachable == set(STATES)
    assert all("removed" in row for state, row in TRANSITIONS.items() if state != "removed")
