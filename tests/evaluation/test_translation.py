"""BLEU against sacrebleu on every corpus and every resample; length bins."""

from __future__ import annotations

import doctest
import itertools
import random
import sys

import numpy as np
import pytest

from evaluation.intervals import require_ends
from seqwise.errors import InputError
from seqwise.evaluation import translation
from seqwise.evaluation.metrics import bootstrap_interval, paired_bootstrap
from seqwise.evaluation.translation import bins_by_length, bleu, bleu_signature

WORDS = ["the", "cat", "Cat", "sat,", "on", "a", "mat.", "don't"]


@pytest.fixture
def sacrebleu():
    return pytest.importorskip("sacrebleu")


def random_corpus(seed: int, *, longest: int = 12, most_references: int = 3) -> tuple[list[str], list[list[str]]]:
    """A few sentences, some of them empty, whose references resemble them more or less and differ in number."""
    generator = random.Random(seed)
    likeness = generator.random()
    predictions, references = [], []
    for _ in range(generator.randrange(1, 7)):
        words = generator.choices(WORDS, k=generator.randrange(longest))
        predictions.append(" ".join(words))
        options = []
        for _ in range(generator.randint(1, most_references)):
            changed = [word if generator.random() < likeness else generator.choice(WORDS) for word in words]
            options.append(" ".join(changed + generator.choices(WORDS, k=generator.randrange(3))))
        references.append(options)
    return predictions, references


def by_sacrebleu(sacrebleu, predictions, references, **options):
    columns = list(map(list, itertools.zip_longest(*references)))
    return sacrebleu.corpus_bleu(predictions, columns, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("longest", [2, 4, 5, 12])
def test_bleu_is_that_of_sacrebleu(sacrebleu, longest):
    values = []
    for seed in range(300):
        predictions, references = random_corpus(seed, longest=longest)
        values.append(bleu(predictions, references).value)
        assert 100 * values[-1] == pytest.approx(by_sacrebleu(sacrebleu, predictions, references).score, abs=1e-9)
    # Both ends and smoothed values between them were met.
    assert min(values) == 0
    if longest > 4:
        assert max(values) > 0.5 and len({round(value, 9) for value in values}) > 100


@pytest.mark.parametrize(
    ("prediction", "references"),
    [
        ("", [""]),
        ("", ["a b c d e"]),
        ("a b c d e", [""]),
        ("a b c d", ["e f g h"]),  # no match at all
        ("a b c", ["a b c"]),  # no 4-gram in the prediction
        ("a b c d e", ["a x c x e"]),  # single words match, nothing longer does: smoothed three times
        ("a a a a a", ["a"]),
        ("a b c d e f", ["a b c d", "a b c d e f g h"]),  # two closest references: the shorter one counts
        ("a b c d", ["a b c d e f g h"]),
    ],
)
def test_bleu_is_that_of_sacrebleu_in_corners(sacrebleu, prediction, references):
    ours = bleu([prediction], [references]).value
    assert 100 * ours == pytest.approx(by_sacrebleu(sacrebleu, [prediction], [references]).score, abs=1e-9)


@pytest.mark.parametrize(
    "options", [{"tokenize": "char"}, {"tokenize": "none", "lowercase": True}, {"lowercase": True}]
)
def test_options_reach_sacrebleu(sacrebleu, options):
    predictions, references = random_corpus(4)
    theirs = by_sacrebleu(sacrebleu, predictions, references, **options).score
    assert 100 * bleu(predictions, references, **options).value == pytest.approx(theirs, abs=1e-9)
    assert theirs != pytest.approx(by_sacrebleu(sacrebleu, predictions, references).score)


@pytest.mark.parametrize("seed", range(5))
def test_all_resamples_at_once_are_those_of_sacrebleu_one_by_one(sacrebleu, seed):
    predictions, references = random_corpus(seed)
    counts = bleu(predictions, references)
    indices_RN = np.random.default_rng(seed).integers(len(predictions), size=(40, len(predictions)))
    with np.errstate(divide="ignore", invalid="ignore"):
        together_R = counts.combine(counts.columns_NC[indices_RN].sum(axis=1))
    for ours, draw in zip(together_R, indices_RN, strict=True):
        theirs = by_sacrebleu(sacrebleu, [predictions[i] for i in draw], [references[i] for i in draw])
        assert 100 * ours == pytest.approx(theirs.score, abs=1e-9)


def test_interval_against_every_resample(sacrebleu):
    predictions = ["the cat sat on the mat", "a cat", "on a mat the cat sat", "the the the the the"]
    references = [["the cat sat on a mat"], ["a cat sat"], ["on the mat the cat sat", "on a mat"], ["the cat"]]
    values = [
        by_sacrebleu(sacrebleu, [predictions[i] for i in draw], [references[i] for i in draw]).score / 100
        for draw in np.ndindex(4, 4, 4, 4)
    ]
    for confidence in (0.2, 0.5, 0.8, 0.95):
        _, *ends = bootstrap_interval(bleu(predictions, references), confidence=confidence, resamples=20_000)
        require_ends(ends, values, confidence)


def test_systems_are_compared_by_bleu(sacrebleu):
    corpora = [random_corpus(seed, most_references=1) for seed in range(40)]
    references = [options for _, each in corpora for options in each]
    worse = [text for texts, _ in corpora for text in texts]
    better = [text if n % 2 else options[0] for n, (text, options) in enumerate(zip(worse, references, strict=True))]
    comparison = paired_bootstrap(bleu(better, references), bleu(worse, references))
    expected = by_sacrebleu(sacrebleu, better, references).score - by_sacrebleu(sacrebleu, worse, references).score
    assert 100 * comparison.difference == pytest.approx(expected)
    assert comparison.low > 0 and comparison.p_value < 0.01


def test_signature_is_that_of_sacrebleu(sacrebleu):
    for references in ([["a", "b"], ["c", "d"]], [["a", "b"], ["c"]]):
        metric = sacrebleu.metrics.BLEU(lowercase=True, tokenize="char")
        metric.corpus_score(["a", "c"], list(map(list, itertools.zip_longest(*references))))
        assert bleu_signature(references, lowercase=True, tokenize="char") == str(metric.get_signature())
    assert bleu_signature([["a"]]).startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_every_example_is_in_the_one_bin_of_its_length():
    lengths = list(range(60, -1, -1))
    bins = bins_by_length(lengths, [1, 20, 21, 50])
    assert list(bins) == ["0-1", "1-20", "20-21", "21-50", "50+"]
    assert [sorted(lengths[i] for i in indices) for indices in bins.values()] == [
        [0],
        list(range(1, 20)),
        [20],
        list(range(21, 50)),
        list(range(50, 61)),
    ]
    assert list(bins_by_length([5, 100])) == ["0-20", "40+"]
    assert list(bins_by_length([5, 100], [])) == ["0+"]


@pytest.mark.parametrize("edges", [(20, 20), (30, 20), (0, 20), (-1,)])
def test_edges_that_do_not_rise_are_refused(edges):
    with pytest.raises(InputError, match="must be above 0 and increase"):
        bins_by_length([1], edges)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bleu(["a"], []), "1 predictions for 0 references"),
        (lambda: bleu([], []), "no examples"),
        (lambda: bleu(["a", "b"], [["a"], []]), "example 2 has no reference"),
        (lambda: bleu(["a b"], ["a b"]), "example 1 is not a text with a list"),
        (lambda: bleu([["a", "b"]], [["a b"]]), "example 1 is not a text"),
        (lambda: bleu(["a"], [["a"]], tokenize="13"), "unknown tokenizer '13'; choose from none, "),
    ],
)
def test_bad_input_is_refused_in_one_line(sacrebleu, make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_missing_sacrebleu_is_reported_with_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(InputError, match=r"BLEU needs sacrebleu; pip install 'seqwise\[translation\]'"):
        bleu(["a"], [["a"]])


def test_examples_of_the_docstrings_hold(sacrebleu):
    # They say "+SKIP", because the collection of all docstring examples must pass without the optional package.
    ran = 0
    for case in doctest.DocTestFinder(exclude_empty=True).find(translation):
        for example in case.examples:
            ran += example.options.pop(doctest.SKIP, False)
        assert doctest.DocTestRunner().run(case).failed == 0
    assert ran == 2
