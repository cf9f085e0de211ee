"""Writes the database file of a released history schema, with synthetic rows, for tests/data. Seeded: the same rows every time.

A file that is committed stays as it is for ever; run this only for a new schema, under a new name:

    python scripts/make_test_history.py tests/data/history_v0_1.db
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from halcyon.store.history import Store
from halcyon.store.rows import DecisionRow, RegistrationRow, ReplicaRow, RequestRow

ROWS = 40
START_S = 1_760_000_000.0


def request(index: int, rng: random.Random) -> RequestRow:
    """A plausible audit row."""
    ok = rng.random() < 0.8
    return RequestRow(
        request_id=f"req-{index:04d}",
        at=START_S + index,
        tenant=rng.choice(["web", "batch"]),
        model="llama",
        version=rng.choice(["v1", "v2"]),
        replica_id=f"llama-v1-{index % 2}" if ok else "",
        endpoint=rng.choice(["infer", "chat", "completions"]),
        stream=rng.random() < 0.5,
        prompt_tokens=rng.randrange(1, 2000),
        output_tokens=rng.randrange(1, 300) if ok else 0,
        queue_ms=round(rng.expovariate(1 / 20), 3),
        ttft_ms=round(rng.uniform(20, 200), 3) if ok else None,
        tpot_ms=round(rng.uniform(5, 30), 3) if ok else None,
        total_ms=round(rng.uniform(200, 3000), 3),
        outcome="ok" if ok else "queue_full",
        finish_reason="stop" if ok else "",
        attempts=1 if ok else 0,
        batch_size=rng.randrange(1, 32) if ok else 0,
        deadline_ms=900 if index % 2 else None,
        on_time=index % 6 != 1 if index % 2 else None,
    )


def write(path: Path) -> None:
    """Writes the file; refuses to touch one that is there."""
    if path.exists():
        raise SystemExit(f"{path} exists; a released schema's file is never rewritten")
    rng = random.Random(1)
    store = Store.open(path, max_rows=1000, max_days=36_500, wall_s=lambda: START_S + ROWS)
    for index in range(ROWS):
        store.record_request(request(index, rng))
        store.record_decision(
            DecisionRow(
                at=START_S + index,
                kind="dispatch",
                request_id=f"req-{index:04d}",
                model="llama",
                version="v1",
                replica_id=f"llama-v1-{index % 2}",
                reason="slot_free",
                facts={"batch_size": index % 5 + 1, "queue_depth": index % 3},
            )
        )
    for event in ("starting", "loading", "ready"):
        store.record_replica(
            ReplicaRow(at=START_S, replica_id="llama-v1-0", model="llama", version="v1", runtime="sim", event=event, pid=4242)
        )
    store.register(
        RegistrationRow(replica_id="llama-v1-9", at=START_S, model="llama", version="v1", url="http://10.0.0.5:8000/v1", max_batch=8)
    ).result()
    if not store.close():
        raise SystemExit("the writer did not end in time")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
