"""``seqwise stream``: tokens of standard input to updates, as lines and as JSON."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from command_line import Command, Ended
from oracles import randomised
from seqwise import Stream
from seqwise.data import Example
from seqwise.runs import Run, load_run, save_run, train_settings
from seqwise.runs.loading import build_codec, build_model

WORDS = [Example(("a", "b", "c"), ("A", "B", "C"), "x.tsv", 1), Example(("c", "a"), ("C", "A"), "x.tsv", 2)] * 2
SMALL = {"objective": "beam-crf", "minimum_count": 1, "hidden_size": 4, "embedding_size": 4, "beam_size": 3}


def saved_run(folder: Path, **changes: Any) -> Path:
    chosen = train_settings(**SMALL, **(changes or {"encoder": "left-to-right"}))
    codec = build_codec(WORDS, chosen)
    save_run(Run(chosen, randomised(build_model(chosen, codec), 0, 1.0).float(), codec), folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run(tmp_path_factory.mktemp("runs") / "tagger")


class Input(io.RawIOBase):
    """Bytes that come in given pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        piece = self.pieces.pop(0) if self.pieces else b""
        room[: len(piece)] = piece
        return len(piece)


@pytest.fixture
def streamed(seqwise: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run the command on pieces of bytes."""

    def run_on(pieces: Sequence[bytes], *arguments: object) -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Input(pieces)), encoding="utf-8"))
        return seqwise("stream", *arguments)

    return run_on


def expected(run: Path, sentence: str, **options: Any) -> list[dict[str, Any]]:
    stream = Stream(load_run(run), **options)
    updates = [(token, stream.feed([token])) for token in sentence.split()] + [(None, stream.finish())]
    return [
        {"token": token} | {name: list(labels) for name, labels in update._asdict().items()}
        for token, update in updates
    ]


@pytest.mark.parametrize(
    "pieces",
    [[b"a c b a\n\nb b\n"], [b"a", b" c\nb", b"\ta", b"\n", b"\n\n\n", b"b b"], [b"\r\na c b a\r\n \r\nb b \r\n\r\n"]],
    ids=["at once", "piece by piece", "other line ends"],
)
def test_each_token_has_an_update_and_each_sentence_an_end(
    streamed: Callable[..., Ended], run: Path, pieces: list[bytes]
) -> None:
    """Whatever the pieces in which the input comes."""
    ended = streamed(pieces, run, "--json", "--commit", "delay(1)")
    assert ended.records == [
        *expected(run, "a c b a", commit="delay(1)"),
        *expected(run, "b b", commit="delay(1)"),
    ]


@pytest.mark.parametrize(
    "pieces", [[b"\xef\xbb\xbfa c\n"], [b"\xef", b"\xbb\xbfa", b" c"]], ids=["at once", "in parts"]
)
def test_a_byte_order_mark_is_no_part_of_a_token(
    streamed: Callable[..., Ended], run: Path, pieces: list[bytes]
) -> None:
    assert streamed(pieces, run, "--json").records == expected(run, "a c")


def test_lines_have_the_token_and_three_columns(streamed: Callable[..., Ended], run: Path) -> None:
    ended = streamed([b"a c\nb\n"], run, "--text", "--decoder", "beam", "--beam-size", "2", "--commit", "never")
    records = [record for text in ("a c", "b") for record in expected(run, text, decoder="beam", k=2, commit="never")]
    lines = [
        "\t".join([record["token"] or "", *(" ".join(record[name]) for name in ("committed", "partial", "retracted"))])
        for record in records
    ]
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == lines
    assert ended.out.splitlines()[-1].split("\t")[0::2] == ["", ""]


def test_a_file_is_read_like_standard_input(seqwise: Command, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("a c\nb\n")
    assert seqwise("stream", run, file, "--json").records == expected(run, "a c b")
    file.write_text("a\tA\nb\tB\n")  # read as four tokens, of which the run knows two
    warned, refused = seqwise("stream", run, file).err.splitlines()
    assert warned.startswith("seqwise: a tab separates tokens") and "unknown token 'A'" in refused
    file.write_text("a c\nzebra\n")
    ended = seqwise("stream", run, file)
    assert (ended.code, ended.err.partition("; ")[0]) == (2, f"seqwise: {file}:2: unknown token 'zebra'")
    assert seqwise("stream", run, tmp_path / "none").complaint == f"{tmp_path / 'none'}: no such file; check the name"
    assert seqwise("stream", run, tmp_path).complaint == f"{tmp_path}: this is a directory; name a file in it"


def test_an_input_without_a_token_has_no_updates(streamed: Callable[..., Ended], run: Path) -> None:
    assert streamed([b"\n \n"], run) == (0, "", "")


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        (b"a\nb zebra", (), "<stdin>:2: unknown token 'zebra'; the nearest known token is 'b'"),
        (b"a\n\xff", (), "<stdin>:2: the input is not UTF-8; convert it to UTF-8, for example with iconv"),
        (b"\xef\xbb\xbfa\nb\n\xff", (), "<stdin>:3: the input is not UTF-8; convert it to UTF-8, for example with "
         "iconv"),
        ("a\n\nb".encode("utf-16-le"), (), "<stdin>:1: NUL character; give a text file in UTF-8"),
        (b"a\nb\n\0\n", (), "<stdin>:3: NUL character; give a text file in UTF-8"),
        (b"a", ("--commit", "soon"), "no commit rule is called 'soon'; known are agree, delay(NUMBER), margin(NUMBER), "
         "never"),
        (b"a", ("--beam-size", "0"), "--beam-size must be at least 1, got 0"),
        (b"a", ("--decoder", "beem"), "no decoder is called 'beem'; did you mean 'beam'?"),
    ],
    ids=["unknown token", "not UTF-8", "byte-order mark", "UTF-16", "NUL", "rule", "beam size", "decoder"],
)  # fmt: skip
def test_what_cannot_be_streamed_is_one_line(
    streamed: Callable[..., Ended], run: Path, text: bytes, arguments: tuple[str, ...], problem: str
) -> None:
    ended = streamed([text], run, *arguments)
    assert (ended.code, ended.err) == (2, f"seqwise: {problem}\n")


def test_runs_that_cannot_stream_say_what_can(streamed: Callable[..., Ended], tmp_path: Path) -> None:
    both_ways = saved_run(tmp_path / "both", encoder="bidirectional")
    assert streamed([b"a"], both_ways).complaint.startswith("the model reads its source both ways")
    transducer = saved_run(tmp_path / "transducer", task="transduce")
    assert streamed([b"a"], transducer).complaint.startswith("the model (EncoderDecoder) needs the whole source")


@pytest.mark.thorough
def test_tokens_are_labelled_as_they_arrive_and_a_closed_pipe_is_no_error(run: Path) -> None:
    """In a process: each update is read before the next token is written."""
    command = [sys.executable, "-m", "seqwise", "stream", str(run), "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin and running.stdout and running.stderr
        for token in (b"a", b"b", b"a"):
            running.stdin.write(token + b" ")
            running.stdin.flush()
            assert json.loads(running.stdout.readline())["token"] == token.decode()
        running.stdout.close()
        running.stdin.write(b"a b c\n" * 50)
        running.stdin.close()
        said = running.stderr.read()
        assert (running.wait(timeout=60), said) == (0, b"running on cpu\n")


def test_a_compressed_file_is_read_and_a_damaged_one_refused(seqwise: Command, run: Path, tmp_path: Path) -> None:
    text = "a b\n\nc\n" * 200
    plain, packed, torn = (tmp_path / name for name in ("plain", "packed.gz", "torn.gz"))
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    torn.write_bytes(packed.read_bytes()[:-9])
    assert seqwise("stream", run, packed).out == seqwise("stream", run, plain).out
    ended = seqwise("stream", run, torn)
    assert ended.code == 2 and re.search(
        rf"{re.escape(str(torn))}:[0-9]+: damaged gzip file .*; copy or compress", ended.err
    )


def test_an_empty_input_is_looked_at_once(streamed: Callable[..., Ended], run: Path) -> None:
    """On a terminal, each look at the end of the input waits for another Ctrl-D."""
    looks: list[int] = []

    class Terminal(Input):
        def readinto(self, room: Any) -> int:
            looks.append(1)
            return super().readinto(room)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys.modules[__name__], "Input", Terminal)
        assert streamed([], run).out == ""
    assert len(looks) == 1
