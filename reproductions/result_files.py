"""The files in results/: their names, the reproductions that write them, and the pages that show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from reproductions import REPRODUCTIONS
from reproductions.report import Table, load_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"

QUICK = "cpu"
SCALES = ("converged", "gpu", QUICK)
"""Scales, the best evidence first."""

Tables: TypeAlias = Mapping[str, Mapping[str, Table]]
"""Results by the name of the table and by scale, the best evidence first."""

ELSEWHERE = ("hugging-face-models", "mutants", "reliability", "soak")
"""Results that have their own pages."""


@dataclass(frozen=True)
class Chapter:
    """Page of results."""

    page: str  # its file in docs/results/, without ending
    title: str  # its heading
    sections: Mapping[str, tuple[str, ...]]  # by heading, the names of the tables and figures below it

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all its tables and figures."""
        return tuple(name for names in self.sections.values() for name in names)


def _tasks(*numbers: str, tasks: tuple[str, ...] = ("translation", "g2p", "phonemes")) -> dict[str, tuple[str, ...]]:
    return {number.capitalize().replace("-", " "): tuple(f"{number}-{task}" for task in tasks) for number in numbers}


def _corpora(number: str) -> tuple[str, ...]:
    pairs = ((corpus, direction) for corpus in ("pmb", "ewt", "erg") for direction in ("uni", "bi"))
    return tuple(f"table-{number}-{corpus}-{direction}" for corpus, direction in pairs)


CHAPTERS = (
    Chapter(
        "chapter-3",
        "Scheduled sampling and its relaxations (thesis, Chapter 3)",
        {
            "Table 3.1": ("table-3.1-ner", "table-3.1-translation"),
            "Table 3.2": ("table-3.2",),
            "Figure 3.1": ("figure-3.1",),
        },
    ),
    Chapter(
        "chapter-4",
        "Training through the relaxed beam (thesis, Chapter 4; AAAI 2018)",
        {
            "Table 4.1": ("table-4.1", "table-4.1-uni"),
            "Table 4.2": ("table-4.2",),
            "AAAI 2018, footnote 2": ("large-alpha",),
        },
    ),
    Chapter(
        "chapter-5",
        "Local and global normalisation (thesis, Chapter 5; NAACL 2019)",
        {
            "Table 5.1": (
                *(f"table-5.1-supertags{corpus}" for corpus in ("", "-ewt", "-erg")),
                "table-5.1-translation",
            ),
            "Table 5.2": _corpora("5.2"),
            "Table 5.3": _corpora("5.3"),
            "Table 5.4": ("table-5.4",),
            "Table 5.5": ("table-5.5",),
            "Table 5.6": ("table-5.6",),
            "NAACL 2019, footnotes 3 and 4": tuple(
                f"wider-beams-{name}" for name in ("pmb-uni", "pmb-bi", "translation")
            ),
        },
    ),
    Chapter(
        "chapter-6",
        "Masked language models as energies (thesis, Chapter 6)",
        {
            "Table 6.1": ("table-6.1", "table-6.1-phonemes"),
            "Figure 6.1": ("figure-6.1", "figure-6.1-phonemes"),
            **_tasks("table-6.2", "table-6.3", "table-6.4", "table-6.5"),
            **_tasks("table-6.6", tasks=("translation", "translation-ro", "g2p")),
            **_tasks("figure-6.2", "figure-6.3", "figure-6.4"),
        },
    ),
    Chapter(
        "andreas-klein",
        "Self-normalised language models (Andreas and Klein, NAACL 2015)",
        {"Table 1": ("andreas-klein-1",), "Table 2": ("andreas-klein-2",), "Figure 1": ("figure-1",)},
    ),
    Chapter(
        "streaming",
        "Streaming",
        {
            "Streaming stress assignment": ("stress",),
            "When a label is final": tuple(f"frontier-{corpus}" for corpus in ("stress", "pmb", "ewt", "erg", "ner")),
        },
    ),
    Chapter(
        "beyond",
        "Beyond the papers",
        {
            "Label bias where the ceilings are known": ("label-bias-toy",),
            "Spelling to sound": ("g2p",),
            "Search-aware objectives": tuple(f"search-objectives-{corpus}" for corpus in ("pmb", "ner", "stress")),
            "What might improve on them": tuple(f"improvements-{corpus}" for corpus in ("pmb", "ner", "g2p")),
            "Raw scores of plain models": ("raw-scores",),
            "Transformers": ("transformer-translation-transformer", "transformer-translation-marian"),
            "Proteins": ("proteins",),
            "Masked diffusion decoders": ("masked-diffusion-audit",),
            "Bounds of any-order models": ("any-order-bound",),
            "Sampling inside a language": ("constrained-sampling",),
            "Training inside a language": ("training-inside-ner", "training-inside-g2p"),
            "Default settings": ("defaults",),
        },
    ),
)
"""The pages, in order."""

NAMES = tuple(name for chapter in CHAPTERS for name in chapter.names)
"""Every table and figure."""


def file_stem(name: str, scale: str | None) -> str:
    """Return the name of the file of a table's results at a scale, without ending."""
    return name if scale in (None, QUICK) else f"{name}-{scale}"


def longest_prefix(name: str, prefixes: Iterable[str]) -> str:
    """Return the longest prefix of a name that ends at a hyphen or at the end of the name; "" if there is none.

    Example:
        >>> longest_prefix("table-5.2-pmb-uni", ["table-5.2", "table-5.2-pmb", "table-5"])
        'table-5.2-pmb'
    """
    return max((each for each in prefixes if f"{name}-".startswith(f"{each}-")), key=len, default="")


def reproduction_of(name: str) -> str:
    """Return the reproduction that makes a table."""
    return longest_prefix(name, REPRODUCTIONS)


def by_stem(tables: Tables) -> dict[str, Table]:
    """Return tables by the names of their files, without ending."""
    return {file_stem(name, scale): table for name, scales in tables.items() for scale, table in scales.items()}


def load_tables(folder: Path) -> dict[str, dict[str, Table]]:
    """Read the results in a folder by name, in the order of the pages, and by scale, the best evidence first."""
    stems = {name: {scale: file_stem(name, scale) for scale in SCALES} for name in NAMES}
    known = {stem for by_scale in stems.values() for stem in by_scale.values()}
    if unshown := {path.stem for path in folder.glob("*.json")} - {*known, *ELSEWHERE}:
        names = ", ".join(sorted(unshown))
        raise SystemExit(f"no page shows {names}; add them to CHAPTERS in reproductions/result_files.py")
    return {
        name: {
            scale: load_table(path) for scale, stem in by_scale.items() if (path := folder / f"{stem}.json").exists()
        }
        for name, by_scale in stems.items()
    }
