"""Recipes: each trains its systems, measures them, and hands back a table with signatures and what it teaches."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names
from seqwise.errors import InputError
from seqwise.training.configuration import did_you_mean

if TYPE_CHECKING:
    from seqwise.recipes.outcome import Outcome
    from seqwise.recipes.workers import ProgressFactory
else:
    __getattr__, __dir__ = lazy_names(__name__, "seqwise.recipes.outcome")

__all__ = ["RECIPES", "SCALES", "Outcome", "Recipe", "run_recipe"]


@dataclass(frozen=True)
class Recipe:
    """Where a recipe is, and what it takes.

    Args:
        function: "module:function"; called with a folder and ``progress``, and either ``seed``, or, where there are
            scales, ``seeds`` and ``scale``; it gives outcomes as they come.
        scales: how many seeds each scale has; empty for a recipe of one size and one seed.
        shared: the folder of its runs, for recipes that share them; by default its own name.
    """

    function: str
    scales: Mapping[str, int] = field(default_factory=dict)
    shared: str = ""


FIVE = {"cpu": 5}
SCALES = {"cpu": 3, "gpu": 5}
"""How many seeds each scale has; "cpu" fits a table into an hour on two cores, "gpu" has the papers' models."""

RECIPES = {
    "label-bias-toy": Recipe("seqwise.recipes.label_bias_toy:reproduce"),
    "stress": Recipe("seqwise.recipes.stress:reproduce"),
    "demo": Recipe("seqwise.recipes.demo:reproduce"),
    "g2p": Recipe("seqwise.recipes.spelling:reproduce"),
    "figure-3.1": Recipe("seqwise.recipes.figure_3_1:reproduce"),
    "table-3.1": Recipe("seqwise.recipes.tables:table_3_1", SCALES, "tables"),
    "table-3.2": Recipe("seqwise.recipes.tables:table_3_2", SCALES, "tables"),
    "table-4.1": Recipe("seqwise.recipes.tables:table_4_1", SCALES, "tables"),
    "table-4.2": Recipe("seqwise.recipes.tables:table_4_2", SCALES, "tables"),
    "table-5.1": Recipe("seqwise.recipes.label_bias_tables:table_5_1", SCALES, "tables"),
    "table-5.2": Recipe("seqwise.recipes.label_bias_tables:table_5_2", SCALES, "tables"),
    "table-5.3": Recipe("seqwise.recipes.label_bias_tables:table_5_3", SCALES, "tables"),
    "table-5.4": Recipe("seqwise.recipes.label_bias_translation:table_5_4", SCALES, "tables"),
    "table-5.5": Recipe("seqwise.recipes.label_bias_translation:table_5_5", SCALES, "tables"),
    "table-5.6": Recipe("seqwise.recipes.label_bias_translation:table_5_6", SCALES, "tables"),
    "raw-scores": Recipe("seqwise.recipes.raw_scores:reproduce", {"cpu": 3}, "search-objectives"),
    "search-objectives": Recipe("seqwise.recipes.search_objectives:reproduce", FIVE),
    "improvements": Recipe("seqwise.recipes.improvements:reproduce", {"cpu": 3}, "search-objectives"),
    "andreas-klein-1": Recipe("seqwise.recipes.andreas_klein:table_1", {"cpu": 3}, "andreas-klein"),
    "andreas-klein-2": Recipe("seqwise.recipes.andreas_klein:table_2", {"cpu": 3}, "andreas-klein"),
    "figure-1": Recipe("seqwise.recipes.figure_1:reproduce"),
    "table-6.1": Recipe("seqwise.recipes.table_6_1:reproduce", FIVE),
    "figure-6.1": Recipe("seqwise.recipes.figure_6_1:reproduce", FIVE),
    "table-6.2": Recipe("seqwise.recipes.sampler_tables:table_6_2", SCALES, "tables"),
    "table-6.3": Recipe("seqwise.recipes.sampler_tables:table_6_3", SCALES, "tables"),
    "table-6.4": Recipe("seqwise.recipes.sampler_tables:table_6_4", SCALES, "tables"),
    "table-6.5": Recipe("seqwise.recipes.sampler_tables:table_6_5", SCALES, "tables"),
    "table-6.6": Recipe("seqwise.recipes.sampler_modes:table_6_6", SCALES, "tables"),
    "figure-6.2": Recipe("seqwise.recipes.sampler_figures:figure_6_2", SCALES, "tables"),
    "figure-6.3": Recipe("seqwise.recipes.sampler_figures:figure_6_3", SCALES, "tables"),
    "figure-6.4": Recipe("seqwise.recipes.sampler_figures:figure_6_4", SCALES, "tables"),
    "transformer-translation": Recipe("seqwise.recipes.transformer_translation:reproduce", SCALES),
    "proteins": Recipe("seqwise.recipes.proteins:reproduce", {"cpu": 3}),
}
"""Every recipe by name."""


def run_recipe(
    name: str, folder: Path, *, seed: int, scale: str | None, progress: ProgressFactory
) -> Iterable[Outcome]:
    """Run a recipe by name; imports what that recipe needs and no more.

    Args:
        name: one of :data:`RECIPES`.
        folder: takes the runs, in a folder of the recipe's.
        seed: the first seed.
        scale: "cpu" or "gpu", for recipes that have scales; None: "cpu".
        progress: makes the progress bars.

    Raises:
        InputError: there is no such recipe, or it has no such scale.
    """
    if name not in RECIPES:
        raise InputError(f"there is no recipe {name!r}", mend=did_you_mean(name, RECIPES))
    recipe = RECIPES[name]
    module, _, function = recipe.function.partition(":")
    run: Callable[..., Iterable[Outcome]] = getattr(importlib.import_module(module), function)
    folder = folder / (recipe.shared or name)
    if not recipe.scales:
        if scale is not None:
            raise InputError(f"the recipe {name!r} has one size only", mend="leave --scale out")
        return run(folder, seed=seed, progress=progress)
    scale = scale or "cpu"
    if scale not in recipe.scales:
        raise InputError(f"there is no scale {scale!r}", mend=did_you_mean(scale, recipe.scales))
    seeds = range(seed, seed + recipe.scales[scale])
    return run(folder / scale, seeds=seeds, scale=scale, progress=progress)
