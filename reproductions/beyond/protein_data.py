"""Short proteins: splits by family, wild types, and cross-entropies of unigrams and bigrams."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise

from reproductions.corpora import readers as corpora
from seqwise.data.fasta import read_fasta
from seqwise.data.readers import Example
from seqwise.errors import InputError

FILE = "uniprot_ecoli_yeast_len20-128.fasta.gz"
HELD_OUT = 0.1  # of the sequences, for development data and again for test data
PRIOR = 20.0  # pseudo-count of the unigrams in the bigrams of a residue


@dataclass(frozen=True)
class Proteins:
    """Training data, development data, and test data for wild types; each part is in the order of the file.

    ``sources`` names the file with its SHA-256.
    """

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    sources: tuple[str, ...] = ()


@cache
def proteins() -> Proteins:
    """Read short proteins of E. coli and yeast (UniProt) from the folder ``SEQWISE_DATA``, split by family."""
    path = corpora.corpus("protein-short") / FILE
    return replace(split_by_family(read_fasta(path)), sources=(corpora.source_of(path),))


def families(sequences: Sequence[Sequence[str]], *, size: int = 6, share: float = 0.1) -> list[int]:
    """Group sequences by single linkage over shared words of residues; return the first index of each one's family.

    Two sequences are linked if they share a word of ``size`` residues, and with it at least ``share`` of the distinct
    words of the one that has fewer.

    Not implemented: alignment. Relatives that have diverged, and share no word, are not found.
    """
    words = [
        {tuple(residues[start : start + size]) for start in range(len(residues) - size + 1)} for residues in sequences
    ]
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, own in enumerate(words):
        for word in own:
            holders[word].append(place)
    shared = Counter(pair for places in holders.values() for pair in combinations(places, 2))
    first = list(range(len(sequences)))

    def root(place: int) -> int:
        while first[place] != place:
            place = first[place]
        return place

    for (a, b), count in shared.items():
        if count >= share * min(len(words[a]), len(words[b])):
            low, high = sorted((root(a), root(b)))
            first[high] = low
    return [root(place) for place in range(len(sequences))]


def split_by_family(examples: Sequence[Example], *, seed: int = 0) -> Proteins:
    """Split off a tenth of the sequences each for development and test data, by whole families in random order.

    A part is full once it has at least its tenth, so that a large family may make it larger.
    """
    family = families([example.target for example in examples])
    order = sorted(set(family))
    random.Random(seed).shuffle(order)
    sizes, part_of, filled = Counter(family), dict.fromkeys(order, "train"), Counter[str]()
    for part in ("dev", "test"):
        while order and filled[part] < HELD_OUT * len(examples):
            part_of[order[-1]] = part
            filled[part] += sizes[order.pop()]
    if not order or not filled["test"]:
        raise InputError(f"{len(sizes)} families of sequences are too few for three parts", hint="give more sequences")

    def taken(part: str) -> list[Example]:
        return [example for example, own in zip(examples, family, strict=True) if part_of[own] == part]

    return Proteins(taken("train"), taken("dev"), taken("test"))


def choose_wild_types(examples: Sequence[Example], *, count: int, lengths: tuple[int, int]) -> list[Example]:
    """Choose ``count`` sequences with lengths in a range, always the same ones; all if there are fewer."""
    low, high = lengths
    places = [place for place, example in enumerate(examples) if low <= len(example.target) <= high]
    if not places:
        raise InputError(f"no held-out sequence has {low} to {high} residues", hint="give other lengths")
    return [examples[place] for place in sorted(random.Random(0).sample(places, min(count, len(places))))]


def unigram_nats(train: Sequence[Example], held_out: Sequence[Example]) -> list[float]:
    """Return ``- sum_t log p(y_t)`` of each held-out sequence, t from the second residue on, by shares of residues.

    The first residue, methionine, begins every protein and is not predicted.
    """
    shares = residue_shares(train)
    return [-math.fsum(math.log(_share(shares, residue)) for residue in example.target[1:]) for example in held_out]


def bigram_nats(train: Sequence[Example], held_out: Sequence[Example]) -> list[float]:
    """Return ``- sum_t log p(y_t | all others)`` of a Markov chain, t from the second residue on.

    Of the others only the neighbours matter: ``p(w | a, b)`` is proportional to ``p(w | a) p(b | w)``, with a before
    and b after it; the end of the sequence counts as a residue. ``p(w | a) = (n(a, w) + 20 p(w)) / (n(a) + 20)``, with
    the p(w) of :func:`unigram_nats` (of the end: one for each sequence). So this is minus the pseudo-log-likelihood of
    the chain, comparable with that of a masked model.
    """
    shares, end = residue_shares(train), ""
    ends = len(train) / max(sum(len(example.target) - 1 for example in train), 1)
    pairs = Counter(pair for example in train for pair in pairwise((*example.target, end)))
    before = Counter(residue for example in train for residue in example.target)

    def follows(left: str, right: str) -> float:
        share = ends if right == end else _share(shares, right)
        return (pairs[left, right] + PRIOR * share) / (before[left] + PRIOR)

    nats = []
    for example in held_out:
        padded = (*example.target, end)
        total = 0.0
        for left, here, right in zip(padded, padded[1:], padded[2:], strict=False):
            whole = math.fsum(follows(left, residue) * follows(residue, right) for residue in shares)
            total -= math.log(follows(left, here) * follows(here, right) / whole)
        nats.append(total)
    return nats


def residue_shares(train: Sequence[Example]) -> dict[str, float]:
    """Return the share of each residue, from the second place of a sequence on."""
    counts = Counter(residue for example in train for residue in example.target[1:])
    return {residue: count / counts.total() for residue, count in sorted(counts.items())}


def _share(shares: dict[str, float], residue: str) -> float:
    if residue not in shares:
        raise InputError(f"the residue {residue!r} is in no training sequence", hint="give more training data")
    return shares[residue]
