"""A real worker process on a bare socket: it serves, it ends with its daemon by whichever death, and its log keeps secrets."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from worker_rig import FAST, PROGRAM, TIMEOUT_S, BareWorker, all_end, configure, sequence, sim_model, submit

from halcyon.clock import NS_PER_MS
from halcyon.config.settings import SimSettings
from halcyon.wire.frames import PROTOCOL, Cancel, Fatal, Heartbeat, Hello, Iteration, Ready, SequenceFailed, Stage, Stop
from halcyon.worker.outbox import WorkerExit

Start = Callable[..., BareWorker]
GONE_S = 2.0
SLOW = SimSettings(overhead_ms=60_000.0)

PARENT = """
import os, subprocess, sys
fd = sys.argv[1]
worker = subprocess.Popen(
    [sys.executable, "-P", "-m", "halcyon.worker", "--fd", fd, "--parent", str(os.getpid())], pass_fds=(int(fd),), start_new_session=True
)
os.close(int(fd))
print(worker.pid, flush=True)
sys.stdin.read()
"""

LEAKY = """
from halcyon.worker import __main__, sim_runtime
def submit(self, message):
    raise ValueError(message.sequences[0].text)
sim_runtime.SimulatedRuntime.submit = submit
__main__.main()
"""


def ready_worker(bare: Start, sim: SimSettings = FAST, **how: object) -> BareWorker:
    """A worker that has said `Ready`."""
    worker = bare(**how)
    worker.send(configure(sim_model(sim)))
    worker.next(Ready)
    return worker


def test_a_worker_says_hello_loads_and_serves(bare: Start) -> None:
    """From the first frame to an answer: Hello with its pid and protocol, stages, Ready, then tokens, one iteration a frame."""
    worker = bare()
    hello = worker.next(Hello)
    assert hello == Hello(pid=worker.process.pid, protocol=PROTOCOL)
    worker.send(configure(sim_model()))
    assert worker.next(Stage).stage == "loading"
    assert worker.next(Ready).kind == "continuous"
    worker.send(submit(sequence("a/0", tokens=5), sequence("b/0", tokens=5)))
    answers = worker.answers(2)
    assert sorted(answers.endings) == ["a/0", "b/0"]
    assert answers.last["a/0"].output_tokens == 5


def test_iterations_do_not_drift(bare: Start) -> None:
    """Each iteration starts no earlier than its predecessor's end, and lasts exactly what the law says."""
    worker = ready_worker(bare, SimSettings(overhead_ms=2.0, per_token_ms=0.0))
    worker.send(submit(sequence("a/0", tokens=30)))
    iterations = [worker.next(Iteration) for _ in range(30)]
    assert {i.duration_ns for i in iterations} == {2 * NS_PER_MS}
    assert all(b.started_ns >= a.started_ns + a.duration_ns for a, b in itertools.pairwise(iterations))


def test_stop_ends_the_process_with_status_0(bare: Start) -> None:
    """`Stop` ends a worker at once, even one with work."""
    worker = ready_worker(bare, SLOW)
    worker.send(submit(sequence("a/0")), Stop())
    assert worker.exit_status() == WorkerExit.STOPPED


@pytest.mark.parametrize("when", ["before configure", "while loading", "in an iteration", "idle"])
def test_the_end_of_the_stream_ends_the_worker(bare: Start, when: str) -> None:
    """The manager dies and its children keep the GPU: when the daemon's end closes, the worker exits, whatever it is doing."""
    worker = bare()
    worker.next(Hello)
    if when != "before configure":
        sim = SimSettings(load_ms=60_000.0) if when == "while loading" else SLOW
        worker.send(configure(sim_model(sim)))
        worker.next(Stage if when == "while loading" else Ready)
    if when == "in an iteration":
        worker.send(submit(sequence("a/0")))
        worker.next(Heartbeat, lambda beat: beat.running == 1)
    worker.socket.close()
    assert worker.process.wait(timeout=GONE_S) == WorkerExit.DAEMON_GONE


def test_garbage_from_the_daemon_ends_the_worker(bare: Start) -> None:
    """A broken frame leaves nothing to trust: the worker exits at once."""
    worker = ready_worker(bare)
    worker.socket.sendall(b"\xff" * 64)
    assert worker.exit_status() == WorkerExit.PROTOCOL_BROKEN


def test_a_sigkilled_parent_takes_its_worker_along(bare: Start) -> None:
    """`kill -9 halcyond`: the worker is gone within 2 s, although the socket's other end stays open elsewhere."""
    ours, theirs = socket.socketpair()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    theirs.close()
    with parent, ours:
        assert parent.stdout is not None
        worker_pid = int(parent.stdout.readline())
        ours.settimeout(TIMEOUT_S)
        assert ours.recv(4)  # Hello: the worker lives and has tied its life to its parent's
        parent.kill()
        assert all_end([worker_pid], within_s=GONE_S)


def test_a_worker_whose_parent_is_already_another_exits(bare: Start) -> None:
    """The daemon died between starting the worker and its first line: the worker notices and never serves."""
    worker = bare(parent=1)
    with pytest.raises(EOFError):
        worker.next(Hello)
    assert worker.exit_status() == WorkerExit.DAEMON_GONE


def test_a_terminal_interrupt_does_not_end_a_worker(bare: Start) -> None:
    """ctrl-C in the daemon's terminal belongs to the daemon: SIGINT is ignored, SIGTERM ends at once."""
    worker = ready_worker(bare)
    os.kill(worker.process.pid, signal.SIGINT)
    worker.send(submit(sequence("a/0")))
    assert worker.answers(1).endings == ["a/0"]
    os.kill(worker.process.pid, signal.SIGTERM)
    assert worker.exit_status() == -signal.SIGTERM


def test_a_worker_has_its_own_session(bare: Start) -> None:
    """Its whole process group can be ended without touching the daemon's."""
    worker = ready_worker(bare)
    assert os.getsid(worker.process.pid) == worker.process.pid != os.getsid(0)


def test_heartbeats_do_not_wait_behind_work(bare: Start) -> None:
    """The probe waits behind user work: in the middle of an iteration of a minute, heartbeats go on and show work and no progress since."""
    worker = ready_worker(bare, SLOW)
    worker.send(submit(sequence("a/0")))
    beats = [worker.next(Heartbeat, lambda beat: beat.running == 1) for _ in range(5)]
    assert len({beat.engine_progress_ns for beat in beats}) == 1
    assert [beat.sent_ns for beat in beats] == sorted({beat.sent_ns for beat in beats})


def test_a_hang_keeps_heartbeats_and_stops_progress(bare: Start) -> None:
    """The process answers health and makes no token progress: heartbeats say so, in numbers the daemon can judge."""
    worker = ready_worker(bare, SimSettings(overhead_ms=1.0, fault="hang", fault_after=1))
    worker.send(submit(sequence("a/0")))
    assert worker.answers(1).endings == ["a/0"]
    worker.send(submit(sequence("b/0")))
    first = worker.next(Heartbeat, lambda beat: beat.waiting == 1)
    later = worker.next(Heartbeat, lambda beat: beat.sent_ns > first.sent_ns)
    assert later.engine_progress_ns == first.engine_progress_ns < first.sent_ns


def test_an_idle_engine_counts_as_progressing(bare: Start) -> None:
    """With nothing to do, every heartbeat reports progress as of now."""
    worker = ready_worker(bare)
    beats = [worker.next(Heartbeat) for _ in range(3)]
    assert all(beat.sent_ns - beat.engine_progress_ns < 1_000 * NS_PER_MS for beat in beats[1:])
    assert len({beat.engine_progress_ns for beat in beats}) == 3


def test_out_of_memory_is_a_fatal_frame_and_an_exit(bare: Start) -> None:
    """The device runs out of memory: one `Fatal` that says so, behind all that was produced, and a failure status."""
    worker = ready_worker(bare, SimSettings(overhead_ms=1.0, fault="oom", fault_after=1))
    worker.send(submit(sequence("a/0")))
    assert worker.answers(1).endings == ["a/0"]
    worker.send(submit(sequence("b/0")))
    fatal = worker.next(Fatal)
    assert fatal.retryable
    assert "out of memory" in fatal.message
    assert worker.exit_status() == WorkerExit.FAILED


def test_a_crash_is_an_exit_without_a_word(bare: Start) -> None:
    """`crash` is the death of a process that could not say why."""
    worker = ready_worker(bare, SimSettings(overhead_ms=1.0, fault="crash"))
    worker.send(submit(sequence("a/0")))
    with pytest.raises(EOFError):
        worker.next(Fatal)
    assert worker.exit_status() == 1


def test_a_storm_of_cancels_returns_every_figure_to_zero(bare: Start) -> None:
    """The client leaves and the GPU works on: 60 sequences, all cancelled, end exactly once, and a heartbeat shows an empty engine."""
    worker = ready_worker(bare, SimSettings(overhead_ms=5.0))
    ids = [f"r{i}/0" for i in range(60)]
    worker.send(submit(*(sequence(i, tokens=100) for i in ids)))
    worker.next(Iteration)
    worker.send(*(Cancel((i,)) for i in ids), Cancel(("unknown/0",)))
    assert sorted(worker.answers(60).endings) == sorted(ids)
    beat = worker.next(Heartbeat, lambda beat: beat.running == beat.waiting == 0)
    assert (beat.kv_blocks_used, beat.kv_blocks_free) == (0, 8 * 256 // 16)


def test_a_submit_before_ready_is_turned_away_as_busy(bare: Start) -> None:
    """A worker that is still loading is selected: it answers at once that it is not ready; the request does not hang."""
    worker = bare()
    worker.send(configure(sim_model(SimSettings(load_ms=60_000.0))))
    worker.next(Stage)
    worker.send(submit(sequence("a/0"), sequence("a/1")))
    failures = [worker.next(SequenceFailed) for _ in range(2)]
    assert all(f.busy and f.retryable and f.code == "no_capacity" for f in failures)


@pytest.mark.parametrize(
    ("frame", "words", "retryable"),
    [
        (configure(sim_model(), protocol=PROTOCOL + 1), f"protocol {PROTOCOL + 1}", False),
        (Stop(), "first frame must be Configure", True),
        (configure(sim_model(runtime="openai")), "'openai'", True),
    ],
    ids=["another protocol", "no Configure", "no such runtime"],
)
def test_a_worker_that_cannot_start_says_why(bare: Start, frame: object, words: str, retryable: bool) -> None:
    """Whatever keeps a worker from serving reaches the daemon as one sentence, and whether a restart could help."""
    worker = bare()
    worker.send(frame)
    fatal = worker.next(Fatal)
    assert words in fatal.message
    assert fatal.retryable is retryable
    assert worker.exit_status() == WorkerExit.FAILED


def test_a_dead_thread_ends_the_worker_and_keeps_the_prompt_secret(bare: Start, tmp_path: Path) -> None:
    """Keys or prompts in logs: an error whose words are the prompt ends the worker; neither frame nor log has them, only its place."""
    log = tmp_path / "worker.log"
    worker = ready_worker(bare, program=(sys.executable, "-P", "-c", LEAKY), log=str(log))
    worker.send(submit(sequence("a/0", text="my-secret-prompt")))
    fatal = worker.next(Fatal)
    assert worker.exit_status() == WorkerExit.FAILED
    written = log.read_text()
    assert "ValueError" in fatal.message
    assert "ValueError" in written
    assert "in _take" in written
    assert "my-secret-prompt" not in fatal.message + written


def test_a_served_prompt_is_not_in_the_log(bare: Start, tmp_path: Path) -> None:
    """Keys or prompts in logs: after a whole life, the log holds no word of prompt or answer, and only its owner may read it."""
    log = tmp_path / "worker.log"
    worker = ready_worker(bare, log=str(log))
    worker.send(submit(sequence("a/0", text="my-secret-prompt")))
    answer = worker.answers(1).texts["a/0"]
    worker.send(Stop())
    worker.exit_status()
    written = log.read_text()
    assert "my-secret-prompt" not in written
    assert answer not in written
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_simulated_worker_never_loads_torch() -> None:
    """A simulated worker starts in a blink because nothing it imports is torch's."""
    script = (
        "import halcyon.worker.__main__, halcyon.worker.sim_runtime, halcyon.worker.handle, sys;"
        "print(sorted({'torch', 'transformers', 'numpy', 'aiohttp'} & set(sys.modules)))"
    )
    shown = subprocess.run([PROGRAM[0], "-P", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert shown.stdout.strip() == "[]"
