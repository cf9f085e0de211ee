"""`halcyon replica register`: a remote OpenAI-compatible server becomes one more replica."""

from __future__ import annotations

from typing import Annotated

import typer

from halcyon.cli.client import connect
from halcyon.cli.completion import complete_model
from halcyon.cli.fleet_table import replica_table
from halcyon.cli.options import AsJson, StateDir
from halcyon.cli.screen import Screen
from halcyon.wire.control import RegisterRequest


def replica_register(
    model: Annotated[
        str,
        typer.Option("--model", metavar="NAME", autocompletion=complete_model, help="The model it serves, one of the fleet's (see --new)."),
    ],
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Its base URL, with /v1: http://10.0.0.7:8000/v1.")],
    version: Annotated[
        str, typer.Option("--version", metavar="VERSION", help="The version it serves.", show_default="the default version")
    ] = "",
    remote_model: Annotated[
        str, typer.Option("--remote-model", metavar="NAME", help="The model's name there.", show_default="the same name")
    ] = "",
    api_key_env: Annotated[
        str, typer.Option("--api-key-env", metavar="NAME", help="The daemon's environment variable that holds its key.", show_default=False)
    ] = "",
    max_batch: Annotated[
        int, typer.Option("--max-batch", min=1, metavar="N", help="Sequences it may be given at once; more wait here.")
    ] = 32,
    max_context: Annotated[
        int,
        typer.Option("--max-context", min=1, metavar="TOKENS", help="Tokens of prompt plus answer, at most; longer requests are refused."),
    ] = 2048,
    new: Annotated[
        bool, typer.Option("--new", help="Make the model where there is none of that name; without it an unknown name is refused.")
    ] = False,
    state_directory: StateDir = "",
    as_json: AsJson = False,
) -> None:
    """Add a remote OpenAI-compatible server as a replica.

    vLLM, SGLang, llama.cpp, another Halcyon. It is kept for later daemons of this state directory, whatever their fleet, until
    `halcyon replica remove`."""
    screen = Screen(as_json=as_json)
    request = RegisterRequest(
        model=model,
        url=url,
        version=version,
        remote_model=remote_model,
        api_key_env=api_key_env,
        max_batch=max_batch,
        max_context=max_context,
        new=new,
    )
    with connect(state_directory) as client:
        replica = client.register(request)
    if as_json:
        screen.document(replica)
    replica_table(screen, [replica])
    screen.remark(f"Kept for later daemons here, whatever their fleet; `halcyon replica remove {replica.replica_id}` ends that.")
