"""What ``--model`` names: an architecture that is made here, or a trained model of transformers."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ARCHITECTURES", "names_pretrained"]

ARCHITECTURES = ("lstm", "transformer", "chain")
"""Models that are made here, with new weights."""


def names_pretrained(model: str) -> bool:
    """Whether a model is no architecture but a trained one: a name with a separator in it, or that of a folder.

    Example:
        >>> names_pretrained("./my-bart"), names_pretrained("Helsinki-NLP/opus-mt-de-en"), names_pretrained("lstm")
        (True, True, False)
    """
    separators = {"/", os.sep, os.altsep or "/"}
    return model not in ARCHITECTURES and (any(sign in model for sign in separators) or Path(model).is_dir())
