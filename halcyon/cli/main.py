"""The command's entry: the tree of commands, and how their failures become a message and an exit status.

One of the three places that may catch everything. Commands raise; only this file prints errors and chooses exit codes.

    HalcyonError        its message on stderr (a list of problems: one a line), its class's exit code
    a misused option    the parser's message and where the help is, exit 2
    the system's no     a full disk behind stdout, say: its words, exit 1
    Ctrl-C              exit 130
    anything else       a fault of ours: its kind and where to look, exit 1
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Literal, cast

import msgspec
import typer

from halcyon import __version__
from halcyon.cli.commands import (
    bench,
    doctor,
    down,
    infer,
    model_list,
    model_prepare,
    replica_drain,
    replica_list,
    replica_register,
    replica_remove,
    status,
    up,
    version,
)
from halcyon.cli.misuse import sentence_of
from halcyon.errors import ConfigError, ExitCode, HalcyonError, RequestError

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells count it: 128 + SIGINT."""
_WHERE = "HALCYON_TRACEBACK=1 shows where"
_UsageError = cast("type[Exception]", typer.BadParameter.__base__)
"""The parser's own complaint; typer gives only its subclass a public name."""


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The `error` object on stderr under --json. `code` is a wire code for what a request may meet, else the error's name."""

    code: str
    message: str
    exit_code: int
    problems: list[str] | None = None
    param: str | None = None
    retry_after_ms: int | None = None
    details: dict[str, int | float | str] | None = None


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"halcyon {__version__}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """The whole command tree. Its helps have boxes and colour on a terminal only."""
    markup: Literal["rich"] | None = "rich" if sys.stdout.isatty() else None
    app = typer.Typer(
        name="halcyon",
        help="Run and question a Halcyon daemon: an inference control plane for a handful of GPUs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=markup,
        context_settings={"help_option_names": ["-h", "--help"]},  # every command inherits them
        callback=_whole_command,
    )
    app.command("up")(up.up)
    app.command("down")(down.down)
    app.command("status")(status.status)
    app.command("infer")(infer.infer)
    replica = typer.Typer(help="The replicas that serve, one by one.", no_args_is_help=True, rich_markup_mode=markup)
    replica.command("list")(replica_list.replica_list)
    replica.command("register")(replica_register.replica_register)
    replica.command("drain")(replica_drain.replica_drain)
    replica.command("remove")(replica_remove.replica_remove)
    app.add_typer(replica, name="replica")
    model = typer.Typer(help="The models of the fleet.", no_args_is_help=True, rich_markup_mode=markup)
    model.command("list")(model_list.model_list)
    model.command("prepare")(model_prepare.model_prepare)
    app.add_typer(model, name="model")
    app.command("bench")(bench.bench)
    app.command("doctor")(doctor.doctor)
    app.command("version")(version.version)
    return app


def _whole_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show this command's version and exit.")
    ] = False,
) -> None:
    """What `halcyon` takes without a command."""


def main() -> None:
    """The console script. A terminal that cannot show a character gets a question mark instead of an error."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def _open_closed_streams() -> None:
    """Puts the null device where a caller closed a standard stream: nothing else may get its number, and writing there is no fault."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it lives as long as the process


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status; errors are printed, never raised."""
    as_json = "--json" in arguments
    try:
        result = build_app()(args=list(arguments), prog_name="halcyon", standalone_mode=False)
        return result if isinstance(result, int) else ExitCode.OK
    except HalcyonError as error:
        return _report(_report_of(error), as_json=as_json)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.FAILURE  # shell completion, and a reader that left the pipe
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except _UsageError as error:
        return _usage(error, as_json=as_json)
    except OSError as error:
        _show_place()
        message = f"The system refused: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}."
        return _report(ErrorReport(code="os_error", message=f"{message} {_WHERE}.", exit_code=ExitCode.FAILURE), as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the CLI's own boundary: a fault of ours must not look like one of the user's
        _show_place()
        message = f"halcyon met a fault of its own ({type(error).__name__}: {error}). {_WHERE}; please report it."
        return _report(ErrorReport(code="internal_error", message=message, exit_code=ExitCode.FAILURE), as_json=as_json)


def _show_place() -> None:
    if os.environ.get("HALCYON_TRACEBACK"):
        traceback.print_exc()


def _report_of(error: HalcyonError) -> ErrorReport:
    if isinstance(error, RequestError):
        return ErrorReport(
            code=error.code,
            message=error.message,
            exit_code=error.exit_code,
            param=error.param,
            retry_after_ms=error.retry_after_ms,
            details=error.details or None,
        )
    problems = error.problems if isinstance(error, ConfigError) else None
    return ErrorReport(code=_snake(type(error).__name__), message=error.message, exit_code=error.exit_code, problems=problems)


def _usage(error: Exception, *, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help(), file=sys.stderr)
        return ExitCode.USAGE
    where = context.command_path if context is not None else "halcyon"
    return _report(
        ErrorReport(code="usage", message=f"{sentence_of(error)} See `{where} --help`.", exit_code=ExitCode.USAGE), as_json=as_json
    )


def _report(report: ErrorReport, *, as_json: bool) -> int:
    if as_json:
        text = msgspec.json.encode({"error": report}).decode()
    else:
        lines = report.problems or [report.message]
        text = "\n".join(f"halcyon: {line}" if index == 0 or report.problems else line for index, line in enumerate(lines))
        if report.retry_after_ms is not None:
            text += f"\nTrying again can help in {report.retry_after_ms / 1000:.1f} s."
    with contextlib.suppress(OSError):  # where stderr takes nothing the exit status still says it
        print(text, file=sys.stderr, flush=True)
    return report.exit_code


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
