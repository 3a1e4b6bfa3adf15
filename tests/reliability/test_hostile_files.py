"""Files from anywhere: read, or refused in one line that names the file; what was read is written and read back."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest

from reproductions.corpora.lexicons import read_lexicon
from seqwise.configuration import Config, dump, load, setting
from seqwise.data import Example, read_columns, read_fasta, read_pairs, write_columns, write_pairs
from seqwise.data.readers import each_input
from seqwise.data.tokenizer import Tokenizer, load_tokenizer, reading_tokenizer, save_tokenizer
from seqwise.errors import InputError
from seqwise.runs.settings import load_settings, train_settings

WORDS: dict[str, Any] = {"source_units": "words", "target_units": "words"}
LETTERS: dict[str, Any] = {"source_units": "characters", "target_units": "characters"}
TEXTS: dict[str, Any] = {"source_units": "text", "target_units": "text"}


class Inner(Config):
    rate: float = 1e-3
    names: list[str] = setting([], "several")


class Outer(Config):
    """A configuration with a field of each kind."""

    steps: int = 1
    name: str = "a"
    shuffle: bool = True
    data: Path | None = None
    alpha: float | str = 1.0
    decay: Literal["linear", "constant"] = "linear"
    pair: tuple[float, str] = (1.0, "a")
    weights: dict[str, float] = setting({}, "by name")
    inner: Inner = Inner()


SUBWORDS = reading_tokenizer([("low lower",), ("newer",)], units="subwords", minimum_count=1, subword_vocabulary=12)


def tokenizer_file(name: str) -> str:
    """What a folder with a tokenizer has in a file of this name."""
    with TemporaryDirectory() as folder:
        save_tokenizer(SUBWORDS, Path(folder))
        return (Path(folder) / name).read_text(encoding="utf-8")


def read_tokenizer_file(name: str, path: Path) -> Tokenizer:
    """The tokenizer of a folder in which this file stands in for the sound one of the name."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        save_tokenizer(SUBWORDS, folder)
        (folder / name).write_bytes(path.read_bytes())
        try:
            return load_tokenizer(folder)
        except InputError as error:
            assert error.path is not None and error.path.parent == folder
            raise InputError(error.problem, path=path, line=error.line, hint=error.hint) from None


READERS: dict[str, Callable[[Path], Any]] = {
    "columns": read_columns,
    "pairs of words": lambda path: read_pairs(path, **WORDS),
    "pairs of characters": lambda path: read_pairs(path, **LETTERS),
    "pairs of texts": lambda path: read_pairs(path, **TEXTS),
    "inputs": lambda path: list(each_input(path, units="words")),
    "lexicon": read_lexicon,
    "FASTA": read_fasta,
    "tokenizer.json": partial(read_tokenizer_file, "tokenizer.json"),
    "tokenizer_config.json": partial(read_tokenizer_file, "tokenizer_config.json"),
    "configuration": lambda path: load(Outer, path),
}

SEEDS = {
    "columns": "# id 1\nthe\tDT\tDET\ndog\tNN\tNOUN\n\nruns\tVB\tVERB\n",
    "pairs of words": "a b\tA B\nc\tC\n",
    "pairs of characters": "ab\tAB\nc\tC\n",
    "pairs of texts": "ab cd\tAB\nc\tC D\n",
    "inputs": "the dog\nruns\n",
    "lexicon": ";;; head\na  EY1\nb(2)  B IY1 # x\n",
    "FASTA": ">P1 a\nMAT\nLK\n\n>P2\nGG\n",
    "tokenizer.json": tokenizer_file("tokenizer.json"),
    "tokenizer_config.json": tokenizer_file("tokenizer_config.json"),
    "configuration": "steps: 3\nname: x\nshuffle: no\ndata: a/b\nalpha: linear(1, 2)\npair: [1, b]\n"
    "weights: {a: 1e3}\ninner:\n  rate: 1e-4\n  names:\n  - x\n",
}

# What tends to be read wrongly, in bytes.
STRANGE = [
    b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n", b"\n\n", b"\0", "\u2028".encode(), "\x85".encode(), "\xa0".encode(),
    "\u202e".encode(), "\ufeff".encode(), "e\u0301".encode(), "\U0001f600".encode(), b"\xff", b"\xc3", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"\x1f\x8b", b"\x1b[2J", b"\t", b"\t\t", b" ", b"  ", b"#", b"# ", b"-DOCSTART-", b";;;", b">",
    b"{", b"}", b"[", b"]", b":", b": ", b"- ", b"&a ", b"*a", b"!!python/object/apply:os.system ", b"!!binary ", b"? ",
    b"%YAML 9.9\n", b"---\n", b"...\n", b"|\n", b"'", b'"', b"\\", b'"\\UFFFFFFFF"', b'"\\uD800"', b"<<: ", b"~",
    b"null", b".nan", b".inf", b"1e999", b"9" * 400, b"0x1F", b"1_0", b"true", b"x" * 5000,
]  # fmt: skip


def spoilt(content: bytes, draw: random.Random) -> bytes:
    """Somewhere something is put in, cut out, doubled or flipped, up to four times."""
    for _ in range(draw.randrange(5)):
        place, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
        how = draw.randrange(5)
        if how <= 1:
            content = content[:place] + draw.choice(STRANGE) + content[place:]
        elif how == 2:
            content = content[:place] + content[end:]
        elif how == 3:
            content = content[:end] + content[place:end] + content[end:]
        elif content:
            flipped = bytearray(content)
            flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            content = bytes(flipped)
    return gzip.compress(content, 1) if draw.random() < 0.05 else content


def read_or_refused(name: str, path: Path) -> Any:
    """What was read, or None if it was refused as it should be."""
    try:
        return READERS[name](path)
    except InputError as error:
        assert error.path == path, (name, path.read_bytes()[:300], str(error))
        assert str(error).isprintable() and str(error).startswith(str(path))
        if error.line is not None:
            assert 1 <= error.line <= 2 + max(path.read_bytes().count(mark) for mark in (b"\n", b"\r")) or (
                path.read_bytes()[:2] == b"\x1f\x8b"
            )
        return None


def require_identity(name: str, found: Any, path: Path) -> None:
    """Write what was read, and read it again."""
    if name == "columns":
        again = written(lambda: write_columns(path, found), path, lambda: read_columns(path))
    elif name.startswith("pairs"):
        units = {"words": WORDS, "characters": LETTERS, "texts": TEXTS}[name.rpartition(" ")[2]]
        again = written(lambda: write_pairs(path, found, **units), path, lambda: read_pairs(path, **units))
    elif name.startswith("tokenizer"):
        with TemporaryDirectory() as folder:
            save_tokenizer(found, Path(folder))
            assert load_tokenizer(Path(folder)) == found
        return
    elif name == "configuration":
        path.write_bytes(dump(found).encode("utf-8", "surrogatepass"))
        again = read_or_refused(name, path)
        assert again == found or "\ud800" in found.name
        return
    else:
        return
    if again is not None:
        assert [(one.source, one.target) for one in again] == [(one.source, one.target) for one in found]


def written(write: Callable[[], None], path: Path, read: Callable[[], list[Example]]) -> list[Example] | None:
    """What comes back, or None where the writer says that it would not come back the same."""
    path.unlink()
    try:
        write()
    except InputError:
        assert not path.exists()
        return None
    return read()


@pytest.mark.thorough
def test_generated_files_are_read_or_refused(tmp_path: Path, promise: Any) -> None:
    draw, read, count = random.Random(0), 0, 5000
    path = tmp_path / "file"
    for number in range(count):
        name = list(READERS)[number % len(READERS)]
        path.write_bytes(spoilt(SEEDS[name].encode(), draw))
        found = read_or_refused(name, path)
        if found is not None:
            read += 1
            require_identity(name, found, path)
    assert 0.2 * count < read < 0.9 * count
    promise("generated files", count, "read and written back unchanged, or refused with one line that names the file")


LAUGHS = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 8)}]\n" for n in range(20)
)

# Reader, content, and the line that is named; None: no line, since it is not of one; 0: it is read.
HAND_MADE: list[tuple[str, bytes, int | None]] = [
    ("columns", b"\xef\xbb\xbfa\tA\r\nb\tB\r\n", 0),
    ("columns", "a\u2028b\tA\n".encode(), 0),
    ("columns", b"a\tA\nb\n", 2),
    ("columns", b"a\tA\nb\tB\tC\n", 2),
    ("columns", b"a\tA\n\0\tB\n", 2),
    ("columns", b"a\tA\rb\tB\r", 1),
    ("columns", b"a\tA\n\xff\tB\n", 2),
    ("columns", b"a\tA\n" + b"x" * 1_000_001 + b"\tB\n", 2),
    ("columns", b"a\tA\n\tB\n", 2),
    ("columns", b"\n \n\t\n", None),
    ("columns", b"", None),
    ("columns", b"\xff\xfea\0\t\0A\0\n\0", 1),
    ("pairs of words", b"a\tA\nb\n", 2),
    ("pairs of words", b"a\tA\n\tB\n", 2),
    ("pairs of words", b"a\tA\n\nb\tB\n", 2),
    ("pairs of characters", "\U0001f600\te\u0301\n".encode(), 0),
    ("pairs of texts", b"a\tA\n" + gzip.compress(b"b\tB\n", mtime=0), 2),
    ("inputs", b"a\n\nb\n", 2),
    ("inputs", gzip.compress(b"x" * 3_000_000, mtime=0), 1),
    ("inputs", gzip.compress(b"a\nb\n", mtime=0)[:-9], 3),
    ("FASTA", b"MAT\n>P\nG\n", 1),
    ("FASTA", b">P\n>Q\nG\n", 1),
    ("lexicon", b"a\n", 1),
    ("tokenizer.json", b'{"model": {"vocab": [1]}}', None),
    ("tokenizer.json", b"[" * 100_000, None),
    ("tokenizer_config.json", b'{"vocabulary_size": ' + b"9" * 5000 + b"}", None),
    ("configuration", LAUGHS.encode(), 1),
    ("configuration", b"steps: 1\nname: !!python/object/apply:os.system [ls]\n", 2),
    ("configuration", b"weights: &w {a: 1.0}\ninner: *w\n", 1),
    ("configuration", b"inner: &i\n  names: [*i]\n", 1),
    ("configuration", b'name: "\\UFFFFFFFF"\n', None),
    ("configuration", b'steps: 1\ndata: "a\\0b"\n', 2),
    ("configuration", b"steps: 1\nsteps: 2\n", 2),
    ("configuration", b"steps: [1\n", 2),
    ("configuration", b"steps: {}\n", 1),
    ("configuration", b"%YAML 1." + b"9" * 5000 + b"\n---\nsteps: 1\n", None),
]


@pytest.mark.parametrize("name, content, line", HAND_MADE, ids=range(len(HAND_MADE)))
def test_hand_made_files(name: str, content: bytes, line: int | None, tmp_path: Path, promise: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    if line == 0:
        require_identity(name, READERS[name](path), path)
    else:
        with pytest.raises(InputError) as error:
            READERS[name](path)
        assert (error.value.path, error.value.line) == (path, line), str(error.value)
        assert len(str(error.value)) < 1000 and "\n" not in str(error.value)
    promise("hand-made hostile files", 1, "read, or refused with file and line")


def test_settings_of_a_run_are_the_same_when_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(dump(train_settings(task="tag", train=Path("a: b # c"), dev=Path("null"))))
    loaded = load_settings(path, {})
    assert (loaded.train, loaded.dev) == (Path("a: b # c"), Path("null"))
