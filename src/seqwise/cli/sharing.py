"""``seqwise card`` and ``seqwise push``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqwise.cli.completion import run_folders

RunFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        autocompletion=run_folders,
        help="the --output of seqwise train or seqwise masked-model train",
    ),
]


def card(
    run: RunFolder,
    *,
    repo: Annotated[
        str | None, typer.Option(metavar="USER/NAME", help="the name it is loaded by; the folder by default")
    ] = None,
) -> None:
    """Print the model card of a run: what it is, how to use it, its results with their signature, whom to cite.

    Written to RUN/README.md and edited there, it is what seqwise push takes.
    """
    from seqwise.runs.pushing import card_of

    print(card_of(run, repo=repo), end="")


def push(
    run: RunFolder,
    repo: Annotated[str, typer.Argument(metavar="USER/NAME", help="the repository; made where there is none")],
    *,
    private: Annotated[bool, typer.Option("--private", help="a new repository is seen by nobody else")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be sent, and send nothing")] = False,
) -> None:
    """Put a run with its model card on the Hugging Face hub, from where its name is taken like a folder.

    Weights go as safetensors; checkpoints, logs and data stay. Of paths in the settings only file names go along.
    """
    from seqwise.runs.pushing import push as send
    from seqwise.runs.pushing import upload_of

    upload = upload_of(run, repo)
    if dry_run:
        for name, size in upload.sizes.items():
            print(f"{size:>14,}  {name}")
        print(f"{len(upload.files)} files would go to {repo}; nothing was sent")
        return
    print(f"the run is at {send(upload, private=True if private else None)}; its card says how to use {repo}")
