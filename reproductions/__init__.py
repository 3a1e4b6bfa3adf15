"""Reproductions of the papers' tables and figures: each trains its systems, measures them and returns signed tables.

``python -m reproductions NAME`` runs one. Nothing here is part of the package ``seqwise``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from seqwise.configuration.written import did_you_mean
from seqwise.errors import InputError

if TYPE_CHECKING:
    from reproductions.outcome import Outcome
    from reproductions.workers import ProgressFactory

T = TypeVar("T")

__all__ = ["REPRODUCTIONS", "SCALES", "Reproduction", "Setup", "run_reproduction"]


@dataclass(frozen=True)
class Setup:
    """Folder, seeds, scale and progress bars of a reproduction."""

    folder: Path
    seeds: Sequence[int]
    progress: ProgressFactory
    scale: str = "cpu"
    only: str | None = None  # name of the only table to make, of several

    @property
    def seed(self) -> int:
        """Return the first seed, the only one of a reproduction without scales."""
        return self.seeds[0]

    def with_seeds(self, most: int) -> Setup:
        """Return the same setup with at most this many seeds."""
        return replace(self, seeds=list(self.seeds)[:most])

    def chosen(self, tables: Mapping[str, T]) -> dict[str, T]:
        """Return the entry of the requested table, or those of all tables.

        Raises:
            InputError: there is no such table.
        """
        if self.only is None:
            return dict(tables)
        if self.only not in tables:
            raise InputError(f"there is no table {self.only!r}", hint=did_you_mean(self.only, tables))
        return {self.only: tables[self.only]}

    def inside(self, *names: str) -> Setup:
        """Return the same setup with a folder inside this one's."""
        return replace(self, folder=self.folder.joinpath(*names))


@dataclass(frozen=True)
class Reproduction:
    """Entry point of a reproduction, and its scales."""

    function: str  # "module:function", called with a Setup; yields outcomes as they are made
    scales: Mapping[str, int] = field(default_factory=dict)  # number of seeds by scale; empty: one scale and one seed
    shared: str = ""  # folder of its runs if other reproductions share them; by default its own name


FIVE = {"cpu": 5}
SCALES = {"cpu": 3, "gpu": 5}
"""Number of seeds by scale; "cpu" fits a table into an hour on two cores, "gpu" has the papers' model sizes."""

CONVERGED = {**SCALES, "converged": 5}
"""With a scale at which every stage is tuned and stopped early on development data: many hours on two cores."""

TWO_SCALES = {"cpu": 3, "converged": 3}
"""For language models: the paper's setting is larger by its text alone, so there is no scale "gpu"."""

REPRODUCTIONS = {
    "label-bias-toy": Reproduction("reproductions.beyond.label_bias_toy:reproduce"),
    "stress": Reproduction("reproductions.beyond.stress:reproduce"),
    "demo": Reproduction("reproductions.beyond.demo:reproduce"),
    "g2p": Reproduction("reproductions.beyond.spelling:reproduce"),
    "figure-3.1": Reproduction("reproductions.goyal_2021.figure_3_1:reproduce"),
    "table-3.1": Reproduction("reproductions.goyal_2018.tables:table_3_1", CONVERGED, "tables"),
    "table-3.2": Reproduction("reproductions.goyal_2018.tables:table_3_2", CONVERGED, "tables"),
    "table-4.1": Reproduction("reproductions.goyal_2018.tables:table_4_1", CONVERGED, "tables"),
    "large-alpha": Reproduction("reproductions.goyal_2018.tables:large_alpha", CONVERGED, "tables"),
    "table-4.2": Reproduction("reproductions.goyal_2018.tables:table_4_2", CONVERGED, "tables"),
    "table-5.1": Reproduction("reproductions.goyal_2019.label_bias_tables:table_5_1", CONVERGED, "tables"),
    "table-5.2": Reproduction("reproductions.goyal_2019.label_bias_tables:table_5_2", CONVERGED, "tables"),
    "table-5.3": Reproduction("reproductions.goyal_2019.label_bias_tables:table_5_3", CONVERGED, "tables"),
    "table-5.4": Reproduction("reproductions.goyal_2019.label_bias_translation:table_5_4", CONVERGED, "tables"),
    "table-5.5": Reproduction("reproductions.goyal_2019.label_bias_translation:table_5_5", CONVERGED, "tables"),
    "table-5.6": Reproduction("reproductions.goyal_2019.label_bias_translation:table_5_6", CONVERGED, "tables"),
    "wider-beams": Reproduction("reproductions.goyal_2019.wider_beams:reproduce", CONVERGED, "tables"),
    "raw-scores": Reproduction("reproductions.beyond.raw_scores:reproduce", {"cpu": 3}, "search-objectives"),
    "search-objectives": Reproduction("reproductions.beyond.search_objectives:reproduce", FIVE),
    "frontier": Reproduction("reproductions.beyond.frontier:reproduce", {**FIVE, "converged": 5}),
    "improvements": Reproduction("reproductions.beyond.improvements:reproduce", {"cpu": 3}, "search-objectives"),
    "andreas-klein-1": Reproduction("reproductions.andreas_klein_2015.tables:table_1", TWO_SCALES, "andreas-klein"),
    "andreas-klein-2": Reproduction("reproductions.andreas_klein_2015.tables:table_2", TWO_SCALES, "andreas-klein"),
    "figure-1": Reproduction("reproductions.andreas_klein_2015.figure_1:reproduce"),
    "table-6.1": Reproduction("reproductions.goyal_2021.table_6_1:reproduce", {**FIVE, "converged": 5}),
    "figure-6.1": Reproduction("reproductions.goyal_2021.figure_6_1:reproduce", FIVE),
    "table-6.2": Reproduction("reproductions.goyal_2021.sampler_tables:table_6_2", CONVERGED, "tables"),
    "table-6.3": Reproduction("reproductions.goyal_2021.sampler_tables:table_6_3", CONVERGED, "tables"),
    "table-6.4": Reproduction("reproductions.goyal_2021.sampler_tables:table_6_4", CONVERGED, "tables"),
    "table-6.5": Reproduction("reproductions.goyal_2021.sampler_tables:table_6_5", CONVERGED, "tables"),
    "table-6.6": Reproduction("reproductions.goyal_2021.sampler_modes:table_6_6", CONVERGED, "tables"),
    "figure-6.2": Reproduction("reproductions.goyal_2021.sampler_figures:figure_6_2", CONVERGED, "tables"),
    "figure-6.3": Reproduction("reproductions.goyal_2021.sampler_figures:figure_6_3", CONVERGED, "tables"),
    "figure-6.4": Reproduction("reproductions.goyal_2021.sampler_figures:figure_6_4", CONVERGED, "tables"),
    "transformer-translation": Reproduction("reproductions.beyond.transformer_translation:reproduce", SCALES),
    "masked-diffusion-audit": Reproduction("reproductions.beyond.masked_diffusion_audit:reproduce", FIVE),
    "any-order-bound": Reproduction("reproductions.beyond.any_order_bound:reproduce", FIVE),
    "constrained-sampling": Reproduction("reproductions.beyond.constrained_sampling:reproduce", {"cpu": 3}),
    "training-inside": Reproduction("reproductions.beyond.training_inside:reproduce", {"converged": 5}),
    "defaults": Reproduction("reproductions.beyond.defaults:reproduce"),
    "proteins": Reproduction("reproductions.beyond.proteins:reproduce", {"cpu": 3}),
}
"""Every reproduction by name."""

OF_SEVERAL_TABLES = {"table-3.1", "table-4.1", *(f"table-5.{number}" for number in (1, 2, 3))}
OF_SEVERAL_TABLES |= {*(f"table-6.{number}" for number in range(2, 7)), *(f"figure-6.{number}" for number in (2, 3, 4))}
OF_SEVERAL_TABLES |= {"search-objectives", "frontier", "training-inside", "wider-beams"}
"""Reproductions of several tables, which make only those that :meth:`Setup.chosen` returns."""


def run_reproduction(
    name: str,
    folder: Path,
    *,
    seed: int,
    scale: str | None,
    progress: ProgressFactory,
    num_seeds: int | None = None,
    only: str | None = None,
) -> Iterable[Outcome]:
    """Run a reproduction in its own folder, with seeds from ``seed`` on; no other reproduction is imported.

    The number of seeds is that of the scale unless it is given.

    Raises:
        InputError: there is no such reproduction, or it has no such scale or no such table.
    """
    if name not in REPRODUCTIONS:
        raise InputError(f"there is no reproduction {name!r}", hint=did_you_mean(name, REPRODUCTIONS))
    if only is not None and name not in OF_SEVERAL_TABLES:
        raise InputError(f"{name!r} makes all its tables at once", hint="leave --only out")
    reproduction = REPRODUCTIONS[name]
    module, _, function = reproduction.function.partition(":")
    run: Callable[[Setup], Iterable[Outcome]] = getattr(importlib.import_module(module), function)
    folder = folder / (reproduction.shared or name)
    if not reproduction.scales:
        if scale is not None:
            raise InputError(f"{name!r} has no scales", hint="leave --scale out")
        if num_seeds is not None:
            raise InputError(f"{name!r} has one seed", hint="leave --seeds out")
        return run(Setup(folder, [seed], progress))
    scale = scale or next(iter(reproduction.scales))
    if scale not in reproduction.scales:
        raise InputError(f"there is no scale {scale!r}", hint=did_you_mean(scale, reproduction.scales))
    seeds = range(seed, seed + (num_seeds or reproduction.scales[scale]))
    return run(Setup(folder / scale, seeds, progress, scale, only))
