"""`halcyon up` on fleet files that cannot work: every problem listed, exit 2, nothing started."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest
from fleet import halcyon

BROKEN = {
    "wrong type": ('[[model]]\nname = "m"\nruntime = "sim"\nreplicas = "two"\n', ["replicas", "two"]),
    "unknown key": ('[[model]]\nname = "m"\nruntime = "sim"\nreplica = 2\n', ["replica", "replicas"]),
    "duplicate name": ('[[model]]\nname = "m"\nruntime = "sim"\n[[model]]\nname = "m"\nruntime = "sim"\n', ["m", "v1", "duplicate"]),
    "no model": ('[daemon]\nlisten = "127.0.0.1:0"\n', ["[[model]]"]),
    "impossible memory": ('[[model]]\nname = "m"\nsource = "builtin:tiny-llama"\nmemory = "900 TiB"\n', ["memory", "900 TiB"]),
    "bad address": ('[daemon]\nlisten = "127.0.0.1:99999"\n[[model]]\nname = "m"\nruntime = "sim"\n', ["listen", "99999"]),
    "open to the world": ('[daemon]\nlisten = "0.0.0.0:8765"\n[[model]]\nname = "m"\nruntime = "sim"\n', ["listen", "[[tenant]]"]),
    "unknown runtime": ('[[model]]\nname = "m"\nruntime = "tourch"\n', ["runtime", "tourch", "torch"]),
    "syntax": ('[[model]\nname = "m"\n', [":1:8:", "not TOML"]),
    "two at once": ('[[model]]\nname = "m m"\nruntime = "sim"\nmax_batch = 0\n', ["name", "m m", "max_batch", "0"]),
    "unknown source": ('[[model]]\nname = "m"\nsource = "ftp://x/y"\n', ["source", "ftp://x/y"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_fleet(name: str) -> None:
    """The error list names the file, the key and the value; the exit status is 2; no process was started."""
    text, expected = BROKEN[name]
    with tempfile.TemporaryDirectory(prefix="hal-", dir="/tmp") as directory:
        fleet = Path(directory) / "fleet.toml"
        fleet.write_text(text)
        state = Path(directory) / "state"
        result = halcyon("up", "--fleet", str(fleet), state_dir=state, timeout=60)
        assert result.returncode == 2, result.stderr
        for word in (*expected, str(fleet)):
            assert word in result.stderr
        assert "Traceback" not in result.stderr
        assert not any(str(state) in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
