"""BLEU by sacrebleu; bins of examples by length.

Shapes: N examples, G n-gram orders (1 to 4), C = 2 + 2 G sums: lengths of prediction and reference, matched n-grams,
predicted n-grams.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from seqwise.errors import InputError
from seqwise.evaluation.metrics import Floats, Sums, pairs_with_many

MAX_ORDER = 4


def bleu(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Sums:
    """Compute corpus BLEU of detokenised text: brevity penalty times the geometric mean of four n-gram precisions.

    min(1, exp(1 - r / c)) (p_1 p_2 p_3 p_4)^(1/4), in [0, 1], with c the length of the predictions, r that of the
    closest references and p_n = #matched / #predicted n-grams, all sums over the corpus. An order without a match gets
    2^-m / #predicted, where m counts such orders up to it ("exp" smoothing); without any match, or any predicted
    4-gram, BLEU is 0. Report `bleu_signature` with the number.

    Args:
        predictions: one text per example.
        references: reference texts of each example, at least one; their number may vary.
        tokenize: sacrebleu's name of a tokenizer, such as "13a", "intl", "zh", "char" or "none".
        lowercase: ignore case.

    Raises:
        InputError: the lists differ in length, an example has no reference, an entry is not text, the tokenizer is
            unknown, or sacrebleu is not installed.

    Source: Papineni et al., ACL 2002; Post, WMT 2018, for sacrebleu; Chen and Cherry, WMT 2014, method 3, for the
    smoothing. Not implemented: other smoothing, BLEU of single sentences (effective order), orders above 4.

    Example:
        >>> round(bleu(["a cat sat on it"], [["a cat sat on me"]]).value, 6)  # doctest: +SKIP
        0.66874
        >>> round((4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25, 6)
        0.66874
    """
    return Sums(_statistics(predictions, references, tokenize=tokenize, lowercase=lowercase), _bleu_of_sums)


def bleu_signature(references: Sequence[Sequence[str]], *, tokenize: str = "13a", lowercase: bool = False) -> str:
    """Return sacrebleu's signature for `bleu` with these options.

    Example:
        >>> bleu_signature([["the cat sat"]]).split("|version")[0]  # doctest: +SKIP
        'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp'
    """
    metric = _metric(tokenize=tokenize, lowercase=lowercase)
    numbers = {len(options) for options in references}
    metric.num_refs = numbers.pop() if len(numbers) == 1 else -1  # -1: it varies
    return str(metric.get_signature())


def bins_by_length(lengths: Sequence[int], edges: Sequence[int] = (20, 30, 40)) -> dict[str, npt.NDArray[np.intp]]:
    """Return the indices of the examples in each nonempty length bin: low <= length < high; the last bin is unbounded.

    Source: Goyal's thesis, 2021, table 5.6, which does not specify the bin of length 20.
    """
    starts = [0, *edges]
    if any(low >= high for low, high in pairwise(starts)):
        raise InputError(f"the edges {list(edges)} must be above 0 and increase")
    names = [*(f"{low}-{high}" for low, high in pairwise(starts)), f"{starts[-1]}+"]
    bin_N = np.digitize(np.asarray(lengths), edges)
    members = {name: np.flatnonzero(bin_N == place) for place, name in enumerate(names)}
    return {name: indices for name, indices in members.items() if len(indices)}


def _metric(*, tokenize: str, lowercase: bool) -> Any:
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise InputError("BLEU needs sacrebleu", hint="pip install 'seqwise[translation]'") from error
    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"unknown tokenizer {tokenize!r}", hint=f"choose from {', '.join(BLEU.TOKENIZERS)}")
    return BLEU(tokenize=tokenize, lowercase=lowercase, max_ngram_order=MAX_ORDER)


def _statistics(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool
) -> Floats:
    """Count the terms of BLEU for each example, (N, C)."""
    metric = _metric(tokenize=tokenize, lowercase=lowercase)
    for number, (prediction, options) in enumerate(pairs_with_many(predictions, references), start=1):
        # A string is a sequence of strings too: a bare reference would pass for one reference per character.
        if isinstance(options, str) or not all(isinstance(text, str) for text in (prediction, *options)):
            hint = "give one text per prediction, and a list of texts per example as its references"
            raise InputError(f"example {number} is not a text with a list of reference texts", hint=hint)
    most = max(map(len, references), default=0)
    # sacrebleu takes the references transposed, with None where an example has fewer than others.
    columns = [[options[r] if r < len(options) else None for options in references] for r in range(most)]
    statistics = metric._extract_corpus_statistics(predictions, columns) if most else []
    return np.array(statistics, dtype=np.float64).reshape(len(predictions), 2 + 2 * MAX_ORDER)


def _bleu_of_sums(sums: Floats) -> Floats:
    """Compute BLEU from its sums (..., C), with sacrebleu's smoothing and conventions for undefined BLEU."""
    predicted, reference = sums[..., 0], sums[..., 1]
    matched_G, total_G = sums[..., 2 : 2 + MAX_ORDER], sums[..., 2 + MAX_ORDER :]
    halvings_G = np.cumsum(matched_G == 0, axis=-1)
    precision_G = np.where(matched_G > 0, matched_G, 0.5**halvings_G) / total_G
    # Where there are 4-grams and a match, all of these are numbers; elsewhere they do not count.
    brevity = np.minimum(0, 1 - reference / predicted)
    defined = matched_G.any(axis=-1) & total_G.all(axis=-1)
    return np.asarray(np.where(defined, np.exp(brevity + np.log(precision_G).mean(axis=-1)), 0))
