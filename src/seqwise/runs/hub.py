"""Runs on the hub: where their files are, and how they come from there.

A repository holds a run without the folder around its model, so that its root is also what ``from_pretrained`` of the
model reads, ours or transformers':

::

    configuration.yaml or settings.json, metrics.json, README.md    as in RUN/
    config.json, model.safetensors, vocabularies, manifest.json     as in RUN/model/

Weights come as safetensors only, and nothing that is downloaded is ever executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seqwise.errors import InputError

HUB_RUN = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""The name of a repository: a user or an organisation, a slash, and its own."""

DOWNLOADED = ("*.json", "*.yaml", "*.safetensors", "*.txt", "*.model", "README.md")
"""All that a run is made of. What else is in a repository, code or pickles, stays there."""

_MARK = "manifest.json"


def model_folder(folder: Path) -> Path:
    """Folder of a run's model: in ``RUN/model``, or, as it comes from the hub, beside the settings.

    Example:
        >>> model_folder(Path("runs/tagger")).as_posix()
        'runs/tagger/model'
    """
    inside = folder / "model"
    return folder if not inside.is_dir() and (folder / _MARK).is_file() else inside


def run_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a run."""
    folder = Path(name)
    if not isinstance(name, str) or os.path.lexists(folder) or not HUB_RUN.fullmatch(name) or _is_here(name):
        return folder
    from huggingface_hub import constants, snapshot_download

    # A folder of files: the cache of the hub is made of links, which the manifest of a run does not allow.
    kept = Path(constants.HF_HOME) / "seqwise" / name
    with hub_refusals(name, "there is no such folder, and the hub gives no such run", hint="check the name"):
        return Path(snapshot_download(name, allow_patterns=list(DOWNLOADED), local_dir=kept))


def holds_run(name: str) -> bool:
    """Whether the hub has a run of ours under a name; False where it cannot say."""
    from huggingface_hub import hf_hub_download

    try:
        with hub_refusals(name, "the hub gives no such run", hint="check the name"):
            hf_hub_download(name, _MARK)
    except InputError:
        return False
    return True


def _is_here(name: str) -> bool:
    return Path(name.partition("/")[0]).is_dir()


@contextmanager
def hub_refusals(name: str, problem: str, *, hint: str) -> Iterator[None]:
    """Message of the hub, or of the network, in one line."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    # Of httpx or of httpx2, by the version of huggingface_hub: what a connection that fails raises, too.
    transport: Any = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    try:
        yield
    except InputError:
        raise
    except (transport, EntryNotFoundError, HFValidationError, OSError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(" .")
        raise InputError(f"{problem} ({said})", path=name, hint=hint) from error
