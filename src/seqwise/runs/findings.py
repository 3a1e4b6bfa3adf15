"""Diagnosis of a run, with a sentence or two on the meaning of each part and on remedies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from seqwise.evaluation.diagnosis import ExposureGap, LengthBias
from seqwise.evaluation.exact_search import BeamErrors
from seqwise.evaluation.headroom import TrainingHeadroom
from seqwise.evaluation.log_partitions import LogPartitionReport
from seqwise.evaluation.masking import MaskingBias
from seqwise.evaluation.metrics import FEWEST, Sums, enough_examples, num_examples, paired_bootstrap
from seqwise.evaluation.slot_ranking import SlotRanking
from seqwise.runs.advice import gain_between, gain_of
from seqwise.runs.measures import decisive

BEAM_SIZES = (1, 2, 5, 10, 20)
"""Beam sizes at which output lengths are compared."""

MOST_EXPANSIONS = 500
"""Number of prefixes of an input after which the search for its exact best output is given up."""

NEGLIGIBLE = 0.02  # total variation of masking that is not worth a correction
LITTLE_OUTSIDE = 0.01  # mass of excluded tokens after gold prefixes that is not worth training
SMALL = 1.05  # exposure gap below which training against it is not worthwhile


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of a run, kept by example so that they have intervals.

    Attributes:
        decoders: by greedy, beam, raw-beam and, if lengths differ, shifted-beam.
        constant: constant that shifted-beam subtracts from each token, in nats; None if log Z is unknown.
        log_partitions: log Z on gold prefixes; None if the run can write none of the targets.
        exposure: by the search that produced the prefixes, greedy or beam; empty without targets.
        lengths: by score (local, raw) and beam size; empty if outputs have the length of the input.
        search: errors of beams with local scores, by size; None if some tokens of the model may not be written.
        ranking: None if no beam contained both the right prefix and a wrong one.
        left_to_right: whether the model writes each label before it has read all tokens.
    """

    beam_size: int
    decoders: Mapping[str, Mapping[str, Sums]]
    constant: float | None
    log_partitions: LogPartitionReport | None
    exposure: Mapping[str, ExposureGap]
    lengths: Mapping[str, Mapping[int, LengthBias]]
    search: BeamErrors | None
    ranking: SlotRanking | None
    left_to_right: bool


@dataclass(frozen=True)
class LanguageDiagnosis:
    """Measurements of a run inside a language.

    Attributes:
        decoders: by beam (masked log-probabilities), renormalized-beam and raw-beam.
        changed: share of inputs whose output another decoder than beam changes.
        search: errors of greedy search and of the beam, over the first inputs.
        masking: bias of masked draws, over the same inputs.
        training: what training inside the language can change; None if no target lies in it.
    """

    beam_size: int
    decoders: Mapping[str, Mapping[str, Sums]]
    changed: Mapping[str, Sums]
    search: BeamErrors | None
    masking: MaskingBias
    training: TrainingHeadroom | None


def meanings(diagnosis: Diagnosis, *, subwords: bool = False) -> dict[str, str]:
    """Interpret each part of a diagnosis in a sentence or two.

    A difference counts if its 95% interval (paired bootstrap over the examples) excludes 0, and there are ``FEWEST``
    examples or more.
    """
    return {
        "decoders": _about_decoders(diagnosis, subwords=subwords),
        "log Z": _about_log_partitions(diagnosis),
        "exposure gap": _about_exposure(diagnosis),
        "length bias": _about_lengths(diagnosis),
        "search errors": _about_search(diagnosis.search, diagnosis.beam_size),
        "slot ranking": _about_ranking(diagnosis.ranking, left_to_right=diagnosis.left_to_right),
    }


def meanings_inside(diagnosis: LanguageDiagnosis, *, subwords: bool = False) -> dict[str, str]:
    """Interpret each part of a diagnosis inside a language in a sentence or two; see :func:`meanings`."""
    title, sign = decisive(diagnosis.decoders["beam"], subwords=subwords)
    parts, by_beam = [], diagnosis.decoders["beam"][title]
    for name, scores in (("renormalized-beam", "renormalised scores"), ("raw-beam", "raw scores")):
        changed = f"{scores} change {100 * diagnosis.changed[name].value:.0f}% of the outputs"
        gain = gain_of(diagnosis.decoders, title, sign, name, "beam")
        if gain.significant:
            changed += f" and {'gain' if gain.points > 0 else 'lose'} {gain} ({title})"
        elif enough_examples(by_beam):
            changed += f", without a significant difference ({title})"
        parts.append(changed)
    if not enough_examples(by_beam):
        parts.append(_too_few(by_beam))
    distance = diagnosis.masking.distance
    if distance < NEGLIGIBLE:
        masking = "masked draws have nearly the distribution p(y | y in L)"
    else:
        masking = (
            f"{100 * distance:.0f}% of the mass of masked draws lies on the wrong outputs: draw with sample_within; "
            "beam is not affected, because its scores inside the language are log p(y)"
        )
    search = _about_search(diagnosis.search, diagnosis.beam_size)
    return {
        "decoders": "; ".join(parts),
        "search errors": search,
        "masking": masking,
        "training": _about_training(diagnosis.training, diagnosis.beam_size),
    }


def _about_training(headroom: TrainingHeadroom | None, beam_size: int) -> str:
    if headroom is None:
        return "no target lies in the language, so there is nothing to train on inside it"
    outside, best, oracle = headroom.outside.value, headroom.best["beam"].value, headroom.oracle["beam"].value
    if outside < LITTLE_OUTSIDE:
        parts = ["after gold prefixes, nearly all mass is on allowed tokens: --normalized-over allowed changes little"]
    else:
        parts = [
            f"after gold prefixes, {100 * outside:.0f}% of the mass is on excluded tokens, which cross-entropy over "
            "the allowed ones (--normalized-over allowed) can move"
        ]
    if beam_size > 1:
        parts.append(
            f"gold is the best output for {100 * best:.0f}% of the inputs and in the beam for {100 * oracle:.0f}%: "
            "a search-aware objective inside the language (--objective beam-crf) can move it up in "
            f"{100 * (oracle - best):.0f}%, and keep it in the beam in {100 * (1 - oracle):.0f}%"
        )
    return "; ".join(parts)


def _too_few(sums: Sums) -> str:
    return f"too few examples for a test ({num_examples(sums)}): give {FEWEST} or more"


def _about_decoders(diagnosis: Diagnosis, *, subwords: bool) -> str:
    title, sign = decisive(diagnosis.decoders["beam"], subwords=subwords)
    if not enough_examples(diagnosis.decoders["beam"][title]):
        return _too_few(diagnosis.decoders["beam"][title])

    gain = partial(gain_of, diagnosis.decoders, title, sign)
    raw, by_beam, parts = gain("raw-beam", "beam"), gain("beam", "greedy"), []
    if by_beam.significant:
        parts.append(f"the beam is {'better' if by_beam.points > 0 else 'worse'} than greedy by {by_beam} ({title})")
    else:
        parts.append(f"beam and greedy do not differ significantly ({title})")
    if not raw.significant:
        parts.append("raw scores and log-probabilities do not differ significantly")
    elif raw.points > 0:
        bias = ", so there is label bias" if diagnosis.left_to_right else ", although the model sees the whole input"
        parts.append(f"raw scores gain {raw}{bias}; predict with --decoder raw-beam")
    else:
        parts.append(f"raw scores lose {raw}; use beam")
    if raw.significant and raw.points < 0 and "shifted-beam" in diagnosis.decoders:
        share = max(gain("shifted-beam", "raw-beam").points / -raw.points, 0)
        parts.append(
            f"{100 * share:.0f}% of that is due to a constant, mean log Z, which --objective self-normalized removes"
        )
    return "; ".join(parts)


def _about_log_partitions(diagnosis: Diagnosis) -> str:
    if diagnosis.log_partitions is None:
        return "the run cannot produce any of the targets, so log Z is unknown"
    overall = diagnosis.log_partitions.overall
    if overall.mean_absolute < 0.2:
        return "log Z is near 0 everywhere, so raw scores are close to log-probabilities: no normalisation is needed"
    if overall.mean_absolute_deviation < 0.2:
        return "log Z is nearly constant, so raw scores minus that constant are close to log-probabilities"
    return (
        f"log Z varies by {overall.mean_absolute_deviation:.1f} nats, so raw scores are not log-probabilities; "
        "slot ranking below shows whether this can help; --objective self-normalized brings log Z close to 0"
    )


def _about_exposure(diagnosis: Diagnosis) -> str:
    if "beam" not in diagnosis.exposure:
        return "the run cannot produce any of the targets, so there is no loss to compare"
    if not enough_examples(diagnosis.exposure["beam"].gold):
        return _too_few(diagnosis.exposure["beam"].gold)
    # None if the loss is not significantly higher.
    ratios = {
        name: gap.own.value / gap.gold.value if paired_bootstrap(gap.own, gap.gold).low > 0 else None
        for name, gap in diagnosis.exposure.items()
    }
    greedy, beam = ratios.get("greedy"), ratios["beam"]
    if beam is None and greedy is None:
        return (
            "the loss after the model's own prefixes is not significantly higher than after gold ones: there is little "
            "to gain from training on them"
        )
    if beam is None:
        return (
            f"after prefixes of greedy search, the loss is {greedy:.2f} times that after gold ones; after those of the "
            "beam, it is not significantly higher: with a beam, there is little to gain"
        )
    comparison = f"after prefixes of its own beam, the loss is {beam:.2f} times that after gold ones"
    if beam < SMALL:
        return f"{comparison}: there is little to gain from training on them"
    return f"{comparison}, an upper bound on exposure bias; --objective scheduled-sampling trains on such prefixes"


def _about_lengths(diagnosis: Diagnosis) -> str:
    if not diagnosis.lengths:
        return "all outputs have the length of their inputs"
    small, large = min(BEAM_SIZES), max(BEAM_SIZES)
    trends = []
    for name, scores in (("local", "log-probabilities"), ("raw", "raw scores")):
        before, after = diagnosis.lengths[name][small].ratio.value, diagnosis.lengths[name][large].ratio.value
        if abs(after - before) < 0.05 * before or after == before:
            trends.append(f"{scores} keep the length of outputs as beams grow")
        else:
            trends.append(f"{scores} make outputs {'longer' if after > before else 'shorter'} as beams grow")
    empty = diagnosis.lengths["local"][large].empty.value
    remedy = "" if empty < 0.01 else "; predict --length-normalization 1 prevents empty outputs of large beams"
    return f"{'; '.join(trends)}{remedy}"


def _about_search(errors: BeamErrors | None, beam_size: int) -> str:
    if errors is None:
        return "the generation config restricts outputs, so the exact best output is not computed"
    if not errors.certified:
        return (
            f"the search proved no output optimal within {MOST_EXPANSIONS:,} expansions: probabilities "
            "are widely spread"
        )
    missed, lost = errors.missed[beam_size], errors.lost[beam_size]
    if not missed.value:
        return f"a beam of {beam_size} finds the most probable output of each of these inputs"
    wider = max(errors.missed)
    further = f" (of {wider}: {100 * errors.missed[wider].value:.1f}%)" if wider > beam_size else ""
    nats = lost.value / missed.value
    return (
        f"a beam of {beam_size} misses the most probable output of {100 * missed.value:.1f}% of these inputs{further}, "
        f"by {nats:.2f} nats each; whether more probable outputs are better depends on the model"
    )


def _about_ranking(ranking: SlotRanking | None, *, left_to_right: bool) -> str:
    if ranking is None:
        return "no beam contains the right prefix and a wrong one: use a beam of 2 or more, on longer outputs"
    if not enough_examples(ranking.both):
        return _too_few(ranking.both)
    gains = [gain_between(counts, ranking.log_prob) for counts in (ranking.both, ranking.raw)]
    gain = max(gains, key=lambda gain: gain.low)
    if gain.low > 0:
        often = f"with log Z, the right prefix ranks first more often by {gain}"
        compare = "compare raw-beam in the first table"
        if not left_to_right:
            return f"{often}; {compare}"
        return (
            f"{often}: the next input is evidence against wrong prefixes, which local scores cannot use; {compare}, "
            "and train for it with --score global"
        )
    return (
        "log Z of the next step adds nothing significant to the log-probability of a prefix; the decoders above show "
        "the effect of raw scores over many steps"
    )
