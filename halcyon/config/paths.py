"""Where a daemon keeps its state, and where its socket is found again.

Rules: the functions that name paths touch nothing on disk, so the CLI and the daemon reach the same answer from the same environment;
only `make_private_dir` creates. Two daemons with different state directories never share a socket:

    state directory                      socket
    the account's own default            $XDG_RUNTIME_DIR/halcyon/halcyon.sock, where $XDG_RUNTIME_DIR is a directory
    any other                            STATE_DIR/halcyon.sock
    either path over 107 bytes           HASH.sock of the state directory, in $XDG_RUNTIME_DIR/halcyon/ or else /tmp/halcyon-UID/

"The account's own default" is taken from the password database, not from $HOME or $XDG_STATE_HOME: either may be changed for one daemon
while $XDG_RUNTIME_DIR stays, and two daemons would meet.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
from pathlib import Path

from halcyon.errors import ConfigError

SOCKET_PATH_MAX_BYTES = 107
"""AF_UNIX addresses hold 108 bytes on Linux, one of them the closing NUL."""

_TMP = Path("/tmp")
_VARIABLES = "HALCYON_STATE_DIR and HALCYON_CACHE_DIR"
_CHOOSE_ANOTHER = "Set HALCYON_STATE_DIR to choose another directory."


def state_dir(override: str = "") -> Path:
    """The absolute state directory: `override`, else $HALCYON_STATE_DIR, else $XDG_STATE_HOME/halcyon (default ~/.local/state/halcyon).

    Raises:
        ConfigError: the home directory it starts at is unknown.
    """
    chosen = override or os.environ.get("HALCYON_STATE_DIR", "")
    return _expanded(chosen) if chosen else _xdg("XDG_STATE_HOME", ".local/state") / "halcyon"


def cache_dir() -> Path:
    """The absolute cache directory: $HALCYON_CACHE_DIR, else $XDG_CACHE_HOME/halcyon (default ~/.cache/halcyon).

    Raises:
        ConfigError: as for `state_dir`.
    """
    chosen = os.environ.get("HALCYON_CACHE_DIR", "")
    return _expanded(chosen) if chosen else _xdg("XDG_CACHE_HOME", ".cache") / "halcyon"


def socket_path(state_dir: Path) -> Path:
    """The control socket of the daemon that owns `state_dir`. Always at most `SOCKET_PATH_MAX_BYTES` long."""
    runtime = _runtime_dir()
    by_default = runtime if _real(state_dir) == _account_state_dir() else None
    preferred = (by_default or state_dir) / "halcyon.sock"
    return preferred if _fits(preferred) else _short_socket_path(state_dir, runtime)


def lock_path(state_dir: Path) -> Path:
    """The file whose lock makes a daemon the only owner of `state_dir`."""
    return state_dir / "daemon.lock"


def log_path(state_dir: Path) -> Path:
    """The daemon's log; rotated files stand beside it."""
    return state_dir / "halcyond.log"


def history_path(state_dir: Path) -> Path:
    """The SQLite file with the history."""
    return state_dir / "history.db"


def make_private_dir(path: Path) -> Path:
    """Creates `path` with mode 0700, or checks that what is there is a directory of ours that nobody else can write to. Returns `path`.

    An empty directory of ours becomes 0700 too. One that holds things keeps its mode: it may be shared for reading on purpose.

    Raises:
        ConfigError: it cannot be created, is not a directory, or another user could put a socket of theirs there.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat() if path.parent == _TMP else path.stat()  # in /tmp anyone may have planted a link
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode) and mode & 0o077 and not any(path.iterdir()):
            path.chmod(0o700)
            mode = 0o700
    except OSError as error:
        raise ConfigError([f"{path}: cannot be a private directory: {error.strerror}. {_CHOOSE_ANOTHER}"]) from error
    _refuse_foreign(path, found, mode)
    return path


def _refuse_foreign(path: Path, found: os.stat_result, mode: int) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError([f"{path}: expected a directory. {_CHOOSE_ANOTHER}"])
    if found.st_uid != os.geteuid():
        raise ConfigError([f"{path}: belongs to user {found.st_uid}, expected {os.geteuid()}. {_CHOOSE_ANOTHER}"])
    if mode & 0o022:
        raise ConfigError([f"{path}: others may write to it (mode {mode:04o}), expected 0700. Run `chmod 700 {path}`. {_CHOOSE_ANOTHER}"])


def _xdg(variable: str, default: str) -> Path:
    """An XDG base directory. The specification says that a relative value is to be ignored."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else _expanded(f"~/{default}")


def _expanded(chosen: str) -> Path:
    """`chosen` with ~ and ~user resolved, absolute."""
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError:
        raise ConfigError([f"{chosen}: no such home directory. Set HOME, or name directories from / on in {_VARIABLES}."]) from None


def _runtime_dir() -> Path | None:
    value = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(value) / "halcyon" if value.startswith("/") and os.path.isdir(value) else None


def _account_state_dir() -> Path | None:
    """~/.local/state/halcyon of the account itself; `None` for a user id without an account (containers)."""
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None
    return _real(Path(home) / ".local/state/halcyon")


def _real(path: Path) -> Path:
    """The path with its links resolved as far as they go; unlike `Path.resolve` it takes a loop of links as it is."""
    return Path(os.path.realpath(path))


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_MAX_BYTES


def _short_socket_path(state_dir: Path, runtime: Path | None) -> Path:
    digest = hashlib.sha256(os.fsencode(_real(state_dir))).hexdigest()[:16]
    if runtime is not None and _fits(runtime / f"{digest}.sock"):
        return runtime / f"{digest}.sock"
    return _TMP / f"halcyon-{os.geteuid()}" / f"{digest}.sock"
