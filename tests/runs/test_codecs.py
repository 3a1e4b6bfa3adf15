"""Runs of every kind, saved and loaded by one pair of functions; commands name the right command for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from letters import letter_bart, letter_tokenizer
from pretrained import bert, made, saved, word_tokenizer
from seqwise.data import Example, Tokenizer, Vocabulary
from seqwise.errors import InputError
from seqwise.runs import Run, Scorer, load_run, masked_settings, new_run, predict, save_run
from seqwise.runs.masked_model_training import new_masked_run
from seqwise.runs.run import fingerprint
from seqwise.runs.settings import train_settings
from seqwise.training.checkpoints import seal

WORDS = [Example(("the", "dog"), ("D", "N")), Example(("a", "cat"), ("D", "N"))]
SEQUENCES = [Example((), ("the", "dog", "sees")), Example((), ("a", "cat"))]
TEXTS = [Example((), ("the dog sees",)), Example((), ("a cat",))]


def tagger(folder: Path) -> Any:
    return new_run(
        WORDS, train_settings(task="tag", objective="cross-entropy", minimum_count=1, hidden_size=4, embedding_size=4)
    )


def speller(folder: Path) -> Any:
    settings = train_settings(task="tag", objective="cross-entropy", hidden_size=4, embedding_size=4, characters=True)
    return new_run(WORDS, settings)


def generator(folder: Path) -> Any:
    saved(folder / "bart", letter_bart(max_position_embeddings=12), letter_tokenizer())
    return new_run([], train_settings(objective="cross-entropy", model=str(folder / "bart")))


def encoder(folder: Path) -> Any:
    saved(folder / "bert", bert(), word_tokenizer())
    return new_run(
        WORDS, train_settings(objective="cross-entropy", task="tag", model=str(folder / "bert"), hidden_size=4)
    )


def masked(folder: Path) -> Any:
    return new_masked_run(SEQUENCES, masked_settings(minimum_count=1, hidden_size=8, num_heads=2))


def masked_text(folder: Path) -> Any:
    return load_run(saved(folder / "bert", made(bert(), dtype=torch.float32), word_tokenizer()))


MAKERS = {
    "tokenizers": tagger,
    "spelling": speller,
    "text": generator,
    "word-pieces": encoder,
    "masked": masked,
    "masked-text": masked_text,
}


@pytest.fixture(params=list(MAKERS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def results(run: Run[Any, Any]) -> Any:
    run.model.eval()
    if run.codec.purpose == "predict":
        return predict(run, ["a b" if run.codec.kind == "text" else "the dog"], n_best=2)
    examples = TEXTS if run.codec.kind == "masked-text" else SEQUENCES
    scores = Scorer(run, pieces="original").score_examples(examples)
    return [(score.tokens, score.token_log_probs_T.tolist()) for score in scores]


def test_a_run_of_any_kind_survives_saving(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = MAKERS[kind](tmp_path)
    save_run(run, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "model" / "codec.json").read_text()) == {"kind": kind}
    back = load_run(tmp_path / "run")
    assert type(back.codec) is type(run.codec) and back.settings == run.settings
    assert results(back) == results(run) and fingerprint(back) == fingerprint(run)


def test_the_command_that_takes_a_run_is_named(kind: str, tmp_path: Path) -> None:
    run = MAKERS[kind](tmp_path)
    save_run(run, tmp_path / "run")
    if run.codec.purpose == "predict":
        said, other = "holds a run of seqwise train, .*use it with seqwise predict or seqwise evaluate", "score"
    else:
        said, other = "holds a masked model, .*use it with seqwise score or seqwise sample", "predict"
        with pytest.raises(InputError, match=f"the run {said}"):
            predict(run, ["the dog"])
    with pytest.raises(InputError, match=f"run: the folder {said}"):
        load_run(tmp_path / "run", to=other)  # type: ignore[arg-type]
    assert load_run(tmp_path / "run", to=run.codec.purpose).codec.kind == kind


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"kind": "runes"}', "there is no codec 'runes'"),
        ('{"kind": ["masked"]}', r"there is no codec \['masked'\]"),
        ("{}", "expected exactly the keys kind"),
        ("", "the file is empty"),
    ],
)
def test_an_unknown_codec_is_refused(content: str, said: str, tmp_path: Path) -> None:
    save_run(tagger(tmp_path), tmp_path / "run")
    path = tmp_path / "run" / "model" / "codec.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"codec\.json: the file differs from its checksum"):
        load_run(tmp_path / "run")
    seal(path.parent)
    with pytest.raises(InputError, match=rf"codec\.json: .*{said}"):
        load_run(tmp_path / "run")


def test_a_part_of_a_run_is_not_the_run(tmp_path: Path) -> None:
    save_run(tagger(tmp_path), tmp_path / "run")
    with pytest.raises(InputError, match=r"run/model: the folder is a part of a run; give the run, .*/run$"):
        load_run(tmp_path / "run" / "model")


def changed_weight(run: Any) -> Any:
    with torch.no_grad():
        next(run.model.parameters()).add_(1.0)
    return run


CHANGES: dict[str, Callable[[Any], Any]] = {
    "weights": changed_weight,
    "settings": lambda run: replace(run, settings=run.settings.replace(beam_size=2)),
    "codec": lambda run: replace(
        run, codec=replace(run.codec, target=Tokenizer(Vocabulary(run.codec.target_vocabulary.tokens[::-1])))
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_fingerprint_depends_on_weights_settings_and_codec(name: str, tmp_path: Path) -> None:
    run = tagger(tmp_path)
    before = fingerprint(run)
    assert before == fingerprint(tagger(tmp_path)) and fingerprint(CHANGES[name](run)) != before
