"""Exposure gap, length bias and the shifted score against enumeration; ``seqwise diagnose`` as its users meet it."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from oracles import Case, all_outputs, gold_score, hard_beam, log_sum_exp, tagger_case, translation_case
from seqwise import InputError
from seqwise.cli.console import out
from seqwise.cli.diagnosis import _best_of_steps
from seqwise.data.readers import Example, read_columns, read_pairs
from seqwise.decoding import Decoder, Hypothesis, decode_examples
from seqwise.evaluation import (
    BeamErrors,
    Counts,
    ExposureGap,
    SlotRanking,
    Sums,
    beam_errors,
    edit_distance,
    exact_outputs,
    exposure_gap,
    length_bias,
    paired_bootstrap,
)
from seqwise.evaluation.diagnosis import optimal_next_tokens
from seqwise.evaluation.label_bias import Prefix, percent
from seqwise.evaluation.masking import MaskingBias
from seqwise.runs import load_run, new_run, save_run, train_settings
from seqwise.runs.diagnosis import _prepare, development_constant, diagnose, explore
from seqwise.runs.findings import BEAM_SIZES, Diagnosis, LanguageDiagnosis, meanings, meanings_inside
from seqwise.runs.measures import log_partitions_of, measure
from seqwise.runs.run import OutputRun
from seqwise.search import HardTopK, global_, local

Ids = tuple[int, ...]
END = 0


# ------------------------------------------------------------------------------ the next tokens that are right


def completions(prefix: Ids, longest: int) -> list[Ids]:
    """All whole outputs over the tokens 1 and 2 that begin so, end token last."""
    if prefix[-1:] == (END,):
        return [prefix]
    return [
        (*prefix, *rest, END)
        for length in range(longest - len(prefix) + 1)
        for rest in itertools.product((1, 2), repeat=length)
    ]


def by_completions(prefix: Ids, references: Sequence[Ids], longest: int) -> set[int]:
    """The next tokens after which some completion is as near to some reference as any completion of the prefix is."""

    def best(start: Ids) -> int:
        return min(
            edit_distance([str(token) for token in output[:-1]], [str(token) for token in reference[:-1]])
            for output in completions(start, longest)
            for reference in references
        )

    return {token for token in (END, 1, 2) if best((*prefix, token)) == best(prefix)}


@pytest.mark.parametrize("seed", range(12))
def test_optimal_next_tokens_are_those_of_the_best_completions(seed: int) -> None:
    draw = random.Random(seed)
    references = [(*draw.choices((1, 2), k=draw.randint(0, 3)), END) for _ in range(draw.randint(1, 2))]
    output = (*draw.choices((1, 2), k=draw.randint(1, 4)), END)
    found = optimal_next_tokens(output, references, end=END)
    assert found == [by_completions(output[:t], references, longest=len(output) + 4) for t in range(len(output))]


def test_with_fixed_lengths_a_mistake_moves_nothing() -> None:
    assert optimal_next_tokens((2, 2, 2), [(1, 2, 1)], end=None) == [{1}, {2}, {1}]
    # Two references: those that agree best with the prefix.
    assert optimal_next_tokens((2, 1, 1), [(1, 2, 1), (2, 1, 2)], end=None) == [{1, 2}, {1}, {2}]
    with pytest.raises(InputError, match="a reference has 1 tokens and the output 2"):
        optimal_next_tokens((1, 1), [(1,)], end=None)


@pytest.mark.parametrize("end", [END, None])
def test_optimal_next_tokens_need_a_reference(end: int | None) -> None:
    with pytest.raises(InputError, match="there is no reference"):
        optimal_next_tokens((1, 2), [], end=end)
    with pytest.raises(InputError, match="a reference is empty" if end is not None else "a reference has 0 tokens"):
        optimal_next_tokens((1, 2), [(1, 2), ()], end=end)


# --------------------------------------------------------------------------------------------- exposure gap


def loss_by_hand(oracle: Any, output: Ids, right: Sequence[set[int]]) -> float:
    """-log p of the sets, along the output."""
    fed, state = oracle.start()
    total = 0.0
    for step, (token, tokens) in enumerate(zip(output, right, strict=True)):
        logits, state = oracle.step(fed, state, step)
        total += log_sum_exp(logits) - log_sum_exp([logits[one] for one in tokens])
        fed = oracle.embeddings[token]
    return total


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_the_gap_of_a_tagger_is_the_loss_on_gold_labels_after_its_own(batch_size: int) -> None:
    case = tagger_case(2, lengths=(3, 1, 4, 2))
    own = [hard_beam(oracle, k=1, num_steps=len(one.source_ids))[0].tokens for one, oracle in _with_oracles(case)]
    gold = [example.target_ids for example in case.examples]
    done: list[int] = []
    found = exposure_gap(
        case.model, case.examples, [[one] for one in gold], own, batch_size=batch_size, on_progress=done.append
    )
    for index, oracle in enumerate(case.oracles):
        after_own = loss_by_hand(oracle, own[index], [{label} for label in gold[index]])
        after_gold = loss_by_hand(oracle, gold[index], [{label} for label in gold[index]])
        assert found.own.numerators_N[index] == pytest.approx(after_own, abs=1e-10)
        assert found.gold.numerators_N[index] == pytest.approx(after_gold, abs=1e-10)
    assert found.own.denominators_N.tolist() == found.gold.denominators_N.tolist() == [3, 1, 4, 2]
    assert abs(found.gap) > 0.01 and sum(done) == 4


def _with_oracles(case: Case) -> list[tuple[Any, Any]]:
    return list(zip(case.examples, case.oracles, strict=True))


def test_the_gap_of_a_transducer_is_on_what_keeps_the_best_edit_distance() -> None:
    case = translation_case(3, lengths=(2, 4, 1, 3), target_size=3, end=END)
    references: list[list[Ids]] = [[(1, 2, END)], [(2, 1, END), (2, 2, 1, END)], [(END,)], [(1, END), (2, END)]]
    outputs: list[Ids] = [(2, 2, 1, END), (2, END), (1, 1, 1), (2, END)]  # the third one never ended
    found = exposure_gap(case.model, case.examples, references, outputs)
    for index, oracle in enumerate(case.oracles):
        options = references[index]
        right = [by_completions(outputs[index][:t], options, 8) for t in range(len(outputs[index]))]
        assert found.own.numerators_N[index] == pytest.approx(loss_by_hand(oracle, outputs[index], right), abs=1e-10)
        gold = sum(
            loss_by_hand(oracle, one, [by_completions(one[:t], options, 8) for t in range(len(one))]) for one in options
        )
        assert found.gold.numerators_N[index] == pytest.approx(gold, abs=1e-10)
    assert found.own.denominators_N.tolist() == [4, 2, 3, 2]
    assert found.gold.denominators_N.tolist() == [3, 7, 1, 4]


@pytest.mark.parametrize("kind", [tagger_case, translation_case])
def test_on_gold_outputs_there_is_no_gap_and_the_loss_is_cross_entropy(kind: Callable[..., Case]) -> None:
    case = kind(1)
    gold = [example.target_ids for example in case.examples]
    found = exposure_gap(case.model, case.examples, [[one] for one in gold], gold)
    assert found.gap == 0 and paired_bootstrap(found.own, found.gold).high == 0
    by_hand = [loss_by_hand(oracle, one, [{t} for t in one]) for one, oracle in zip(gold, case.oracles, strict=True)]
    assert found.gold.value == pytest.approx(math.fsum(by_hand) / sum(map(len, gold)), abs=1e-10)


# ---------------------------------------------------------------------------------------------- length bias


@pytest.mark.parametrize("case", [tagger_case(5, lengths=(4, 2, 5, 1)), translation_case(5, lengths=(1, 2, 1))])
def test_beams_are_compared_with_the_enumerated_best(case: Case) -> None:
    steps = [len(example.source_ids) if case.model.end is None else 5 for example in case.examples]
    case.model.most_steps = lambda source_ids: min(5, len(source_ids) if case.model.end is None else 5)
    best, enumerated = exact_outputs(case.model, case.examples), []
    for oracle, num_steps in zip(case.oracles, steps, strict=True):
        score, ids = max((gold_score(oracle, output), output) for output in all_outputs(oracle, num_steps))
        finished = case.model.end is None or case.model.end in ids
        enumerated.append(Hypothesis(tuple(token for token in ids if token != case.model.end), score, finished))
    for found, output in zip(best, enumerated, strict=True):
        assert found is not None and (found.tokens, found.finished) == (output.tokens, output.finished)
        assert found.score == pytest.approx(output.score)
    beams = {
        k: [row[0] for row in decode_examples(case.model, case.examples, Decoder(HardTopK(k), local))] for k in (1, 3)
    }
    errors = beam_errors(beams, [*enumerated[:-1], None])
    assert (errors.certified, errors.inputs) == (len(best) - 1, len(best))
    for k, outputs in beams.items():
        gaps = [b.score - o.score for o, b in zip(outputs[:-1], enumerated[:-1], strict=True)]
        assert errors.lost[k].value == pytest.approx(sum(gaps) / len(gaps), abs=1e-9)
        assert errors.missed[k].value == sum(g > 1e-6 for g in gaps) / len(gaps)


def test_greedy_search_misses_some_and_wide_beams_none() -> None:
    case = translation_case(12, lengths=[1] * 12)
    beams = {
        k: [row[0] for row in decode_examples(case.model, case.examples, Decoder(HardTopK(k), local))] for k in (1, 50)
    }
    errors = beam_errors(beams, exact_outputs(case.model, case.examples, most_expansions=5000))
    assert errors.certified == 12 and errors.missed[50].value == 0 == errors.lost[50].value
    assert errors.missed[1].value > 0 and errors.lost[1].value > 0


def test_without_a_certified_input_nothing_is_measured() -> None:
    case = translation_case(5, lengths=(4, 3))
    outputs = [row[0] for row in decode_examples(case.model, case.examples, "greedy")]
    best = exact_outputs(case.model, case.examples, most_expansions=1)
    assert beam_errors({1: outputs}, best) == BeamErrors({}, {}, 0, 2)
    with pytest.raises(InputError, match="3 of exact search"):
        beam_errors({1: outputs}, [None] * 3)


def test_length_bias_by_hand() -> None:
    lengths = [0, 1, 2, 5, 9]
    outputs = [Hypothesis((7,) * length, -1.0, finished=length < 9) for length in lengths]
    found = length_bias(outputs, [3, 3, 4, 5, 4])
    assert (found.empty.value, found.short.value, found.cut_off.value) == (1 / 5, 2 / 5, 1 / 5)
    assert found.ratio.value == 17 / 19
    with pytest.raises(InputError, match="5 predictions for 1 references"):
        length_bias(outputs, [3])


# ------------------------------------------------------------------------------------------------- runs

TAGS = {"the": "DET", "dog": "NOUN", "runs": "VERB", "big": "ADJ"}
TINY: dict[str, Any] = {"hidden_size": 8, "embedding_size": 8, "beam_size": 3}
TINY |= {"minimum_count": 1, "objective": "cross-entropy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger and a speller with random weights, and data for both."""
    folder, draw = tmp_path_factory.mktemp("diagnosis"), random.Random(0)
    sentences = [draw.choices(list(TAGS), k=draw.randint(2, 5)) for _ in range(12)]
    (folder / "dev.conll").write_text("\n".join("".join(f"{w}\t{TAGS[w]}\n" for w in one) for one in sentences))
    words = ["".join(draw.choices("abc", k=draw.randint(2, 4))) for _ in range(12)]
    lines = [f"{word}\t{' '.join(word.upper())}\n" for word in words]
    (folder / "dev.tsv").write_text("".join([*lines, f"{words[0]}\tA\n"]))  # one word has two answers
    of_tagger = train_settings(**TINY, label_embedding_size=4, encoder="left-to-right")
    tagger = new_run(read_columns(folder / "dev.conll"), of_tagger)
    pairs = read_pairs(folder / "dev.tsv", source_units="characters", target_units="words")
    speller = new_run(pairs, train_settings(**TINY, task="transduce", source_units="characters"))
    for run, name in ((tagger, "tagger"), (speller, "speller")):
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
        save_run(run, folder / name)
    return folder


def loaded(folder: Path, name: str) -> tuple[OutputRun, list[Example]]:
    run = load_run(folder / name)
    if name == "tagger":
        return run, read_columns(folder / "dev.conll")
    return run, read_pairs(folder / "dev.tsv", source_units="characters", target_units="words")


@pytest.mark.parametrize("name", ["tagger", "speller"])
def test_a_diagnosis_agrees_with_the_measures_and_with_its_parts(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, examples = loaded(folder, name)
    compared: dict[int, Sequence[Hypothesis]] = {}

    def watched(outputs: dict[int, Sequence[Hypothesis]], best: Sequence[Hypothesis | None]) -> BeamErrors:
        compared.update(outputs)
        return beam_errors(outputs, best)

    monkeypatch.setattr("seqwise.runs.diagnosis.beam_errors", watched)
    parts: dict[str, tuple[int, int]] = {}
    found = diagnose(run, examples, on_progress=lambda part, done, total: parts.update({part: (done, total)}))
    for decoder in ("greedy", "beam", "raw-beam"):
        wanted = measure(run, examples, decoder)
        assert {title: one.value for title, one in found.decoders[decoder].items()} == {
            title: one.value for title, one in wanted.items()
        }
    assert parts and all(done == total for done, total in parts.values())
    log_partitions_N = log_partitions_of(run, run.codec.encode(examples))
    assert found.constant == pytest.approx(log_partitions_N.mean().item(), rel=1e-5)
    assert found.log_partitions is not None and found.ranking is not None and found.search is not None
    assert list(found.search.missed) == sorted({1, run.settings.beam_size, *([] if name == "tagger" else BEAM_SIZES)})
    assert found.search.inputs == len(found.ranking.both) > found.search.certified - 1 > 0
    sources = _prepare(run, examples).sources
    for size, outputs in compared.items():
        assert outputs == [row[0] for row in decode_examples(run.model, sources, Decoder(HardTopK(size), local))]
    if name == "tagger":
        assert not found.lengths and "shifted-beam" not in found.decoders
        return
    assert found.lengths["raw"][1].ratio.value == found.lengths["local"][1].ratio.value
    assert list(found.lengths["local"]) == [1, 2, 5, 10, 20]
    sources = run.codec.encode_sources(list({example.source: example for example in examples}.values()))
    outputs = decode_examples(run.model, sources, Decoder(HardTopK(20), global_))
    written = sum(len(best[0].tokens) for best in outputs)
    assert found.lengths["raw"][20].ratio.numerators_N.sum() == written


def test_a_constant_from_elsewhere_is_used(folder: Path) -> None:
    run, examples = loaded(folder, "speller")
    pays = diagnose(run, examples, constant=-50.0).decoders["shifted-beam"]["length ratio"].value
    costs = diagnose(run, examples, constant=50.0).decoders["shifted-beam"]["length ratio"].value
    assert costs == 0 < 1 < pays


def test_targets_outside_the_vocabulary_count_as_wrong(folder: Path, tmp_path: Path) -> None:
    run, examples = loaded(folder, "tagger")
    strange = [Example(("the", "dog"), ("X", "NOUN"), "x", 1), Example(("dog",), ("X",), "x", 4)]
    both, alone = diagnose(run, [*examples, *strange]), diagnose(run, strange)
    assert both.exposure["beam"].gold.value == diagnose(run, examples).exposure["beam"].gold.value
    assert len(both.decoders["beam"]["accuracy"]) == 14
    assert (alone.log_partitions, alone.constant, alone.exposure, alone.ranking) == (None, None, {}, None)
    assert set(meanings(alone)) == set(meanings(both))
    assert all(not prefix.is_gold for prefix in explore(run, strange[0]).steps[1])


def test_beams_and_targets_that_make_no_sense_are_refused(folder: Path) -> None:
    run, examples = loaded(folder, "tagger")
    for beam_size in (0, -1):
        with pytest.raises(InputError, match=f"the beam must have at least one slot, got {beam_size}"):
            explore(run, examples[0], beam_size=beam_size)
        with pytest.raises(InputError, match="at least one slot"):
            diagnose(run, examples, beam_size=beam_size)
    for labels in (("DET",), ("DET", "NOUN", "NOUN")):
        strange = Example(("the", "dog"), labels, "x", 7)
        with pytest.raises(
            InputError, match=rf"x:7: the target has {len(labels)} tokens and the source 2; give a label"
        ):
            explore(run, strange)
    assert len(explore(run, Example(("the", "dog"), (), "x", 7)).steps) == 3, "without a target there is none to show"


def test_the_constant_of_the_development_data_is_read_where_there_is_one(tmp_path: Path) -> None:
    assert development_constant(tmp_path) is None
    for text, value in (
        ('{"dev": {"mean log Z": 5.25}}', 5.25),
        ('{"dev": {"mean log Z": null}}', None),
        ('{"dev": {"mean log Z": NaN}}', None),
        ('{"dev": {"mean log Z": true}}', None),
        ("{}", None),
        ("[", None),
    ):
        (tmp_path / "metrics.json").write_text(text)
        assert development_constant(tmp_path) == value


def made_up(*, raw: int, shifted: int, next_step: int, own: float, left_to_right: bool = True) -> Diagnosis:
    """Of 200 words the beam spells 100 rightly; log Z alone and own prefixes as given."""

    def wrong(right: int) -> dict[str, Sums]:
        return {"word error": Counts([0] * right + [1] * (200 - right))}

    def ranked(right: int) -> Counts:
        return Counts([1] * right + [0] * (200 - right))

    decoders = {"greedy": wrong(100), "beam": wrong(100), "raw-beam": wrong(raw), "shifted-beam": wrong(shifted)}
    ranking = SlotRanking(ranked(140), ranked(110), ranked(next_step), ranked(140), ranked(200))
    exposure = {name: gap(own) for name in ("greedy", "beam")}
    return Diagnosis(3, decoders, 5.0, None, exposure, {}, None, ranking, left_to_right)


def gap(own: float) -> ExposureGap:
    return ExposureGap(Counts([1.0, 1.2] * 100), Counts([own, own + 0.2] * 100))


def test_meanings_of_clear_findings() -> None:
    good = meanings(made_up(raw=140, shifted=140, next_step=180, own=1.0))
    gain = r"raw scores gain 20\.0 points \[1\d\.\d, 2\d\.\d\], so there is label bias; predict with --decoder raw-beam"
    assert re.search(gain, good["decoders"]) and "the next input is evidence" in good["slot ranking"]
    assert "20.0 points" in good["slot ranking"] and "scheduled-sampling" not in good["exposure gap"]
    bad = meanings(made_up(raw=20, shifted=84, next_step=141, own=2.1))
    assert "beam and greedy do not differ" in bad["decoders"] and "raw scores lose 40.0 points [" in bad["decoders"]
    assert "80% of that" in bad["decoders"] and "--objective self-normalized" in bad["decoders"]
    assert "points" not in bad["slot ranking"] and "2.00 times" in bad["exposure gap"]
    assert "--objective scheduled-sampling" in bad["exposure gap"]
    assert bad["length bias"] == "all outputs have the length of their inputs"
    assert "0% of that" in meanings(made_up(raw=20, shifted=10, next_step=100, own=1.0))["decoders"]


@pytest.mark.parametrize(
    ("raw", "finding"),
    [
        (140, r"raw scores change 25% of the outputs and gain 20\.0 points \[1\d\.\d, 2\d\.\d\] \(accuracy\)$"),
        (60, r"raw scores change 25% of the outputs and lose 20\.0 points \[1\d\.\d, 2\d\.\d\] \(accuracy\)$"),
        (101, r"raw scores change 25% of the outputs, without a significant difference \(accuracy\)$"),
    ],
)
def test_scores_inside_a_language_gain_or_lose(raw: int, finding: str) -> None:
    def right(number: int) -> dict[str, Sums]:
        return {"accuracy": Counts([1] * number + [0] * (200 - number))}

    decoders = {"beam": right(100), "renormalized-beam": right(100), "raw-beam": right(raw)}
    changed = {name: Counts([1, 0, 0, 0]) for name in ("renormalized-beam", "raw-beam")}
    masking = MaskingBias((0.5,), (0.3,), (0.0,), (4,), ())
    meaning = meanings_inside(LanguageDiagnosis(3, decoders, changed, None, masking, None))
    assert meaning["training"].startswith("no target lies in the language")
    assert re.search(finding, meaning["decoders"]) and meaning["masking"].startswith("30% of the mass")


def test_insignificant_differences_are_no_findings() -> None:
    even = meanings(made_up(raw=101, shifted=101, next_step=141, own=1.0))["decoders"]
    assert "; raw scores and log-probabilities do not differ" in even
    assert "raw scores gain" not in even and "raw scores lose" not in even


def test_a_gain_of_one_step_is_distinguished_from_one_of_searches() -> None:
    said = meanings(made_up(raw=20, shifted=84, next_step=180, own=1.0))
    assert "20.0 points" in said["slot ranking"] and "raw scores lose 40.0" in said["decoders"]
    assert "compare raw-beam in the first table" in said["slot ranking"]


def test_a_bidirectional_model_is_not_said_to_lack_evidence() -> None:
    said = meanings(made_up(raw=140, shifted=140, next_step=180, own=1.0, left_to_right=False))
    assert "], although the model sees the whole input; predict with --decoder raw-beam" in said["decoders"]
    assert "label bias" not in said["decoders"] and "evidence" not in said["slot ranking"]


def test_an_exposure_gap_of_greedy_search_alone_is_attributed_to_it() -> None:
    even = made_up(raw=100, shifted=100, next_step=140, own=1.0)
    found = replace(even, exposure={"greedy": gap(2.1), "beam": gap(1)})
    said = meanings(found)["exposure gap"]
    assert "greedy search" in said and "2.00 times" in said and "with a beam, there is little to gain" in said
    other = meanings(replace(found, exposure={"greedy": gap(1), "beam": gap(2.1)}))["exposure gap"]
    assert other.startswith("after prefixes of its own beam")


def test_outputs_that_are_empty_in_every_beam_do_not_get_shorter() -> None:
    empty, grows = (
        {size: length_bias([Hypothesis((0,) * length, -1.0, True)], [30]) for size, length in lengths}
        for lengths in (((1, 0), (20, 0)), ((1, 10), (20, 20)))
    )
    found = replace(made_up(raw=100, shifted=100, next_step=140, own=1.0), lengths={"local": empty, "raw": grows})
    said = meanings(found)["length bias"]
    assert said.startswith(
        "log-probabilities keep the length of outputs as beams grow; raw scores make outputs longer as beams grow"
    )


def test_a_gap_too_small_to_repair_comes_without_advice() -> None:
    found = replace(made_up(raw=100, shifted=100, next_step=140, own=1.0), exposure={"beam": gap(1.03)})
    said = meanings(found)["exposure gap"]
    assert "1.03 times" in said and "scheduled-sampling" not in said
    found = replace(found, exposure={"beam": gap(1.1)})
    assert "1.09 times" in meanings(found)["exposure gap"]
    assert "--objective scheduled-sampling" in meanings(found)["exposure gap"]


def cut_to(found: Diagnosis, examples: int) -> Diagnosis:
    """The same diagnosis of the first and the last examples: each difference shows in them."""

    def some(sums: Sums) -> Sums:
        half = examples // 2
        rows = [*range(half), *range(len(sums) - (examples - half), len(sums))]
        return Sums(sums.columns_NC[rows], sums.combine)

    decoders = {name: {title: some(one) for title, one in row.items()} for name, row in found.decoders.items()}
    exposure = {name: ExposureGap(some(one.gold), some(one.own)) for name, one in found.exposure.items()}
    ranking = SlotRanking(*map(some, vars(found.ranking).values()))
    return replace(found, decoders=decoders, exposure=exposure, ranking=ranking)


def test_search_errors_are_reported_beside_those_of_the_widest_beam() -> None:
    missed = {1: Counts([1, 1, 1, 0]), 3: Counts([1, 1, 0, 0]), 20: Counts([1, 0, 0, 0])}
    lost = {1: Counts([1, 1, 1, 0]), 3: Counts([0.5, 0.25, 0, 0]), 20: Counts([0.5, 0, 0, 0])}
    made = made_up(raw=100, shifted=100, next_step=140, own=1.0)
    told = meanings(replace(made, search=BeamErrors(missed, lost, 4, 9)))["search errors"]
    assert "beam of 3 misses" in told and "50.0%" in told and "(of 20: 25.0%)" in told and "0.38 nats" in told
    none = BeamErrors({3: Counts([0, 0])}, {3: Counts([0, 0])}, 2, 2)
    assert "finds the most probable output of each" in meanings(replace(made, search=none))["search errors"]
    unproved = replace(made, search=BeamErrors({}, {}, 0, 2))
    assert "the search proved no output optimal" in meanings(unproved)["search errors"]
    assert "restricts" in meanings(made)["search errors"]


def test_findings_need_ten_examples() -> None:
    """The interval of one example has no width, and that of a few hardly any: below ten there are no findings."""
    sure = made_up(raw=0, shifted=0, next_step=200, own=3.0)
    for examples in (1, 2, 9):
        few = meanings(cut_to(sure, examples))
        for part in ("decoders", "exposure gap", "slot ranking"):
            assert few[part] == f"too few examples for a test ({examples}): give 10 or more"
    ten = meanings(cut_to(sure, 10))
    assert "raw scores lose" in ten["decoders"] and "scheduled-sampling" in ten["exposure gap"]
    assert "too few" not in ten["slot ranking"]
    # Ten examples, of which one has a pair.
    ranking = SlotRanking(*(Counts([1, *[0] * 9], [1, *[0] * 9]) for _ in range(5)))
    assert "too few examples" in meanings(replace(cut_to(sure, 10), ranking=ranking))["slot ranking"]
    assert set(few) == set(ten)


# ------------------------------------------------------------------------------------------- the command


def test_of_a_few_examples_no_interval_is_printed(seqwise: Any, folder: Path, tmp_path: Path) -> None:
    sentences = (folder / "dev.conll").read_text().split("\n\n")
    for count, intervals in ((1, False), (9, False), (10, True)):
        (tmp_path / "few.conll").write_text("\n\n".join(sentences[:count]) + "\n")
        code, text, _ = seqwise("diagnose", folder / "tagger", tmp_path / "few.conll")
        assert code == 0 and ("[" in text) == intervals
        found = json.loads(seqwise("diagnose", folder / "tagger", tmp_path / "few.conll", "--json")[1])
        for part in ("decoders", "exposure gap"):
            assert ("too few examples for a test" in found["meaning"][part]) == (not intervals)
        estimates = [found["decoders"]["beam"]["accuracy"], *found["exposure gap"]["beam"].values()]
        assert all((one["low"] is not None) == (one["high"] is not None) == intervals for one in estimates)


@pytest.mark.parametrize(("name", "file"), [("tagger", "dev.conll"), ("speller", "dev.tsv")])
def test_the_report_says_what_the_json_says(seqwise: Any, folder: Path, name: str, file: str) -> None:
    code, text, complaint = seqwise("diagnose", folder / name, folder / file)
    assert (code, complaint) == (0, "") and max(map(len, text.splitlines())) <= 80
    code, raw, _ = seqwise("diagnose", folder / name, folder / file, "--json")
    found = json.loads(raw)
    flat = " ".join(text.split())
    assert code == 0 and all(
        " ".join(meaning.split()) in flat
        for title, meaning in found["meaning"].items()
        if title != "length bias" or found["length bias"]
    )
    assert f"{found['log Z']['overall']['mean']:.2f}" in text and f"{found['slot ranking']['pairs']:,} pairs" in text
    gap = found["exposure gap"]["beam"]["gap"]
    assert f"{gap['difference']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]" in text
    wanted = json.loads(seqwise("evaluate", folder / name, folder / file, "--json")[1])
    for decoder in ("greedy", "beam", "raw-beam"):
        for title, estimate in found["decoders"][decoder].items():
            assert estimate == {key: wanted[decoder][title][key] for key in ("value", "low", "high")}
    assert ("shifted-beam" in found["decoders"]) == bool(found["length bias"]) == (name == "speller")
    assert found["constant from"] == "this file"


def rows_of(text: str, heading: str) -> list[list[str]]:
    """The fields of the rows of the printed table below a heading, up to what it means."""
    block = text[text.index(heading) :].split("->")[0].splitlines()
    rule = next(place for place, line in enumerate(block) if line.startswith("──"))
    return [line.split() for line in block[rule + 1 :]]


def test_every_printed_number_stands_in_its_column(seqwise: Any, folder: Path) -> None:
    text = seqwise("diagnose", folder / "speller", folder / "dev.tsv")[1]
    found = json.loads(seqwise("diagnose", folder / "speller", folder / "dev.tsv", "--json")[1])
    gaps = found["exposure gap"]
    printed = rows_of(text, "Exposure gap")
    assert [row[:5] for row in printed] == [
        ["prefixes", "of", name, f"{gaps[name]['gold']['value']:.3f}", f"{gaps[name]['own']['value']:.3f}"]
        for name in ("greedy", "beam")
    ]
    assert all(row[3] != row[4] for row in printed)
    expected = [
        [name, size, *(f"{100 * one[title]:.1f}" for title in ("empty", "short", "cut_off")), f"{one['ratio']:.3f}"]
        for name, row in found["length bias"].items()
        for size, one in row.items()
    ]
    assert rows_of(text, "Length bias") == expected and any(row[2] != row[3] for row in expected)
    whole = found["log Z"]["overall"]
    keys = ("mean", "variance", "mean_absolute", "mean_absolute_deviation", "minimum", "maximum")
    assert rows_of(text, "log Z on gold prefixes")[0] == [
        *("all", str(whole["count"])),
        *(f"{whole[key]:.2f}" for key in keys),
    ]
    assert len({f"{whole[key]:.2f}" for key in keys}) >= 5
    errors = found["search errors"]
    assert f"measured on {errors['certified']} of {errors['inputs']} inputs" in text and errors["certified"] > 0
    assert [row[:2] for row in rows_of(text.split("measured on ")[0] + "->", "Search errors")] == [
        [size, f"{100 * row['missed']['value']:.1f}"] for size, row in errors["beams"].items()
    ]
    for row in errors["beams"].values():
        assert f" {row['lost']['value']:.3f}" in text


def test_every_number_of_the_explorer_stands_in_its_column(
    seqwise: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out(), "width", 160)  # a line for each prefix
    place = max(range(12), key=lambda index: len(read_columns(folder / "dev.conll")[index].source))
    ask = ["diagnose", folder / "tagger", folder / "dev.conll", f"--example={place + 1}", "--beam-size=3"]
    printed = rows_of(seqwise(*ask)[1].split("* gold; off")[0], "Example")
    prefixes = [one for step in json.loads(seqwise(*ask, "--json")[1])["steps"][1:] for one in step]
    assert len(printed) == len(prefixes)
    told_apart = False
    for row, prefix in zip(printed, prefixes, strict=True):
        masses = prefix["global_masses"]
        numbers = [
            f"{prefix[name]:.2f}" for name in ("log_prob", "raw_score", "log_partition") if prefix[name] is not None
        ]
        shares = [prefix["local_mass"], masses[0], *masses[1:2], masses[-1]]
        expected = [*numbers, *map(percent, shares), *([] if prefix["on_beam"] else ["off"])]
        assert row[-len(expected) :] == expected
        told_apart |= len(masses) > 2 and len({percent(share) for share in shares}) == 4
    assert told_apart, "there is no row by which the columns are told apart"


def test_the_explorer_prints_and_draws_one_example(seqwise: Any, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = tmp_path / "beam.png"
    ask = ["diagnose", folder / "tagger", folder / "dev.conll", "--example=2", "--beam-size=2"]
    code, text, complaint = seqwise(*ask, f"--plot={figure}")
    assert (
        (code, complaint) == (0, "")
        and figure.read_bytes().startswith(b"\x89PNG")
        and str(figure) in text.replace("\n", "")
    )
    found = json.loads(seqwise(*ask, "--json")[1])
    example = read_columns(folder / "dev.conll")[1]
    assert (found["input"], found["gold"], found["example"]) == (" ".join(example.source), [*example.target], 2)
    assert len(found["steps"]) == len(example.source) + 1 and found["exact"]
    for step, prefixes in enumerate(found["steps"]):
        assert sum(prefix["on_beam"] for prefix in prefixes) == min(2, 4**step)
        for prefix in prefixes:
            assert prefix["local_mass"] == pytest.approx(math.exp(prefix["log_prob"]))
            if step:
                assert f"{prefix['log_prob']:.2f}" in text and percent(prefix["global_masses"][-1]) in text


def test_of_a_long_example_the_best_prefixes_and_gold_are_printed() -> None:
    def prefix(place: int, *, is_gold: bool = False) -> Prefix:
        return Prefix((place,), -1.0, 0.0, None, (0.1,), is_gold=is_gold, on_beam=not is_gold)

    steps = [[*(prefix(place) for place in range(8)), prefix(9, is_gold=True)] for _ in range(30)]
    shown, left_out = _best_of_steps(steps)
    assert all([one.tokens[0] for one in prefixes] == [0, 1, 9] for prefixes in shown) and left_out == 30 * 6
    assert _best_of_steps(steps[:6]) == (steps[:6], 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--example=13"], "--example 13 is out of range: there are 12; give a number from 1 to 12"),
        (["--example=0"], "--example must be at least 1, got 0"),
        (["--beam-size=0"], "--beam-size must be at least 1, got 0"),
        (["--plot=x.png"], "--plot draws one example; add --example N"),
        (["--example=1", "--plot=x.jpeg"], "x.jpeg: unknown figure format; use a name that ends in"),
        (["--example=two"], "invalid value for '--example'"),
    ],
)
def test_bad_options_are_refused_in_one_line(seqwise: Any, folder: Path, arguments: list[str], said: str) -> None:
    code, text, complaint = seqwise("diagnose", folder / "tagger", folder / "dev.conll", *arguments)
    assert (code, text) == (2, "") and complaint.startswith("seqwise: ") and complaint.count("\n") == 1
    assert said.lower() in complaint.lower()


@pytest.mark.parametrize(
    ("run", "raw", "said"),
    [
        ("no-run", b"the\tDET\n", "there is no such run folder"),
        ("tagger", b"", "the file is empty"),
        ("speller", b"abx\tA B\n", "unknown token 'x'"),
    ],
)
def test_files_that_cannot_be_diagnosed(
    seqwise: Any, folder: Path, tmp_path: Path, run: str, raw: bytes, said: str
) -> None:
    (tmp_path / "bad").write_bytes(raw)
    code, text, complaint = seqwise("diagnose", folder / run, tmp_path / "bad")
    assert (code, text) == (2, "") and said in complaint and complaint.count("\n") == 1
    assert seqwise("diagnose", folder / "tagger", tmp_path / "missing")[2].endswith("no such file; check the name\n")


def test_what_looks_like_markup_is_printed_as_it_is(seqwise: Any, tmp_path: Path) -> None:
    examples = [Example(("[b]a[/b]", "x"), ("[red]", "[/red]"))] * 2
    save_run(new_run(examples, train_settings(**TINY)), tmp_path / "run")
    (tmp_path / "dev.conll").write_text("[b]a[/b]\t[red]\nx\t[/red]\n")
    code, text, complaint = seqwise("diagnose", tmp_path / "run", tmp_path / "dev.conll", "--example=1")
    assert (code, complaint) == (0, "") and "[b]a[/b] x" in text and "[red] [/red]" in text
    assert seqwise("diagnose", tmp_path / "run", tmp_path / "dev.conll")[0] == 0


def test_one_example_shows_its_gold_up_to_a_label_that_is_not_known(seqwise: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.conll").write_text("the\tDET\ndog\tNOUNS\n")
    ask = ["diagnose", folder / "tagger", tmp_path / "dev.conll", "--example=1", "--beam-size=2"]
    code, text, complaint = seqwise(*ask)
    assert code == 0 and "1 of 2 labels was never seen in training" in complaint
    assert "gold: DET NOUNS (unknown)" in text and "its token of step 2 was never seen" in " ".join(text.split())
    golden = [
        [one["prefix"] for one in step if one["is_gold"]] for step in json.loads(seqwise(*ask, "--json")[1])["steps"]
    ]
    assert golden == [[[]], [["DET"]], []]


def test_labels_that_are_not_known_are_warned_of(seqwise: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.conll").write_text("the\tDET\ndog\tNOUNS\n")
    code, text, complaint = seqwise("diagnose", folder / "tagger", tmp_path / "dev.conll")
    assert code == 0 and "1 of 2 labels was never seen in training" in complaint and "Decoders (1 example," in text
