"""The reproduction transformer-translation on a tiny corpus: both models are trained, searched and measured."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reproducing import no_progress, setup
from reproductions import systems
from reproductions.beyond import transformer_translation
from reproductions.beyond.transformer_translation import SIZES, family, make_marian, reproduce, subword_tokenizer
from reproductions.cells import timed, train_seconds
from reproductions.corpora import readers as corpora
from reproductions.goyal_2021 import sampler_tasks
from seqwise.data.subwords import learn_subwords, split_text
from seqwise.evaluation.translation import bleu
from seqwise.runs import load_run
from seqwise.runs.settings import require_data
from seqwise.training.trainer import Progress

pytest.importorskip("sacrebleu")

NOUNS = {"Hund": "dog", "Katze": "cat", "Vogel": "bird", "Fisch": "fish", "Baum": "tree"}
VERBS = {"sieht": "sees", "mag": "likes", "sucht": "seeks"}
SHAPE = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "feedforward_size": 8, "dropout": 0.0}


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A corpus as it lies in the folder of data, of sentences that are all different."""
    folder = tmp_path / "data" / "mt-de-en-tatoeba"
    folder.mkdir(parents=True)
    pairs = [
        (f"der {one} {verb} den {other} .", f"the {NOUNS[one]} {VERBS[verb]} the {NOUNS[other]} .")
        for one in NOUNS
        for verb in VERBS
        for other in NOUNS
    ]
    for name, some in (("train", pairs[:60] * 4), ("valid", pairs[60:66]), ("test", pairs[66:])):
        with gzip.open(folder / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{source}\t{target}\n" for source, target in some)
    monkeypatch.setenv("SEQWISE_DATA", str(tmp_path / "data"))
    cached = [function for module in (corpora, transformer_translation) for function in vars(module).values()
              if hasattr(function, "cache_clear")]  # fmt: skip
    for function in cached:
        function.cache_clear()
    yield tmp_path
    for function in cached:
        function.cache_clear()


@pytest.mark.thorough
def test_both_models_from_beginning_to_end(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = SIZES["cpu"].training.with_changes(epochs=1.0, batch_size=8, beam_size=2)
    size = transformer_translation.Size(SHAPE, training, longer=0.5, sampling=0.5, search=0.5)
    monkeypatch.setitem(SIZES, "cpu", size)
    own, marian = reproduce(setup(texts / "runs", 0, 1))
    assert (own.name, marian.name) == ("transformer-translation-transformer", "transformer-translation-marian")
    for outcome, folder in ((own, "transformer"), (marian, "marian")):
        assert len(outcome.table.claims) == 5 and "nrefs:" in outcome.table.note
        # BLEU of what a cell wrote, counted again; and what the run that lies there writes.
        cells = [texts / f"runs/{folder}/seed-{seed}/local" for seed in (0, 1)]
        values = []
        for cell in cells:
            written = json.loads((cell / "cell.json").read_text("utf-8"))["outputs"]["beam"]
            run = load_run(cell)
            examples = corpora.translation_text().test
            if folder == "marian":  # which writes any of its tokens
                written = [[piece for piece in pieces if piece not in ("<unk>", "<pad>")] for pieces in written]
            plain = ["".join(pieces).replace("\u2581", " ").strip() for pieces in written]
            assert len(plain) == len(examples)
            if folder == "marian":  # whose targets are text
                assert [run.codec.target_text(pieces) for pieces in written] == plain
            values.append(100 * bleu(plain, corpora.translation_references("test")).value)
        (said,) = [one.value for one in outcome.table.results
                   if one.system == "relaxed beam, local" and one.measure == "beam: BLEU"]  # fmt: skip
        assert said == pytest.approx(sum(values) / 2, abs=1e-6)
    # Made a second time, nothing is trained again: not even the second model, whose start is written anew.
    before = {path: path.stat().st_mtime_ns for path in texts.rglob("cell.json")}
    assert len(before) == 20
    list(reproduce(setup(texts / "runs", 0, 1)))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # Nor under another name, where that start lies elsewhere.
    (texts / "runs").rename(texts / "elsewhere")
    list(reproduce(setup(texts / "elsewhere", 0, 1)))
    moved = {path: texts / "elsewhere" / path.relative_to(texts / "runs") for path in before}
    assert {path: new.stat().st_mtime_ns for path, new in moved.items()} == before


def test_all_pairs_are_in_the_subwords_of_a_sixth(texts: Path) -> None:
    some, every = corpora.translation(), corpora.translation(every=1)
    assert (len(some.train), len(every.train)) == (40, 240)
    assert every.train[::6] == some.train and (every.dev, every.test) == (some.dev, some.test)
    assert sampler_tasks.german.__wrapped__().train == every.train


@pytest.mark.thorough
def test_another_start_is_another_cell(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights that the folder of a Hugging Face model has are part of what a cell depends on."""
    training = SIZES["cpu"].training.with_changes(epochs=0.2, batch_size=8, beam_size=2)
    for shape in (SHAPE, SHAPE | {"feedforward_size": 12}):
        size = transformer_translation.Size(shape, training, longer=0.2, sampling=0.2, search=0.2)
        monkeypatch.setitem(SIZES, "cpu", size)
        list(reproduce(setup(texts / "runs")))
        written = load_run(texts / "runs/marian/seed-0/global").model.model.config
        assert written.encoder_ffn_dim == written.decoder_ffn_dim == shape["feedforward_size"]


def test_the_seconds_outlast_a_kill_while_the_run_is_saved(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while the trained run is saved: no training is left to do, and the seconds are those there were."""
    training = SIZES["cpu"].training.with_changes(model="transformer", **SHAPE, epochs=0.2, batch_size=8, beam_size=2)
    system = systems.System("one", "one", training)
    how = {"load_data": corpora.translation, "folder": texts, "progress": no_progress, "decoders": ("greedy",)}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(systems, "save_run", killed)
        systems.run_systems([system], **how)
    seconds = train_seconds(texts / "one")
    assert seconds > 0 and not (texts / "one" / "cell.json").exists()
    assert systems.run_systems([system], **how)["one"].train_seconds == seconds


def test_systems_are_those_that_train_accepts() -> None:
    for size in SIZES.values():
        found = family(size.training.with_changes(seed=3, model="transformer", **size.shape), size)
        assert {system.starts_from for key, system in found.items() if key != "cross-entropy"} == {
            "seed-3/cross-entropy"
        }
        for key, system in found.items():
            assert system.folder == f"seed-3/{key}" and system.settings.seed == 3
            require_data(system.settings.with_changes(train=Path("some")))
        times = {key: system.settings.epochs for key, system in found.items()}
        assert times["cross-entropy-longer"] > times["sampling"] > times["local"] == times["global"]


def test_the_start_is_the_same_for_the_same_seed(texts: Path) -> None:
    first, again, other = (make_marian(texts / name, SHAPE, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]
    state = torch.random.get_rng_state()
    make_marian(texts / "d", SHAPE, seed=3)
    assert torch.equal(state, torch.random.get_rng_state()), "it draws from a generator of its own"


@pytest.mark.parametrize(
    "text", ["low  lower", "lo\tw\n", " Cafe\u0301", "x low", "lower\u2581low", "", "low </s> low", "lowlow er"]
)
def test_a_tokenizer_splits_as_its_subwords_do(text: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    subwords = learn_subwords(["low lower", "low Caf\u00e9"], size=20)
    tokenizer = subword_tokenizer(subwords)
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        ids = one(text)["input_ids"]
        assert ids[-1] == one.eos_token_id and one.pad_token_id == len(one) - 1
        if "</s>" not in text:  # which is a token to the one, and text to the other
            assert tuple(one.convert_ids_to_tokens(ids[:-1])) == split_text(text, subwords)
            if "x" not in text:
                assert one.decode(ids, skip_special_tokens=True) == "".join(
                    split_text(text, subwords)
                ).replace("\u2581", " ").strip()  # fmt: skip


def test_what_was_trained_before_a_kill_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 104.0, 200.0, 203.0])
    monkeypatch.setattr("reproductions.cells.time.process_time", lambda: next(clock))
    watch = timed(tmp_path, lambda *_: None)
    for step in range(1, 9):
        watch(Progress(step, 8, 0.0, 0.1, 1.0, {}, 1.0))
    assert train_seconds(tmp_path) == 4.0
    # Of the second process, which began at step 5, three seconds for half of the steps.
    watch = timed(tmp_path, lambda *_: None)
    for step in range(5, 9):
        watch(Progress(step, 8, 0.0, 0.1, 1.0, {}, 1.0))
    assert train_seconds(tmp_path) == 6.0


def test_what_development_data_end_is_measured_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 103.0, 106.0])
    monkeypatch.setattr("reproductions.cells.time.process_time", lambda: next(clock))
    watch = timed(tmp_path, lambda *_: None, every=2)
    for step in range(1, 5):  # of eight
        watch(Progress(step, 8, 0.0, 0.1, 1.0, {}, 1.0))
    assert train_seconds(tmp_path) == 6.0
