"""``python -m reproductions.andreas_klein_2015 train | score | rerank``: hashed log-linear language models."""

from reproductions.andreas_klein_2015.command import app
from seqwise.cli import run

if __name__ == "__main__":
    run(app, "python -m reproductions.andreas_klein_2015")
