"""Integrations of the Hugging Face Trainer, which log in addition to our log: TensorBoard, W&B and others."""

from __future__ import annotations

from collections.abc import Sequence

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from seqwise.configuration.written import did_you_mean
from seqwise.errors import InputError, first_line

PACKAGES = {"azure_ml": "azureml-sdk", "comet_ml": "comet-ml", "flyte": "flytekit"}
"""PyPI names of integrations, if they differ."""


def require_integrations(names: Sequence[str]) -> None:
    """Raise an InputError if the Trainer does not know an integration, or the package of one is not installed.

    Example:
        >>> require_integrations(["tensorbord"])
        Traceback (most recent call last):
        ...
        seqwise.errors.InputError: report_to: the Trainer has no integration 'tensorbord'; did you mean 'tensorboard'?
    """
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            problem = f"report_to: the Trainer has no integration {name!r}"
            raise InputError(problem, hint=did_you_mean(name, INTEGRATION_TO_CALLBACK))
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (ImportError, RuntimeError) as error:
            if "install" in str(error):
                package = PACKAGES.get(name, name)
                raise InputError(f"report_to: {package} is not installed", hint=f"pip install {package}") from error
            raise InputError(f"report_to: {first_line(error)}", hint="set it, or leave report-to out") from error
