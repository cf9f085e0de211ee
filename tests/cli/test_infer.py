"""`halcyon infer`: what it asks, what it prints where, and how it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from outcome import Command, halcyon_process
from scripted_control import ANSWER, ScriptedControl, error_event, stream_of

from halcyon.errors import UpstreamFailure


def test_a_pipe_gets_the_answer_alone(command: Command, daemon: ScriptedControl) -> None:
    """In a pipe stdout is the answer and a line break, byte for byte, and stderr is empty."""
    outcome = command("infer", "m", "Why is the sky blue?")
    assert (outcome.code, outcome.out, outcome.err) == (0, ANSWER + "\n", "")


def test_a_terminal_gets_the_account_too(command: Command, daemon: ScriptedControl) -> None:
    """On a terminal the answer goes to stdout, and to stderr what the scheduler decided, with every number of the account."""
    outcome = command("infer", "m", "Why?", terminal=True)
    assert outcome.out == ANSWER + "\n"
    for fact in ("m@v1", "m-v1-0", "2 replicas", "attempt 2", "3 together", "slot_free", "2 left waiting", "1.2 ms queued"):
        assert fact in outcome.err
    for fact in (
        "20.0 ms to the first token",
        "10.0 ms a token",
        "50.0 ms in all",
        "5 in",
        "4 out",
        "80.0/s",
        "2 of the prompt cached",
        "req-1",
    ):
        assert fact in outcome.err


@pytest.mark.parametrize(("terminal", "flag", "shown"), [(False, "--account", True), (True, "--no-account", False)])
def test_the_account_can_be_asked_for_or_left_out(
    command: Command, daemon: ScriptedControl, terminal: bool, flag: str, shown: bool
) -> None:
    """--account prints it into a pipe's stderr without a box or colour; --no-account keeps it off a terminal."""
    outcome = command("infer", "m", "Why?", flag, terminal=terminal)
    assert ("req-1" in outcome.err) == shown
    assert "\x1b" not in outcome.err
    assert "╭" not in outcome.err


def test_json_is_one_document_with_stable_keys(command: Command, daemon: ScriptedControl) -> None:
    """--json prints output, finish_reason and the whole account, and asks for no stream."""
    found = command("infer", "m", "Why?", "--json").document
    assert set(found) == {"output", "finish_reason", "account"}
    assert found["output"] == ANSWER
    assert found["finish_reason"] == "stop"
    assert set(found["account"]) == {
        "request_id",
        "model",
        "version",
        "replica_id",
        "usage",
        "timings",
        "batch_size",
        "batch_reason",
        "queue_depth",
        "eligible_replicas",
        "attempts",
        "hedged",
    }
    assert not daemon.last_body["stream"]


def test_no_stream_prints_the_same_answer(command: Command, daemon: ScriptedControl) -> None:
    """--no-stream waits for the whole answer and prints the same bytes."""
    assert command("infer", "m", "Why?", "--no-stream").out == ANSWER + "\n"
    assert daemon.last_body["stream"] is False


def test_every_option_reaches_the_daemon_under_its_own_name(command: Command, daemon: ScriptedControl) -> None:
    """Each flag becomes exactly one field of `/v1/infer`; what is not given is left to the daemon."""
    flags = "--version v2 --system Brief. --max-tokens 9 --temperature 0 --top-p 0.5 --top-k 4 --seed 7 --stop X --stop Y"
    flags += " --deadline-ms 900 --ttft-ms 80 --tpot-ms 20 --lane bulk --session s1 --replica m-v2-0"
    command("infer", "m", "Why?", *flags.split())
    assert daemon.last_body == {
        "model": "m",
        "input": [{"role": "system", "content": "Brief."}, {"role": "user", "content": "Why?"}],
        "version": "v2",
        "max_output_tokens": 9,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 4,
        "seed": 7,
        "stop": ["X", "Y"],
        "deadline_ms": 900,
        "ttft_ms": 80,
        "tpot_ms": 20,
        "lane": "bulk",
        "session_key": "s1",
        "replica_id": "m-v2-0",
        "stream": True,
    }


def test_raw_sends_the_text_as_it_is(command: Command, daemon: ScriptedControl) -> None:
    """--raw sends text, not messages; - reads it from stdin, line breaks kept."""
    command("infer", "m", "-", "--raw", stdin="Once upon\na time\n")
    assert daemon.last_body == {"model": "m", "input": "Once upon\na time\n", "stream": True}


@pytest.mark.parametrize("arguments", [("m", ""), ("m", "-"), ("m", "x", "--raw", "--system", "y"), ("m",), ("m", "x", "--lane", "fast")])
def test_misuse_is_refused_before_anything_is_sent(command: Command, daemon: ScriptedControl, arguments: tuple[str, ...]) -> None:
    """An empty text, --system with --raw, a missing text or an unknown lane exits with 2 and asks the daemon nothing."""
    assert command("infer", *arguments).code == 2
    assert daemon.calls == []


@pytest.mark.parametrize("flags", [(), ("--no-stream",)])
def test_an_answer_cannot_drive_the_terminal(command: Command, daemon: ScriptedControl, flags: tuple[str, ...]) -> None:
    """Control characters of an answer are shown as pictures on a terminal, line breaks kept; a pipe gets them as they are."""
    text = "a\x1b]0;title\x07b\nc\x9b"
    daemon.stream = stream_of(text)
    daemon.output = text
    assert command("infer", "m", "x", *flags).out == text + "\n"
    shown = command("infer", "m", "x", *flags, terminal=True).out
    assert "a␛]0;title␇b\nc\ufffd\n" in shown


def test_a_text_that_is_not_utf8_is_refused(command: Command, daemon: ScriptedControl) -> None:
    """Bytes that are no text exit with 2 before anything is sent."""
    assert command("infer", "m", os.fsdecode(b"caf\xe9")).code == 2
    assert daemon.calls == []


def test_a_failed_stream_fails_the_command(command: Command, daemon: ScriptedControl) -> None:
    """An error event in mid-stream: what came stays on stdout and ends with a line break, the reason is on stderr, exit 1."""
    daemon.stream = [*stream_of("Because of", ended=False), error_event(UpstreamFailure("the replica was lost")), b"data: [DONE]\n\n"]
    outcome = command("infer", "m", "Why?")
    assert (outcome.code, outcome.out) == (1, "Because of\n")
    assert outcome.err == "halcyon: the replica was lost\n"


def test_a_cut_stream_is_not_taken_for_a_whole_answer(command: Command, daemon: ScriptedControl) -> None:
    """A stream that ends without its end (Streams: the upstream stream is cut) exits with 1 and says that the answer is incomplete."""
    daemon.stream = stream_of("Because of", ended=False)
    outcome = command("infer", "m", "Why?")
    assert outcome.code == 1
    assert "incomplete" in outcome.err


def test_interrupt_cancels_the_request(state: Path, daemon: ScriptedControl) -> None:
    """Ctrl-C in mid-answer closes the connection, so that the daemon ends the request, and exits with 130 and no traceback."""
    daemon.stream, daemon.hold_stream = stream_of("Because of", ended=False), True
    with halcyon_process("infer", "m", "Why?") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == "Because of"
        process.send_signal(signal.SIGINT)
        assert daemon.client_left.wait(20)
        assert process.wait(20) == 130
        assert process.stderr.read() == ""
