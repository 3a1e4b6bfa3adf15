"""Hub methods of this package's models: ``from_pretrained``, ``save_pretrained`` and ``push_to_hub``."""

from __future__ import annotations

import copy
import inspect
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model

from seqwise.devices import device_of
from seqwise.errors import InputError

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"

_CARD = """---
library_name: seqwise
tags:
- seqwise
---

A model of seqwise, `{module}.{name}`. Load it with `{name}.from_pretrained`.
"""


class HubModel:
    """Model saved in a folder or on the hub, with weights as safetensors and arguments as JSON; pickles are never read.

    The files are those of ``PyTorchModelHubMixin`` of huggingface_hub, which takes longer to import than a small run
    takes to predict; here it is imported only for access to the hub.

    Example:
        >>> from torch import nn
        >>> class Scores(nn.Module, HubModel):
        ...     def __init__(self, size: int = 2):
        ...         super().__init__()
        ...         self.weights = nn.Parameter(nn.init.ones_(nn.Linear(size, 1).weight))
        >>> folder = getfixture("tmp_path")
        >>> Scores(size=3).save_pretrained(folder)
        >>> Scores.from_pretrained(folder).weights.shape
        torch.Size([1, 3])
    """

    _arguments: dict[str, Any]

    def __new__(cls, *values: Any, **named: Any) -> Self:
        model = super().__new__(cls)
        # Partial, because copying calls this without arguments. With defaults, which a later version may change.
        bound = inspect.signature(cls.__init__).bind_partial(model, *values, **named)
        bound.apply_defaults()
        model._arguments = dict([*bound.arguments.items()][1:])
        return model

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors``, ``config.json`` and, unless there is one, ``README.md`` to a folder."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        # On a GPU, the weights of an LSTM share memory, which safetensors refuses.
        model: Any = self
        if device_of(model).type != "cpu":
            model = copy.deepcopy(model).cpu()
        save_model(model, str(folder / WEIGHTS))
        (folder / CONFIG).write_text(json.dumps(self._arguments, sort_keys=True, indent=2), encoding="utf-8")
        if not (folder / CARD).exists():
            kind = type(self)
            card = _CARD.format(module=kind.__module__, name=kind.__qualname__)
            (folder / CARD).write_text(card, encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        **arguments: Any,
    ) -> Self:
        """Load a model from a folder or from the hub, on the CPU and without dropout.

        Args:
            pretrained_model_name_or_path: a folder, or the name of a repository on the hub.
            revision, token, cache_dir, force_download, local_files_only: see ``huggingface_hub.hf_hub_download``.
            arguments: of the class, in place of those in ``config.json``.

        Raises:
            InputError: there is no ``config.json`` or no ``model.safetensors``, or they are not those of this class.
        """
        download = {
            "revision": revision,
            "token": token,
            "cache_dir": cache_dir,
            "force_download": force_download,
            "local_files_only": local_files_only,
        }
        config, weights = (_file(pretrained_model_name_or_path, name, download) for name in (CONFIG, WEIGHTS))
        try:
            model: Any = cls(**json.loads(config.read_text(encoding="utf-8")) | arguments)
            load_model(model, weights)
        except InputError:
            raise
        except (RuntimeError, SafetensorError, TypeError, ValueError) as error:
            problem = f"does not hold a {cls.__name__} ({str(error).strip().splitlines()[-1].strip()})"
            hint = "load it with the class and the arguments that it was saved with"
            raise InputError(problem, path=os.fspath(pretrained_model_name_or_path), hint=hint) from error
        return model.eval()

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Push model using seqwise",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        **patterns: Any,
    ) -> str:
        """Create the repository if needed, upload the files of ``save_pretrained`` in one commit, and return its URL.

        Args:
            repo_id: name of the repository, USER/NAME.
            private, token, branch, create_pr, patterns: see ``create_repo`` and ``upload_folder`` of ``HfApi``.
            commit_message: first line of the commit's message.
        """
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            where: dict[str, Any] = {"repo_id": repo_id, "folder_path": folder, "revision": branch}
            return api.upload_folder(**where, commit_message=commit_message, create_pr=create_pr, **patterns)


def _file(source: str | os.PathLike[str], name: str, download: dict[str, Any]) -> Path:
    """Return a file of a folder, or of a repository on the hub."""
    hint = "use a folder written by save_pretrained; pickled weights are not read, since a pickle can run code"
    missing = InputError(f"there is no {name}", path=os.fspath(source), hint=hint)
    if os.path.isdir(source):
        if not os.path.isfile(Path(source, name)):
            raise missing
        return Path(source, name)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo_id=os.fspath(source), filename=name, **download))
    except LocalEntryNotFoundError:  # the hub cannot be reached
        raise
    except EntryNotFoundError:
        raise missing from None
