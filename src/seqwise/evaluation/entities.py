"""Entities in label sequences, and their F1: micro-averaged, by type, and macro-averaged.

Shapes: N examples, K types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, Floats, Sums, Tokens, pairs

PREFIXES = frozenset("BIES")


class Entity(NamedTuple):
    """Type and positions of an entity: labels[start:end]."""

    type: str
    start: int
    end: int


class TypeScores(NamedTuple):
    """Precision, recall and F1 of a type, 0 where undefined, and its number of gold entities."""

    precision: float
    recall: float
    f1: float
    support: int


class EntityCounts(Counts):
    """Micro-averaged F1 with the scores of each type, from the tallies of `_tallies`."""

    by_type: Mapping[str, TypeScores]
    all_types: TypeScores

    def __init__(self, tallies_NKC: Floats, types: Sequence[str]) -> None:
        right_N, predicted_N, gold_N = tallies_NKC.sum(axis=1).T
        super().__init__(2 * right_N, predicted_N + gold_N)
        sums_by_type = zip(types, tallies_NKC.sum(axis=0), strict=True)
        by_type = {name: type_scores(*sums_C) for name, sums_C in sums_by_type if sums_C.any()}
        object.__setattr__(self, "by_type", by_type)
        object.__setattr__(self, "all_types", type_scores(*tallies_NKC.sum(axis=(0, 1))))


def entities(labels: Tokens) -> list[Entity]:
    """Return the entities of a label sequence from left to right, even if it is ill-formed.

    A label is a prefix, a hyphen and a type: B-LOC, I-LOC, E-LOC, S-LOC (the type may contain hyphens, or be missing
    with its hyphen). Any other label, such as O, is outside every entity. Inside, a new entity begins after an outside
    position, where the type changes, at every B and S, and after every E and S. So I-LOC after O or after another type
    begins an entity, and an entity that is never closed ends before the next O, type or end of labels. This reads IO,
    IOB1, IOB2, IOE1, IOE2 and IOBES.

    Source: the script conlleval of the CoNLL shared tasks (Tjong Kim Sang and Buchholz 2000; Tjong Kim Sang and De
    Meulder 2003), with the same rules for B, I, O and for I, E, O. It has no S, and joins a B to a preceding E of its
    type; here B always begins and E always ends an entity, as in seqeval. Not implemented: its bracket representations.
    """
    parts = [("O", ""), *map(_prefix_and_type, labels), ("O", "")]
    edges = [t for t, (before, after) in enumerate(pairwise(parts)) if _is_edge(before, after)]
    # The label at position t is parts[t + 1].
    return [Entity(parts[i + 1][1], i, j) for i, j in pairwise(edges) if parts[i + 1][0] != "O"]


def valid_transitions(labels: Sequence[str]) -> tuple[list[list[bool]], list[bool], list[bool]]:
    """Return which labels may follow each other so that entities are well formed, which may come first, and which last.

    An entity is B, I, ..., I in IOB2; where a label begins with E or S, it is S, or B, I, ..., I, E (IOBES).

    Returns:
        (V, V), at [v, w] whether w may follow v; (V,) whether it may come first; (V,) whether it may come last.

    Example:
        >>> follows, first, last = valid_transitions(["O", "B-LOC", "I-LOC"])
        >>> follows[0], first, last
        ([True, True, False], [True, True, False], [True, True, True])
    """
    parts = [_prefix_and_type(label) for label in labels]
    closes = any(prefix in "ES" for prefix, _ in parts)

    def follows(before: tuple[str, str], after: tuple[str, str]) -> bool:
        is_open = before[0] in "BI"
        continues = after[0] in "IE"
        if continues:
            return is_open and before[1] == after[1]
        return not (closes and is_open)

    outside = ("O", "")
    return (
        [[follows(before, after) for after in parts] for before in parts],
        [follows(outside, label) for label in parts],
        [follows(label, outside) for label in parts],
    )


def entity_f1(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> EntityCounts:
    """Compute micro-averaged F1 over the entities of all types: 2 #right / (#predicted + #gold).

    An entity is right if its type, start and end are. This is 2 P R / (P + R) with precision P = #right / #predicted
    and recall R = #right / #gold, hence a ratio of two sums.

    Args:
        predictions: labels per example. Missing positions count as O; labels beyond the end of the reference are
            ignored.
        references: gold labels per example.

    Returns:
        The F1; its ``by_type`` has the scores of every gold or predicted type.

    Raises:
        InputError: the lists differ in length, a gold label has no known prefix, or there are no entities.

    Source: conlleval, as for `entities`. Not implemented: credit for partial overlap.

    Example:
        >>> f1 = entity_f1([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])  # 1 right, 2 predicted, 1 gold
        >>> f1.value, f1.by_type["PER"]
        (0.6666666666666666, TypeScores(precision=1.0, recall=1.0, f1=1.0, support=1))
    """
    types = sorted({entity.type for labels in (*predictions, *references) for entity in entities(labels)})
    return EntityCounts(_tallies(predictions, references, types), types)


def macro_entity_f1(
    predictions: Sequence[Tokens], references: Sequence[Tokens], *, types: Collection[str] | None = None
) -> Sums:
    """Compute macro-averaged F1, the mean over types: (1 / K) sum over k of 2 #right_k / (#predicted_k + #gold_k).

    The mean is over the types of the references (F1 = 0 if none is predicted), also in each bootstrap resample;
    resamples without gold entities are left out. Predictions of other types are ignored.

    Args:
        predictions, references: as in `entity_f1`.
        types: types to average over; by default those of the references.

    Raises:
        InputError: as in `entity_f1`, or a type of ``types`` is in no reference.

    Source: Goyal, Neubig, Dyer and Berg-Kirkpatrick, AAAI 2018, table 2, "Macro F1 over the prediction of different
    named entities", without a formula; conlleval reports `entity_f1`, and F1 by type without the mean.

    Example:
        >>> gold = [["B-PER", "O", "B-LOC"], ["B-PER", "B-PER", "O"]]
        >>> macro_entity_f1([["B-PER", "O", "O"], ["B-PER", "B-PER", "B-ORG"]], gold).value  # PER 1, LOC 0, ORG absent
        0.5
    """
    occurring = sorted({entity.type for labels in references for entity in entities(labels)})
    chosen = occurring if types is None else sorted(set(types))
    if absent := [name for name in chosen if name not in occurring]:
        raise InputError(f"no reference has an entity of type {absent[0]!r}", hint=f"choose from {occurring}")
    tallies_NKC = _tallies(predictions, references, chosen)
    if not chosen:
        raise InputError("there are no types to average over: no reference has an entity, or none is asked for")
    return Sums(tallies_NKC.reshape(len(tallies_NKC), -1), _mean_f1)


def _prefix_and_type(label: str) -> tuple[str, str]:
    prefix, _, name = label.partition("-")
    return (prefix, name) if prefix in PREFIXES else ("O", "")


def _is_edge(before: tuple[str, str], after: tuple[str, str]) -> bool:
    """Whether an entity ends or begins between two neighbours."""
    return before[1] != after[1] or before[0] in "OES" or after[0] in "OBS"


def _tallies(predictions: Sequence[Tokens], references: Sequence[Tokens], types: Sequence[str]) -> Floats:
    """Count right, predicted and gold entities of each type in each example, (N, K, 3)."""
    places = {name: k for k, name in enumerate(types)}
    tallies_NKC = np.zeros((len(references), len(types), 3))
    for n, (prediction, reference) in enumerate(pairs(predictions, references)):
        _check_labels(reference, n + 1)
        predicted, gold = set(entities(prediction[: len(reference)])), set(entities(reference))
        for column, group in enumerate((predicted & gold, predicted, gold)):
            for entity in group:
                if entity.type in places:
                    tallies_NKC[n, places[entity.type], column] += 1
    return tallies_NKC


def type_scores(right: float, predicted: float, gold: float) -> TypeScores:
    """Return precision, recall and F1 from counts, 0 where undefined."""
    precision, recall, f1 = (
        float(above / below) if below else 0.0
        for above, below in ((right, predicted), (right, gold), (2 * right, predicted + gold))
    )
    return TypeScores(precision, recall, f1, int(gold))


def _check_labels(reference: Tokens, number: int) -> None:
    for label in reference:
        if label != "O" and _prefix_and_type(label)[0] == "O":
            hint = "write O, or one of B-, I-, E- and S- before the type"
            raise InputError(f"reference {number} has the label {label!r}, which names no entity", hint=hint)


def _mean_f1(sums: Floats) -> Floats:
    """Compute the mean F1 of the types with gold entities, or NaN without any."""
    right, predicted, gold = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 3), -1, 0)
    present = gold > 0
    f1 = np.where(present, 2 * right / (predicted + gold), 0)
    return np.asarray(f1.sum(axis=-1) / present.sum(axis=-1))
