"""Names that ``--model`` takes: an architecture that is made here, or a trained Hugging Face model."""

from __future__ import annotations

import os
import re
from pathlib import Path

ARCHITECTURES = ("lstm", "transformer", "chain")
"""Models that are made here, with new weights."""


HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
"""A name on the hub; the oldest models there have no user or organisation in front."""


def names_pretrained(model: str) -> bool:
    """Whether a model is no architecture but a trained one: a folder, or a name on the hub.

    A name without a separator is one of the hub if it has a hyphen or a digit, which a misspelt architecture has not.
    """
    separators = {"/", os.sep, os.altsep or "/"}
    is_plain_hub_name = HUB_NAME.fullmatch(model) is not None and re.search(r"[-0-9]", model) is not None
    has_separator = any(sign in model for sign in separators)
    return model not in ARCHITECTURES and (has_separator or is_plain_hub_name or Path(model).is_dir())
