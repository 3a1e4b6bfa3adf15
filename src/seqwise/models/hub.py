"""Hub methods of this package's models: ``from_pretrained``, ``save_pretrained`` and ``push_to_hub``."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NoReturn

from huggingface_hub import PyTorchModelHubMixin

from seqwise.devices import device_of
from seqwise.errors import InputError


class HubModel(PyTorchModelHubMixin, library_name="seqwise", tags=["seqwise"]):
    """Model saved in a folder or on the hub, with weights as safetensors and arguments as JSON; pickles are never read.

    Raises:
        InputError: later, if a repository has its weights only as a pickle.

    Example:
        >>> from torch import nn
        >>> class Scores(nn.Module, HubModel):
        ...     def __init__(self, size: int = 2):
        ...         super().__init__()
        ...         self.weights = nn.Parameter(nn.init.ones_(nn.Linear(size, 1).weight))
        >>> folder = getfixture("tmp_path")
        >>> Scores(size=3).save_pretrained(folder)
        >>> Scores.from_pretrained(folder).weights.shape
        Loading weights from local directory
        torch.Size([1, 3])
    """

    def _save_pretrained(self, save_directory: Path) -> None:
        # A GPU holds the weights of an LSTM in one piece, and safetensors refuses tensors that share memory.
        model: Any = self
        if device_of(self).type != "cpu":
            model = copy.deepcopy(model).cpu()
        super(HubModel, model)._save_pretrained(save_directory)

    @classmethod
    def _from_pretrained(cls, **named: Any) -> Any:
        # Without dropout, as it is promised: huggingface_hub 1.5 forgets that of weights that are safetensors.
        return super()._from_pretrained(**named).eval()

    @classmethod
    def _load_as_pickle(cls, model: Any, model_file: str, *others: Any, **named: Any) -> NoReturn:
        problem = "the weights are a pickle, which could run code when it is read"
        raise InputError(problem, path=model_file, hint="use a copy with model.safetensors")
