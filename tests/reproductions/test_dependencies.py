"""Supertags of dependency trees: by hand, against the prepared corpus, and files that are no CoNLL-U."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from command_line import Command
from reproductions.corpora.dependencies import Dependent, dependency_supertags, read_dependencies, write_supertags
from seqwise.data import read_columns
from seqwise.errors import InputError

TREE = """\
# text = It's clear, that he gave us nothing today.
1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_
1\tIt\tit\tPRON\tPRP\t_\t3\texpl\t_\t_
2\t's\tbe\tAUX\tVBZ\tTense=Pres\t3\tcop\t_\t_
3\tclear\tclear\tADJ\tJJ\t_\t0\troot\t_\t_
4\t,\t,\tPUNCT\t,\t_\t3\tpunct\t_\t_
5\tthat\tthat\tSCONJ\tIN\t_\t7\tmark\t_\t_
6\the\the\tPRON\tPRP\t_\t7\tnsubj:outer\t_\t_
7\tgave\tgive\tVERB\tVBD\t_\t3\tcsubj\t_\t_
8\tus\twe\tPRON\tPRP\t_\t7\tiobj\t_\t_
8.1\tit\tit\tPRON\tPRP\t_\t_\t_\t7:obj\t_
9\tnothing\tnothing\tPRON\tNN\t_\t7\tobj\t_\t_
10\ttoday\ttoday\tNOUN\tNN\t_\t7\tobl:tmod\t_\t_
11\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""
LABELS = [
    *("expl>", "cop>", "root^[cop,expl_csubj]", "punct<", "mark>", "nsubj>", "csubj<[nsubj+_iobj,obj+]"),
    *("iobj<", "obj<", "obl<", "punct<", "root^"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    file = tmp_path / "tree.conllu"
    file.write_text(TREE, encoding="utf-8")
    return file


def test_supertags_are_those_made_by_hand(tree: Path) -> None:
    sentences = read_dependencies(tree)
    assert [label for words in sentences for label in dependency_supertags(words)] == LABELS
    assert [len(words) for words in sentences] == [11, 1]


def test_the_command_writes_what_a_tagger_reads(tree: Path, tmp_path: Path, corpora_command: Command) -> None:
    ended = corpora_command("supertags", tree, tmp_path / "out.tsv")
    assert ended.out.endswith("out.tsv: 2 sentences, 12 words, 11 supertags\n") and ended.code == 0
    first, second = read_columns(tmp_path / "out.tsv", label_column=1)
    assert first.target + second.target == tuple(LABELS) and second.source == ("Yes",)
    assert "'s\tcop>\tVBZ|Tense=Pres|cop\tAUX\n" in (tmp_path / "out.tsv").read_text()


# The heads of four sentences of the corpus, which the prepared files do not keep.
HEADS = {
    0: [3, 3, 4, 0, 6, 4, 4],
    2: [2, 0, 2, 3, 3, 11, 11, 10, 8, 11, 2, 14, 14, 11, 18, 18, 18, 14, 21, 21, 18, 23, 21, 25, 2, 25, 26, 26, 2],
    7: [3, 1, 4, 0, 8, 8, 8, 4, 10, 8, 13, 13, 10, 15, 13, 4],
    8: [2, 3, 0, 3, 8, 8, 8, 3, 11, 11, 8, 13, 11, 17, 17, 17, 13, 3],
}


@pytest.mark.parametrize("number", HEADS)
def test_supertags_are_those_of_the_prepared_corpus(number: int, corpora: Path, tmp_path: Path) -> None:
    with gzip.open(corpora / "supertag-ud-ewt" / "dev.tsv.gz", "rt", encoding="utf-8") as stream:
        prepared = stream.read().split("\n\n")[number]
    words = []
    for row, head in zip(prepared.split("\n"), HEADS[number], strict=True):
        form, _, composite, upos = row.split("\t")
        xpos, rest = composite.split("|", 1)
        features, relation = rest.rsplit("|", 1)
        words.append(Dependent(form, upos, xpos, features, head, relation))
    write_supertags(tmp_path / "out.tsv", [words])
    assert (tmp_path / "out.tsv").read_text(encoding="utf-8") == prepared + "\n\n"


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ("\tADJ\t", " ADJ ", "5: 8 columns where 10 were expected"),
        ("\n3\tclear", "\n4\tclear", "5: word '4' where 3 was expected"),
        ("\t0\troot\t_\t_\n4", "\t99\troot\t_\t_\n4", "3: the head of word 3 is 99, in a sentence of 11 words"),
        ("\t0\troot\t_\t_\n4", "\t3\troot\t_\t_\n4", "3: the head of word 3 is 3"),
        ("\t0\troot\t_\t_\n4", "\t_\troot\t_\t_\n4", "5: the head '_' is not a number"),
        ("\t0\troot\t_\t_\n4", "\t٣\troot\t_\t_\n4", "5: the head '٣' is not a number"),
        ("\texpl\t", "\t_\t", "3: the relation is missing"),
        (TREE, "# nothing\n", "no sentence in the file"),
    ],
)
def test_malformed_trees_are_refused_with_their_line(tree: Path, old: str, new: str, complaint: str) -> None:
    assert old in TREE
    tree.write_text(TREE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"tree\.conllu") as refused:
        read_dependencies(tree)
    assert complaint in str(refused.value)
