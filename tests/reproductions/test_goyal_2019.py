"""Tables 5.1 to 5.6: the family of systems, and tables from tiny trainings whose numbers are counted by other means."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reproducing import setup
from reproductions.beyond import raw_scores
from reproductions.corpora import readers
from reproductions.goyal_2018 import exposure_bias, tables
from reproductions.goyal_2019 import label_bias, label_bias_tables, label_bias_translation, wider_beams
from reproductions.systems import Data, System
from reproductions.tasks import HARD_DECODERS, LONG_TRANSLATION, TRANSLATION, Task, supertags, train_task
from seqwise.data import Example, collate
from seqwise.data.subwords import join_pieces
from seqwise.decoding import Decoder
from seqwise.evaluation.metrics import Counts, token_accuracy
from seqwise.runs import load_run, predict
from seqwise.runs.measures import log_partitions_of
from seqwise.runs.settings import Settings, require_data, train_settings
from seqwise.search.candidates import shifted
from seqwise.search.selectors import HardTopK

BUDGET = {"longer": 2, "feeding": 1, "search": 1, "likelihood": 1}


def test_the_family_trains_what_the_tables_name() -> None:
    start = train_settings(task="tag", epochs=2.0, learning_rate=6e-3, minimum_count=1)
    systems = label_bias.family(start, 3, steps_per_epoch=100, budget=BUDGET)
    assert {*label_bias_tables.FROM_CROSS_ENTROPY, *label_bias_tables.FROM_NORMALIZED} < set(systems)
    before: set[str] = set()
    for key, system in systems.items():
        assert system.folder == f"seed-3/{key}" and system.settings.seed == 3
        require_data(system.settings.with_changes(train=Path("some")))
        assert system.starts_from is None or system.starts_from in before
        before.add(system.folder)
    # What a start is trained for, the other is too: they differ in the objective alone.
    plain, normalized = (systems[key].settings for key in ("cross-entropy", "self-normalized"))
    assert (
        plain.with_changes(objective="self-normalized", log_partition_weight=label_bias.LOG_PARTITION_WEIGHT)
        == normalized
    )
    assert systems["normalized-global"].settings == systems["direct-global"].settings
    assert systems["normalized-global"].starts_from == "seed-3/self-normalized"
    assert systems["distilled-global"].starts_from == "seed-3/distilled"
    assert systems["distilled"].starts_from == "seed-3/cross-entropy"
    exposed = exposure_bias.family(start, 3, steps_per_epoch=100, budget=BUDGET)
    assert {key: systems[key] for key in exposed} == exposed, "shared systems must be the very same cells"


START = train_settings(
    hidden_size=8, embedding_size=4, label_embedding_size=2, minimum_count=1, beam_size=2, batch_size=8,
    epochs=4.0, learning_rate=2e-2, encoder="bidirectional",
)  # fmt: skip
EXAMPLES = [Example(tuple("ab"), tuple("AB"), "x", 1), Example(tuple("bba"), tuple("CBA"), "x", 4)] * 12
DATA = Data(train=EXAMPLES, test=EXAMPLES[:5], dev=EXAMPLES[:4])


@pytest.mark.parametrize("scale", ["cpu", "converged"])
@pytest.mark.parametrize(
    ("task", "direction"), [(supertags("pmb"), "bi"), (supertags("pmb"), "uni"), (TRANSLATION, "bi")]
)
def test_cells_are_shared_with_other_tables_where_they_are_the_same(task: Task, direction: str, scale: str) -> None:
    """Two trainings in one folder would take turns in removing each other."""
    task = replace(task, load_data=lambda: DATA)
    here = label_bias.family_of(task, scale, direction)(0)["cross-entropy"].settings
    there = exposure_bias.family_of(task, scale, direction)(0)["cross-entropy"].settings
    folders = [label_bias.runs_of(task, scale, direction), exposure_bias.runs_of(task, direction)]
    own = task.name == "translation" and scale == "cpu"
    assert (folders[0] == folders[1]) == (here == there) == (not own)
    assert (folders[1] == task.name) == (direction == "bi")


def tiny_task() -> Task:
    def count(part: str, outputs: list[tuple[str, ...]]) -> object:
        examples = {"dev": DATA.dev, "test": DATA.test}[part]
        return token_accuracy(outputs, [example.target for example in examples])

    load = partial(Data, DATA.train, DATA.test, DATA.dev)
    return Task("tiny", "a tiny corpus", "accuracy", load, count, HARD_DECODERS)  # type: ignore[arg-type]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setitem(exposure_bias.PLANS, "tiny", exposure_bias.Plan({"cpu": START}, BUDGET))
    monkeypatch.setattr(label_bias_tables, "supertags", lambda name: tiny_task())
    monkeypatch.setattr(label_bias_tables, "CORPORA", ("tiny",))
    monkeypatch.setattr(label_bias_tables, "translation_at", lambda scale: tiny_task())
    return tiny_task()


@pytest.mark.thorough
def test_tables_from_beginning_to_end(tiny: Task, tmp_path: Path) -> None:
    uni, bi = label_bias_tables.table_5_3(setup(tmp_path, 0, 1))
    assert (uni.name, bi.name) == ("table-5.3-tiny-uni", "table-5.3-tiny-bi")
    assert load_run(tmp_path / "tiny-left-to-right/seed-1/normalized-global").settings.model.encoder == "left-to-right"
    assert load_run(tmp_path / "tiny/seed-1/normalized-global").settings.trained_score == "global"
    texts = [[claim.text for claim in outcome.table.claims] for outcome in (uni, bi)]
    assert "From a self-normalised start, global beats local." in texts[0] and len(texts[1]) == len(texts[0]) - 2
    published = {result.published for result in uni.table.results if result.published is not None}
    assert published == {76.54, 77.76, 83.93, 73.12, 73.83, 83.35, 85.50}

    # The same cells give Table 5.1; log Z there is what the definition says of the saved weights.
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cell.json")}
    (first,) = label_bias_tables.table_5_1(setup(tmp_path, 0, 1))  # both tasks have one name here
    assert {path: path.stat().st_mtime_ns for path in written} == written
    found = {(result.system, result.measure): result for result in first.table.results}
    values = []
    for seed in (0, 1):
        run = load_run(tmp_path / f"tiny/seed-{seed}/self-normalized")
        run.model.eval()
        for example in run.codec.encode(DATA.train):
            batch = collate([example])
            with torch.no_grad():
                logits = run.model.head(run.model.teacher_forced(run.model.encode(batch), batch.targets_BT))
            values.append((seed, logits[0].double().exp().sum(-1).log()))
    by_seed = [torch.cat([value for at, value in values if at == seed]) for seed in (0, 1)]
    mean = sum(part.mean().item() for part in by_seed) / 2
    variance = sum(part.var(unbiased=False).item() for part in by_seed) / 2
    # What the claim on log Z compares is the mean of |log Z| on development data.
    row = SimpleNamespace(runs=[tmp_path / "tiny/seed-0/self-normalized"])
    sizes = label_bias_tables._sizes(row, tiny)[0]  # type: ignore[arg-type]
    run = load_run(tmp_path / "tiny/seed-0/self-normalized")
    assert sizes.value == pytest.approx(
        log_partitions_of(run, run.codec.encode(DATA.dev)).abs().mean().item(), abs=1e-6
    )
    assert [claim.source for claim in first.table.claims][2] == "not in the papers", "of taggers they do not say it"
    on_train = found["self-normalised", "mean of log Z on train"]
    assert on_train.value == pytest.approx(mean, abs=1e-5) and on_train.published == 0.6
    assert found["self-normalised", "variance of log Z on train"].value == pytest.approx(variance, abs=1e-5)
    assert abs(found["cross-entropy", "mean of log Z on dev"].value) > abs(mean)


@pytest.mark.thorough
def test_systems_of_the_tables_are_searched_with_wider_beams(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wider_beams, "supertags", lambda name: tiny)
    monkeypatch.setattr(wider_beams, "translation_at", lambda scale: tiny)
    uni, bi, last = wider_beams.reproduce(setup(tmp_path, 0, 1))
    found = {(result.system, result.measure): result for result in bi.table.results}
    folder = tmp_path / "tiny"
    for key, decoder in (("self-normalized", "beam"), ("normalized-global", "raw-beam")):
        for beam in (2, 10):
            scores = {"beam": "local", "raw-beam": "global"}[decoder]
            shares = []
            for seed in (0, 1):
                run = load_run(folder / f"seed-{seed}" / key)
                outputs = predict(run, DATA.test, Decoder(HardTopK(beam), scores))
                shares.append(token_accuracy([best[0].tokens for best in outputs], [e.target for e in DATA.test]).value)
            shown = found[wider_beams.NAMES[key], f"beam of {beam}: accuracy"]
            assert shown.value == pytest.approx(50 * sum(shares))
    assert [claim.source for claim in uni.table.claims] == ["NAACL 2019, footnote 3"] * 9
    assert {claim.source for claim in last.table.claims} == {"NAACL 2019, footnote 4"}
    assert "beam of 5: accuracy" in {result.measure for result in last.table.results}
    # Neither trained nor searched again.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    (again,) = wider_beams.reproduce(replace(setup(tmp_path, 0, 1), only="wider-beams-pmb-uni"))
    assert again.table == uni.table
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.thorough
def test_a_very_large_alpha(tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "supertags", lambda name: tiny)
    (outcome,) = tables.large_alpha(setup(tmp_path))
    trained = load_run(tmp_path / "tiny-left-to-right/seed-0/direct-large").settings
    annealed = load_run(tmp_path / "tiny-left-to-right/seed-0/direct-annealed").settings
    assert trained == annealed.with_changes(alpha="100") and trained.alpha(0) == trained.alpha(9) == 100
    assert "direct loss, alpha = 100" in {result.system for result in outcome.table.results}
    assert len(outcome.table.claims) == 3


@pytest.fixture
def translation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny labels in the place of translations; "BLEU" is the share of right ones."""
    monkeypatch.setitem(
        exposure_bias.PLANS, "tiny", exposure_bias.Plan({"cpu": START.with_changes(epochs=1.0)}, BUDGET)
    )
    monkeypatch.setattr(label_bias_translation, "translation_at", lambda scale: replace(tiny_task(), measure="BLEU"))
    count = tiny_task().count
    monkeypatch.setattr(label_bias_translation, "_overlap", lambda n, part, outputs: count(part, outputs))
    monkeypatch.setattr(label_bias_translation, "_ratio", count)
    monkeypatch.setattr(label_bias_translation, "_bleu_of_bin", lambda *_: count(*_[-2:]))
    monkeypatch.setattr(label_bias_translation, "_source_lengths", lambda task, part: [4, 6, 9, 13, 14])


def test_claims_on_global_and_local_face_the_right_way() -> None:
    """The papers see more of everything but single words and pairs of words."""

    def of(**shares: int) -> SimpleNamespace:
        return SimpleNamespace(test={name: [Counts([n < share for n in range(200)])] for name, share in shares.items()})

    # By their other decoders it is the other way round.
    found = {
        "normalized-global": of(**{"raw-beam": 120, "beam": 10}),
        "normalized-local": of(**{"raw-beam": 199, "beam": 60}),
    }
    verdicts = {
        measure: label_bias_translation._global_and_local(measure, "5.5", found).verdict  # type: ignore[arg-type]
        for measure in ("1-gram overlap", "2-gram overlap", "3-gram overlap", "4-gram overlap", "length ratio")
    }
    assert list(verdicts.values()) == ["reversed", "reversed", "holds", "holds", "holds"]


@pytest.mark.thorough
def test_tables_5_5_and_5_6_show_the_systems_of_the_papers(
    translation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All start from a self-normalised model; published are numbers of development data, beside ours."""
    trained: list[str] = []

    def counted(task: Task, *given: Any) -> Any:
        trained.append(task.measure)
        return train_task(task, *given)

    monkeypatch.setattr(label_bias_translation, "train_task", counted)
    (outcome,) = label_bias_translation.table_5_5(setup(tmp_path))
    assert trained == ["BLEU"], "learning rates are chosen by the measure of the task, once for all columns"
    found = {(result.system, result.measure): result for result in outcome.table.results}
    assert list(dict.fromkeys(system for system, _ in found)) == [
        "self-normalised (beam)",
        "self-normalised, then local (beam)",
        "self-normalised, then global (raw beam)",
        "cross-entropy, longer (beam)",
    ]
    assert found["self-normalised (beam)", "1-gram overlap, dev"].published == 63.5
    assert found["self-normalised, then global (raw beam)", "length ratio, dev"].published == 0.959
    assert all(result.published is None for (_, name), result in found.items() if not name.endswith(", dev"))
    texts = [claim.text for claim in outcome.table.claims]
    assert texts[0] == "Global has less 1-gram overlap than local."
    assert texts[2:] == [
        f"Global has more than local: {name}." for name in ("3-gram overlap", "4-gram overlap", "length ratio")
    ]
    (by_length,) = label_bias_translation.table_5_6(setup(tmp_path))
    assert {claim.text for claim in by_length.table.claims} == {
        f"Global has more than local: {name}."
        for name in {result.measure for result in by_length.table.results}
        if not name.endswith(", dev")
    }
    (blue,) = label_bias_translation.table_5_4(setup(tmp_path))
    assert "Global from cross-entropy does worse than that cross-entropy." in [
        claim.text for claim in blue.table.claims
    ]


@pytest.mark.thorough
def test_raw_scores_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(seed: int, settings: Settings) -> dict[str, System]:
        return {"cross-entropy": System(f"s{seed}", f"seed-{seed}/cross-entropy", settings.with_changes(seed=seed))}

    plain = START.with_changes(objective="cross-entropy")
    writer = plain.with_changes(task="transduce", epochs=8.0)
    families = {
        "tagger": (tiny_task(), partial(one, settings=plain)),
        "writer": (replace(tiny_task(), title="of own length"), partial(one, settings=writer)),
    }
    monkeypatch.setattr(raw_scores, "_families", lambda scale: families)
    (outcome,) = raw_scores.reproduce(setup(tmp_path, 0, 1))
    found = {(result.system, result.measure): result.value for result in outcome.table.results}
    assert ("a tiny corpus", "raw beam less a constant") not in found
    # The constant is the mean of log Z on development data, and nothing else.
    values = []
    for seed in (0, 1):
        run = load_run(tmp_path / f"writer/seed-{seed}/cross-entropy")
        constant = log_partitions_of(run, run.codec.encode(DATA.dev)).double().mean().item()
        outputs = predict(run, DATA.test, Decoder(HardTopK(2), shifted(constant)))
        gold = [example.target for example in DATA.test]
        values.append(token_accuracy([best[0].tokens for best in outputs], gold).value)
    shown = found["of own length", "raw beam less a constant"]
    assert shown == pytest.approx(100 * sum(values) / 2)
    beam, raw = (found["of own length", name] for name in ("beam", "raw beam"))
    assert beam != raw, "nothing to recover: train less"
    assert found["of own length", "recovered by the constant"] == pytest.approx(100 * (shown - raw) / (beam - raw))
    assert 0 <= found["a tiny corpus", "ranked first by next log Z"] <= 100
    assert [claim.text[:30] for claim in outcome.table.claims].count("a tiny corpus: the raw beam be") == 1


@pytest.mark.thorough
def test_source_lengths_are_in_words(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQWISE_DATA", str(corpora))
    lengths = label_bias_translation._source_lengths(TRANSLATION, "test")
    assert len(lengths) == len(TRANSLATION.load_data().test)
    assert 6 < sum(lengths) / len(lengths) < 8  # Tatoeba's mean is 6.5 words, of its pairs


@pytest.mark.thorough
def test_long_sources_are_sentences_put_together(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQWISE_DATA", str(corpora))
    data, sentences = LONG_TRANSLATION.load_data(), TRANSLATION.load_data()
    assert len(sentences.train) == 27_473 and data.train[:164_834:6] == sentences.train
    count = len(sentences.test)
    assert data.test[:count] == sentences.test
    long, references = data.test[count:], readers.long_translation_references("test")
    assert len(references) == len(data.test) and references[:count] == readers.translation_references("test")
    lengths = label_bias_translation._source_lengths(LONG_TRANSLATION, "test")
    assert min(lengths[count:]) >= 20 and max(lengths[count:]) < 50 + max(lengths[:count])
    # Each sentence is in one of them at most, and nearly all are in one.
    words = sum(lengths[:count])
    assert words - 50 < sum(lengths[count:]) <= words
    texts = {join_pieces(example.source) for example in sentences.test}
    for example in long[:20]:
        assert any(join_pieces(example.source).startswith(text) for text in texts)
    # The target is one of the references, and BLEU of sentences does not look at what follows them.
    outputs = [example.target for example in data.test]
    assert all(join_pieces(output) in options for output, options in zip(outputs, references, strict=True))
    assert LONG_TRANSLATION.count("test", [*outputs[:count], *[("no",)] * len(long)]).value == 1.0
    of_bin = label_bias_translation._bleu_of_bin
    assert of_bin(LONG_TRANSLATION, (20, 30, 40), "40+", "test", outputs).value == 1.0
    assert of_bin(LONG_TRANSLATION, (20, 30, 40), "40+", "test", [*outputs[:count], *[("no",)] * len(long)]).value < 0.1


def test_groups_of_long_sources() -> None:
    pairs = [Example(tuple("abc"[: 1 + place % 3]), ("x",), "x", place) for place in range(400)]
    groups = readers.long_groups(pairs)
    places = [place for group in groups for place in group]
    assert len(set(places)) == len(places) and len(places) > 350
    lengths = [sum(len(pairs[place].source) for place in group) for group in groups]
    assert all(20 <= length <= 52 for length in lengths) and len(set(lengths)) > 8


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_overlap_counts_each_ngram_as_often_as_one_reference_has_it(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    pytest.importorskip("sacrebleu")

    def ngrams(text: str) -> list[tuple[str, ...]]:
        words = text.split()
        return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]

    generator = random.Random(n)
    counted = 0
    for _ in range(50):
        texts = [" ".join(generator.choices("ab", k=generator.randrange(9))) for _ in range(12)]
        predictions, references = [*texts[:3], "a b c d"], [texts[3:5], texts[5:8], texts[8:9], texts[9:]]
        monkeypatch.setattr(
            label_bias_translation, "_sentences", partial(lambda found, *_: found, (predictions, references))
        )
        overlap = label_bias_translation._overlap(n, "test", [])
        assert isinstance(overlap, Counts)
        assert overlap.denominators_N.tolist() == [len(ngrams(prediction)) for prediction in predictions]
        matched = [
            sum(
                min(ngrams(prediction).count(gram), max(ngrams(option).count(gram) for option in options))
                for gram in set(ngrams(prediction))
            )
            for prediction, options in zip(predictions, references, strict=True)
        ]
        assert overlap.numerators_N.tolist() == matched
        counted += sum(matched)
    assert counted > 10


def test_length_ratio_takes_the_closest_reference_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sacrebleu")
    predictions = ["a b c d", "a b", "a , b"]
    references = [["a b c", "a b c d e f"], ["a b c d e", "a"], ["a b c"]]
    monkeypatch.setattr(label_bias_translation, "_sentences", lambda *_: (predictions, references))
    # Lengths in tokens of sacrebleu: 4, 2, 3 against 3 (of 3 and 6), 1 (of 5 and 1), 3.
    assert label_bias_translation._ratio("test", []).value == pytest.approx((4 + 2 + 3) / (3 + 1 + 3))
