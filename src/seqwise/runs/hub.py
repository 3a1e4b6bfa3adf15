"""Download of runs from the hub.

In a repository, the model files of a run are in the root, where ``from_pretrained`` reads them::

    configuration.yaml, metrics.json, README.md                    as in RUN/
    config.json, model.safetensors, vocabularies, manifest.json    as in RUN/model/

Weights are safetensors only, and downloaded files are never executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seqwise.errors import InputError, first_line
from seqwise.training.checkpoints import MANIFEST

HUB_RUN = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""Name of a repository: user or organisation, slash, repository."""

DOWNLOADED = ("*.json", "*.yaml", "*.safetensors", "*.txt", "*.model", "README.md")
"""Files of a run; code or pickles in a repository are never downloaded."""


def model_folder(folder: Path) -> Path:
    """Return ``RUN/model``, or the run folder itself if it comes from the hub."""
    model_path = folder / "model"
    return folder if not model_path.is_dir() and (folder / MANIFEST).is_file() else model_path


def run_folder(name: str | os.PathLike[str]) -> Path:
    """Return the folder of a run, downloaded from the hub if a str is not a path but may be a repository.

    A str that begins with an existing folder ("runs/tager") is not a repository.
    """
    folder = Path(name)
    is_path = not isinstance(name, str) or os.path.lexists(folder) or not HUB_RUN.fullmatch(name)
    if is_path or Path(str(name).partition("/")[0]).is_dir():
        return folder
    from huggingface_hub import constants, snapshot_download

    # Not in the cache of the hub, which consists of links: the manifest of a run does not allow them.
    download = Path(constants.HF_HOME) / "seqwise" / str(name)
    with hub_errors(str(name), "there is no such folder, and no such run on the hub", hint="check the name"):
        return Path(snapshot_download(str(name), allow_patterns=list(DOWNLOADED), local_dir=download))


def holds_run(name: str) -> bool:
    """Whether the hub has a seqwise run of this name; False if the hub is unreachable."""
    from huggingface_hub import hf_hub_download

    try:
        with hub_errors(name, "there is no such run on the hub", hint="check the name"):
            hf_hub_download(name, MANIFEST)
    except InputError:
        return False
    return True


@contextmanager
def hub_errors(name: str, problem: str, *, hint: str) -> Iterator[None]:
    """Convert errors of the hub and the network to one line."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    # Base class of connection errors, from httpx or httpx2, depending on the version of huggingface_hub.
    transport: Any = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    try:
        yield
    except (transport, EntryNotFoundError, HFValidationError, OSError) as error:
        message = first_line(error).rstrip(" .")
        if isinstance(error, transport | ConnectionError) and not isinstance(error, HfHubHTTPError):  # no answer
            problem, hint = "the hub cannot be reached", "check the network, and HF_HUB_OFFLINE"
        raise InputError(f"{problem} ({message})", path=name, hint=hint) from error
