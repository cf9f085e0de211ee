"""What must hold between keys of a fleet file. Each rule notes its problems and leaves fields alone that are already told to be broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halcyon.config.address import is_loopback, parse_listen
from halcyon.config.capacity import Host, check_capacity
from halcyon.config.decode import Entry
from halcyon.config.problems import Problems, suggestion
from halcyon.config.settings import (
    DaemonSettings,
    DeviceSettings,
    FleetSettings,
    ModelSettings,
    OpenAISettings,
    SimSettings,
    TenantSettings,
)
from halcyon.config.sources import remote_source_problem, torch_source_problem


def check_fleet(fleet: Entry[FleetSettings], *, host: Host, anchor: Path, problems: Problems) -> None:
    """Runs every rule over a decoded file. `anchor`: where relative directories in it start."""
    models = list(fleet.tables(ModelSettings))
    tenants = list(fleet.tables(TenantSettings))
    devices = list(fleet.tables(DeviceSettings))
    if not models and "models" not in fleet.broken:
        problems.add("", "no model: expected at least one [[model]] table")
    for daemon in fleet.tables(DaemonSettings):
        _check_listen(daemon, problems, has_tenants="tenants" in fleet.given)
        _check_daemon_times(daemon, problems)
    for model in models:
        _check_source(model, anchor, problems)
        _check_objectives(model, problems)
        _check_runtime_tables(model, problems)
        _check_device(model, devices, problems)
    _check_versions(models, problems)
    _check_unique(devices, "name", problems)
    _check_unique(tenants, "name", problems)
    _check_unique(tenants, "key_sha256", problems)
    for tenant in tenants:
        _check_tenant_models(tenant, models, problems)
        _check_objectives(tenant, problems)
    check_capacity(devices, models, host, problems)


def _check_listen(daemon: Entry[DaemonSettings], problems: Problems, *, has_tenants: bool) -> None:
    if "listen" in daemon.broken:
        return
    try:
        host, _ = parse_listen(daemon.settings.listen)
    except ValueError as error:
        daemon.blame(problems, "listen", str(error))
        return
    if not is_loopback(host) and not has_tenants:
        daemon.blame(
            problems, "listen", "others could call without a key: expected a loopback host such as 127.0.0.1, or at least one [[tenant]]"
        )


def _check_daemon_times(daemon: Entry[DaemonSettings], problems: Problems) -> None:
    """A worker that reports less often than the daemon is willing to wait would be restarted for ever."""
    settings = daemon.settings
    if not daemon.broken & {"worker_heartbeat_s", "worker_timeout_s"} and settings.worker_timeout_s < 2 * settings.worker_heartbeat_s:
        field = "worker_timeout_s" if "worker_timeout_s" in daemon.given else "worker_heartbeat_s"
        daemon.blame(problems, field, "expected worker_timeout_s to be at least twice worker_heartbeat_s")


def _check_source(model: Entry[ModelSettings], anchor: Path, problems: Problems) -> None:
    if "runtime" in model.broken:
        return
    match model.settings.runtime:
        case "torch":
            problem = torch_source_problem(model.settings.source, anchor)
        case "openai":
            problem = remote_source_problem(model.settings.source)
        case "sim":
            problem = "a simulated model loads nothing: expected no source" if model.settings.source else ""
    if problem:
        model.blame(problems, "source", problem)


def _check_objectives(entry: Entry[ModelSettings] | Entry[TenantSettings], problems: Problems) -> None:
    deadline_ms = entry.settings.deadline_ms
    for field in ("ttft_ms", "tpot_ms"):
        objective_ms = getattr(entry.settings, field)
        if deadline_ms is not None and objective_ms is not None and objective_ms > deadline_ms:
            entry.blame(problems, field, f"expected at most deadline_ms, which is {deadline_ms}")


def _check_runtime_tables(model: Entry[ModelSettings], problems: Problems) -> None:
    """A table that belongs to another runtime would be read and then do nothing."""
    if "runtime" in model.broken:
        return
    for runtime, cls in (("sim", SimSettings), ("openai", OpenAISettings)):
        for table in model.tables(cls):
            if model.settings.runtime != runtime:
                problems.add(str(table.place), f'is for runtime = "{runtime}", the model has runtime = "{model.settings.runtime}"')
    for sim in model.tables(SimSettings):
        beyond = [i for i in sim.settings.fault_replicas if i >= model.settings.replicas]
        if beyond and "replicas" not in model.broken:
            sim.blame(problems, "fault_replicas", f"expected indices below replicas, which is {model.settings.replicas}")


def _check_device(model: Entry[ModelSettings], devices: list[Entry[DeviceSettings]], problems: Problems) -> None:
    declared = [d.settings.name for d in devices]
    device = model.settings.device
    if devices and device != "auto" and device not in declared and not any("name" in d.broken for d in devices):
        model.blame(problems, "device", f'expected "auto" or a declared [[device]]: {", ".join(declared)}{suggestion(device, declared)}')


def _check_versions(models: list[Entry[ModelSettings]], problems: Problems) -> None:
    """Each (name, version) once; and no two pairs that make the same replica ids, as a-b v1 and a b-v1 would."""
    seen: dict[str, Entry[ModelSettings]] = {}
    for model in models:
        if model.broken & {"name", "version"}:
            continue
        name, version = model.settings.name, model.settings.version
        first = seen.setdefault(f"{name}-{version}", model)
        if first is model:
            continue
        if (first.settings.name, first.settings.version) == (name, version):
            field = "version" if "version" in model.given else "name"
            model.blame(problems, field, f"duplicate: {first.place} already is {name} {version}; expected another version")
        else:
            model.blame(problems, "name", f"with version {version} makes the same replica ids as {first.place}; expected another name")


def _check_unique(entries: list[Entry[TenantSettings]] | list[Entry[DeviceSettings]], field: str, problems: Problems) -> None:
    seen: dict[str, str] = {}
    for entry in entries:
        value = str(getattr(entry.settings, field))
        if field not in entry.broken and seen.setdefault(value, str(entry.place)) != str(entry.place):
            entry.blame(problems, field, f"duplicate: {seen[value]} has the same; expected each {field} once")


def _check_tenant_models(tenant: Entry[TenantSettings], models: list[Entry[ModelSettings]], problems: Problems) -> None:
    known = list(dict.fromkeys(_sound_names(models)))
    for name in tenant.settings.models:
        if known and name not in known:
            tenant.blame(problems, "models", f"unknown model {name[:64]}: expected names of [[model]] tables{suggestion(name, known)}")


def _sound_names(models: list[Entry[ModelSettings]]) -> Iterator[str]:
    return (m.settings.name for m in models if "name" not in m.broken)
