"""Shell completion of options and arguments; by default, shells complete file names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

MARKS = {"configuration.yaml", "settings.json", "config.json", "metrics.json"}  # of runs, samples and models
DEPTH = 2  # levels of folders below the typed one


def choice_of(names: Sequence[str]) -> Callable[[], Sequence[str]]:
    """Complete to one of given names."""
    return lambda: names


def run_folders(incomplete: str) -> list[str]:
    """Complete to a folder with a run or a model.

    Example:
        >>> folder = getfixture("tmp_path") / "runs" / "tagger"
        >>> folder.mkdir(parents=True)
        >>> _ = (folder / "configuration.yaml").write_text("task: tag")
        >>> getfixture("monkeypatch").chdir(folder.parent.parent)
        >>> run_folders("ru") == [os.path.join("runs", "tagger")]
        True
    """
    return list(_runs(os.path.dirname(incomplete), DEPTH))


def _runs(folder: str, depth: int) -> Iterator[str]:
    try:
        names = sorted(name for name in os.listdir(folder or os.curdir) if not name.startswith("."))
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.isdir(path):
                continue
            if not MARKS.isdisjoint(os.listdir(path)):
                yield path
            elif depth > 1:
                yield from _runs(path, depth - 1)
    except OSError:
        return
