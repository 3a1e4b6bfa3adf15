"""Reproductions of Andreas and Klein's tables and figure: made-up numbers, cells on a tiny text, a closed form."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reproducing import no_progress, read_back, setup
from reproductions import run_reproduction
from reproductions.andreas_klein_2015 import figure_1, language_models
from reproductions.andreas_klein_2015 import tables as andreas_klein
from reproductions.andreas_klein_2015.language_model import LanguageModel
from reproductions.andreas_klein_2015.language_models import Size, Text, Translations, measure_rows, split_words
from reproductions.andreas_klein_2015.reranking import Candidate, Tuned
from reproductions.andreas_klein_2015.streams import Sentence, build_vocabulary
from reproductions.andreas_klein_2015.tables import (
    TABLE_1,
    TABLE_2,
    Measured,
    about_as_fast,
    measure,
    table_1,
    table_2,
    with_weight,
)
from reproductions.comparison import LEARNING_RATE, judge, no_worse
from reproductions.corpora import readers as corpora_readers
from reproductions.systems import Data, System
from reproductions.values import sums_of
from seqwise.data.batches import collate
from seqwise.data.readers import Example
from seqwise.evaluation.metrics import Counts
from seqwise.evaluation.signature import sha256_of_examples, sign
from seqwise.runs import load_run
from seqwise.runs.run import OutputRun

SIZE = Size(positions=100, num_weights=2000, translator_epochs=1.0)


# ---- Figure 1 -------------------------------------------------------------------------------------------------------


def nearest_by_search(point: list[float]) -> float:
    """Distance of a point to the curve, which is x = log(e^y + e^-2y), by trying a fine grid of y."""
    ys = torch.linspace(point[1] - 3, point[1] + 3, 200_001, dtype=torch.float64)
    xs = (ys.exp() + (-2 * ys).exp()).log()
    return float(torch.maximum((xs - point[0]).abs(), (ys - point[1]).abs()).min())


def test_the_curve_and_the_distances_against_the_closed_form() -> None:
    """Z = e^(-x + y) + e^(-x - 2 y) = 1 where x = log(e^y + e^-2y)."""
    curve_P2 = figure_1.normalizable_curve(figure_1.THETA_K2, extent=4.0, num_points=41)
    for x, y in curve_P2.tolist():
        assert x == pytest.approx(math.log(math.exp(y) + math.exp(-2 * y)), abs=1e-12)
    cloud = figure_1.cloud(curve_P2, 0.8, generator=torch.Generator().manual_seed(0), count=40)
    distances = [nearest_by_search(point) for point in cloud.inputs_N2.tolist()]
    assert cloud.distance == pytest.approx(sum(distances) / 40, abs=1e-4)
    risks = [abs(math.log(math.exp(y - x) + math.exp(-2 * y - x))) for x, y in cloud.inputs_N2.tolist()]
    assert cloud.risk == pytest.approx(sum(risks) / 40, abs=1e-12)
    assert cloud.bound == pytest.approx(2 * 2 * cloud.distance)
    # |log Z| changes by at most |x| + 2 |y|, three times the largest difference, where d B is four.
    ratios = [risk / (4 * distance) for risk, distance in zip(risks, distances, strict=True) if distance > 0.05]
    assert max(ratios) - 0.01 < cloud.worst <= 0.75 + 1e-9


def test_claims_are_reversed_where_the_points_say_so() -> None:
    curve_P2 = figure_1.normalizable_curve(figure_1.THETA_K2, extent=4.0, num_points=101)
    generator = torch.Generator().manual_seed(0)
    cloud = figure_1.cloud(curve_P2, 0.2, generator=generator, count=200)
    drawn = figure_1.samples(cloud.inputs_N2, generator=generator, sizes=[10])
    verdicts = [claim.verdict for claim in figure_1.examine(curve_P2, [cloud], drawn)]
    assert verdicts == ["holds"] * 4
    wavy_P2 = curve_P2 + 0.05 * torch.arange(101, dtype=torch.float64).sin()[:, None]
    beyond = torch.cat([curve_P2, torch.tensor([[-1.0, 0.0]], dtype=torch.float64)])
    for number, arguments in enumerate(
        [
            (wavy_P2, [cloud], drawn),
            (beyond, [cloud], drawn),
            (curve_P2, [replace(cloud, worst=1.01)], drawn),
            (curve_P2, [cloud], [replace(drawn[0], largest=2 * drawn[0].bound)]),
        ]
    ):
        assert figure_1.examine(*arguments)[number].verdict == "reversed"


@pytest.mark.thorough
def test_figure_1_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figure_1, "INPUTS", 100)
    monkeypatch.setattr(figure_1, "POINTS", 51)
    (outcome,) = run_reproduction("figure-1", tmp_path, seed=0, scale=None, progress=no_progress)
    figure = outcome.files["figure"].read_bytes()
    assert figure.startswith(b"\x89PNG") and 10_000 < len(figure) < 200_000
    read_back(outcome, tmp_path)
    assert [claim.verdict for claim in outcome.table.claims] == ["holds"] * 4
    found = {(result.system, result.measure): result.value for result in outcome.table.results}
    assert found["within 0.2", "mean |log Z|"] < found["within 0.2", "bound d B D"]
    assert found["1,000 inputs", "largest deviation"] < found["1,000 inputs", "bound of Theorem 2"]


# ---- Claims ---------------------------------------------------------------------------------------------------------


def shares(*right: int, of: int = 400) -> list[Counts]:
    return [Counts([place < number for place in range(of)]) for number in right]


def test_verdicts_on_made_up_numbers() -> None:
    assert judge("c", "s", shares(300, 310), shares(200, 210)).verdict == "holds"
    assert judge("c", "s", shares(200, 210), shares(300, 310)).verdict == "reversed"
    assert judge("c", "s", shares(200, 204), shares(203, 200)).verdict == "not seen"
    assert judge("c", "s", shares(300, 300), shares(200, 200), prefix="n: ").evidence.startswith("n: +25.0 [")
    assert judge("c", "s", shares(300, 300), shares(200, 200), scale=1.0).evidence.startswith("+0.25 [0.2")
    assert no_worse("c", "s", shares(200, 200), shares(200, 200)).verdict == "holds"
    assert no_worse("c", "s", shares(300, 300), shares(200, 200)).verdict == "holds", "better is no worse"
    assert no_worse("c", "s", shares(200, 200), shares(300, 300)).verdict == "reversed"
    # No significant difference, but one of a point or more cannot be ruled out either.
    assert no_worse("c", "s", shares(201, 200), shares(198, 202)).verdict == "not seen"
    assert no_worse("c", "s", shares(201, 200), shares(198, 202), margin=0.2).verdict == "holds"


def test_a_claim_on_lists_that_are_ranked_without_the_language_model_is_not_tested() -> None:
    row, claim = andreas_klein.TABLE_1[4], no_worse("c", "s", shares(200, 200), shares(200, 200))
    assert claim.verdict == "holds"

    def measured(*weights: float) -> Measured:
        tuned = [Tuned(weight, 0.5, 0.07) for weight in weights]
        return Measured(row, tuned, [], [], [], [], [], None, "", sign("made up", seeds=[0, 1], data="0" * 64))

    assert with_weight(claim, measured(0.1, 0.2), measured(0.02, 1.0)) == claim
    for weights in ((0.0, 0.0), (0.1, 0.0)):
        untested = with_weight(claim, measured(0.1, 0.2), measured(*weights))
        assert untested.verdict == "not tested" and not untested.values
        assert untested.evidence.startswith(f"weight 0: γ = 1 in {weights.count(0.0)} of 2 seeds; ")


def test_speed_is_compared_by_seed() -> None:
    close = about_as_fast("c", "s", [80.0, 90.0, 100.0], [10.0, 10.0, 10.0], times=10)
    assert close.verdict == "not seen" and "by seed 8.0, 9.0, 10.0" in close.evidence
    # By hand: mean of the logs 2.1930, standard deviation 0.1117, Student's t of two degrees of freedom 4.303.
    low, high = (math.exp(2.19299 + sign * 4.303 * 0.11167 / math.sqrt(3)) for sign in (-1, 1))
    assert f"9.0 times [{low:.1f}, {high:.1f}]" in close.evidence
    for slow, verdict in ((79.0, "not seen"), (82.0, "holds"), (122.0, "holds"), (127.0, "not seen")):
        steady = about_as_fast("c", "s", [slow, slow + 0.1, slow + 0.2], [10.0] * 3, times=10)
        assert steady.verdict == verdict, slow
    assert about_as_fast("c", "s", [40.0, 41.0, 42.0], [10.0] * 3, times=10).verdict == "not seen"
    assert about_as_fast("c", "s", [10.0, 50.0, 400.0], [10.0] * 3, times=10).verdict == "not seen"
    assert about_as_fast("c", "s", [5.0, 5.1, 5.2], [10.0] * 3, times=10).verdict == "reversed"
    assert about_as_fast("c", "s", [100.0], [10.0], times=10).verdict == "not seen"


# ---- Cells and tables on a tiny text --------------------------------------------------------------------------------

NOUNS = ["dog", "cat", "bird", "child", "cow"]


def tiny() -> tuple[Text, Translations]:
    """A language of "the NOUN runs home ." and lists in which the wrong order has the better first score."""
    chance = random.Random(0)

    def sentence() -> str:
        return f"the {chance.choice(NOUNS)} runs {chance.choice(['home', 'away', 'home'])} ."

    known = [Sentence(split_words(sentence())) for _ in range(300)]
    text = Text(known, [Sentence(split_words(sentence())) for _ in range(30)], build_vocabulary(known), ("tiny 1",))
    right = {part: [sentence() for _ in range(25)] for part in ("dev", "test")}
    candidates = {
        part: [
            [Candidate(" ".join(reversed(one.split())), -1.0), Candidate(one, -1.5 - 0.5 * (n % 3))]
            for n, one in enumerate(some)
        ]
        for part, some in right.items()
    }
    return text, Translations(candidates, {part: [[one] for one in some] for part, some in right.items()})


@pytest.mark.thorough
def test_a_table_from_a_tiny_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both tables end to end but for the translator; run again, no cell is trained anew."""
    pytest.importorskip("sacrebleu")
    text, lists = tiny()
    monkeypatch.setattr(andreas_klein, "load_text", lambda scale: text)
    monkeypatch.setattr(andreas_klein, "translations", lambda setup: lists)
    monkeypatch.setattr(andreas_klein, "SIZES", {"cpu": SIZE})
    monkeypatch.setattr(language_models, "BATCH", 128)  # the text has 1,800 positions
    (first,) = table_1(setup(tmp_path, 0, 1))
    found = {(result.system, result.measure): result for result in first.table.results}
    # The language model knows the order of words, the translator does not.
    assert found["no language model, word bonus", "BLEU"].value < 20 < 60 < found["γ = 0.1", "BLEU"].value
    assert found["γ = 0", "R"].value > 3 > found["γ = 0.1", "R"].value
    weights = found["γ = 0.1", "weight"]
    by_seed = [sums.value for sums in sums_of(weights.values[0])]
    assert len(by_seed) == 2 and sum(by_seed) / 2 == pytest.approx(weights.value) and weights.value > 0
    assert 1 < found["cross-entropy", "perplexity"].value < 6
    assert found["normalised, α = 0.1 (Devlin)", "BLEU"].published == 20.1
    verdicts = {claim.text: claim.verdict for claim in first.table.claims}
    assert len(verdicts) == 8
    assert verdicts["The language model (γ = 0.1) improves on the translator with a word bonus."] == "holds"
    risk = "Without any normaliser (γ = 0) the risk R is larger than with γ = 0.1."
    assert verdicts[risk] == "holds"
    read_back(first, tmp_path)
    assert first.lesson.count("\n") == 7

    trained = []
    original = language_models.fit_language_model
    monkeypatch.setattr(
        language_models, "fit_language_model", lambda *given, **more: (trained.append(1), original(*given, **more))
    )
    (again,) = table_1(setup(tmp_path, 0, 1))
    assert trained == [] and again.table == first.table
    (second,) = table_2(setup(tmp_path, 0, 1))
    assert len(trained) == 3 * 2  # alpha = 1 and the controls are those of Table 1
    alphas = {result.system: result.value for result in second.table.results if result.measure == "R"}
    assert alphas["α = 0.01"] > alphas["α = 1"] and len(second.table.claims) == 5
    changed = replace(text, held_out=text.held_out[:3])
    measure_rows(TABLE_2[:1], changed, lists, setup(tmp_path, 0), size=SIZE)
    assert len(trained) == 7  # other data, other cell


def test_measures_are_those_of_the_cell(tmp_path: Path) -> None:
    """Risk, spread and loss of one cell, summed by hand; BLEU with the weight chosen on dev alone."""
    pytest.importorskip("sacrebleu")
    text, lists = tiny()
    rows = [TABLE_1[3]]
    cells = measure_rows(rows, text, lists, setup(tmp_path, 3), size=SIZE)
    (cell,) = cells["gamma-0.1"]
    values = [value for _, some in cell.held_out for value in some]
    assert len(values) == sum(len(sentence.tokens) + 1 for sentence in text.held_out)
    measured, alone = measure("t", rows, cells, lists)
    one = measured["gamma-0.1"]
    mean = sum(values) / len(values)
    assert one.risk[0].value == pytest.approx(sum(map(abs, values)) / len(values))
    assert one.deviation[0].value == pytest.approx(sum(abs(value - mean) for value in values) / len(values))
    assert one.loss[0].value == pytest.approx(mean - sum(score for score, _ in cell.held_out) / len(values))
    assert one.signature.seeds == (3,) and one.signature.method == "t: γ = 0.1"
    known = sha256_of_examples(Example(sentence.tokens, ()) for sentence in text.train)
    assert one.signature.training == (f"examples {known}", *text.sources)
    assert alone.value < one.bleu[0].value
    # Test lists turned round change what is measured, not what is chosen.
    turned = {**lists.candidates, "test": [some[::-1] for some in lists.candidates["test"]]}
    scores = {**cell.scores, "test": [[-9.0 * n for n in range(len(some))] for some in cell.scores["test"]]}
    other, _ = measure("t", rows, {"gamma-0.1": [replace(cell, scores=scores)]}, replace(lists, candidates=turned))
    assert other["gamma-0.1"].tuned == one.tuned
    record = json.loads((tmp_path / "seed-3" / "gamma-0.1-0.3.json").read_text())
    assert record["train_seconds"] == cell.train_seconds > 0 and cell.learning_rate is None


@pytest.mark.parametrize(("scale", "evaluate_every"), [("cpu", 0), ("converged", 10)])  # half of an epoch's 20 steps
def test_translators_stop_early_where_language_models_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str, evaluate_every: int
) -> None:
    trained: list[System] = []

    def list_cells(systems: list[System], *_: object, **__: object) -> list[object]:
        trained.extend(systems)
        return []

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    pairs = [Example(("a",), ("b",))] * 640
    monkeypatch.setattr(corpora_readers, "translation", lambda: Data(train=pairs, dev=pairs, test=pairs))
    monkeypatch.setattr(language_models, "cells_of", list_cells)
    monkeypatch.setattr(language_models, "run_cells", interrupt)
    with pytest.raises(KeyboardInterrupt):
        language_models.translations(replace(setup(tmp_path, 0), scale=scale))
    assert [system.name for system in trained] == ["translator", "channel"]
    settings = trained[0].settings
    assert settings.epochs == language_models.SIZES[scale].translator_epochs
    assert settings.evaluate_every == evaluate_every


def test_the_best_pass_is_kept_and_the_first_worse_one_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, lists = tiny()
    values, passes = iter([0.1, 0.3, 0.2, 0.9]), []

    def measured(run: LanguageModel, *_: object) -> dict[str, object]:
        passes.append(run.model.weights_M.detach().clone())
        value = next(values)
        return {"on_dev": value, "scores": {"dev": [[value]], "test": [[value]]}, "held_out": [[value, [value]]]}

    monkeypatch.setattr(language_models, "_measure", measured)
    size = replace(SIZE, most_epochs=4)
    (cell,) = measure_rows(TABLE_1[3:4], text, lists, setup(tmp_path, 0), size=size)["gamma-0.1"]
    assert len(passes) == 3 and not torch.equal(passes[1], passes[2])
    assert cell.on_dev == 0.3 and cell.scores["test"] == [[0.3]] and cell.held_out == [(0.3, [0.3])]


def test_the_rate_is_that_with_which_the_first_seed_was_best_on_the_development_lists(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    text, lists = tiny()
    size = replace(SIZE, rates=(1e-9, 1.0))  # the first learns nothing
    cells = measure_rows(TABLE_1[3:4], text, lists, setup(tmp_path, 0, 1), size=size)["gamma-0.1"]
    assert [(cell.learning_rate, cell.place_of_rate) for cell in cells] == [(0.3, "highest")] * 2
    assert sorted(path.name for path in tmp_path.glob("seed-1/*")) == ["gamma-0.1-0.3.json"]
    (unlearned,) = measure_rows(TABLE_1[3:4], text, lists, setup(tmp_path, 0), size=replace(size, rates=(1e-9,)))[
        "gamma-0.1"
    ]
    assert unlearned.on_dev < cells[0].on_dev
    measured, _ = measure("t", TABLE_1[3:4], {"gamma-0.1": cells}, lists)
    (rate,) = [row for row in andreas_klein._results(measured["gamma-0.1"]) if row.measure == LEARNING_RATE]
    assert (rate.value, rate.note) == (0.3, "highest")


def test_the_translator_alone_has_a_word_bonus_as_well(tmp_path: Path) -> None:
    """Lists whose right candidates are longer: a bonus finds them all, and is no merit of a language model."""
    pytest.importorskip("sacrebleu")
    text, _ = tiny()
    whole, cut = "the dog runs home and the cat runs away .", "the dog runs home and the cat"
    some = [[Candidate(cut, -1.0), Candidate(whole, -1.5)]] * 5
    lists = Translations({"dev": some, "test": some}, {"dev": [[whole]] * 5, "test": [[whole]] * 5})
    cells = measure_rows(TABLE_1[3:4], text, lists, setup(tmp_path, 0), size=SIZE)
    _, alone = measure("t", TABLE_1[3:4], cells, lists)
    assert alone.value == pytest.approx(1.0)


def log_probability(run: OutputRun, pair: Example) -> float:
    """By one pass for each prefix of the target, without padding."""
    (encoded,) = run.codec.encode([pair])
    total, target = 0.0, encoded.target_ids
    run.model.eval()
    for count in range(1, len(target) + 1):
        batch = collate([replace(encoded, target_ids=target[:count])])
        with torch.no_grad():
            logits = run.model.head(run.model.teacher_forced(run.model.encode(batch), batch.targets_BT))
        total += math.log(logits[0, -1].double().softmax(0)[target[count - 1]].item())
    return total


@pytest.mark.thorough
def test_lists_are_made_by_a_translator_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [Example(("▁ein", f"▁{noun}"), ("▁a", f"▁{noun}")) for noun in NOUNS]
    references = {part: [["a " + noun] for noun in NOUNS] for part in ("dev", "test")}
    monkeypatch.setattr(corpora_readers, "translation", lambda: Data(train=pairs * 4, dev=pairs, test=pairs))
    monkeypatch.setattr(language_models, "reversed_translation", language_models.reversed_translation.__wrapped__)
    monkeypatch.setattr(corpora_readers, "translation_references", references.get)
    monkeypatch.setitem(language_models.SIZES, "cpu", replace(SIZE, translator_epochs=2.0, candidates=3))
    lists = language_models.translations(setup(tmp_path))
    assert lists.references == references
    for part in ("dev", "test"):
        assert [1 <= len(candidates) <= 3 for candidates in lists.candidates[part]] == [True] * len(NOUNS)
        # The first score is that of the German given the English, piece by piece.
        channel = load_run(tmp_path / "channel")
        for pair, candidates in zip(pairs, lists.candidates[part], strict=True):
            for candidate in candidates:
                words = tuple(f"▁{word}" for word in candidate.text.split())
                assert candidate.score == pytest.approx(log_probability(channel, Example(words, pair.source)), abs=1e-4)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert language_models.translations(setup(tmp_path)) == lists
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_the_text_of_the_recipe(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary of 15,000 or more, the size that was asked for, and nothing that the translator or a test has."""
    monkeypatch.setenv("SEQWISE_DATA", str(corpora))
    monkeypatch.setitem(language_models.SIZES, "cpu", replace(language_models.SIZES["cpu"], positions=20_000))
    text = language_models.load_text.__wrapped__("cpu")
    assert len(text.vocabulary) >= 15_000 and 20_000 <= text.num_positions < 20_200
    assert len(text.held_out) == 1000
    pairs = corpora_readers._pairs("train.tsv.gz")[:: corpora_readers.EVERY]
    seen = {corpora_readers.join(pair.target) for pair in pairs}
    unseen = set(language_models.unseen_english())
    assert len(unseen) > 80_000 and not seen & unseen
    for part in ("dev", "test"):
        assert not unseen & {one for some in corpora_readers.translation_references(part) for one in some}
