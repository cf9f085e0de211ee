"""The options that several commands share, so that one flag reads and behaves the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from halcyon.cli.completion import complete_model, complete_replica

StateDir = Annotated[
    str,
    typer.Option(
        "--state-dir",
        envvar="HALCYON_STATE_DIR",
        metavar="DIR",
        show_default=False,
        help="The daemon's state directory. Daemons with different ones do not meet.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document with stable keys; errors too, on stderr.")]
Fleet = Annotated[
    Path | None,
    typer.Option("--fleet", metavar="FILE", show_default=False, help="The fleet file. Without it, the demo fleet that comes with Halcyon."),
]
ReplicaId = Annotated[str, typer.Argument(metavar="ID", autocompletion=complete_replica, help="The replica, as `halcyon status` names it.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=complete_model, help="The model: NAME, or NAME@VERSION.")]
