"""What a run does on a file beyond its accuracy: log Z, exposure gap, length bias, slot ranking, and what they mean."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from seqwise.data.batches import EncodedExample, collate
from seqwise.data.readers import Example
from seqwise.data.subwords import normalize_text
from seqwise.decoding import Decoder, Hypothesis, decode_examples, evaluation_mode, step_limit
from seqwise.errors import InputError
from seqwise.evaluation.diagnosis import ExposureGap, LengthBias, exposure_gap, length_bias
from seqwise.evaluation.label_bias import LabelBias, explore_label_bias
from seqwise.evaluation.log_partitions import LogPartitionReport, log_partition_report
from seqwise.evaluation.metrics import Comparison, Sums, paired_bootstrap
from seqwise.evaluation.slot_ranking import SlotRanking, rank_slots
from seqwise.evaluation.translation import bleu
from seqwise.runs.measures import (
    decisive,
    known_targets,
    log_partitions_of,
    references_by_source,
    signatures,
    tagging_measures,
    transduction_measures,
)
from seqwise.runs.run import Run
from seqwise.search.candidates import global_, local, shifted
from seqwise.search.selection import HardTopK

__all__ = [
    "BEAM_SIZES",
    "Diagnosis",
    "development_constant",
    "diagnose",
    "estimate_constant",
    "explore",
    "meanings",
    "measure_outputs",
]

BEAM_SIZES = (1, 2, 5, 10, 20)
"""Of the searches whose lengths are compared."""

# The explorer's global shares are summed over this many candidates at most, which bounds its memory.
CANDIDATES_AT_ONCE = 2**24

Ids = tuple[int, ...]
OnProgress = Callable[[str, int, int], None]
"""Called with the name of a part, how many examples of it are done, and how many there are."""


@dataclass(frozen=True)
class Diagnosis:
    """What was measured; each part has one entry for each example, so that intervals can be had.

    Attributes:
        beam_size: of the beams, and of the slots that were ranked.
        decoders: measures of the task by decoder: greedy, beam, raw-beam and, where lengths differ, shifted-beam.
        constant: what shifted-beam takes off each token, in nats; None where nothing is known of log Z.
        log_partitions: of log Z on gold prefixes; None where the run cannot write any of the targets.
        exposure: by whose prefixes, greedy or beam; empty where there is no target.
        lengths: by score (local, raw) and beam size; empty where all outputs have the length of the input.
        ranking: None where no beam held the right prefix beside a wrong one.
    """

    beam_size: int
    decoders: Mapping[str, Mapping[str, Sums]]
    constant: float | None
    log_partitions: LogPartitionReport | None
    exposure: Mapping[str, ExposureGap]
    lengths: Mapping[str, Mapping[int, LengthBias]]
    ranking: SlotRanking | None


def estimate_constant(run: Run, examples: Sequence[Example]) -> float:
    """The mean of log Z over gold tokens (end tokens counted), for :func:`~seqwise.search.shifted`; in nats a token.

    Args:
        run: a trained run.
        examples: development data; examples that hold what the run cannot write are left out.

    Raises:
        InputError: the run cannot write any of the targets.

    Example:
        >>> from seqwise.runs import Settings, new_run
        >>> examples = [Example(("a", "b"), ("X", "Y"))] * 2
        >>> run = new_run(examples, Settings())
        >>> isinstance(estimate_constant(run, examples), float)
        True
    """
    log_partitions_N = log_partitions_of(run, run.encode(known_targets(run, examples)))
    if not len(log_partitions_N):
        raise InputError("the run cannot write any of these targets", mend="give data with the labels of training")
    return log_partitions_N.double().mean().item()


def development_constant(folder: Path) -> float | None:
    """The mean of log Z on the run's development data, as training left it in ``metrics.json``; None without it."""
    try:
        value = json.loads((folder / "metrics.json").read_bytes())["dev"]["mean log Z"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def measure_outputs(run: Run, examples: Sequence[Example], outputs: Sequence[Hypothesis]) -> dict[str, Sums]:
    """The measures of the run's task, as :func:`~seqwise.runs.measures.measure` takes them, of outputs at hand.

    Args:
        run: where the outputs come from.
        examples: with their targets.
        outputs: one for each example of a tagger, one for each distinct source of a transducer, in their order.
    """
    written = [tuple(run.target_vocabulary.decode(output.tokens)) for output in outputs]
    if run.settings.task == "tag":
        return tagging_measures(written, [example.target for example in examples])
    references = references_by_source(examples)[1]
    texts = [run.target_text(tokens) for tokens in written]
    seen = str if run.target_subwords is None else normalize_text
    wanted = [list(dict.fromkeys(seen(" ".join(tokens)) for tokens in options)) for options in references]
    if run.target_subwords is None:
        measures = transduction_measures(written, references)
    else:
        measures = transduction_measures(
            [tuple(text.split()) for text in texts], [[tuple(text.split()) for text in options] for options in wanted]
        )
        del measures["word error"]  # hardly any text is right to the last word
    if "BLEU" in signatures(run, examples):
        measures["BLEU"] = bleu(texts, wanted, tokenize="13a" if run.target_subwords is not None else "none")
    return measures


@dataclass(frozen=True)
class _Data:
    """What is asked, once each; of these, which have targets that the run can write, and those targets as ids."""

    sources: list[EncodedExample]
    lengths: list[int]  # of the first reference, in tokens
    known: list[int]
    references: list[list[Ids]]


def _prepare(run: Run, examples: Sequence[Example]) -> _Data:
    groups: dict[Hashable, list[int]] = {}
    for index, example in enumerate(examples):
        groups.setdefault(index if run.settings.task == "tag" else example.source, []).append(index)
    targets = [example.target for example in run.split(examples)]
    writable = set(run.target_vocabulary.tokens)
    known, references = [], []
    for number, indices in enumerate(groups.values()):
        options = [examples[index] for index in indices if writable.issuperset(targets[index])]
        if options:
            known.append(number)
            references.append(list(dict.fromkeys(one.target_ids for one in run.encode(options))))
    firsts = [indices[0] for indices in groups.values()]
    sources = run.encode_sources([examples[index] for index in firsts])
    return _Data(sources, [len(targets[index]) for index in firsts], known, references)


def diagnose(
    run: Run,
    examples: Sequence[Example],
    *,
    beam_size: int | None = None,
    constant: float | None = None,
    on_progress: OnProgress | None = None,
) -> Diagnosis:
    """Measure a run's decoders, its log Z, and what its own prefixes, beams and raw scores do to it.

    Args:
        run: a trained run.
        examples: with gold targets. An input that occurs several times in transduction counts once, and all of its
            targets are right.
        beam_size: by default as in training.
        constant: what shifted-beam takes off each token, better from other data; by default the mean of log Z here.
        on_progress: called as the work goes on.

    Raises:
        InputError: there are no examples, or a source cannot be read by the run.
    """
    data, model, k = _prepare(run, examples), run.model, beam_size or run.settings.beam_size
    known = [data.sources[number] for number in data.known]
    end = () if model.end is None else (model.end,)

    def part(name: str, total: int) -> Callable[[int], None]:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if on_progress is not None:
                on_progress(name, done, total)

        return advance

    log_partitions = None
    encoded = run.encode(known_targets(run, examples))
    if encoded:
        lengths = [len(one.target_ids) for one in encoded]
        log_partitions = log_partition_report(log_partitions_of(run, encoded).split(lengths), edges=_thirds(lengths))
        constant = log_partitions.overall.mean if constant is None else constant
    scores = {"local": local, "raw": global_}
    searches = {"greedy": ("local", 1), "beam": ("local", k), "raw-beam": ("raw", k)}
    if model.end is not None:
        scores |= {} if constant is None else {"shifted": shifted(constant)}
        searches |= {"shifted-beam": ("shifted", k)} if "shifted" in scores else {}
    sweep = [] if model.end is None else [(name, size) for name in ("local", "raw") for size in BEAM_SIZES]
    # One slot goes the same way by either score.
    wanted = list(dict.fromkeys([*searches.values(), *(pair for pair in sweep if pair != ("raw", 1))]))
    advance = part("searching", len(wanted) * len(data.sources))
    found: dict[tuple[str, int], list[Hypothesis]] = {}
    for name, size in wanted:
        decoder = Decoder(HardTopK(size), scores[name])
        best = decode_examples(model, data.sources, decoder, on_progress=advance)
        found[name, size] = [outputs[0] for outputs in best]
    found.setdefault(("raw", 1), found["local", 1])
    exposure = {}
    for name in ("greedy", "beam") if known else ():
        outputs = [found[searches[name]][number] for number in data.known]
        ids = [(*output.tokens, *(end if output.finished else ())) for output in outputs]
        advance = part(f"prefixes of {name}", len(known))
        exposure[name] = exposure_gap(model, known, data.references, ids, on_progress=advance)
    ranking = None
    if known and k > 1:
        try:
            advance = part("ranking slots", len(known))
            ranking = rank_slots(model, known, data.references, k=k, on_progress=advance)
        except InputError:  # one token each, or gold on no beam: there is nothing to rank
            ranking = None
    by_score: dict[str, dict[int, LengthBias]] = {}
    for name, size in sweep:
        by_score.setdefault(name, {})[size] = length_bias(found[name, size], data.lengths)
    measured = {name: measure_outputs(run, examples, found[search]) for name, search in searches.items()}
    return Diagnosis(k, measured, constant, log_partitions, exposure, by_score, ranking)


def _thirds(lengths: Sequence[int]) -> list[int]:
    """Two edges that cut the lengths into three bins, or fewer where there are not as many lengths."""
    ordered = sorted(lengths)
    edges = {ordered[len(ordered) // 3], ordered[2 * len(ordered) // 3]}
    return sorted(edges - {ordered[0]})


def explore(run: Run, example: Example, *, beam_size: int | None = None) -> LabelBias:
    """The label-bias explorer on one example: the prefixes of its local beam, with gold beside them.

    Args:
        run: a trained run.
        example: its target is shown where the run can write it.
        beam_size: by default as in training.

    Raises:
        InputError: the source cannot be read by the run.
    """
    model = run.model
    (source,) = run.encode_sources([example])
    gold = run.encode(known_targets(run, [example]))
    support = min(4096, max(1, CANDIDATES_AT_ONCE // len(run.target_vocabulary)))
    with evaluation_mode(model), torch.no_grad():
        return explore_label_bias(
            model,
            model.encode(collate([(0, source)]).to(model.embedding_VD.device)),
            num_steps=step_limit(len(source.source_ids), model.end),
            k=beam_size or run.settings.beam_size,
            gold=gold[0].target_ids if gold else None,
            support=support,
        )


def meanings(found: Diagnosis, *, subwords: bool = False) -> dict[str, str]:
    """For each part of a diagnosis a sentence or two: what is good, what is not, and what to do about it.

    A difference counts where its 95% interval (paired bootstrap over the examples) leaves out 0.

    Args:
        found: the diagnosis.
        subwords: whether outputs are texts made of subwords.
    """
    return {
        "decoders": _about_decoders(found, subwords=subwords),
        "log Z": _about_log_partitions(found),
        "exposure gap": _about_exposure(found),
        "length bias": _about_lengths(found),
        "slot ranking": _about_ranking(found.ranking),
    }


def _is_sure(comparison: Comparison) -> bool:
    return comparison.low > 0 or comparison.high < 0


def _about_decoders(found: Diagnosis, *, subwords: bool) -> str:
    title, sign = decisive(found.decoders["beam"], subwords=subwords)

    def gain(first: str, second: str) -> tuple[float, bool]:
        comparison = paired_bootstrap(found.decoders[first][title], found.decoders[second][title])
        return 100 * sign * comparison.difference, _is_sure(comparison)

    (raw, sure), parts = gain("raw-beam", "beam"), []
    by_beam, beam_sure = gain("beam", "greedy")
    if beam_sure:
        parts.append(
            f"the beam is {abs(by_beam):.1f} points {'better' if by_beam > 0 else 'worse'} than greedy ({title})"
        )
    else:
        parts.append(f"beam and greedy differ by no more than chance may do ({title})")
    if not sure:
        parts.append("and so do raw scores and log-probabilities")
    elif raw > 0:
        parts.append(f"raw scores add {raw:.1f}, so label bias is at work; predict with --decoder raw-beam")
    else:
        parts.append(f"raw scores lose {-raw:.1f}: keep to beam")
    if sure and raw < 0 and "shifted-beam" in found.decoders:
        back = max(gain("shifted-beam", "raw-beam")[0] / -raw, 0)
        parts.append(
            f"{100 * back:.0f}% of that is one constant, mean log Z; --objective self-normalized trains it away"
        )
    return "; ".join(parts)


def _about_log_partitions(found: Diagnosis) -> str:
    if found.log_partitions is None:
        return "the run can write none of the targets, so nothing is known of log Z"
    whole = found.log_partitions.overall
    if whole.mean_absolute < 0.2:
        return "log Z is near 0 everywhere: raw scores are log-probabilities, and a raw search need not normalise"
    if whole.mean_absolute_deviation < 0.2:
        return "log Z is nearly constant: raw scores less that constant are log-probabilities"
    return (
        f"log Z varies by {whole.mean_absolute_deviation:.1f} nats, so raw scores are no log-probabilities; "
        "slot ranking below says whether that can help, and --objective self-normalized draws log Z to 0"
    )


def _about_exposure(found: Diagnosis) -> str:
    if "beam" not in found.exposure:
        return "the run can write none of the targets, so there is no loss to compare"
    one = found.exposure["beam"]
    if paired_bootstrap(one.own, one.gold).low <= 0:
        return (
            "after its own prefixes the model goes on as well as after gold ones: training on them has little to mend"
        )
    return (
        f"after its own prefixes the right continuation costs {one.own.value / one.gold.value:.1f} times as much: no "
        "more than that is exposure bias; --objective scheduled-sampling trains on such prefixes"
    )


def _about_lengths(found: Diagnosis) -> str:
    if not found.lengths:
        return "all outputs have the length of their inputs"
    small, large = min(BEAM_SIZES), max(BEAM_SIZES)
    told = []
    for name, words in (("local", "log-probabilities"), ("raw", "raw scores")):
        before, after = found.lengths[name][small].ratio.value, found.lengths[name][large].ratio.value
        if before and 0.95 < after / before < 1.05:
            told.append(f"{words} keep to length as beams grow")
        else:
            told.append(f"{words} make outputs {'longer' if after > before else 'shorter'} as beams grow")
    empty = found.lengths["local"][large].empty.value
    cure = "" if empty < 0.01 else "; predict --length-normalization 1 keeps a large beam from empty outputs"
    return f"{'; '.join(told)}{cure}"


def _about_ranking(ranking: SlotRanking | None) -> str:
    if ranking is None:
        return "no beam holds the right prefix beside a wrong one: use a beam of 2 or more, on longer outputs"
    gain = max(
        (paired_bootstrap(one, ranking.log_prob) for one in (ranking.both, ranking.raw)), key=lambda one: one.low
    )
    if gain.low > 0:
        return (
            f"with log Z the right prefix comes first {100 * gain.difference:.1f} points more often: what is read next "
            "tells against wrong prefixes, and local scores cannot use it; try raw-beam, or train with --score global"
        )
    return (
        "one step ahead, log Z adds nothing to what the log-probability of a prefix says; what raw scores do over many "
        "steps is to be seen from the decoders"
    )
