"""Writes man/ from the command tree: one page for each command, and halcyond.8.

    python scripts/build_man.py            write
    python scripts/build_man.py --check    write nothing; exit 1 and name the pages that differ

The pages are committed, so that a package needs no build step and a change of an option shows in review. Everything about a command
comes from the command itself; this file holds only what belongs to all pages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import typer.main

from halcyon import __version__
from halcyon.cli.main import build_app
from halcyon.errors import ExitCode

MAN = Path(__file__).resolve().parent.parent / "man"

EXIT_CODES = {
    ExitCode.OK: "Done.",
    ExitCode.FAILURE: "It failed: a replica was given up, a worker or the source of a model failed, or the fault is Halcyon's own.",
    ExitCode.USAGE: "A misused option, a broken fleet file, or a request the daemon cannot read.",
    ExitCode.DAEMON_NOT_RUNNING: "No daemon answers on the control socket.",
    ExitCode.NOT_FOUND: "No such model, version or replica.",
    ExitCode.REFUSED: "Refused, or in conflict with what is: a limit, a full queue, a deadline, another daemon.",
    ExitCode.TIMEOUT: "A bounded wait ran out; what was waited for may still happen.",
}
ENVIRONMENT = {
    "HALCYON_STATE_DIR": "The state directory, where --state-dir does not say.",
    "HALCYON_CACHE_DIR": "Where prepared models are kept. Default: $XDG_CACHE_HOME/halcyon, else ~/.cache/halcyon.",
    "XDG_STATE_HOME": "The state directory is halcyon in it, where neither says. Default: ~/.local/state.",
    "XDG_RUNTIME_DIR": "The control socket of the default state directory is halcyon/halcyon.sock in it.",
    "HALCYON_TRACEBACK": "Set to anything: a fault of Halcyon's own shows where it happened.",
    "NO_COLOR": "Set to anything: no colour on a terminal.",
}
FILES = {
    "~/.local/state/halcyon/": "The default state directory, mode 0700.",
    "STATE_DIR/halcyon.sock": "The control socket, mode 0600.",
    "STATE_DIR/halcyond.log": "The daemon's log, one JSON object a line, rotated.",
    "STATE_DIR/startup.log": "What the last daemon printed outside its log.",
    "STATE_DIR/history.db": "The history, SQLite.",
    "~/.cache/halcyon/models/": "Prepared weights.",
}
DAEMON_DESCRIPTION = """
halcyond schedules inference requests over a fleet of replicas. It starts a worker process for each local replica, fronts remote
OpenAI-compatible servers, serves HTTP and the control socket, and keeps its history in SQLite.

People start it with halcyon-up(1), which waits until the fleet is ready. Under systemd or in a container, run `halcyon up --foreground`,
which becomes this program. One daemon owns a state directory; its workers end with it, however it ends.
"""
DAEMON_OPTIONS = {
    "--fleet FILE": "The fleet file. Without it, the demo fleet that comes with Halcyon.",
    "--state-dir DIR": "The state directory. One daemon owns it.",
    "--listen HOST:PORT": "Listen here instead of where the fleet file says; port 0 takes a free one.",
    "--foreground": "Log to stderr too.",
    "--ready-fd N": "A file descriptor that gets one line, the fleet's state, when the fleet has settled.",
    "--version": "Print the version and exit.",
    "--help": "Show a help and exit.",
}
DAEMON_SIGNALS = {
    "SIGTERM, SIGINT": "Drain: running requests finish, new ones are refused; then end. A second one ends them.",
    "SIGHUP": "Open the log file anew.",
}


class Parameter(Protocol):
    """What this file reads of a parameter; typer's own class has no public name."""

    param_type_name: str
    opts: list[str]
    secondary_opts: list[str]
    metavar: str | None
    help: str | None
    default: Any
    required: bool
    hidden: bool
    envvar: str | list[str] | None
    show_default: bool | str
    multiple: bool
    is_flag: bool


class Command(Protocol):
    """What this file reads of a command."""

    help: str | None
    params: list[Parameter]
    hidden: bool


def walk() -> Iterator[tuple[str, Command]]:
    """Every command with its full name, groups before their members, in the order of the help."""
    yield from _walk("halcyon", cast("Command", typer.main.get_command(build_app())))


def _walk(name: str, command: Command) -> Iterator[tuple[str, Command]]:
    yield name, command
    for child_name, child in members(command).items():
        yield from _walk(f"{name} {child_name}", child)


def members(command: Command) -> dict[str, Command]:
    """The commands of a group; none of a plain command."""
    found: dict[str, Command] = getattr(command, "commands", {})
    return {name: child for name, child in found.items() if not child.hidden}


def pages() -> dict[str, str]:
    """File name → text of every page."""
    commands = list(walk())
    texts = {f"{name.replace(' ', '-')}.1": _page(name, command, [other for other, _ in commands]) for name, command in commands}
    return texts | {"halcyond.8": _daemon_page()}


def _page(name: str, command: Command, every_name: list[str]) -> str:
    first, _, rest = (command.help or "").partition("\n")
    lines = [*_head(name.replace(" ", "-"), 1, first), ".SH SYNOPSIS", _synopsis(name, command)]
    lines += [".SH DESCRIPTION", *_paragraphs(f"{first}\n\n{rest}")]
    if children := members(command):
        lines += [".SH COMMANDS", *(line for child, found in children.items() for line in _member(name, child, found))]
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    if arguments:
        lines += [".SH ARGUMENTS", *(line for each in arguments for line in _tagged(each.metavar or "", each.help or ""))]
    lines += [".SH OPTIONS", *(line for each in _options(command) for line in _tagged(_spelling(each), _explained(each)))]
    lines += _tagged("-h/--help", "Show this help and exit.")
    lines += [*_shared_sections(), ".SH SEE ALSO", _see_also(name, every_name)]
    return "\n".join(lines) + "\n"


def _daemon_page() -> str:
    lines = [*_head("halcyond", 8, "the Halcyon daemon"), ".SH SYNOPSIS", ".B halcyond"]
    lines += [_escaped("[OPTIONS]"), ".SH DESCRIPTION", *_paragraphs(DAEMON_DESCRIPTION)]
    lines += [".SH OPTIONS", *_table(DAEMON_OPTIONS), ".SH SIGNALS", *_table(DAEMON_SIGNALS), *_shared_sections()]
    lines += [".SH SEE ALSO", ".BR halcyon (1),", r".BR halcyon\-up (1)"]
    return "\n".join(lines) + "\n"


def _shared_sections() -> list[str]:
    codes = {str(int(code)): what for code, what in EXIT_CODES.items()} | {"130": "Interrupted (Ctrl-C)."}
    return [".SH EXIT STATUS", *_table(codes), ".SH ENVIRONMENT", *_table(ENVIRONMENT), ".SH FILES", *_table(FILES)]


def _head(title: str, section: int, summary: str) -> list[str]:
    heading = f'.TH {_escaped(title.upper())} {section} "" "Halcyon {__version__}" "Halcyon Manual"'
    what = summary.rstrip(".")
    return [heading, ".nh", ".ad l", ".SH NAME", rf"{_escaped(title)} \- {_escaped(what[:1].lower() + what[1:])}"]


def _synopsis(name: str, command: Command) -> str:
    arguments = [each.metavar or "" for each in command.params if each.param_type_name == "argument"]
    required = [_spelling(each) for each in command.params if each.param_type_name == "option" and each.required]
    rest = ["COMMAND", "..."] if members(command) else [*required, "[OPTIONS]", *arguments]
    return f".B {_escaped(name)}\n{_escaped(' '.join(rest))}"


def _options(command: Command) -> list[Parameter]:
    return [each for each in command.params if each.param_type_name == "option" and not each.hidden]


def _spelling(option: Parameter) -> str:
    names = "/".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag or not option.metavar else f"{names} {option.metavar}"


def _explained(option: Parameter) -> str:
    notes = []
    if option.required:
        notes.append("Required.")
    elif isinstance(option.show_default, str):
        notes.append(f"Default: {option.show_default}.")
    elif option.show_default and not option.is_flag and option.default not in (None, "", ()):
        notes.append(f"Default: {option.default:g}." if isinstance(option.default, float) else f"Default: {option.default}.")
    if option.envvar:
        notes.append(f"Also from ${option.envvar if isinstance(option.envvar, str) else ', $'.join(option.envvar)}.")
    return " ".join([option.help or "", *notes])


def _member(name: str, child: str, command: Command) -> list[str]:
    page = f"{name} {child}".replace(" ", "-")
    return _tagged(child, f"{(command.help or '').partition(chr(10))[0]} See {page}(1).")


def _see_also(name: str, every_name: list[str]) -> str:
    others = [f".BR {_escaped(other.replace(' ', '-'))} (1)," for other in every_name if other != name]
    return "\n".join([*others, ".BR halcyond (8)"])


def _table(entries: dict[str, str]) -> list[str]:
    return [line for tag, text in entries.items() for line in _tagged(tag, text)]


def _tagged(tag: str, text: str) -> list[str]:
    return [".TP", rf"\fB{_escaped(tag)}\fR", _escaped(text)]


def _paragraphs(text: str) -> list[str]:
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return [line for paragraph in paragraphs if paragraph for line in (".PP", _escaped(paragraph))]


def _escaped(text: str) -> str:
    """Text that roff prints as it stands: hyphens stay hyphens, and no line becomes a request."""
    safe = (
        text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("…", "...").replace("'", r"\(aq").replace("~", r"\(ti")
    )
    return rf"\&{safe}" if safe.startswith(".") else safe


def stale() -> list[str]:
    """Names of pages that are missing, differ, or belong to no command."""
    wanted = pages()
    found = {path.name: path.read_text() for path in MAN.glob("*.[18]")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def main() -> None:
    """Writes the pages, or compares them."""
    names = stale()
    if "--check" in sys.argv[1:]:
        if names:
            sys.exit(f"man/ is stale: {', '.join(names)}. Run `python scripts/build_man.py` and commit what it writes.")
        return
    wanted = pages()
    MAN.mkdir(exist_ok=True)
    for name in names:
        if name in wanted:
            (MAN / name).write_text(wanted[name])
        else:
            (MAN / name).unlink()
        print(f"man/{name}")


if __name__ == "__main__":
    main()
