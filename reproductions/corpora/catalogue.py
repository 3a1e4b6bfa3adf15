"""The corpora that recipes read: what they are, where they come from, which files they have, and who needs them.

The files are listed in ``catalogue.json``, which `make_catalogue.py` beside it writes from a folder of corpora.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, cast

from seqwise.errors import InputError
from seqwise.training.configuration import did_you_mean

__all__ = ["CORPORA", "Corpus", "File", "find_corpus", "listed_files", "measure_file", "verify"]


@dataclass(frozen=True)
class Corpus:
    """A folder of data.

    Args:
        contents: what is in it.
        sources: public repositories with their commits, and what was taken from there.
        licence: under which it may be used.
        recipes: those that cannot run without it; may be empty.
        optional: those that read it where it is, and something else where it is not.
        published: files that a source has just as they are here, but for compression, and their addresses.
        trees: files made as `python -m reproductions.corpora supertags` does, and the addresses of the trees (CoNLL-U).
    """

    contents: str
    sources: tuple[str, ...]
    licence: str
    recipes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    published: Mapping[str, str] = field(default_factory=dict)
    trees: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """What a file has to be: its size and the SHA-256 of its bytes; and those of what is compressed in it, if it is.

    A compressed file of other bytes is as good if the contents are the same: recipes read nothing else.
    """

    size: int
    sha256: str
    contents: File | None = None


_RAW = "https://raw.githubusercontent.com"
_PHONEMES = f"{_RAW}/sigmorphon/2021-task1/821bcdece5a47820872215969f275004b0abe80c/data/high"
_TREES = f"{_RAW}/UniversalDependencies/UD_English-EWT/15d613d8447b3478787d4c278730a1e48a945efb"
TAGGED = ("raw-scores", "search-objectives", "improvements")
SAMPLED = ("table-6.2", "table-6.3", "table-6.4", "table-6.5", "table-6.6", "figure-6.2", "figure-6.3", "figure-6.4")

CORPORA: Mapping[str, Corpus] = {
    "cmudict": Corpus(
        "CMU Pronouncing Dictionary, editions 0.7b and 2024",
        (
            "github.com/Alexir/CMUdict@042e84a2afdae37ab91723dd552dc52aa5616a28 cmudict-0.7b",
            "github.com/cmusphinx/cmudict@0f8072f814306c5ee4fbf992ed853601b12c01f9 cmudict.dict",
        ),
        "BSD-2-Clause",
        optional=("table-6.1",),
        published={
            "cmudict-0.7b.gz": f"{_RAW}/Alexir/CMUdict/042e84a2afdae37ab91723dd552dc52aa5616a28/cmudict-0.7b",
            "cmudict.dict-2024.gz": f"{_RAW}/cmusphinx/cmudict/0f8072f814306c5ee4fbf992ed853601b12c01f9/cmudict.dict",
        },
    ),
    "g2p-en-sigmorphon21": Corpus(
        "English spelling to sound, with a published split",
        (
            "github.com/sigmorphon/2021-task1@821bcdece5a47820872215969f275004b0abe80c "
            "data/high/eng_us_{train,dev,test}.tsv",
        ),
        "CC BY-SA 3.0",
        published={
            "eng_us_train.tsv.gz": f"{_PHONEMES}/eng_us_train.tsv",
            "eng_us_dev.tsv": f"{_PHONEMES}/eng_us_dev.tsv",
            "eng_us_test.tsv": f"{_PHONEMES}/eng_us_test.tsv",
        },
    ),
    "lm-text-en": Corpus(
        "English text: Europarl v7, the first days, and seven novels",
        (
            "github.com/o-fugi/clustering-europarl-pos@62327f8430be5c5f051ede057e63a3f8c536a8e1 tagfiles/english",
            "github.com/GITenberg/War-and-Peace_2600@fa22ab90f00f",
            "github.com/GITenberg/Les-Mis-rables_135@913d26c4e33b",
            "github.com/GITenberg/David-Copperfield_766@1cfa9f937da3",
            "github.com/GITenberg/Bleak-House_1023@2fe2ed9f44a6",
            "github.com/GITenberg/Middlemarch_145@39add53d31f1",
            "github.com/GITenberg/The-Brothers-Karamazov_28054@6a2b2e1e64fe",
            "github.com/GITenberg/Pride-and-Prejudice_1342@81db45c9c48c",
        ),
        "public domain (novels, in the USA); Europarl: no restrictions known",
        ("andreas-klein-1", "andreas-klein-2"),
    ),
    "mt-de-en-tatoeba": Corpus(
        "German and English sentences (Tatoeba)",
        ("github.com/rioyshky/translation@de48b7027f7318d77010a6e08ed928c10748c23d deu-eng.zip",),
        "CC BY 2.0 FR",
        (
            *("table-3.1", "table-5.1", "table-5.4", "table-5.5", "table-5.6"),
            *("andreas-klein-1", "andreas-klein-2", "transformer-translation"),
            *SAMPLED,
        ),
    ),
    "mt-ro-en-tatoeba": Corpus(
        "Romanian and English sentences (Tatoeba)",
        ("github.com/Tron404/NLP_GroupFinalProject@e305c50b91454390ea1ad24482e5db76a1f7da23 ron-eng.zip",),
        "CC BY 2.0 FR",
        ("table-6.6",),
    ),
    "ner-de-germeval14": Corpus(
        "German named entities (GermEval 2014, split anew)",
        (
            "github.com/UKPLab/deeplearning4nlp-tutorial@2a36ecc39f13b683752483546441468fd7d734b3 "
            "2015-10_Lecture/Lecture3/code/data/NER-de-{dev,test}.tsv",
            "github.com/ixa-ehu/ner-evaluation-corpus-europarl@40e84e215a35c7e46c1b169ad88ab55108a8b0de",
        ),
        "CC BY 4.0; Europarl: no restrictions known",
        ("table-3.1", "table-3.2", "table-4.2", *TAGGED),
    ),
    "ner-de-mobie": Corpus(
        "German named entities in traffic reports (MobIE)",
        ("github.com/DFKI-NLP/MobIE@bf164b5c5ff22d8cf5928b6eceaea9d823ad558f v1_20210811/ner_conll03_formatted.zip",),
        "CC BY 4.0",
    ),
    "protein-short": Corpus(
        "short proteins: sequences, and secondary structures",
        (
            "github.com/Krim10000/Proteome_to_Excel@51fcf74b7a5d6ce2713c4547aa225110ba6487b4",
            "github.com/gustavoschewinski/tuning-protein@b9f79565009dcced925bf27d8170379e69e74737 "
            "data/UP000002311_559292.fasta",
            "github.com/J-SNACKKB/FLIP@62cace8735f5610e2743cf06ce0f944b37fffaa6 splits/secondary_structure/splits.zip",
        ),
        "CC BY 4.0 (UniProt); AFL 3.0 (structures)",
        ("proteins",),
    ),
    "supertag-ccg-pmb": Corpus(
        "CCG categories (Parallel Meaning Bank 4.0.0, gold)",
        (
            "github.com/RikVN/DRS_parsing@190838f9adea2af616eb76156d2e66c8565a6c6e "
            "parsing/layer_data/4.0.0/*/gold/*.conll",
        ),
        "MIT (repository); the data have no text of their own",
        ("table-4.1", "table-5.1", "table-5.2", "table-5.3", *TAGGED),
    ),
    "supertag-erg": Corpus(
        "HPSG lexical types (English Resource Grammar)",
        (
            "github.com/delph-in/erg@af1a9d13767d7730576c899c74804682879936f6 tsdb/gold",
            "github.com/olzama/neural-supertagging@65eef7a5710f9fd487884766671064cf17f6021c",
        ),
        "MIT (annotation); texts CC BY-SA and others, see its README",
        ("table-5.1", "table-5.2", "table-5.3"),
    ),
    "supertag-ud-ewt": Corpus(
        "dependency supertags (UD English EWT)",
        ("github.com/UniversalDependencies/UD_English-EWT@15d613d8447b3478787d4c278730a1e48a945efb",),
        "CC BY-SA 4.0",
        ("table-5.1", "table-5.2", "table-5.3"),
        published={"LICENSE.txt.gz": f"{_TREES}/LICENSE.txt"},
        trees={f"{part}.tsv.gz": f"{_TREES}/en_ewt-ud-{part}.conllu" for part in ("train", "dev", "test")},
    ),
}
"""Every corpus by the name of its folder."""


@cache
def _tables() -> dict[str, dict[str, File]]:
    text = resources.files("reproductions.corpora").joinpath("catalogue.json").read_text("utf-8")
    return {name: {file: _file(row) for file, row in files.items()} for name, files in json.loads(text).items()}


def _file(row: Mapping[str, Any]) -> File:
    contents = row["contents"]
    return File(row["size"], row["sha256"], None if contents is None else _file(contents))


def listed_files(name: str) -> Mapping[str, File]:
    """The files of a corpus, by name.

    Example:
        >>> listed_files("cmudict")["cmudict-0.7b.phones"].size
        382
    """
    find_corpus(name)
    return _tables()[name]


def find_corpus(name: str) -> Corpus:
    """A corpus by name.

    Raises:
        InputError: there is none of that name.

    Example:
        >>> find_corpus("cmudict").licence
        'BSD-2-Clause'
    """
    if name not in CORPORA:
        raise InputError(f"there is no corpus {name!r}", mend=did_you_mean(name, CORPORA))
    return CORPORA[name]


def measure_file(path: Path) -> File:
    """Size and SHA-256 of a file, and of its contents where its name says that it is compressed, a megabyte at a time.

    Raises:
        OSError: it cannot be read, or is not compressed though its name says so.
    """
    with path.open("rb") as stream:
        outside = _measure(stream)
    if path.suffix != ".gz":
        return outside
    with cast(BinaryIO, gzip.open(path)) as stream:
        return replace(outside, contents=_measure(stream))


def _measure(stream: BinaryIO, *, most: float = math.inf) -> File:
    """No more than ``most`` bytes are read, and what is larger is told by one byte more."""
    digest, size = hashlib.sha256(), 0
    while size <= most and (chunk := stream.read(1 << 20)):
        digest.update(chunk)
        size += len(chunk)
    return File(size, digest.hexdigest())


def verify(folder: Path, files: Mapping[str, File]) -> Iterator[tuple[str, str]]:
    """Yield each file of a corpus with what is wrong with it, "" where nothing is.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "a").write_text("one"), (folder / "b").write_text("two")
        >>> files = {"a": measure_file(folder / "a"), "b": measure_file(folder / "a"), "c": measure_file(folder / "a")}
        >>> dict(verify(folder, files))
        {'a': '', 'b': 'its SHA-256 is another', 'c': 'is missing'}
    """
    for name, wanted in files.items():
        path = folder / name
        if not path.is_file():
            yield name, "is missing"
            continue
        with path.open("rb") as stream:
            found = _measure(stream)
        if (found.size, found.sha256) == (wanted.size, wanted.sha256) or _has_contents(path, wanted.contents):
            yield name, ""
        elif found.size != wanted.size:
            yield name, f"has {found.size:,} bytes where {wanted.size:,} were expected"
        else:
            yield name, "its SHA-256 is another"


def _has_contents(path: Path, wanted: File | None) -> bool:
    """Whether a compressed file holds what is wanted, however it was compressed."""
    if wanted is None:
        return False
    try:
        with cast(BinaryIO, gzip.open(path)) as stream:
            return _measure(stream, most=wanted.size) == wanted
    except (OSError, EOFError, zlib.error):
        return False
