"""The torch runtime behind its frames: stages, Ready, one Iteration frame an iteration, failures by name."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from halcyon.config.settings import ModelSettings
from halcyon.errors import ModelUnavailable
from halcyon.wire.frames import (
    PROTOCOL,
    Cancel,
    ChatMessage,
    Configure,
    Delta,
    FromWorker,
    Iteration,
    Ready,
    Sampling,
    Sequence,
    SequenceFailed,
    Stage,
    Submit,
)
from halcyon.worker.prepare import main as prepare
from halcyon.worker.torch_runtime import TorchRuntime

GENEROUS_S = 120
Frame = TypeVar("Frame")


class Rig:
    """A started runtime and the frames it sent."""

    def __init__(self, cache: Path, **settings: object) -> None:
        self.frames: queue.Queue[FromWorker] = queue.Queue()
        self.runtime = TorchRuntime()
        model = ModelSettings(**{"name": "tiny", "source": "builtin:tiny-llama?seed=1", "threads": 1, "dtype": "float32", **settings})  # type: ignore[arg-type]  # the test's own words
        configure = Configure(
            protocol=PROTOCOL,
            replica_id="tiny-1",
            replica_index=0,
            model=msgspec.to_builtins(model),
            cache_dir=str(cache),
            heartbeat_interval_ns=10**9,
        )
        self.runtime.start(configure, self.frames.put, self.fail)

    def fail(self, message: str, *, retryable: bool = True) -> None:
        """No test here breaks the engine."""
        raise AssertionError(message, retryable)

    def take(self, kind: type[Frame]) -> Frame:
        """The next frame, which must be of that kind."""
        frame = self.frames.get(timeout=GENEROUS_S)
        assert isinstance(frame, kind), frame
        return frame

    def deltas(self, sequences: int) -> dict[str, list[Delta]]:
        """All deltas by sequence until that many are over."""
        found: dict[str, list[Delta]] = {}
        while sequences:
            for delta in self.take(Iteration).deltas:
                found.setdefault(delta.sequence_id, []).append(delta)
                sequences -= delta.finish_reason is not None
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Starts runtimes and stops them when the test ends."""
    started: list[Rig] = []

    def start(**settings: object) -> Rig:
        started.append(Rig(tmp_path / "cache", **settings))
        return started[-1]

    yield start
    for one in started:
        one.runtime.stop()


GREEDY = Sampling(temperature=0.0, max_output_tokens=8, ignore_eos=True)


def test_start_reports_stages_then_ready(rig: Callable[..., Rig]) -> None:
    """Stages come in order, Ready last with true sizes, and the warm-up leaves no trace: numbers begin at 1, no block is used."""
    running = rig(max_batch=4, max_context=256)
    stages = []
    while isinstance(frame := running.frames.get(timeout=GENEROUS_S), Stage):
        stages.append(frame.stage)
    assert list(dict.fromkeys(stages)) == ["preparing", "loading", "warming"]
    assert isinstance(frame, Ready)
    assert (frame.kind, frame.max_batch, frame.max_context, frame.device, frame.dtype) == ("continuous", 4, 256, "cpu", "float32")
    assert frame.kv_blocks_total * frame.kv_block_tokens >= 4 * 256
    assert frame.weights_bytes > 500_000
    assert not frame.has_chat_template
    assert running.frames.empty()
    running.runtime.submit(Submit(1, (Sequence(sequence_id="a", text="x", sampling=GREEDY),)))
    assert running.take(Iteration).number == 1


def ready(rig: Callable[..., Rig], **settings: object) -> Rig:
    """A runtime whose start-up frames have been read."""
    running = rig(**settings)
    while not isinstance(running.frames.get(timeout=GENEROUS_S), Ready):
        pass
    return running


def test_one_frame_carries_every_sequence_s_tokens(rig: Callable[..., Rig]) -> None:
    """Chat, text and ids in one Submit: an iteration is one frame, at most one delta a sequence; first deltas carry the prompt's size."""
    running = ready(rig)
    running.runtime.submit(
        Submit(
            1,
            (
                Sequence(sequence_id="chat", messages=(ChatMessage("user", "hello"),), sampling=GREEDY),
                Sequence(sequence_id="text", text="hello", sampling=GREEDY),
                Sequence(sequence_id="ids", token_ids=(256, 71, 68, 75), sampling=GREEDY, return_token_ids=True),
            ),
        )
    )
    found = running.deltas(3)
    for sequence_id, prompt_tokens in (("chat", len("user: hello\nassistant:") + 1), ("text", 6), ("ids", 4)):
        assert [delta.output_tokens for delta in found[sequence_id]] == list(range(1, 9))
        assert [delta.prompt_tokens for delta in found[sequence_id]] == [prompt_tokens] + [0] * 7
        assert found[sequence_id][-1].finish_reason == "length"
    assert all(len(delta.token_ids) == 1 for delta in found["ids"])
    assert not any(delta.token_ids for delta in found["text"])


def test_a_long_prefix_is_reported_as_cached(rig: Callable[..., Rig]) -> None:
    """The second of two equal prompts of 100 tokens reports whole blocks of it as cached; without sharing, none."""
    for sharing, expected in ((True, 96), (False, 0)):
        running = ready(rig, prefix_sharing=sharing)
        for name in ("first", "second"):
            running.runtime.submit(Submit(1, (Sequence(sequence_id=name, token_ids=tuple(range(5, 105)), sampling=GREEDY),)))
            found = running.deltas(1)
        assert found["second"][0].cached_tokens == expected


def test_what_cannot_be_served_fails_alone_and_by_name(rig: Callable[..., Rig]) -> None:
    """Beside a good sequence, a prompt too long, a bound too large and an unknown id fail with their field; the good one is served."""
    running = ready(rig, max_context=64)
    wrong = {
        "long": ("input", Sequence(sequence_id="long", text="x" * 64, sampling=GREEDY)),
        "bound": ("max_output_tokens", Sequence(sequence_id="bound", text="x", sampling=Sampling(max_output_tokens=64))),
        "ids": ("token_ids", Sequence(sequence_id="ids", token_ids=(999,), sampling=GREEDY)),
        "none": ("input", Sequence(sequence_id="none", sampling=GREEDY)),
    }
    running.runtime.submit(Submit(1, tuple(sequence for _, sequence in wrong.values())))
    for name, (field, _) in wrong.items():
        failed = running.take(SequenceFailed)
        assert (failed.sequence_id, failed.code, failed.param, failed.retryable) == (name, "invalid_request", field, False)
    running.runtime.submit(Submit(2, (Sequence(sequence_id="good", text="x", sampling=GREEDY),)))
    assert running.deltas(1)["good"][-1].finish_reason == "length"


def test_logprobs_carry_exact_bytes(rig: Callable[..., Rig]) -> None:
    """With top_logprobs = 3, each token has its bytes and its three best alternatives; the bytes of all spell the answer."""
    running = ready(rig)
    sampling = Sampling(temperature=0.0, max_output_tokens=12, ignore_eos=True, logprobs=True, top_logprobs=3)
    running.runtime.submit(Submit(1, (Sequence(sequence_id="a", text="The quick", sampling=sampling),)))
    deltas = running.deltas(1)["a"]
    scores = [score for delta in deltas for score in delta.logprobs]
    assert b"".join(score.bytes_ for score in scores).decode("utf-8", "replace") == "".join(delta.text for delta in deltas)
    for score in scores:
        assert len(score.top) == 3
        assert score.top[0][0] == score.token_id
        assert score.logprob == pytest.approx(score.top[0][3])


def test_cancel_frees_and_stats_return_to_zero(rig: Callable[..., Rig]) -> None:
    """A cancelled sequence ends as cancelled, and the figures of heartbeats go back to nothing running, no block used."""
    running = ready(rig)
    running.runtime.submit(Submit(1, (Sequence(sequence_id="a", text="x", sampling=Sampling(temperature=0.0, ignore_eos=True)),)))
    running.take(Iteration)
    running.runtime.cancel(Cancel(("a", "unknown")))
    assert running.deltas(1)["a"][-1].finish_reason == "cancelled"
    stats = running.runtime.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


def test_a_missing_model_is_not_retryable(tmp_path: Path) -> None:
    """A source that cannot be had raises ModelUnavailable, before torch is asked for anything."""
    with pytest.raises(ModelUnavailable, match="expected"):
        Rig(tmp_path, source=str(tmp_path / "nowhere"))


def test_prepare_prints_one_stage_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m halcyon.worker.prepare --json` ends with stage ready and the directory; a bad source with 1 and the reason on stderr."""
    assert prepare(["builtin:tiny-llama?seed=3", "--json", "--cache-dir", str(tmp_path)]) == 0
    lines = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["stage"] == "ready"
    assert Path(lines[-1]["detail"], "config.json").is_file()
    assert prepare(["pypi:nothing", "--json", "--cache-dir", str(tmp_path)]) == 1
    assert "expected pypi:NAME==VERSION" in capsys.readouterr().err
