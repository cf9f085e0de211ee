"""The mailbox between callers and the writer: ordered, bounded, honest about what it dropped."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from halcyon.store.mailbox import MAX_COMMITS, Commit, Mailbox
from halcyon.store.rows import DecisionRow


def row(number: int) -> DecisionRow:
    """The `number`-th decision."""
    return DecisionRow(at=float(number), kind="dispatch")


@settings(deadline=None)
@given(puts=st.lists(st.integers(1, 30), max_size=8), bound=st.integers(1, 40))
def test_the_newest_rows_stay_in_order_and_the_rest_is_counted(puts: list[int], bound: int) -> None:
    """However rows come and are put back, what is taken last is the newest `bound` of them in order; kept + dropped = left."""
    mailbox = Mailbox(max_rows=bound)
    left = 0
    for count in puts:
        for _ in range(count):
            mailbox.put(row(left))
            left += 1
        mailbox.put_back(mailbox.take(linger_s=0).rows)
    mailbox.close()
    taken = mailbox.take(linger_s=0)
    assert [r.at for r in taken.rows if isinstance(r, DecisionRow)] == [float(n) for n in range(max(0, left - bound), left)]
    assert mailbox.dropped == left - len(taken.rows)
    assert taken.closing


def test_a_commit_ends_the_lingering() -> None:
    """With an hour to linger, a waiting commit is handed out at once, together with the rows before it."""
    mailbox = Mailbox(max_rows=10)
    mailbox.put(row(1))
    commit = Commit((row(2),))
    assert mailbox.put_commit(commit)
    batch = mailbox.take(linger_s=3600.0)
    assert (len(batch.rows), batch.commits, batch.closing) == (1, [commit], False)


def test_waiting_commands_are_bounded() -> None:
    """A thousand commands may wait for a stuck disk; the next is refused at once instead of growing the queue."""
    mailbox = Mailbox(max_rows=10)
    assert all(mailbox.put_commit(Commit(())) for _ in range(MAX_COMMITS))
    assert not mailbox.put_commit(Commit(()))
