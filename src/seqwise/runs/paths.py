"""Files that settings and commands name."""

from __future__ import annotations

from pathlib import Path

BIO = "bio"
"""Language of well-formed entity labels."""

# A text without blanks that ends with one of these is a file name.
_FILE_ENDINGS = (".txt", ".tsv", ".csv", ".conll", ".gz", ".json", ".jsonl", ".lark", ".gbnf")


def names_a_file(text: str) -> bool:
    """Whether text is a file name: the file exists, or the text ends like one.

    An existing folder is no file, since a text may be called like one, unless a slash follows.
    """
    path = Path(text)
    try:
        if path.exists():
            return not path.is_dir() or text.endswith("/")
    except OSError:  # a text too long for a file name
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
    """Return the language in the settings of a run, with the path of its file, if any, by ``recorded_file``."""
    try:
        path = recorded_file(Path(language), folder)
        return str(path) if path.is_file() and language != BIO else language
    except OSError:  # a pattern too long for a file name
        return language
