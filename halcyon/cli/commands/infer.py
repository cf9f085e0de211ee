"""`halcyon infer`: ask a model, read along, then see how the request was scheduled.

stdout carries the answer alone. The account goes to stderr: on a terminal by itself, elsewhere with --account. Ctrl-C closes the
connection, which ends the request down to the replica.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing, nullcontext
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from halcyon.cli.account import print_account
from halcyon.cli.answers import Answer, AnswerReader, read_answer
from halcyon.cli.client import ControlClient, connect
from halcyon.cli.completion import complete_replica
from halcyon.cli.options import AsJson, ModelName, StateDir
from halcyon.cli.screen import Screen, harmless
from halcyon.cli.waiting import Notice, notice
from halcyon.errors import ConfigError
from halcyon.wire.inference import Account

_Sampling = "Sampling"
_Scheduling = "Scheduling"


class Lane(StrEnum):
    """The queues of the daemon."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


def infer(
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say to it; - reads stdin.")],
    version: Annotated[
        str,
        typer.Option("--version", metavar="VERSION", help="Ask this version, not the default one.", show_default="the rollout's choice"),
    ] = "",
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="A system message before it.", show_default=False)] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Send the text as it is, without the model's chat template.")] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            min=1,
            metavar="N",
            help="Tokens of the answer, at most; a longer one is cut there. Without it: as many as the context has room for.",
            rich_help_panel=_Sampling,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            min=0.0,
            max=2.0,
            metavar="T",
            help="From 0 (always the likeliest token) to 2 (wild). Without it: the model's own in the fleet file, else 1.",
            rich_help_panel=_Sampling,
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            min=0.0,
            max=1.0,
            metavar="P",
            help="Draw from the likeliest tokens that make up this share, above 0 up to 1 (all). "
            "Without it: the model's own in the fleet file, else 1.",
            rich_help_panel=_Sampling,
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k", min=0, metavar="K", help="Draw from the K likeliest tokens. 0, and without it: from all.", rich_help_panel=_Sampling
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            help="The same seed gives the same answer. Without it: another answer each time, unless the temperature is 0.",
            rich_help_panel=_Sampling,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", metavar="TEXT", help="A string that ends the answer and is no part of it; may be repeated.", rich_help_panel=_Sampling
        ),
    ] = None,
    deadline_ms: Annotated[
        int | None,
        typer.Option(
            "--deadline-ms",
            min=1,
            metavar="MS",
            help="Milliseconds for the whole answer; one that is not whole by then is refused or cut off (exit status 5). "
            "Without it: the model's own in the fleet file, else none.",
            rich_help_panel=_Scheduling,
        ),
    ] = None,
    ttft_ms: Annotated[
        int | None,
        typer.Option(
            "--ttft-ms",
            min=1,
            metavar="MS",
            help="Milliseconds to the first token: an aim that decides who goes first; missing it ends nothing.",
            rich_help_panel=_Scheduling,
        ),
    ] = None,
    tpot_ms: Annotated[
        int | None,
        typer.Option(
            "--tpot-ms",
            min=1,
            metavar="MS",
            help="Milliseconds for each further token: an aim, as --ttft-ms.",
            rich_help_panel=_Scheduling,
        ),
    ] = None,
    lane: Annotated[
        Lane | None,
        typer.Option(
            "--lane",
            metavar="interactive|bulk",
            help="The queue it waits in; bulk goes behind what is interactive.",
            rich_help_panel=_Scheduling,
            show_default="interactive",
        ),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="KEY", help="Requests of one session stay on one version.", rich_help_panel=_Scheduling),
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(
            "--replica",
            metavar="ID",
            autocompletion=complete_replica,
            help="This replica and no other: it is waited for even while another is free.",
            rich_help_panel=_Scheduling,
        ),
    ] = None,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Wait for the whole answer instead of printing it as it comes.")] = False,
    with_account: Annotated[
        bool | None, typer.Option("--account/--no-account", show_default="on a terminal", help="Print how it was scheduled, on stderr.")
    ] = None,
    state_directory: StateDir = "",
    as_json: AsJson = False,
) -> None:
    """Ask a model and read along; then see how it was scheduled."""
    body = _body(
        model=model,
        input=_input(text, system, raw=raw),
        version=version or None,
        max_output_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=stop or None,
        deadline_ms=deadline_ms,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        lane=lane,
        session_key=session,
        replica_id=replica,
        stream=not (no_stream or as_json),
    )
    screen = Screen(as_json=as_json)
    waiting = notice(state_directory, model=model, version=version, replica_id=replica or "")
    with connect(state_directory) as client, nullcontext() if as_json else waiting as said:
        answer = _whole(client, body) if no_stream or as_json else _streamed(client, body, said)
    if as_json:
        screen.document(answer)
    elif no_stream:
        screen.say(harmless(answer.output) if screen.is_terminal else answer.output)
    if not as_json:
        _print_account(answer.account, wanted=with_account)


def _input(text: str, system: str, *, raw: bool) -> str | list[dict[str, str]]:
    """The endpoint's `input`: messages for the chat template, or the bare text."""
    said = _utf8(text)
    if not said:
        raise ConfigError(["TEXT is empty. Say something, or give - to read it from stdin."])
    if raw and system:
        raise ConfigError(["--system needs the chat template, which --raw leaves out. Drop one of the two."])
    if raw:
        return said
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": said}]


def _utf8(text: str) -> str:
    """The text, or stdin's for -."""
    try:
        said = sys.stdin.read() if text == "-" else text
        said.encode()
    except UnicodeError:
        raise ConfigError(["TEXT is not valid UTF-8. Convert it first, with iconv for example."]) from None
    return said


def _body(**fields: object) -> dict[str, object]:
    """The fields that were given; what was not is the daemon's to decide."""
    return {name: value for name, value in fields.items() if value is not None}


def _whole(client: ControlClient, body: dict[str, object]) -> Answer:
    return read_answer(client.infer(body))


def _streamed(client: ControlClient, body: dict[str, object], said: Notice | None) -> Answer:
    """Prints the answer as it comes, and ends it with a line break. said: what is shown until then."""
    reader = AnswerReader()
    try:
        with closing(_texts(client, body, reader)) as texts:
            for piece in texts:
                if said is not None:
                    said.end()
                sys.stdout.write(harmless(piece) if sys.stdout.isatty() else piece)
                sys.stdout.flush()
    finally:
        if reader.output and not reader.output.endswith("\n"):
            sys.stdout.write("\n")
    return reader.answer()


def _texts(client: ControlClient, body: dict[str, object], reader: AnswerReader) -> Generator[str]:
    with closing(client.infer_stream(body)) as events:
        for event in events:
            yield reader.take(event)


def _print_account(account: Account, *, wanted: bool | None) -> None:
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        return
    print_account(account, Console(stderr=True, highlight=False))
