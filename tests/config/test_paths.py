"""The CLI and the daemon find each other, and daemons with different state directories never meet."""

from __future__ import annotations

import os
import pwd
import socket
import stat
from pathlib import Path

import pytest

from halcyon.config import paths
from halcyon.errors import ConfigError


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No variable of ours or of XDG, and a home of its own."""
    for name in ("HALCYON_STATE_DIR", "HALCYON_CACHE_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_state_directory_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The override, then $HALCYON_STATE_DIR, then $XDG_STATE_HOME/halcyon, then ~/.local/state/halcyon; always absolute."""
    assert paths.state_dir() == tmp_path / "home/.local/state/halcyon"
    monkeypatch.setenv("XDG_STATE_HOME", "relative is ignored")
    assert paths.state_dir() == tmp_path / "home/.local/state/halcyon"
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert paths.state_dir() == Path("/xdg/halcyon")
    monkeypatch.setenv("HALCYON_STATE_DIR", "~/mine")
    assert paths.state_dir() == tmp_path / "home/mine"
    assert paths.state_dir("/override") == Path("/override")
    monkeypatch.chdir(tmp_path)
    assert paths.state_dir("here") == tmp_path / "here"


def test_cache_directory_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """$HALCYON_CACHE_DIR, then $XDG_CACHE_HOME/halcyon, then ~/.cache/halcyon."""
    assert paths.cache_dir() == tmp_path / "home/.cache/halcyon"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert paths.cache_dir() == Path("/xdg/halcyon")
    monkeypatch.setenv("HALCYON_CACHE_DIR", "/cache")
    assert paths.cache_dir() == Path("/cache")


@pytest.mark.parametrize("chosen", ["~no-such-account-here/x", "~"])
def test_an_unknown_home_is_the_operators_to_mend(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    """A home directory that nobody knows (a name without an account, a user id without one) is a ConfigError that says what to set."""

    def no_account(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", no_account)
    for named in (lambda: paths.state_dir(chosen), paths.state_dir, paths.cache_dir):
        with pytest.raises(ConfigError, match="HALCYON_STATE_DIR and HALCYON_CACHE_DIR"):
            named()


def test_a_relative_home_still_gives_absolute_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """HOME=here is taken from the current directory, once, so that nothing moves with a later chdir."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "here")
    assert paths.state_dir() == tmp_path / "here/.local/state/halcyon"
    assert paths.cache_dir() == tmp_path / "here/.cache/halcyon"


def test_a_loop_of_links_still_names_a_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Naming a path never fails: a state directory that is a link to itself has a socket path like any other."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert paths.socket_path(loop) == loop / "halcyon.sock"


def test_the_accounts_own_daemon_listens_in_the_runtime_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default state directory's socket is $XDG_RUNTIME_DIR/halcyon/halcyon.sock; without that directory it is beside the state."""
    own = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local/state/halcyon"
    assert paths.socket_path(own) == own / "halcyon.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert paths.socket_path(own) == tmp_path / "halcyon/halcyon.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert paths.socket_path(own) == own / "halcyon.sock"


def test_daemons_with_different_state_directories_never_meet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Own default, another $HOME, another $XDG_STATE_HOME, $HALCYON_STATE_DIR, and long names: a socket each."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local/state/halcyon"
    states = [own, paths.state_dir(), paths.state_dir("/a"), paths.state_dir("/b"), Path("/" + "x" * 150), Path("/" + "x" * 151)]
    assert len({paths.socket_path(state) for state in states}) == len(states)


@pytest.mark.parametrize("runtime", ["", "runtime", "r" * 120])
def test_sockets_always_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runtime: str) -> None:
    """However long the state or runtime directory, the socket's path is at most 107 bytes, the same each time, and can be bound."""
    (tmp_path / runtime).mkdir(exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / runtime) if runtime else "")
    state = tmp_path / ("s" * 120)
    path = paths.socket_path(state)
    assert len(os.fsencode(path)) <= 107
    assert path == paths.socket_path(state)
    paths.make_private_dir(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    path.unlink()


def test_names_inside_a_state_directory_differ() -> None:
    """Lock, log, history and socket are four files in one directory."""
    state = Path("/state")
    named = {paths.lock_path(state), paths.log_path(state), paths.history_path(state), paths.socket_path(state)}
    assert len(named) == 4
    assert {path.parent for path in named} == {state}


def test_private_directories_are_private(tmp_path: Path) -> None:
    """A new directory has mode 0700; an empty one of ours becomes 0700; a used one keeps its mode."""
    made = paths.make_private_dir(tmp_path / "a/b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o755)
    assert stat.S_IMODE(paths.make_private_dir(wide).stat().st_mode) == 0o700
    wide.chmod(0o755)
    (wide / "something").touch()
    assert stat.S_IMODE(paths.make_private_dir(wide).stat().st_mode) == 0o755


def test_directories_that_others_could_write_to_are_refused(tmp_path: Path) -> None:
    """A used directory that others may write to, a file, and a path under a file each give a ConfigError that says what to do."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "something").touch()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="others may write to it"):
        paths.make_private_dir(shared)
    for path in (shared / "something", shared / "something/below"):
        with pytest.raises(ConfigError, match="HALCYON_STATE_DIR"):
            paths.make_private_dir(path)


def test_a_link_planted_in_tmp_is_refused(tmp_path: Path) -> None:
    """In /tmp, where anyone may put a link under the name we will use, a link to a directory is no directory of ours."""
    link = Path(f"/tmp/halcyon-test-{os.getpid()}")
    link.symlink_to(tmp_path)
    try:
        with pytest.raises(ConfigError, match="expected a directory"):
            paths.make_private_dir(link)
    finally:
        link.unlink()
