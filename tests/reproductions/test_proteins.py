"""The reproduction `proteins`: families, counts of residues, choice of variants, the table, a toy run to the end."""

from __future__ import annotations

import itertools
import json
import math
import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from reproducing import read_back, setup
from reproductions import REPRODUCTIONS
from reproductions.beyond import protein_data, proteins
from reproductions.beyond.protein_data import (
    Proteins,
    bigram_nats,
    choose_wild_types,
    families,
    split_by_family,
    unigram_nats,
)
from reproductions.beyond.protein_variants import (
    VariantSize,
    WithoutWildType,
    likeliest_substitutions,
    log_odds,
    measure_variants,
    mutate,
    rank_correlation,
)
from reproductions.beyond.proteins import ENERGIES, OTHERS, Measured, examine
from reproductions.report import load_table
from seqwise.cli import app
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.evaluation.signature import sha256_of_examples, sign
from seqwise.runs.inputs import read_sequences
from seqwise.runs.loading import load_run
from seqwise.runs.masked_model_settings import masked_settings
from seqwise.runs.scoring import Scorer
from seqwise.sampling import (
    examine as examine_matrix,
)
from seqwise.sampling import (
    gibbs,
    local_energy,
    masked_conditionals,
    shuffled,
    start_chains,
    table_model,
    transition_matrix,
)


def examples(*sequences: str) -> list[Example]:
    return [Example((), tuple(sequence), key=f"p{place}") for place, sequence in enumerate(sequences)]


# ------------------------------------------------------------------ families


def test_families_are_the_components_of_a_graph_of_shared_words() -> None:
    chance = random.Random(3)
    sequences = ["".join(chance.choices("ACDE", k=chance.randint(3, 12))) for _ in range(40)]

    def words(one: str) -> set[str]:
        return {one[place : place + 4] for place in range(len(one) - 3)}

    def linked(one: str, other: str) -> bool:
        both = len(words(one) & words(other))
        return both > 0 and both >= 0.3 * min(len(words(one)), len(words(other)))

    # Brute force: spread from each sequence until nothing new is reached.
    expected = []
    for place in range(len(sequences)):
        reached = {place}
        while more := {
            other
            for other in range(len(sequences))
            for one in reached
            if other not in reached and linked(sequences[one], sequences[other])
        }:
            reached |= more
        expected.append(min(reached))
    found = families(sequences, size=4, share=0.3)
    assert found == expected
    assert 5 < len(set(found)) < 40, "the case tells nothing"


def test_one_shared_word_is_not_enough_for_long_sequences() -> None:
    chance = random.Random(0)
    one, other = ("".join(chance.choices("ACDEFGHIKL", k=100)) for _ in range(2))
    other = one[:6] + other
    assert families([one, other]) == [0, 1]
    assert families([one, other], share=0.005) == [0, 0]
    assert families(["AC", "AC"]) == [0, 1], "too short to have a word"


def test_no_family_is_divided_and_nothing_is_lost() -> None:
    chance = random.Random(1)
    seeds = ["".join(chance.choices("ACDEFGHIKL", k=30)) for _ in range(60)]
    sequences = examples(*(seed[: chance.randint(20, 30)] for seed in seeds for _ in range(chance.randint(1, 3))))
    own = {one.key: family for one, family in zip(sequences, families([s.target for s in sequences]), strict=True)}
    parts = split_by_family(sequences, seed=0)
    assert sorted(one.key for part in (parts.train, parts.dev, parts.test) for one in part) == sorted(own)
    members = [{own[one.key] for one in part} for part in (parts.train, parts.dev, parts.test)]
    assert all(not one & other for one, other in itertools.combinations(members, 2))
    for part in (parts.dev, parts.test):
        assert 0.1 * len(sequences) <= len(part) < 0.1 * len(sequences) + 3
    places = {one.key: place for place, one in enumerate(sequences)}
    assert [places[one.key] for one in parts.train] == sorted(places[one.key] for one in parts.train)
    assert parts == split_by_family(sequences, seed=0) != split_by_family(sequences, seed=1)


def test_too_few_sequences_for_three_parts() -> None:
    with pytest.raises(InputError, match="2 families of sequences are too few"):
        split_by_family(examples("AAAAAAAAAA", "CCCCCCCCCC"))


def test_wild_types_have_their_length_and_stay_the_same() -> None:
    some = examples(*("M" * length for length in range(5, 40)))
    chosen = choose_wild_types(some, count=4, lengths=(10, 20))
    assert len(chosen) == 4 and all(10 <= len(one.target) <= 20 for one in chosen)
    assert chosen == choose_wild_types(some, count=4, lengths=(10, 20))
    assert len(choose_wild_types(some, count=99, lengths=(10, 20))) == 11
    with pytest.raises(InputError, match="no held-out sequence has 50 to 60"):
        choose_wild_types(some, count=4, lengths=(50, 60))


def test_the_real_proteins_are_split_without_near_copies(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQWISE_DATA", str(corpora))
    protein_data.proteins.cache_clear()
    data = protein_data.proteins()
    whole = [*data.train, *data.dev, *data.test]
    assert len(whole) == 1422 and sum(len(one.target) for one in whole) == 122_574
    assert {one.target[0] for one in whole} == {"M"}, "what the fixed first residue rests on"
    assert 142 <= len(data.dev) <= 165 and 142 <= len(data.test) <= 165
    seen = {"".join(one.target[place : place + 12]) for one in data.train for place in range(len(one.target) - 11)}
    for one in (*data.dev, *data.test):
        own = {"".join(one.target[place : place + 12]) for place in range(len(one.target) - 11)}
        assert len(own & seen) <= 0.1 * len(own)
    size = proteins.SIZES["cpu"]
    assert len(choose_wild_types(data.test, count=size.wild_types, lengths=size.lengths)) == size.wild_types


# ------------------------------------------------------------------ counts


def test_unigrams_by_hand() -> None:
    train = examples("MAAC", "MAAC")
    (nats,) = unigram_nats(train, examples("CAC"))
    assert nats == pytest.approx(-math.log(2 / 3) - math.log(1 / 3)), "the first residue is not counted"
    with pytest.raises(InputError, match="'K' is in no training sequence"):
        unigram_nats(train, examples("MK"))


def test_bigrams_are_the_conditionals_of_a_chain() -> None:
    chance = random.Random(2)
    train = examples(*("M" + "".join(chance.choices("ACD", weights=(3, 2, 1), k=7)) for _ in range(9)))
    letters = "ACD"
    text = ["".join(one.target) for one in train]
    after = "".join(one[1:] for one in text)
    unigram = {letter: after.count(letter) / len(after) for letter in letters} | {"$": len(text) / len(after)}

    def joint(sequence: str) -> float:
        """The probability of the chain from the second residue on, end included."""
        product = 1.0
        for one, other in itertools.pairwise(sequence + "$"):
            times = sum((line + "$").count(one + other) for line in text)
            if one == other:  # str.count leaves out those that overlap
                times = sum((line + "$")[place : place + 2] == one + other for line in text for place in range(8))
            whole = sum(line.count(one) for line in text)
            product *= (times + 20 * unigram[other]) / (whole + 20)
        return product

    for sequence in ("MACDA", "MDDC", "MA"):
        expected = 0.0
        for place in range(1, len(sequence)):
            others = [joint(sequence[:place] + letter + sequence[place + 1 :]) for letter in letters]
            expected -= math.log(joint(sequence) / sum(others))
        assert bigram_nats(train, examples(sequence)) == pytest.approx([expected], rel=1e-12)


# ------------------------------------------------------------------ variants


def test_mutants_are_drawn_by_weights_and_never_the_wild_type() -> None:
    wild_T, count = torch.tensor([0, 1, 2, 3]), 20_000
    weights_V = torch.tensor([0.1, 0.2, 0.3, 0.4])
    places_ND = torch.tensor([[3, 1]]).expand(count, -1)
    drawn_NT = mutate(wild_T, places_ND, weights_V, generator=torch.Generator().manual_seed(0))
    assert bool((drawn_NT[:, [0, 2]] == wild_T[[0, 2]]).all())
    for place in (1, 3):
        for residue in range(4):
            share = float((drawn_NT[:, place] == residue).double().mean())
            if residue == wild_T[place]:
                assert share == 0
                continue
            expected = float(weights_V[residue] / (1 - weights_V[wild_T[place]]))
            assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / count)
    # The two places are drawn each on its own.
    both = float(((drawn_NT[:, 1] == 3) & (drawn_NT[:, 3] == 0)).double().mean())
    expected = (0.4 / 0.8) * (0.1 / 0.6)
    assert abs(both - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


def test_log_odds_and_the_variant_that_has_the_highest() -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs_TV = torch.randn(4, 3, generator=generator, dtype=torch.float64).log_softmax(1)
    wild_T, places = torch.tensor([2, 0, 1, 1]), (3, 1)
    best, best_odds = None, -math.inf
    for residues in itertools.product(range(3), repeat=2):
        variant = wild_T.tolist()
        variant[places[0]], variant[places[1]] = residues
        odds = sum(float(log_probs_TV[t, variant[t]] - log_probs_TV[t, wild_T[t]]) for t in range(4))
        assert log_odds(log_probs_TV, wild_T, torch.tensor([variant])).item() == pytest.approx(odds)
        if residues[0] != wild_T[3] and residues[1] != wild_T[1] and odds > best_odds:
            best, best_odds = variant, odds
    assert likeliest_substitutions(log_probs_TV, wild_T, torch.tensor(places)).tolist() == best


def test_rank_correlation_by_the_formula() -> None:
    chance = random.Random(0)
    for _ in range(5):
        first, second = ([chance.random() for _ in range(12)] for _ in range(2))
        ranks = [[sorted(each).index(value) for value in each] for each in (first, second)]
        squares = sum((one - other) ** 2 for one, other in zip(*ranks, strict=True))
        expected = 1 - 6 * squares / (12 * (12**2 - 1))
        assert rank_correlation(torch.tensor(first), torch.tensor(second)) == pytest.approx(expected, abs=1e-12)
    assert math.isnan(rank_correlation(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])))


def small() -> tuple[Any, Tensor]:
    return table_model(num_positions=4, vocab_size=3, seed=5, scale=1.5), torch.tensor([0, 2, 1, 0])


def variants_of(wild_T: Tensor, places: Sequence[int]) -> Tensor:
    """Every sequence that differs from the wild type at exactly these places."""
    found = []
    for residues in itertools.product(range(3), repeat=len(places)):
        if all(residue != wild_T[place] for residue, place in zip(residues, places, strict=True)):
            variant = wild_T.clone()
            variant[list(places)] = torch.tensor(residues)
            found.append(variant)
    return torch.stack(found)


def energy_by_hand(model: Any, tokens_T: Tensor) -> Tensor:
    total = torch.tensor(0.0, dtype=torch.float64)
    for place in range(len(tokens_T)):
        mask_1T = torch.arange(len(tokens_T))[None] == place
        probs_V = model.masked_logits(tokens_T[None], mask_1T)[0].softmax(0)
        total -= probs_V[tokens_T[place]].log()
    return total


@pytest.mark.thorough
def test_variants_of_a_small_model_have_the_energies_that_enumeration_gives() -> None:
    model, wild_T = small()
    size = VariantSize(distances=(1, 2, 3), mutants=2_000, chains=500, sweeps=30, proposals=90)
    found = measure_variants(model, wild_T, size, shares_V=torch.tensor([0.6, 0.3, 0.1]), seed=1)
    wild_energy = energy_by_hand(model, wild_T)
    by_choice: dict[str, dict[tuple[int, ...], Tensor]] = {}
    for distance in (1, 2, 3):
        matches = []
        # The free positions are the first so many of a random order: the one choice that fits all three distances.
        for places in itertools.combinations((1, 2, 3), distance):
            variants_NT = variants_of(wild_T, places)
            energy_N = torch.stack([energy_by_hand(model, one) - wild_energy for one in variants_NT])
            target_N = (-energy_N).softmax(0)
            fits = {
                "uniform": float(energy_N.mean()),
                "mh": float((target_N * energy_N).sum()),
            }
            if all(abs(found[name][distance] - value) < 0.1 for name, value in fits.items()):
                matches.append(places)
                assert found["annealed"][distance] == pytest.approx(float(energy_N.min()), abs=1e-9)
        assert len(matches) == 1, (distance, matches)
        by_choice[str(distance)] = {matches[0]: variants_of(wild_T, matches[0])}
        # What log-odds miss, over all variants at that distance, wherever it is.
        wild_probs = [model.masked_logits(wild_T[None], torch.arange(4)[None] == t)[0].softmax(0) for t in range(4)]
        missed = []
        for places in itertools.combinations((1, 2, 3), distance):
            for one in variants_of(wild_T, places):
                odds = sum(float((wild_probs[t][one[t]] / wild_probs[t][wild_T[t]]).log()) for t in places)
                missed.append(abs(odds + float(energy_by_hand(model, one) - wild_energy)))
        assert found["error"][distance] == pytest.approx(sum(missed) / len(missed), abs=1e-9)
    chosen = [set(next(iter(by_choice[str(distance)]))) for distance in (1, 2, 3)]
    assert chosen[0] < chosen[1] < chosen[2], "the positions are nested"


def test_degenerate_gibbs_keeps_the_distance_and_has_its_own_limit() -> None:
    model, wild_T = small()
    places = [1, 2, 3]
    proposal = masked_conditionals(WithoutWildType(model, wild_T))
    states_NT = variants_of(wild_T, places)
    free_NT = torch.tensor([False, True, True, True]).expand(len(states_NT), -1)
    states = start_chains(local_energy(model), states_NT, free_BT=free_NT)
    # A matrix at all: what is drawn is among the variants.
    matrix_NN = transition_matrix(gibbs(proposal, visits=shuffled()), states)
    limit_N = torch.linalg.matrix_power(matrix_NN, 200)[0]
    target_N = (-states.energy_B).softmax(0)
    assert examine_matrix(matrix_NN, target_N).total_variation > 0.02, "Gibbs is right here, and shows nothing"
    expected = float((limit_N * states.energy_B).sum() - energy_by_hand(model, wild_T))
    size = VariantSize(distances=(3,), mutants=1_000, chains=1_000, sweeps=12, proposals=1)
    found = measure_variants(model, wild_T, size, shares_V=torch.ones(3), seed=1)
    assert found["gibbs"][3] == pytest.approx(expected, abs=0.06)
    assert abs(found["mh"][3] - expected) > 0.06


def test_proposals_leave_the_wild_type_out_and_renormalise() -> None:
    model, wild_T = small()
    masked_NT = torch.tensor([[False, True, False, True]])
    proposal = masked_conditionals(WithoutWildType(model, wild_T))
    q_MV = proposal.log_probs(proposal.model.masked_logits(wild_T[None], masked_NT)).exp()
    plain_MV = model.masked_logits(wild_T[None], masked_NT).softmax(1)
    plain_MV[[0, 1], [2, 0]] = 0.0
    assert torch.allclose(q_MV, plain_MV / plain_MV.sum(1, keepdim=True))


def test_random_mutants_depend_on_the_wild_type_and_chains_on_the_seed() -> None:
    model, wild_T = small()
    size = VariantSize(distances=(1, 3), mutants=20, chains=2, sweeps=8, proposals=24)
    how: dict[str, Any] = {"shares_V": torch.ones(3)}
    one, same, other = (measure_variants(model, wild_T, size, **how, seed=seed) for seed in (1, 1, 2))
    assert one == same
    for name in ("uniform", "unigram", "log-odds", "rank correlation", "error"):
        assert one[name] == other[name]
    assert one["mh"] != other["mh"] and one["gibbs"] != other["gibbs"]
    assert all(0 <= one["novel"][d] <= one["accepted"][d] <= 1 for d in (1, 3))
    assert all(0 < one["passes"][d] <= 3 for d in (1, 3)), "r (T - 1) passes"
    assert size.num_sweeps(1) == 24 and size.num_sweeps(3) == 8


def test_log_odds_are_the_energy_where_positions_are_independent() -> None:
    model, wild_T = small()
    model.table = model.table[:, :1].expand_as(model.table)
    size = VariantSize(distances=(1, 2, 3), mutants=50, chains=2, sweeps=4, proposals=1)
    found = measure_variants(model, wild_T, size, shares_V=torch.ones(3), seed=0)
    assert all(error < 1e-9 for error in found["error"].values())
    assert found["rank correlation"][3] > 0.95
    assert all(found["annealed"][d] >= found["log-odds"][d] - 1e-9 for d in (1, 2, 3))


class Independent:
    """Scores that depend on the position alone."""

    def __init__(self, scores_TV: Tensor) -> None:
        self.scores_TV, self.vocab_size, self.mask_id = scores_TV, scores_TV.shape[1], scores_TV.shape[1]

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        return self.scores_TV[masked_NT.nonzero(as_tuple=True)[1]]


@pytest.mark.thorough
def test_annealed_chains_come_near_the_lowest_energy_of_many() -> None:
    scores_TV = torch.randn(9, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wild_T = scores_TV.argmax(1)
    size = VariantSize(distances=(8,), mutants=8, chains=4, sweeps=60, proposals=1)
    found = measure_variants(Independent(scores_TV), wild_T, size, shares_V=torch.ones(12), seed=0)
    # Of 11^8 variants, that of the second best residue at each position.
    second_T = scores_TV.topk(2, dim=1).values[:, 1] - scores_TV.amax(1)
    lowest = -float(second_T[1:].sum())
    assert found["log-odds"][8] == pytest.approx(lowest, abs=1e-9)
    assert lowest - 1e-9 <= found["annealed"][8] < lowest + 0.5
    assert found["mh"][8] > lowest + 5, "too easy a case"


# ------------------------------------------------------------------ claims


def made_up(model: float, energies: dict[str, float], error: float, ranks: tuple[float, float]) -> Measured:
    """Two seeds, six wild types; energies grow with the distance."""
    data = Proteins(examples(*["MACDA"] * 30), examples(*("M" + 5 * letter for letter in "ACDA")), [])
    variants = [
        [
            {
                **{name: {d: value * d + 0.1 * place for d in (1, 4)} for name, value in energies.items()},
                **{name: dict.fromkeys((1, 4), 0.5) for name in ("accepted", "novel", "passes")},
                "r-hat": {4: 1.0 + place / 100},
                "error": dict.fromkeys((1, 4), error + 0.001 * place),
                "rank correlation": {d: rank + 0.001 * place for d, rank in zip((1, 4), ranks, strict=True)},
            }
            for place in range(6)
        ]
        for _ in range(2)
    ]
    signature = sign("proteins", seeds=[0, 1], data="0" * 64)
    nats = [[5 * model, 5 * model + 0.1, 5 * model, 5 * model]] * 2
    return Measured(data, (1, 4), nats, [1.0, 3.0], variants, signature, signature)


AS_HOPED = {"uniform": 5.0, "unigram": 4.0, "log-odds": 1.0, "gibbs": 3.0, "mh": 2.0, "annealed": 0.5}


def test_claims_hold_or_are_reversed() -> None:
    held = examine(made_up(0.1, AS_HOPED, 0.01, (0.9, 0.5)))
    assert [claim.verdict for claim in held] == ["holds"] * 8
    assert "d = 1: +3.00 [" in held[2].evidence and "d = 4: +12.00 [" in held[2].evidence
    turned = {"uniform": 1.0, "unigram": 1.0, "log-odds": 0.2, "gibbs": 1.0, "mh": 2.0, "annealed": 0.5}
    assert [claim.verdict for claim in examine(made_up(9.0, turned, 0.3, (0.5, 0.9)))] == ["reversed"] * 8


def test_what_holds_at_one_distance_only_does_not_hold() -> None:
    measured = made_up(0.1, AS_HOPED, 0.01, (0.9, 0.5))
    for row in measured.variants:
        for cell in row:
            cell["gibbs"] = {1: 9.0, 4: 0.0}
    assert examine(measured)[4].verdict == "not seen"


def test_the_figure_shows_what_the_table_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    table = proteins.build_outcome(made_up(0.1, AS_HOPED, 0.01, (0.9, 0.5)), {}, ()).table
    kept: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(pyplot, "close", kept.append)
        proteins.draw(table, tmp_path / "figure.png")
    # Older versions of matplotlib close "all" when they choose a backend.
    ((left, right),) = [figure.axes for figure in kept if figure != "all"]
    pyplot.close(kept[0])
    found = {(result.system, result.measure): result for result in table.results}
    rows = [*ENERGIES.values(), OTHERS["rank correlation"][0]]
    for row, container in zip(rows, [*left.containers, *right.containers], strict=True):
        line, _, (bars,) = container.lines
        for distance, x, y, ((_, low), (_, high)) in zip((1, 4), *line.get_data(), bars.get_segments(), strict=True):
            one = found[row, f"d = {distance}"]
            assert (x, y, low, high) == (distance, one.value, pytest.approx(one.low), pytest.approx(one.high))
        assert container.get_label() == (row if row in ENERGIES.values() else "rank correlation")
    for axes in (left, right):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]


# ------------------------------------------------------------------ end to end

TINY = proteins.Size(
    masked_settings(
        format="fasta", units="characters", hidden_size=8, num_layers=1, num_heads=2, feedforward_size=16, epochs=2.0,
        batch_size=8, save_every=2,
    ),
    wild_types=2,
    lengths=(8, 12),
    variants=VariantSize(distances=(1, 3), mutants=6, chains=2, sweeps=6, proposals=6),
)  # fmt: skip


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)
    sequences = ["M" + "".join(chance.choices("ACDEFG", k=chance.randint(7, 11))) for _ in range(40)]
    data = Proteins(examples(*sequences[:30]), examples(*sequences[30:35]), examples(*sequences[35:]), ("toy 1",))
    monkeypatch.setattr(proteins, "proteins", lambda: data)
    monkeypatch.setattr(proteins, "SIZES", {"cpu": TINY})


def run(folder: Path) -> Any:
    (outcome,) = proteins.reproduce(setup(folder, 0, 1))
    return outcome


def numbers(outcome: Any) -> dict[tuple[str, str], float]:
    found = {(result.system, result.measure): result.value for result in outcome.table.results}
    return {key: value for key, value in found.items() if key[1] != "training seconds"}


@pytest.mark.thorough
@pytest.mark.usefixtures("toy")
def test_the_reproduction_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    outcome = run(tmp_path / "one")
    read_back(outcome, tmp_path)
    found = {(result.system, result.measure): result for result in outcome.table.results}
    rows = [*ENERGIES.values(), *(row for row, _ in OTHERS.values())]
    assert {(row, f"d = {d}") for row in rows for d in (1, 3)} <= set(found)
    assert 1 < found["masked Transformer", "pseudo-perplexity"].value < 20
    for result in found.values():
        assert result.signature.seeds == (0, 1) and len(result.signature.data) == 64
        assert result.signature.training == (f"examples {sha256_of_examples(proteins.proteins().train)}", "toy 1")
        assert result.low is None or result.low <= result.value <= result.high
    assert found["unigrams", "pseudo-perplexity"].signature.data != found["uniform mutants", "d = 1"].signature.data
    written = [json.loads(file.read_text()) for file in (tmp_path / "one").glob("seed-*/variants/*.json")]
    mean = sum(one["variants"]["mh"]["3"] for one in written) / len(written)
    assert len(written) == 4 and found["Metropolis-Hastings", "d = 3"].value == pytest.approx(mean)
    nats, residues = [], 0
    for home in (tmp_path / "one").glob("seed-*/model"):
        dev = read_sequences(tmp_path / "one" / "dev.fasta", TINY.settings)
        for score in Scorer(load_run(home), pieces="original").score_examples(dev):
            nats += score.token_log_probs_T.tolist()[1:]
            residues += len(score.tokens) - 1
    expected = math.exp(-sum(nats) / residues)
    assert found["masked Transformer", "pseudo-perplexity"].value == pytest.approx(expected, rel=1e-6)
    figure = outcome.files["figure"].read_bytes()
    assert figure.startswith(b"\x89PNG") and 10_000 < len(figure) < 300_000
    proteins.draw(load_table(tmp_path / "proteins.json"), tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == figure

    # What it says to try next, runs.
    for hint in outcome.hints:
        command = [*shlex.split(hint)[1:], *(["--sweeps", "2"] if "sample" in hint else [])]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output

    # Run again, it reads back; with a file gone, it makes that one again and nothing else.
    made: list[tuple[str, str]] = []
    whole: Callable[..., Any] = proteins.measure_wild_type

    def counted(model: Path, wild_type: Example, *given: Any, **how: Any) -> Any:
        made.append((model.parent.name, wild_type.key))
        return whole(model, wild_type, *given, **how)

    def never(*_: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(proteins, "measure_wild_type", counted)
    monkeypatch.setattr(proteins, "train_model", never)
    assert run(tmp_path / "one").table == outcome.table and not made
    gone = tmp_path / "one" / "seed-1" / "variants" / "00.json"
    key = json.loads(gone.read_text())["wild type"]
    gone.unlink()
    assert numbers(run(tmp_path / "one")) == numbers(outcome) and made == [("seed-1", key)]

    # Signed when it was made, not when it is read.
    first = tmp_path / "one" / "seed-0" / "variants" / "00.json"
    record = json.loads(first.read_text())
    record_date, record["signature"]["date"] = record["signature"]["date"], "2001-01-01"
    first.write_text(json.dumps(record))
    dates = {one.signature.date for one in run(tmp_path / "one").table.results if one.measure.startswith("d = ")}
    assert dates == {f"2001-01-01; {record_date}"}


@pytest.mark.thorough
@pytest.mark.usefixtures("toy")
def test_an_interrupted_run_ends_with_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    expected = numbers(run(tmp_path / "whole"))
    whole_measure, whole_train = proteins.measure_wild_type, proteins.train_masked_model
    stops = {"training": 1, "measuring": 1}

    def stopped_while_training(*given: Any, on_progress: Callable[[str, Any], None], **how: Any) -> Any:
        def on_step(stage: str, step: Any) -> None:
            on_progress(stage, step)
            if step.step == 5 and stops["training"]:
                stops["training"] = 0
                raise KeyboardInterrupt

        return whole_train(*given, on_progress=on_step, **how)

    def stopped_while_measuring(model: Path, wild_type: Example, *given: Any, **how: Any) -> Any:
        if wild_type.key == "p4" and stops["measuring"]:
            stops["measuring"] = 0
            raise KeyboardInterrupt
        return whole_measure(model, wild_type, *given, **how)

    monkeypatch.setattr(proteins, "train_masked_model", stopped_while_training)
    monkeypatch.setattr(proteins, "measure_wild_type", stopped_while_measuring)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts")
    assert not list((tmp_path / "parts").glob("seed-*/cell.json"))
    assert list((tmp_path / "parts").glob("seed-*/model/checkpoints/*")), "there is something to go on from"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob("seed-*/variants/*.json"))) == 1
    assert numbers(run(tmp_path / "parts")) == expected


@pytest.mark.usefixtures("toy")
def test_what_depends_on_other_settings_or_data_is_made_again(tmp_path: Path) -> None:
    data, wild_types = proteins.proteins(), proteins.proteins().test[:1]

    def told(
        size: proteins.Size = TINY, data: Proteins = data, wild_types: Sequence[Example] = wild_types
    ) -> list[str]:
        return [job.fingerprint() for job in proteins._jobs(tmp_path, size, data, wild_types, 0)]

    model, variants = told()
    longer = told(replace(TINY, settings=TINY.settings.with_changes(epochs=3.0)))
    more = told(replace(TINY, variants=replace(TINY.variants, mutants=7)))
    fewer = told(data=replace(data, train=data.train[:-1]))
    other = told(wild_types=data.test[1:2])
    assert more[0] == other[0] == model and model not in (longer[0], fewer[0])
    assert len({variants, longer[1], more[1], fewer[1], other[1]}) == 5


def test_the_reproduction_is_registered() -> None:
    registered = REPRODUCTIONS["proteins"]
    assert registered.function == "reproductions.beyond.proteins:reproduce" and registered.scales == {"cpu": 3}
    assert set(proteins.SIZES) == set(REPRODUCTIONS["proteins"].scales)
