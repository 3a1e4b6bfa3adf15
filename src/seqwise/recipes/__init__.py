"""Recipes: each trains its systems, measures them, and hands back a table with signatures and what it teaches."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

from seqwise.recipes.outcome import Outcome

__all__ = ["RECIPES", "Outcome", "load_recipe"]

RECIPES = {
    "label-bias-toy": "seqwise.recipes.label_bias_toy",
    "stress": "seqwise.recipes.stress",
    "demo": "seqwise.recipes.demo",
    "g2p": "seqwise.recipes.spelling",
}
"""Name to module; each module has ``reproduce(folder, *, seed, progress)``, which gives outcomes as they come."""


def load_recipe(name: str) -> Callable[..., Iterable[Outcome]]:
    """The ``reproduce`` function of a recipe; imports what that recipe needs and no more."""
    reproduce: Callable[..., Iterable[Outcome]] = importlib.import_module(RECIPES[name]).reproduce
    return reproduce
