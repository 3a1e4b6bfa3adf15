"""Upload of runs to the hub, with a model card, in one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqwise.configuration import dump
from seqwise.errors import InputError
from seqwise.runs.hub import HUB_RUN, hub_errors, model_folder
from seqwise.runs.loading import load_run
from seqwise.runs.model_card import model_card, public_settings
from seqwise.runs.run import METRICS, Run, read_metrics
from seqwise.runs.trainer_options import CONFIGURATION

CARD = "README.md"


@dataclass(frozen=True)
class Upload:
    """Upload: a repository's name, USER/NAME, and its files by path, each a file to copy or its contents."""

    repo: str
    files: Mapping[str, Path | bytes]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of bytes by path."""
        return {
            name: file.stat().st_size if isinstance(file, Path) else len(file)
            for name, file in sorted(self.files.items())
        }


def card_of(folder: Path, *, repo: str | None = None) -> str:
    """Return the model card of a run: its own ``README.md``, or one made from settings and metrics."""
    if repo is not None:
        _require_name(repo)
    return _card(folder, load_run(folder), repo or str(folder))


def upload_of(folder: Path, repo: str) -> Upload:
    """Collect the files of a run for the hub, after a test load; paths in its settings are reduced to names."""
    _require_name(repo)
    run, model_path = load_run(folder), model_folder(folder)
    names = {path.relative_to(model_path): path for path in sorted(model_path.rglob("*")) if path.is_file()}
    # Hidden folders hold metadata of a download, which the hub refuses.
    files: dict[str, Path | bytes] = {
        name.as_posix(): path for name, path in names.items() if not any(part.startswith(".") for part in name.parts)
    }
    files[CONFIGURATION] = dump(public_settings(run.settings)).encode()
    if (folder / METRICS).is_file():
        files[METRICS] = folder / METRICS
    files[CARD] = _card(folder, run, repo).encode()
    return Upload(repo, files)


def _require_name(repo: str) -> None:
    if not HUB_RUN.fullmatch(repo):
        raise InputError("this is not a repository name", path=repo, hint="write it as USER/NAME")


def push(upload: Upload, *, private: bool | None = None, api: Any = None) -> str:
    """Create the repository if needed, upload the files in one commit, and return the commit's URL.

    Not implemented: removing files of older versions.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi() if api is None else api
    operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=file) for name, file in upload.files.items()]
    hint = "log in with: hf auth login, and check that USER is your name"
    with hub_errors(upload.repo, "the hub refuses the upload", hint=hint):
        api.create_repo(upload.repo, private=private, exist_ok=True)
        return str(api.create_commit(upload.repo, operations, commit_message="A run of seqwise").commit_url)


def _card(folder: Path, run: Run[Any, Any], repo: str) -> str:
    own = folder / CARD
    if own.is_file():
        return own.read_text(encoding="utf-8")
    return model_card(run, read_metrics(folder), repo=repo)
