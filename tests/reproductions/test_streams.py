"""Text as a stream: every position once, the same as read at once, in memory that does not grow with the text."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reproductions.andreas_klein_2015.streams import (
    BEFORE,
    CHUNK_POSITIONS,
    Positions,
    Sentence,
    build_vocabulary,
    gather_positions,
    read_sentences,
    stream_positions,
)
from seqwise.data import Vocabulary
from seqwise.errors import InputError

Row = tuple[int, ...]


def by_hand(sentences: list[list[int]], context_size: int) -> list[Row]:
    """Word and context of every position, one list at a time."""
    rows = []
    for ids in sentences:
        for place, word in enumerate(ids):
            context = [ids[place - d] if place >= d else -1 for d in range(1, context_size + 1)]
            rows.append((word, *context))
    return rows


def as_rows(positions: Positions) -> list[Row]:
    assert positions.contexts_NC.dtype == positions.words_N.dtype == torch.int64
    pairs = zip(positions.words_N.tolist(), positions.contexts_NC.tolist(), strict=True)
    return [(word, *context) for word, context in pairs]


def a_text(seed: int, *, num_sentences: int = 700, longest: int = 40) -> list[list[str]]:
    chance = random.Random(seed)
    return [[f"w{chance.randrange(50)}" for _ in range(chance.randint(1, longest))] for _ in range(num_sentences)]


def write(path: Path, lines: list[list[str]]) -> Path:
    data = "".join(" ".join(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("context_size", [0, 1, 3, 60])
def test_positions_equal_those_found_by_hand(context_size: int) -> None:
    chance = random.Random(context_size)
    sentences = [[chance.randrange(9) for _ in range(chance.randint(0, 12))] for _ in range(40)]
    positions = gather_positions(sentences, context_size=context_size)
    assert as_rows(positions) == by_hand(sentences, context_size)
    assert positions.contexts_NC.shape[1] == context_size
    assert BEFORE == -1
    assert as_rows(gather_positions([], context_size=context_size)) == []


@pytest.mark.parametrize("batch_size", [1, 7, 4096, 10**6])
def test_a_stream_equals_the_text_read_at_once(batch_size: int, tmp_path: Path) -> None:
    """Over plain and compressed files and over chunks, with a last batch that is smaller."""
    lines = a_text(1)
    paths = [write(tmp_path / "a.txt", lines[:300]), write(tmp_path / "b.txt.gz", lines[300:])]
    vocabulary = build_vocabulary(read_sentences(paths), minimum_count=100)
    assert vocabulary == Vocabulary.build(lines, minimum_count=100, unknown="<unk>", end="</s>")
    batches = list(
        stream_positions(read_sentences(paths), vocabulary, context_size=3, batch_size=batch_size)
    )  # fmt: skip
    expected = by_hand([[*vocabulary.encode(line), vocabulary.end_id or 0] for line in lines], 3)
    assert len(expected) > 2 * CHUNK_POSITIONS
    assert [row for batch in batches for row in as_rows(batch)] == expected
    assert {len(batch.words_N) for batch in batches[:-1]} <= {batch_size}
    assert 0 < len(batches[-1].words_N) <= batch_size


def test_without_an_end_token_none_is_predicted() -> None:
    vocabulary = Vocabulary(("a", "b"))
    stream = stream_positions([Sentence(("a", "b")), Sentence(("b",))], vocabulary, context_size=1, batch_size=9)
    assert [as_rows(batch) for batch in stream] == [[(0, -1), (1, 0), (1, -1)]]


def numbered(count: int, *, length: int = 1) -> tuple[list[Sentence], Vocabulary]:
    """A text in which every word is another."""
    words = tuple(map(str, range(count)))
    return [Sentence(words[i : i + length]) for i in range(0, count, length)], Vocabulary(words)


def order(count: int, *, buffer: int, seed: int = 0, length: int = 1) -> list[int]:
    sentences, vocabulary = numbered(count, length=length)
    stream = stream_positions(
        sentences, vocabulary, context_size=1, batch_size=64, shuffle_buffer=buffer, seed=seed
    )  # fmt: skip
    return [word for batch in stream for word in batch.words_N.tolist()]


@pytest.mark.parametrize(
    ("count", "buffer", "length"), [(20_000, 1000, 1), (9000, 9000, 9000), (300, 7, 11), (50, 1, 3)]
)
def test_shuffling_keeps_every_position_with_its_context(count: int, buffer: int, length: int) -> None:
    sentences, vocabulary = numbered(count, length=length)
    options = {"context_size": 2, "batch_size": 64}
    mixed = [
        row for b in stream_positions(sentences, vocabulary, shuffle_buffer=buffer, **options) for row in as_rows(b)
    ]
    plain = [row for b in stream_positions(sentences, vocabulary, **options) for row in as_rows(b)]
    assert Counter(mixed) == Counter(plain)
    assert (mixed == plain) == (buffer == 1)


def test_a_position_enters_the_buffer_before_it_leaves() -> None:
    """At place e of the output, no more than e + buffer positions of the text have been read."""
    found = order(20_000, buffer=1000)
    assert max(word - place for place, word in enumerate(found)) < 1000
    assert max(place - word for place, word in enumerate(found)) > 2000


def test_shuffling_depends_on_the_seed_alone() -> None:
    assert order(5000, buffer=500, seed=3) == order(5000, buffer=500, seed=3, length=17)
    assert order(5000, buffer=500, seed=3) != order(5000, buffer=500, seed=4)


def test_every_order_of_a_whole_buffer_is_as_probable() -> None:
    """Three positions in a buffer of three: 6 orders; chi-squared of 3,000 seeds below its 0.999 quantile."""
    counts = Counter(tuple(order(3, buffer=3, seed=seed)) for seed in range(3000))
    assert len(counts) == 6
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 20.5


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Peak of allocated memory on 5 MB of text, less than twice that on a tenth of it and far below the text itself."""
    words = [f"a-rather-long-word-{number:04}" for number in range(400)]
    chance = random.Random(0)
    lines = [chance.choices(words, k=20) for _ in range(1000)]

    def peak(path: Path) -> int:
        def run() -> Iterator[Positions]:
            vocabulary = build_vocabulary(read_sentences([path]))
            yield from stream_positions(
                read_sentences([path]), vocabulary, context_size=3, batch_size=256, shuffle_buffer=3000
            )

        tracemalloc.start()
        seen = sum(len(batch.words_N) for batch in run())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seen == 21 * path.read_bytes().count(b"\n")
        return most

    small, large = write(tmp_path / "small.txt", lines), write(tmp_path / "large.txt", lines * 10)
    assert 4_500_000 < large.stat().st_size < 5_500_000
    peak(small)  # what is imported or compiled on first use does not count
    least, most = peak(small), peak(large)
    assert most < 1.1 * least
    assert most < 1_500_000


def test_the_stream_is_lazy() -> None:
    """The first batch comes before the second chunk is read."""
    taken = []

    def sentences() -> Iterator[Sentence]:
        for number in range(10**9):
            taken.append(number)
            yield Sentence(("a",) * 9)

    stream = stream_positions(sentences(), Vocabulary(("a",)), context_size=1, batch_size=10)
    next(stream)
    assert len(taken) * 9 < CHUNK_POSITIONS + 9


def test_a_batch_does_not_keep_its_chunk_alive() -> None:
    sentences, vocabulary = numbered(5000)
    batch = next(iter(stream_positions(sentences, vocabulary, context_size=2, batch_size=10)))
    assert batch.words_N.untyped_storage().nbytes() == 10 * 8
    assert batch.contexts_NC.untyped_storage().nbytes() == 10 * 2 * 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good line\nb\xffd\n", r"a\.txt:2: byte 0xff at column 2 is not UTF-8"),
        (b"good line\nbad\0\n", r"a\.txt:2: NUL"),
        (b"good line\nthe </s> end\n", r"a\.txt:2: the text holds '</s>'"),
        (b"", r"a\.txt: the file is empty"),
        (b"\n  \n\t\n", r"a\.txt: no word in the file"),
        (gzip.compress(b"one two\n" * 1000, mtime=0)[:-20], r"a\.txt:\d+: damaged gzip"),
    ],
)
def test_bad_files_are_named_with_their_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        build_vocabulary(read_sentences([tmp_path / "a.txt"]))


def test_missing_files_and_unknown_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.txt: no such file"):
        list(read_sentences([tmp_path / "gone.txt"]))
    with pytest.raises(InputError, match="there is no file to read"):
        list(read_sentences([]))
    path = write(tmp_path / "a.txt", [["the", "dog"], [], ["the", "cat"]])
    stream = stream_positions(read_sentences([path]), Vocabulary(("the", "dog")), context_size=1, batch_size=2)
    with pytest.raises(InputError, match=r"a\.txt:3: unknown token 'cat'"):
        list(stream)
