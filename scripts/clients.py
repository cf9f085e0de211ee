"""Unmodified third-party load generators complete a run against a real daemon: guidellm and aiperf.

    python scripts/clients.py [guidellm] [aiperf]

Each is installed into a venv of its own under `.clients/` the first time. A run counts when the client exits with 0 and its own report
says that every request succeeded. The daemon serves the built-in tiny Llama on a port of its own and is ended afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
VENVS = ROOT / ".clients"
REQUESTS = 24

FLEET = """
[daemon]
listen = "127.0.0.1:0"

[[model]]
name = "tiny"
source = "builtin:tiny-llama?seed=1"
max_context = 2048
"""

INSTALL = {"guidellm": (["torch==2.13.0"], ["guidellm==0.8.1"]), "aiperf": (["aiperf==0.13.0"],)}


def venv(name: str) -> Path:
    """The client's own venv, made on first use."""
    home = VENVS / name
    if not (home / ".installed").exists():
        print(f"installing {name} into {home.relative_to(ROOT)} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        for packages in INSTALL[name]:
            subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", *packages], check=True)
        (home / ".installed").touch()
    return home / "bin"


@contextmanager
def daemon() -> Iterator[str]:
    """A daemon with the tiny Llama; yields its URL."""
    state = Path(tempfile.mkdtemp(prefix="hal-clients-", dir="/tmp"))
    environment = {**os.environ, "HALCYON_STATE_DIR": str(state)}
    halcyon = [sys.executable, "-m", "halcyon.cli"]
    fleet = state / "fleet.toml"
    fleet.write_text(FLEET)
    up = subprocess.run([*halcyon, "up", "--fleet", str(fleet), "--json"], env=environment, capture_output=True, text=True, check=False)
    if up.returncode:
        raise SystemExit(f"halcyon up failed: {up.stderr}")
    try:
        yield f"http://{json.loads(up.stdout)['listen']}"
    finally:
        subprocess.run([*halcyon, "down", "--now"], env=environment, capture_output=True, check=False)
        shutil.rmtree(state, ignore_errors=True)


def tokenizer_directory() -> str:
    """Where the tiny Llama's tokenizer lies: guidellm makes its prompts with it."""
    from halcyon.engine.sources import prepare_source

    return str(prepare_source("builtin:tiny-llama?seed=1"))


def run_client(command: list[str], log: Path, **variables: str) -> None:
    """Runs a client with its output in a file, and shows the end of it when it fails."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", **variables}
    with log.open("w") as output:
        status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, timeout=600, check=False).returncode
    if status:
        raise SystemExit(f"{command[0]} exited with {status}:\n" + "\n".join(log.read_text().splitlines()[-40:]))


def guidellm(url: str, work: Path) -> int:
    """Four concurrent streams of synthetic prompts; returns how many requests succeeded."""
    report = work / "guidellm.json"
    command = [str(venv("guidellm") / "guidellm"), "run", "--disable-console-interactive"]
    command += ["--backend", f"kind=openai_http,target={url},model=tiny"]
    command += ["--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer_directory()}", "--output", f"kind=json,path={report}"]
    run_client(command, work / "guidellm.log", HF_HUB_OFFLINE="1")
    benchmark = json.loads(report.read_text())["benchmarks"][0]
    return int(benchmark["metrics"]["request_totals"]["successful"])


def aiperf(url: str, work: Path) -> int:
    """Four concurrent chat streams counted by the server's own usage; returns how many requests succeeded."""
    command = [str(venv("aiperf") / "aiperf"), "profile", "--model", "tiny", "--url", url, "--endpoint-type", "chat", "--streaming"]
    command += ["--concurrency", "4", "--request-count", str(REQUESTS), "--tokenizer", tokenizer_directory(), "--use-server-token-count"]
    command += ["--per-chunk-usage", "--prompt-input-tokens-mean", "64", "--prompt-output-tokens-mean", "16", "--ui", "none"]
    command += ["--extra-inputs", "ignore_eos:true", "--output-artifact-dir", str(work / "aiperf")]
    run_client(command, work / "aiperf.log")
    report = json.loads(next((work / "aiperf").rglob("profile_export_aiperf.json")).read_text())
    return int(report["request_count"]["avg"])


CLIENTS: dict[str, Callable[[str, Path], int]] = {"guidellm": guidellm, "aiperf": aiperf}


def main() -> None:
    """Runs the named clients, or all, and says how each went."""
    names = sys.argv[1:] or list(CLIENTS)
    with tempfile.TemporaryDirectory(prefix="hal-clients-") as work, daemon() as url:
        for name in names:
            succeeded = CLIENTS[name](url, Path(work))
            print(f"{name}: {succeeded} of {REQUESTS} requests succeeded", flush=True)
            if succeeded < REQUESTS:
                raise SystemExit(f"{name}: {REQUESTS - succeeded} requests did not succeed")


if __name__ == "__main__":
    main()
