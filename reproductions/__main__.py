"""``python -m reproductions NAME``: make a table or figure again."""

from reproductions.command import app
from seqwise.cli import run

if __name__ == "__main__":
    run(app, "python -m reproductions")
