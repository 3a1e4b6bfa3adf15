"""Measurements of a run beyond its accuracy: log Z, exposure gap, length bias, slot ranking, label bias."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from seqwise.data.batches import EncodedExample
from seqwise.data.readers import Example
from seqwise.data.records import is_number
from seqwise.decoding import Decoder, Hypothesis, encode_input, evaluation_mode, ids_with_end, steps_for
from seqwise.errors import InputError
from seqwise.evaluation.diagnosis import ExposureGap, LengthBias, exposure_gap, length_bias
from seqwise.evaluation.exact_search import BeamErrors, beam_errors, exact_outputs
from seqwise.evaluation.headroom import training_headroom
from seqwise.evaluation.label_bias import LabelBias, explore_label_bias
from seqwise.evaluation.log_partitions import LogPartitionReport, log_partition_report
from seqwise.evaluation.masking import masking_bias
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.slot_ranking import SlotRanking, rank_slots
from seqwise.models.protocols import StepModel, reads_left_to_right
from seqwise.runs.findings import BEAM_SIZES, MOST_EXPANSIONS, Diagnosis, LanguageDiagnosis
from seqwise.runs.measures import gold_ids, known_targets, log_partitions_of
from seqwise.runs.measures import measure_outputs as measure_written
from seqwise.runs.run import METRICS, OutputRun, restrictions, search
from seqwise.search.candidates import Score, global_, local, renormalized, shifted
from seqwise.search.selectors import HardTopK

MOST_INPUTS = 100  # for measuring masking and search errors in a language
CANDIDATES_AT_ONCE = 2**24  # in sums of global shares: bounds memory

Ids = tuple[int, ...]
OnProgress = Callable[[str, int, int], None]
"""Function called with the name of a part, the number of examples done, and the total."""

Search = tuple[str, int]
"""Name of a score, and size of a beam."""


def development_constant(folder: Path) -> float | None:
    """Return the mean of log Z on development data from ``metrics.json``, or None."""
    try:
        value = json.loads((folder / METRICS).read_bytes())["dev"]["mean log Z"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return float(value) if is_number(value) else None


def measure_outputs(run: OutputRun, examples: Sequence[Example], outputs: Sequence[Hypothesis]) -> dict[str, Sums]:
    """Measure outputs, one for each example of a tagger or distinct source of a transducer."""
    written = [tuple(run.codec.target_vocabulary.decode(output.tokens)) for output in outputs]
    return measure_written(run, examples, written)


@dataclass(frozen=True)
class _Data:
    """Distinct inputs, and references of those whose targets the run can write."""

    sources: list[EncodedExample]
    lengths: list[int]  # of the first reference, in tokens
    known: list[int]
    references: list[list[Ids]]

    @property
    def known_sources(self) -> list[EncodedExample]:
        return [self.sources[number] for number in self.known]


def _prepare(run: OutputRun, examples: Sequence[Example]) -> _Data:
    groups: dict[Hashable, list[Example]] = {}
    for index, example in enumerate(examples):
        groups.setdefault(index if run.settings.task == "tag" else example.source, []).append(example)
    known, references = [], []
    for number, group in enumerate(groups.values()):
        options = run.codec.encode(known_targets(run, group))
        if options:
            known.append(number)
            references.append(list(dict.fromkeys(encoded.target_ids for encoded in options)))
    firsts = [group[0] for group in groups.values()]
    lengths = [len(example.target) for example in run.codec.split(firsts)]
    return _Data(run.codec.encode_sources(firsts), lengths, known, references)


def diagnose(
    run: OutputRun,
    examples: Sequence[Example],
    *,
    beam_size: int | None = None,
    constant: float | None = None,
    on_progress: OnProgress | None = None,
) -> Diagnosis:
    """Diagnose a trained run on examples with gold targets; all targets of a repeated input are correct.

    ``shifted-beam`` subtracts the constant from the score of each token. The constant should come from other data; by
    default, it is the mean of log Z on these examples.
    """
    k, data, model = _beam_size(run, beam_size), _prepare(run, examples), run.model
    log_partitions = measure_log_partitions(run, examples)
    if constant is None and log_partitions is not None:
        constant = log_partitions.overall.mean
    scores: dict[str, Score] = {"local": local, "raw": global_}
    searches: dict[str, Search] = {"greedy": ("local", 1), "beam": ("local", k), "raw-beam": ("raw", k)}
    sweep: list[Search] = []
    if model.end is not None:
        sweep = [(name, size) for name in ("local", "raw") for size in BEAM_SIZES]
        if constant is not None:
            scores["shifted"], searches["shifted-beam"] = shifted(constant), ("shifted", k)
    # With one slot, both scores find the same output.
    needed = dict.fromkeys([*searches.values(), *(each for each in sweep if each != ("raw", 1))])
    beams = _search(run, data.sources, [(name, size, scores[name]) for name, size in needed], on_progress)
    outputs_by_search = _best_of(beams)
    outputs_by_search.setdefault(("raw", 1), outputs_by_search["local", 1])
    exposure = _exposure(
        model, data, {name: outputs_by_search[searches[name]] for name in ("greedy", "beam")}, on_progress
    )
    ranking = _rank(run, data, k, on_progress)
    lengths: dict[str, dict[int, LengthBias]] = {}
    for name, size in sweep:
        lengths.setdefault(name, {})[size] = length_bias(outputs_by_search[name, size], data.lengths)
    measured = {name: measure_outputs(run, examples, outputs_by_search[each]) for name, each in searches.items()}
    local_beams = {size: outputs for (name, size), outputs in sorted(outputs_by_search.items()) if name == "local"}
    errors = _beam_errors(run, data.sources, local_beams, on_progress)
    left_to_right = reads_left_to_right(model)
    return Diagnosis(k, measured, constant, log_partitions, exposure, lengths, errors, ranking, left_to_right)


def diagnose_language(
    run: OutputRun, examples: Sequence[Example], *, beam_size: int | None = None, on_progress: OnProgress | None = None
) -> LanguageDiagnosis:
    """Diagnose a run whose model has a language.

    Measured are the bias of masked draws, the effect of scores on a beam, search errors, and the headroom for training.
    """
    names = restrictions(run)
    if names:
        problem = f"generation_config.json restricts outputs too ({', '.join(names)})"
        raise InputError(problem, hint="remove its restrictions")
    k, data = _beam_size(run, beam_size), _prepare(run, examples)
    scores: dict[str, Score] = {"beam": local, "renormalized-beam": renormalized, "raw-beam": global_}
    searches = [(name, k, score) for name, score in scores.items()]
    beams = _search(run, data.sources, searches, on_progress, n_best=k)
    outputs = {name: best for (name, _), best in _best_of(beams).items()}
    sources = data.sources[:MOST_INPUTS]
    [greedy] = _best_of(_search(run, sources, [("greedy", 1, local)], on_progress)).values()
    errors = _beam_errors(run, sources, {1: greedy, k: outputs["beam"][: len(sources)]}, on_progress)
    measured = {name: measure_outputs(run, examples, best) for name, best in outputs.items()}
    changed = {
        name: Counts([a.tokens != b.tokens for a, b in zip(best, outputs["beam"], strict=True)])
        for name, best in outputs.items()
        if name != "beam"
    }
    masking = masking_bias(run.model, sources, on_progress=_counter(on_progress, "masking", len(sources)))
    headroom = training_headroom(
        run.model,
        data.known_sources,
        data.references,
        {name: [ranked[number] for number in data.known] for (name, _), ranked in beams.items()},
        on_progress=_counter(on_progress, "gold outputs", len(data.known)),
    )
    return LanguageDiagnosis(k, measured, changed, errors, masking, headroom)


def _beam_size(run: OutputRun, beam_size: int | None) -> int:
    if beam_size is not None and beam_size < 1:
        raise InputError(f"the beam must have at least one slot, got {beam_size}")
    return run.settings.beam_size if beam_size is None else beam_size


def _counter(on_progress: OnProgress | None, part: str, total: int) -> Callable[[int], None]:
    """Return a function that increases and reports the number of examples done."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(part, done, total)

    return advance


def measure_log_partitions(run: OutputRun, examples: Sequence[Example]) -> LogPartitionReport | None:
    """Measure log Z on gold prefixes, by position and by terciles of length; None if the run can write no target."""
    encoded = run.codec.encode(known_targets(run, examples))
    if not encoded:
        return None
    lengths = [len(example.target_ids) for example in encoded]
    return log_partition_report(log_partitions_of(run, encoded).split(lengths), edges=_thirds(lengths))


def _search(
    run: OutputRun,
    sources: Sequence[EncodedExample],
    searches: Sequence[tuple[str, int, Score]],
    on_progress: OnProgress | None,
    *,
    n_best: int = 1,
) -> dict[Search, list[list[Hypothesis]]]:
    """Return the outputs of each search for every source, best first."""
    advance = _counter(on_progress, "searching", len(searches) * len(sources))
    return {
        (name, size): search(run, sources, Decoder(HardTopK(size), score), n_best=n_best, on_progress=advance)
        for name, size, score in searches
    }


def _best_of(beams: Mapping[Search, Sequence[Sequence[Hypothesis]]]) -> dict[Search, list[Hypothesis]]:
    return {each: [ranked[0] for ranked in found] for each, found in beams.items()}


def _beam_errors(
    run: OutputRun,
    sources: Sequence[EncodedExample],
    outputs_by_size: Mapping[int, Sequence[Hypothesis]],
    on_progress: OnProgress | None,
) -> BeamErrors | None:
    """Compare beams with local scores with the exact best outputs."""
    if restrictions(run):
        return None
    advance = _counter(on_progress, "exact search", len(sources))
    best = exact_outputs(run.model, sources, most_expansions=MOST_EXPANSIONS, on_progress=advance)
    return beam_errors(outputs_by_size, best)


def _exposure(
    model: StepModel,
    data: _Data,
    outputs_by_decoder: Mapping[str, Sequence[Hypothesis]],
    on_progress: OnProgress | None,
) -> dict[str, ExposureGap]:
    """Measure the loss after the outputs of each decoder, on inputs with known targets."""
    gaps: dict[str, ExposureGap] = {}
    for name, outputs in outputs_by_decoder.items() if data.known else ():
        ids = [ids_with_end(outputs[number], model.end) for number in data.known]
        advance = _counter(on_progress, f"prefixes of {name}", len(ids))
        gaps[name] = exposure_gap(model, data.known_sources, data.references, ids, on_progress=advance)
    return gaps


def _rank(run: OutputRun, data: _Data, k: int, on_progress: OnProgress | None) -> SlotRanking | None:
    if not data.known or k < 2:
        return None
    advance = _counter(on_progress, "ranking slots", len(data.known))
    try:
        return rank_slots(
            run.model, data.known_sources, data.references, k=k, allowed=run.codec.allowed, on_progress=advance
        )
    except InputError:  # nothing to rank: outputs of one token, or no beam contains gold
        return None


def _thirds(lengths: Sequence[int]) -> list[int]:
    """Return two edges that cut the lengths into three bins, or fewer edges for fewer lengths."""
    ordered = sorted(lengths)
    edges = {ordered[len(ordered) // 3], ordered[2 * len(ordered) // 3]}
    return sorted(edges - {ordered[0]})


def explore(run: OutputRun, example: Example, *, beam_size: int | None = None, support: int = 4096) -> LabelBias:
    """Explore label bias on one example: the prefixes of its local beam, and gold.

    Global shares are summed over ``support`` slots, fewer for large vocabularies.
    """
    k, model = _beam_size(run, beam_size), run.model
    if model.end is None and example.target and len(example.target) != len(example.source):
        problem = f"the target has {len(example.target)} tokens and the source {len(example.source)}"
        hint = "give a label for each token, or none"
        raise InputError(problem, hint=hint, **example.place)
    (source,) = run.codec.encode_sources([example])
    gold = gold_ids(run, example)
    support = min(support, max(1, CANDIDATES_AT_ONCE // len(run.codec.target_vocabulary)))
    with evaluation_mode(model), torch.no_grad():
        return explore_label_bias(
            model,
            encode_input(model, source),
            num_steps=steps_for(source.source_ids, model),
            k=k,
            gold=gold,
            support=support,
            allowed=run.codec.allowed,
        )
