"""``seqwise explore``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqwise.cli.console import print_device
from seqwise.cli.flags import folder_argument


def explore(
    run: Annotated[
        Path,
        folder_argument("output folder of train or masked-model train, or a folder with a Hugging Face masked model"),
    ],
    *,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="data to take examples from; by default the run's development data"),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="address to listen on; the default is reachable from this machine only")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="port; 0 chooses a free one")] = 8421,
) -> None:
    """Explore a run in the browser: searches step by step, label bias, live lines, or running chains.

    Serves pages on this machine until Ctrl-C, without a password.
    """
    from seqwise.pages.explorer.questions import load_explored
    from seqwise.pages.explorer.server import require_nicegui, serve

    require_nicegui()
    print_device()
    loaded = load_explored(run, file=file)
    serve(loaded, run.resolve().name, host=host, port=port)
