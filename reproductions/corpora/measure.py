"""``python -m reproductions.corpora.measure``: print the corpora in SEQWISE_DATA as in ``corpora.toml``."""

from __future__ import annotations

from reproductions.corpora.catalogue import File, corpora, measure_file
from reproductions.corpora.readers import corpus

NOT_DATA = "README.md"


def lines_of(name: str, file: str, measured: File) -> list[str]:
    """Return the lines of the table for one file."""
    lines = [f'[{name}.files."{file}"]', f"size = {measured.size}", f'sha256 = "{measured.sha256}"']
    if measured.contents is not None:
        lines.append(f'contents = {{ size = {measured.contents.size}, sha256 = "{measured.contents.sha256}" }}')
    return lines


if __name__ == "__main__":
    for name in corpora():
        for path in sorted(corpus(name).iterdir()):
            if path.name != NOT_DATA:
                print(*lines_of(name, path.name, measure_file(path)), sep="\n")
