"""Memory that cannot be there: budgets larger than the device, one by one or together.

Only what is impossible is refused; whether a fleet fits at this moment is placement's question, with the live numbers. Where devices
are declared they are all there is. Without any, a machine with no NVIDIA device node has one device, the CPU with the host's memory; with
one, the sizes of the GPUs are unknown here (torch is not asked) and only models pinned to the CPU are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from halcyon.config.decode import Entry
from halcyon.config.problems import Problems
from halcyon.config.settings import DeviceSettings, ModelSettings
from halcyon.config.units import format_size


@dataclass(frozen=True)
class Host:
    """What a file is checked against where it declares no devices. memory_bytes: all of the machine's memory."""

    memory_bytes: int
    has_cuda: bool

    @staticmethod
    def read() -> Host:
        """This machine."""
        return Host(memory_bytes=int(psutil.virtual_memory().total), has_cuda=any(Path("/dev").glob("nvidia[0-9]*")))


@dataclass(frozen=True)
class _Pools:
    """Bytes for every device whose size is known; `complete`: there are no others."""

    bytes_by_device: dict[str, int]
    complete: bool
    declared: bool

    def device_of(self, model: ModelSettings) -> str | None:
        """The one device this model can stand on, or `None` when there is a choice or its size is unknown."""
        if model.device == "auto" and self.complete and len(self.bytes_by_device) == 1:
            return next(iter(self.bytes_by_device))
        return model.device if model.device in self.bytes_by_device else None

    def largest_bytes(self, model: ModelSettings) -> int | None:
        """The most that one replica of this model could ever get; `None` when unknown."""
        device = self.device_of(model)
        if device is not None:
            return self.bytes_by_device[device]
        return max(self.bytes_by_device.values()) if model.device == "auto" and self.complete and self.bytes_by_device else None


def check_capacity(devices: Iterable[Entry[DeviceSettings]], models: list[Entry[ModelSettings]], host: Host, problems: Problems) -> None:
    """Notes every budget that no device can hold, and every device that cannot hold what is pinned to it."""
    pools = _pools(list(devices), host)
    too_large = {id(entry) for entry in models if _is_too_large(entry, pools, problems)}
    fitting = [entry for entry in _counted(models, pools) if id(entry) not in too_large]
    for device, size_bytes in pools.bytes_by_device.items():
        pinned = [entry.settings for entry in fitting if pools.device_of(entry.settings) == device]
        wanted_bytes = sum(m.replicas * (m.memory_bytes or 0) for m in pinned)
        if wanted_bytes > size_bytes:
            shares = ", ".join(f"{m.name} {m.version} {m.replicas} x {format_size(m.memory_bytes or 0)}" for m in pinned)
            problems.add("", f"device {device} has {format_size(size_bytes)}, the models on it want {format_size(wanted_bytes)} ({shares})")


def _pools(devices: list[Entry[DeviceSettings]], host: Host) -> _Pools:
    if devices:
        sound = {d.settings.name: d.settings.memory_bytes for d in devices if not d.broken}
        return _Pools(sound, complete=len(sound) == len(devices), declared=True)
    return _Pools({"cpu": host.memory_bytes}, complete=not host.has_cuda, declared=False)


def _counted(models: list[Entry[ModelSettings]], pools: _Pools) -> Iterator[Entry[ModelSettings]]:
    """Models with a budget to check. Simulated ones count against declared devices only, remote ones nowhere."""
    for entry in models:
        model = entry.settings
        counts = model.runtime == "torch" or (model.runtime == "sim" and pools.declared)
        if counts and model.memory_bytes is not None and not entry.broken & {"device", "memory_bytes", "runtime", "replicas"}:
            yield entry


def _is_too_large(entry: Entry[ModelSettings], pools: _Pools, problems: Problems) -> bool:
    memory_bytes = entry.settings.memory_bytes
    largest_bytes = pools.largest_bytes(entry.settings)
    counted = any(entry is other for other in _counted([entry], pools))
    if not counted or memory_bytes is None or largest_bytes is None or memory_bytes <= largest_bytes:
        return False
    device = pools.device_of(entry.settings)
    what = f"device {device} has" if device else "the largest device has"
    entry.blame(problems, "memory_bytes", f"{what} {format_size(largest_bytes)}; expected at most that for each replica")
    return True
