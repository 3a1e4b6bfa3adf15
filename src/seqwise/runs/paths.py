"""Files that settings and commands name."""

from __future__ import annotations

from pathlib import Path

BIO = "bio"
"""Language of well-formed entity labels."""

# A text without blanks that ends like this is the name of a file.
_FILE_ENDINGS = (".txt", ".tsv", ".csv", ".conll", ".gz", ".json", ".jsonl", ".lark", ".gbnf")


def names_a_file(text: str) -> bool:
    """Whether text is a file name: the file exists, or has a file's ending; folders may have names like words."""
    path = Path(text)
    try:
        if path.exists():
            return not path.is_dir()
    except OSError:  # a text longer than a file name may be
        return False
    return path.suffix in _FILE_ENDINGS and not any(map(str.isspace, text))


def language_file(language: str) -> Path | None:
    """Return the file that a language is read from; None for a pattern, ``BIO``, or no language."""
    return Path(language) if language != BIO and names_a_file(language) else None


def recorded_file(path: Path, folder: Path) -> Path:
    """Find a data file named in the settings of a run, searching from the run folder upwards.

    Recorded paths are absolute, unless the run folder is below the working directory of training.
    """
    above = folder.resolve()
    return next((place / path for place in (above, *above.parents) if (place / path).is_file()), path)


def recorded_language(language: str, folder: Path) -> str:
    """Return the language in the settings of a run, with its file, if it has one, found as by ``recorded_file``."""
    try:
        found = recorded_file(Path(language), folder)
        return str(found) if found.is_file() and language != BIO else language
    except OSError:  # a pattern longer than a file name may be
        return language
