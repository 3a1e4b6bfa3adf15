"""``python -m reproductions.corpora list | where | check | download | supertags``."""

from reproductions.corpora.command import app
from seqwise.cli import run

if __name__ == "__main__":
    run(app, "python -m reproductions.corpora")
