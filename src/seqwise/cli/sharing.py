"""``seqwise card`` and ``seqwise push``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqwise.cli.flags import folder_argument

RunFolder = Annotated[Path, folder_argument("output folder of seqwise train or seqwise masked-model train")]


def card(
    run: RunFolder,
    *,
    repo: Annotated[
        str | None, typer.Option(metavar="USER/NAME", help="name on the hub to show in the card; by default the folder")
    ] = None,
) -> None:
    """Print the model card of a run: description, use, results with their signature, citation.

    seqwise push uploads RUN/README.md instead, if it exists.
    """
    from seqwise.runs.pushing import card_of

    print(card_of(run, repo=repo), end="")


def push(
    run: RunFolder,
    repo: Annotated[str, typer.Argument(metavar="USER/NAME", help="repository; created if it does not exist")],
    *,
    private: Annotated[bool, typer.Option("--private", help="create the repository as private")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the files without uploading them")] = False,
) -> None:
    """Upload a run with its model card to the Hugging Face hub; commands then accept its name like a folder.

    Uploads weights as safetensors, but no checkpoints, logs or data. Paths in the settings are cut to file names.
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
