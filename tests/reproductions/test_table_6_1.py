"""Table 6.1 and Figure 6.1: verdicts on made-up numbers, small runs of both reproductions, one real row of each."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from reproducing import read_back, setup
from reproductions.comparison import judge_by_seed
from reproductions.goyal_2021 import figure_6_1, figure_6_1_phonemes, phonemes, sequence_contrastive, table_6_1
from reproductions.goyal_2021.enumerable import palindromes, phoneme_sequences
from reproductions.goyal_2021.figure_6_1 import METHODS, Curves
from reproductions.goyal_2021.large_spaces import Readings
from reproductions.goyal_2021.phonemes import Setting
from reproductions.goyal_2021.table_6_1 import ROWS, Cell, train_and_dev
from reproductions.report import load_table
from reproductions.verdicts import student_interval as estimate
from seqwise.errors import InputError
from seqwise.models import MaskedLSTM


def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of three steps in this process: the reproductions as they are, but quick."""
    for constant in ("NOISE_STEPS", "NOISE_ORDERS"):
        monkeypatch.setattr(sequence_contrastive, constant, 2)
    for module in (table_6_1, figure_6_1, sequence_contrastive):
        whole = module.fit_enumerated
        monkeypatch.setattr(
            module, "fit_enumerated", lambda *given, whole=whole, **how: whole(*given, **how | {"steps": 3})
        )


# ------------------------------------------------------------------ tests over seeds


def test_students_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, standard error 1 / sqrt(3), t of two degrees of freedom 4.303.
    mean, low, high = estimate([1.0, 2.0, 3.0])
    assert mean == 2 and low == pytest.approx(2 - 4.303 / math.sqrt(3)) and high == pytest.approx(4 - low)
    assert estimate([1.5]) == (1.5, None, None)
    # Eight seeds, wider than their own t of 2.365 would give.
    _, low, _ = estimate([0.0, 1.0] * 4)
    assert low == pytest.approx(0.5 - 2.776 * math.sqrt(2 / 7) / math.sqrt(8))


def test_verdicts_are_paired_by_seed() -> None:
    # Seeds differ by far more than the two systems do.
    noisy = [1.0, 5.0, 9.0]
    better = judge_by_seed("c", "s", [value + 0.1 for value in noisy], noisy, prefix="x: ")
    assert better.verdict == "holds" and better.evidence.startswith("x: +0.100 [0.1") and "3 of 3" in better.evidence
    assert judge_by_seed("c", "s", noisy, [value + 0.1 for value in noisy]).verdict == "reversed"
    unclear = judge_by_seed("c", "s", [1.2, 5.0, 9.1], [1.0, 5.1, 9.0])
    assert unclear.verdict == "not seen" and "2 of 3 seeds above" in unclear.evidence
    assert judge_by_seed("c", "s", [9.0], [1.0]).verdict == "not seen"


def made_up(**by_measure: list[float]) -> list[Cell]:
    """All rows alike but for the 10k ones, where everything is nearer to 5."""
    names = {
        "LL": "LL", "PLL": "PLL", "raw": "MLM, raw", "local": "MLM, local", "left": "NCE, left to right",
        "any": "NCE, any order", "noise": "noise, left to right", "shuffled": "noise, any order",
    }  # fmt: skip
    return [
        Cell(row, 5.0, {
            names[key]: [5 + (value - 5) / (2 if row.size == 10_000 else 1) for value in values]
            for key, values in by_measure.items()
        })
        for row in ROWS
    ]  # fmt: skip


def test_claims_of_the_table() -> None:
    as_published = made_up(
        LL=[5.5, 5.6], PLL=[5.7, 5.8], raw=[9.9, 10.0], local=[6.6, 6.7], left=[5.65, 5.75], any=[5.6, 5.7],
        noise=[5.9, 6.0], shuffled=[5.9, 6.0],
    )  # fmt: skip
    claims = table_6_1.examine(as_published)
    assert [claim.verdict for claim in claims] == ["holds"] * 8 + ["reversed"] + ["holds"] * 7
    assert "6 above 0" in claims[0].evidence and "5.9643 nats in closed form" in claims[8].evidence
    turned = made_up(
        LL=[6.6, 6.7], PLL=[5.7, 5.8], raw=[5.5, 5.6], local=[5.6, 5.7], left=[6.0, 6.1], any=[6.2, 6.3],
        noise=[5.9, 6.0], shuffled=[5.9, 6.0],
    )  # fmt: skip
    # Every comparison the other way round, and the gaps, now negative, grow towards 0.
    assert [claim.verdict for claim in table_6_1.examine(turned)] == ["reversed"] * 16


def curves(**by_method: list[float]) -> Curves:
    """Two sizes; at the larger, everything is half as far from 5."""
    keys = dict(zip(("kl", "both", "pll", "start"), METHODS, strict=True))
    found = {
        (keys[key], size): [5 + (value - 5) * part for value in values]
        for key, values in by_method.items()
        for size, part in ((100, 1.0), (1_000, 0.5))
    }
    return Curves("made up", 5.0, 100_000, {"raw": [9.0, 9.1], "local": [8.0, 8.1]}, found)


def test_claims_of_the_figure() -> None:
    as_published = curves(kl=[5.02, 5.03], both=[5.2, 5.22], pll=[7.0, 7.1], start=[7.2, 7.3])
    assert [claim.verdict for claim in figure_6_1.examine(as_published)] == ["holds"] * 8
    turned = curves(kl=[9.2, 9.3], both=[8.0, 8.1], pll=[6.0, 6.1], start=[6.3, 6.4])
    assert [claim.verdict for claim in figure_6_1.examine(turned)] == ["reversed"] * 8
    far = replace(as_published, entropy=4.8)
    assert figure_6_1.examine(far)[-1].verdict == "reversed"
    assert len(figure_6_1.examine(replace(as_published, entropy=None))) == 7


# ------------------------------------------------------------------ data


def test_a_fifth_of_the_sequences_decides_when_to_stop() -> None:
    train_N, dev_N = train_and_dev(palindromes(), 1_000, seed=0)
    assert torch.allclose(800 * train_N, (800 * train_N).round(), atol=1e-3) and abs(train_N.sum() - 1) < 1e-5
    assert torch.allclose(200 * dev_N, (200 * dev_N).round(), atol=1e-3) and abs(dev_N.sum() - 1) < 1e-5
    again, _ = train_and_dev(palindromes(), 1_000, seed=0)
    other, _ = train_and_dev(palindromes(), 1_000, seed=1)
    assert torch.equal(train_N, again) and not torch.equal(train_N, other)


def test_new_models_leave_the_global_random_state_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one, other = table_6_1.new_model(5, seed=1), table_6_1.new_model(5, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


# ------------------------------------------------------------------ small runs


@pytest.mark.thorough
@pytest.mark.parametrize("scale", ["cpu", "converged"])
def test_table_6_1_is_made_and_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    short_fits(monkeypatch)
    monkeypatch.setattr(phonemes, "find_lexicon", lambda: None)
    threads = torch.get_num_threads()
    (outcome,) = table_6_1.reproduce(replace(setup(tmp_path, 3, 4), scale=scale))
    assert torch.get_num_threads() == threads
    read_back(outcome, tmp_path)
    found = {(result.system, result.measure): result for result in outcome.table.results}
    assert len(found) == len(ROWS) * 15
    for name in (table_6_1.SECONDS, table_6_1.CONTRAST_SECONDS):
        assert found["p-1k", name].unit == "s" and found["p-1k", name].value > 0
    assert "CPU seconds" in outcome.lesson
    assert found["p-1k", "entropy"].value == pytest.approx(5.9643, abs=5e-5)
    assert "5.32" in found["p-1k", "entropy"].note and found["p-1k", "entropy"].published == 5.32
    assert found["p-10k", "PLL"].published == 6.57 and found["p-10k", "PLL"].unit == "nat"
    assert found["h-1k", "LL"].signature.seeds == (3, 4)
    assert found["p-1k", "LL"].signature.data == found["p-10k", "LL"].signature.data
    assert found["p-1k", "LL"].signature.data != found["h-1k", "LL"].signature.data
    for result in found.values():
        assert result.measure == "entropy" or result.low < result.value < result.high
        if result.measure in table_6_1.NLL:  # no model, and no noise, has less than the entropy
            assert result.value > found[result.system, "entropy"].value
    # Cells that are there are read back, with their signatures; another budget makes them anew.
    monkeypatch.setattr(table_6_1, "measure", lambda *_, **__: pytest.fail("a cell is made twice"))
    (again,) = table_6_1.reproduce(replace(setup(tmp_path, 3, 4), scale=scale))
    assert again.table == outcome.table
    monkeypatch.setitem(table_6_1.BUDGETS, scale, {"steps": 2})
    with pytest.raises(pytest.fail.Exception, match="made twice"):
        list(table_6_1.reproduce(replace(setup(tmp_path, 3, 4), scale=scale)))


@pytest.mark.thorough
def test_figure_6_1_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    short_fits(monkeypatch)
    monkeypatch.setattr(figure_6_1, "SIZES", (100, 200))
    monkeypatch.setattr(figure_6_1, "MLM_SIZE", 1_000)
    monkeypatch.setattr(phonemes, "find_lexicon", lambda: None)
    (outcome,) = figure_6_1.reproduce(setup(tmp_path, 0, 1))
    figure = outcome.files["figure"].read_bytes()
    assert figure.startswith(b"\x89PNG") and 10_000 < len(figure) < 300_000
    read_back(outcome, tmp_path)
    figure_6_1.draw(load_table(tmp_path / "figure-6.1.json"), tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == figure
    found = {(result.system, result.measure): result.value for result in outcome.table.results}
    assert len(found) == 2 * (1 + 2 + 4 * 2)
    assert all(value >= found[system, "entropy"] for (system, _), value in found.items())
    assert len(outcome.table.claims) == 2 * 8


def test_the_methods_start_where_they_should() -> None:
    mlm = table_6_1.new_model(5, seed=0)
    for method in METHODS:
        new = partial(table_6_1.new_model, 5, seed=9)
        model, loss = figure_6_1.start(method, mlm, new, {"PLL": 1.0}, lambda **options: {"KL": 1.0, **options})
        same = all(torch.equal(a, b) for a, b in zip(model.parameters(), mlm.parameters(), strict=True))
        assert same == (method != "PLL") and model is not mlm
        weight = float(method == "KL + PLL")
        assert loss == ({"PLL": 1.0} if method.startswith("PLL") else {"KL": 1.0, "pseudolikelihood_weight": weight})


# ------------------------------------------------------------------ noise and contrast


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["left to right", "any order"])
def test_noise_is_learnt_and_normalized(name: str) -> None:
    distribution = palindromes()
    train_N, _ = train_and_dev(distribution, 1_000, seed=0)
    orders = sequence_contrastive.NOISES[name](5)
    global_state = torch.get_rng_state()
    log_noise_ON = sequence_contrastive.train_noise(5, train_N, orders, length=5, seed=0)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert len(log_noise_ON) == 1 if name == "left to right" else 5 <= len(log_noise_ON) <= 10
    torch.testing.assert_close(log_noise_ON.double().exp().sum(-1), torch.ones(len(log_noise_ON)).double())
    found = -(log_noise_ON.double() @ distribution.probs_N).mean().item()
    assert distribution.entropy < found < 7.5  # of the uniform distribution: 8.05
    if name == "any order":
        assert (log_noise_ON[0] - log_noise_ON[1]).abs().max() > 0.01


@pytest.mark.thorough
def test_contrast_lies_between_the_noise_and_the_truth() -> None:
    distribution = palindromes()
    train_N, dev_N = train_and_dev(distribution, 10_000, seed=0)
    model = table_6_1.new_model(5, seed=0)
    uniform_1N = torch.full((1, 5**5), 1 / 5**5).log()
    guess = sequence_contrastive.fit_contrasted(model, uniform_1N, length=5, train_N=train_N, dev_N=dev_N, seed=0)
    with torch.no_grad():
        scores_N = table_6_1.raw_scores(table_6_1.enumerated_logits(model, 5)).double()
    found = -(scores_N.log_softmax(0) * distribution.probs_N).sum().item()
    assert distribution.entropy < found < distribution.entropy + 0.15
    assert abs(scores_N.logsumexp(0).item() - guess) < 0.2


# ------------------------------------------------------------------ phonemes

SMALL = Setting(
    max_length=3, epochs=2, batch_size=8, embedding_size=4, hidden_size=4, feedforward_size=4, tokens_at_once=2
)
LEXICON = [
    ("".join(letters), [f"{letter}1" if letter in "AE" else letter for letter in letters])
    for length in (1, 2, 3, 4)
    for letters in itertools.product("ABCDE", repeat=length)
    if "A" in letters or "E" in letters
]


def ignore(done: int, count: int, note: str) -> None:
    """No progress is shown."""


def every_score(model: MaskedLSTM, length: int) -> tuple[list[float], list[float]]:
    """Minus both energies of all sequences of a length, one masked position at a time."""
    tokens_BT = torch.tensor(list(itertools.product(range(5), repeat=length)))
    raw, local = torch.zeros(len(tokens_BT)).double(), torch.zeros(len(tokens_BT)).double()
    for place in range(length):
        masked_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        masked_BT[:, place] = True
        with torch.no_grad():
            logits_BV = model.masked_logits(tokens_BT, masked_BT).double()
        raw += logits_BV.gather(1, tokens_BT[:, place, None])[:, 0]
        local += logits_BV.softmax(-1).gather(1, tokens_BT[:, place, None])[:, 0].log()
    return raw.tolist(), local.tolist()


def test_the_phoneme_row_is_what_brute_force_gives(tmp_path: Path) -> None:
    sequences = phoneme_sequences(LEXICON, max_length=3)
    found, _ = phonemes.measure(sequences, "MLM", tmp_path, seed=1, setting=SMALL, report=ignore)
    model = MaskedLSTM.from_pretrained(tmp_path / "model")
    data = phonemes.split_sequences(phonemes.numbered(sequences), seed=1)
    sizes = [sum(map(len, part.values())) for part in data]
    assert sum(sizes) == len(sequences) == 116 and sizes[1:] == [3, 11]
    scores = {length: every_score(model, length) for length in (1, 2, 3)}
    shares = {length: (len(data.train.get(length, ())) + 1) / (sizes[0] + 3) for length in (1, 2, 3)}
    rows = [(length, row) for length, part in data.test.items() for row in part.tolist()]
    for reading, name in enumerate(("MLM, raw", "MLM, local")):
        total, one_z = 0.0, 0.0
        mass = {length: math.fsum(map(math.exp, both[reading])) for length, both in scores.items()}
        for length, row in rows:
            number = int("".join(map(str, row)), 5)
            score = scores[length][reading][number]
            total -= math.log(shares[length]) + score - math.log(mass[length])
            one_z -= score - math.log(sum(mass.values()))
        assert found[name] == pytest.approx(total / len(rows), abs=1e-5)
        assert found[f"{name}, one Z"] == pytest.approx(one_z / len(rows), abs=1e-5)
    assert found["length"] == pytest.approx(-sum(math.log(shares[length]) for length, _ in rows) / len(rows))
    local = [scores[length][1][int("".join(map(str, row)), 5)] for length, row in rows]
    assert found["-MLM of MLM"] == pytest.approx(-sum(local) / len(rows), abs=1e-5)


@pytest.mark.thorough
def test_a_cell_goes_on_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = phoneme_sequences(LEXICON, max_length=3)
    whole, _ = phonemes.measure(sequences, "PLL", tmp_path / "whole", seed=1, setting=SMALL, report=ignore)
    calls = {"fit": 0, "block": 0}
    fit, block = phonemes.fit, phonemes.log_partitions_of_block

    def counted_fit(*given: object, **how: object) -> float:
        calls["fit"] += 1
        return fit(*given, **how)

    def killed(model: MaskedLSTM, choices: tuple[torch.Tensor, ...]) -> Readings:
        calls["block"] += 1
        if calls["block"] == 4:
            raise KeyboardInterrupt
        return block(model, choices)

    monkeypatch.setattr(phonemes, "fit", counted_fit)
    monkeypatch.setattr(phonemes, "log_partitions_of_block", killed)
    with pytest.raises(KeyboardInterrupt):
        phonemes.measure(sequences, "PLL", tmp_path / "cell", seed=1, setting=SMALL, report=ignore)
    assert len(json.loads((tmp_path / "cell" / "cell.json").read_text())["blocks"]) == 3
    found, signature = phonemes.measure(sequences, "PLL", tmp_path / "cell", seed=1, setting=SMALL, report=ignore)
    assert found == whole and calls == {"fit": 1, "block": 6}  # 1 + 1 + 3 blocks, one of them begun twice
    again, later = phonemes.measure(sequences, "PLL", tmp_path / "cell", seed=1, setting=SMALL, report=ignore)
    assert again == whole and later == signature and calls == {"fit": 1, "block": 6}
    # Anything else is another cell.
    longer = replace(SMALL, epochs=3)
    other, _ = phonemes.measure(sequences, "PLL", tmp_path / "cell", seed=1, setting=longer, report=ignore)
    assert calls["fit"] == 2 and other != whole
    weights = tmp_path / "cell" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        phonemes.measure(sequences, "PLL", tmp_path / "cell", seed=1, setting=longer, report=ignore)


def test_training_lowers_its_objective_and_keeps_the_best_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    data = phonemes.split_sequences(phonemes.numbered(phoneme_sequences(LEXICON, max_length=3)), seed=0)
    for name, loss in phonemes.OBJECTIVES.items():
        setting = replace(SMALL, epochs=6, learning_rates=(2e-2,))
        model = phonemes.new_model(5, setting, seed=0)
        before, seen = phonemes.mean_loss(model, loss, data.train), []
        mean_loss = phonemes.mean_loss
        with monkeypatch.context() as patched:
            # The third epoch is told to be the best, whatever it is.
            patched.setattr(
                phonemes, "mean_loss",
                lambda *given, seen=seen, mean_loss=mean_loss: (seen.append(mean_loss(*given)), abs(len(seen) - 3))[1],
            )  # fmt: skip
            assert phonemes.fit(model, loss, data, setting, seed=0, report=ignore) == 0
        assert len(seen) == 6 and phonemes.mean_loss(model, loss, data.dev) == pytest.approx(seen[2], abs=1e-6)
        assert phonemes.mean_loss(model, loss, data.train) < before - 0.05, name


@pytest.mark.thorough
def test_of_several_learning_rates_the_best_epoch_of_the_best_one_is_kept() -> None:
    data = phonemes.split_sequences(phonemes.numbered(phoneme_sequences(LEXICON, max_length=3)), seed=0)

    def trained(*rates: float) -> tuple[float, list[torch.Tensor]]:
        setting = replace(SMALL, learning_rates=rates)
        model = phonemes.new_model(5, setting, seed=0)
        best = phonemes.fit(model, phonemes.OBJECTIVES["MLM"], data, setting, seed=0, report=ignore)
        return best, list(model.state_dict().values())

    alone = {rate: trained(rate) for rate in (1e-2, 1e-4, 1e-3)}
    best = min(alone, key=lambda rate: alone[rate][0])
    order = [rate for rate in alone if rate != best]
    found, weights = trained(order[0], best, order[1])  # neither the first nor the last
    assert found == alone[best][0] < min(alone[rate][0] for rate in order)
    assert all(torch.equal(one, other) for one, other in zip(weights, alone[best][1], strict=True))


def test_splits_are_of_distinct_sequences_and_of_the_seed() -> None:
    sequences = phoneme_sequences(LEXICON, max_length=4)
    data, again, other = (phonemes.split_sequences(phonemes.numbered(sequences), seed=seed) for seed in (3, 3, 4))
    rows = [[tuple(row) for tokens_BT in part.values() for row in tokens_BT.tolist()] for part in data]
    assert len({row for part in rows for row in part}) == sum(map(len, rows)) == len(sequences)
    assert all(torch.equal(data.test[length], again.test[length]) for length in data.test)
    assert {tuple(row) for part in other.test.values() for row in part.tolist()} != set(rows[2])
    assert all(tokens_BT.shape[1] == length for part in data for length, tokens_BT in part.items())


@pytest.mark.thorough
def test_the_phoneme_row_is_made_and_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_6_1, "ROWS", ())
    monkeypatch.setattr(table_6_1, "examine", lambda cells: [])
    monkeypatch.setattr(phonemes, "find_lexicon", lambda: LEXICON)
    monkeypatch.setitem(phonemes.SETTINGS, "cpu", SMALL)
    _, outcome = table_6_1.reproduce(setup(tmp_path, *range(5, 10)))
    assert outcome.name == "table-6.1-phonemes" and "116 sequences" in outcome.table.title
    read_back(outcome, tmp_path)
    found = {result.measure: result for result in outcome.table.results}
    assert found.keys() == {
        "length", "PLL", "PLL, one Z", "-PLL of PLL", "MLM, raw", "MLM, raw, one Z", "MLM, local", "MLM, local, one Z",
        "-MLM of MLM",
    }  # fmt: skip
    assert found["PLL"].published == 14.58 and found["PLL"].signature.seeds == (5, 6, 7)
    assert {path.name for path in (tmp_path / "phonemes").iterdir()} == {"seed-5", "seed-6", "seed-7"}
    assert len(outcome.table.claims) == 4


def test_claims_of_the_phoneme_row() -> None:
    numbers = {"PLL": [14.0, 14.1], "MLM, raw": [18.0, 18.2], "MLM, local": [14.6, 14.7]}
    numbers |= {"PLL, one Z": [15.0, 15.1], "MLM, raw, one Z": [19.0, 19.2]}
    assert [claim.verdict for claim in phonemes.examine(numbers)] == ["holds"] * 4
    turned = {name: [-value for value in values] for name, values in numbers.items()}
    assert [claim.verdict for claim in phonemes.examine(turned)] == ["reversed"] * 4


def test_where_the_dictionary_is_looked_for(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phonemes, "cmu_entries", lambda: LEXICON)
    monkeypatch.setenv("SEQWISE_DATA", str(corpora))
    assert len(phoneme_sequences(phonemes.find_lexicon() or [])) == 61_144
    monkeypatch.setenv("SEQWISE_DATA", str(tmp_path))
    assert phonemes.find_lexicon() is LEXICON
    monkeypatch.delenv("SEQWISE_DATA")
    assert phonemes.find_lexicon() is LEXICON

    def absent() -> None:
        raise InputError("not installed")

    monkeypatch.setattr(phonemes, "cmu_entries", absent)
    assert phonemes.find_lexicon() is None


# ------------------------------------------------------------------ phonemes in Figure 6.1


def test_projection_is_the_divergence_of_the_true_from_the_free_conditionals() -> None:
    """All 25 sequences of two tokens by hand: the conditionals of E_raw from energies, those of the MLM from a mask."""
    teacher, model = (phonemes.new_model(5, SMALL, seed=seed) for seed in (1, 2))
    tokens_BT = torch.tensor(list(itertools.product(range(5), repeat=2)))
    scores, _ = every_score(model, 2)
    masked_BT = torch.tensor([[True, False]]).expand(25, 2)
    with torch.no_grad():
        free_BV = teacher.masked_logits(tokens_BT, masked_BT).double().softmax(-1)
    expected, likelihood = [], []
    for row, (token, other) in enumerate(tokens_BT.tolist()):
        weights = [math.exp(scores[5 * word + other]) for word in range(5)]
        true = [weight / sum(weights) for weight in weights]
        expected.append(2 * sum(p * math.log(p / q) for p, q in zip(free_BV[row].tolist(), true, strict=True)))
        likelihood.append(-2 * math.log(true[token]))
    for weight in (0.0, 0.5):
        loss = figure_6_1_phonemes.projection(teacher, pseudolikelihood_weight=weight)
        found = loss(model, tokens_BT, 0).tolist()
        assert found == pytest.approx(
            [kl + weight * nll for kl, nll in zip(expected, likelihood, strict=True)], abs=1e-5
        )
    assert not any(parameter.grad is not None for parameter in teacher.parameters())


def test_the_methods_see_what_the_masked_model_has_not(tmp_path: Path) -> None:
    sequences = phoneme_sequences(LEXICON, max_length=3)
    data, kept = figure_6_1_phonemes.split(sequences, 40, seed=1)
    small = figure_6_1_phonemes.small_data(kept, 20, data)
    rows = [{tuple(row) for tokens_BT in part.values() for row in tokens_BT.tolist()} for part in (*data, *small[:2])]
    assert [len(part) for part in rows[3:]] == [16, 4] and sum(map(len, rows[:3])) == len(sequences) - 40
    assert not any(first & second for first, second in itertools.combinations(rows, 2))
    assert small.test is data.test


@pytest.mark.thorough
def test_the_panel_of_phonemes_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(phonemes, "find_lexicon", lambda: LEXICON)
    options: dict[str, Any] = {"sizes": (20, 40), "setting": SMALL}
    outcome = figure_6_1_phonemes.reproduce(setup(tmp_path, 0, 1, 2, 3), **options)
    assert outcome is not None and outcome.name == "figure-6.1-phonemes" and len(outcome.table.claims) == 7
    found = {result.measure: result for result in outcome.table.results}
    assert found["KL, 20"].signature.seeds == (0, 1, 2) and len(found) == 2 + 4 * 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    again = figure_6_1_phonemes.reproduce(setup(tmp_path, 0, 1, 2, 3), **options)
    assert again is not None and again.table.results == outcome.table.results
    assert {path: path.stat().st_mtime_ns for path in before} == before


# ------------------------------------------------------------------ the real thing


@pytest.mark.thorough
def test_the_order_of_the_objectives_on_a_thousand_palindromes() -> None:
    found = table_6_1.measure(palindromes(), 1_000, seed=0)
    assert palindromes().entropy < found["LL"] < found["PLL"] < found["MLM, local"] < found["MLM, raw"]
    assert found["LL"] < 6.5 and found["PLL"] < 6.9
    for name in sequence_contrastive.NOISES:
        assert found["LL"] - 0.05 < found[f"NCE, {name}"] < found["PLL"] and abs(found[f"log Z off, {name}"]) < 0.3


@pytest.mark.slow
def test_the_projection_needs_a_hundred_sequences() -> None:
    read, found = figure_6_1.measure(palindromes(), [100], seed=0)
    entropy = palindromes().entropy
    assert entropy < found["KL", 100] < entropy + 0.1
    assert found["KL", 100] < found["KL + PLL", 100] < found["PLL", 100]
    assert found["PLL", 100] > entropy + 1 and found[METHODS[3], 100] > entropy + 0.5
    assert entropy + 0.3 < read["local"] < read["raw"]
