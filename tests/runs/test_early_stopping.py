"""Training that stops at its best on development data: the result, resumption, and refusals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Command
from run_folders import columns_file, json_lines, weights
from seqwise.data import Example
from seqwise.data.summary import estimated_unseen_share
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts
from seqwise.runs import load_run, new_run, train_run, train_settings
from seqwise.runs.inputs import read_examples
from seqwise.runs.model_settings import MANY_UNSEEN
from seqwise.runs.settings import Settings
from seqwise.runs.sizing import evaluated_examples, sized, sized_like
from seqwise.runs.training import train_stage
from seqwise.training.checkpoints import load_model_file
from seqwise.training.trainer import Progress

pytestmark = pytest.mark.thorough

SIZES: dict[str, Any] = {"hidden_size": 6, "embedding_size": 6, "label_embedding_size": 3, "beam_size": 2}


class Killed(BaseException):
    """Ends a training run, and nothing catches it."""


def tagged(count: int, *, seed: int) -> list[Example]:
    """Each label is that of the token before, or noise."""
    draw = random.Random(seed)
    examples = []
    for _ in range(count):
        source = tuple(draw.choices("abcd", k=draw.randint(2, 6)))
        labels = [token.upper() if draw.random() < 0.7 else draw.choice("ABCD") for token in ("a", *source[:-1])]
        examples.append(Example(source, tuple(labels)))
    return examples


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("data")
    files = {name: columns_file(folder / name, tagged(24, seed=seed)) for seed, name in enumerate(("train", "dev"))}
    return train_settings(
        **files, **SIZES, objective="relaxed-beam", warm_start_epochs=20.0, epochs=10.0, batch_size=4,
        evaluate_every=3, patience=2, learning_rate=0.02, warm_start_learning_rate=0.05, save_every=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that was never killed, and its metrics."""
    folder = tmp_path_factory.mktemp("whole")
    return folder / "run", train_run(settings, folder / "run")


def test_each_stage_stops_early_and_starts_from_the_best_of_the_one_before(
    settings: Settings, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    trained_run, metrics = whole
    for name, folder, steps in (("warm start", "warm-start", 120), ("training", "", 60)):
        seen, stage = json_lines(trained_run / folder / "measurements.jsonl"), metrics[name]
        best = max(seen, key=lambda line: (line["accuracy"], -line["cross-entropy"]))
        assert stage["best"] == best | {"epoch": best["step"] / 6}
        assert stage["stopped_early"] and stage["steps"] == best["step"] + 2 * 3 == seen[-1]["step"] < steps
    # The second stage alone, from the best checkpoint of the first, comes to the same weights.
    assert settings.dev is not None
    examples, dev = (read_examples(settings, path) for path in (settings.train, settings.dev))
    run = new_run(examples, settings)
    best_of_first = f"warm-start/checkpoints/checkpoint-{metrics['warm start']['best']['step']}/model.safetensors"
    best_weights = load_model_file(trained_run / best_of_first)
    run.model.load_state_dict({name.removeprefix("model."): weight for name, weight in best_weights.items()})
    last = settings.stages()[-1].settings
    train_stage(run, run.codec.encode(examples), last, folder=tmp_path / "alone", dev=dev)
    trained = load_run(trained_run).model.state_dict()
    assert all(torch.equal(trained[name], weight) for name, weight in run.model.state_dict().items())


@pytest.mark.parametrize("seed", range(2))
def test_killed_training_resumes_and_stops_with_the_same_files(
    seed: int, settings: Settings, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    draw = random.Random(seed)
    trained_run, metrics = whole
    for _ in range(5):
        left = draw.randrange(1, 14)

        def count(stage: str, progress: Progress) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        try:
            train_run(settings, tmp_path / "killed", on_progress=count)
        except Killed:
            continue
        break
    killed = train_run(settings, tmp_path / "killed")
    assert killed == metrics
    for name in ("model/model.safetensors", "log.jsonl", "measurements.jsonl", "warm-start/measurements.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (trained_run / name).read_bytes()


def alike(count: int) -> list[Example]:
    return [Example(("a",), ("A",))] * count


def test_only_what_is_not_given_is_sized() -> None:
    settings = train_settings(dev="dev", objective="hinge", epochs=3.0, warm_start_learning_rate=0.1)
    small, large = sized(settings, alike(100)), sized(settings, alike(50_000))
    for chosen in (small, large):
        assert (chosen.epochs, chosen.warm_start_learning_rate, chosen.patience) == (3.0, 0.1, 5)
        assert sized(chosen, alike(7)) == chosen
    assert small.batch_size < large.batch_size and small.evaluate_every < large.evaluate_every
    assert small.warm_start is not None and large.warm_start is not None
    assert small.warm_start.epochs > large.warm_start.epochs
    fixed = sized(train_settings(), alike(100))
    assert (fixed.evaluate_every, fixed.patience) == (0, None)


def test_a_warm_start_of_no_epochs_is_sized_like_none() -> None:
    without = sized(train_settings(objective="hinge", warm_start="none"), alike(40))
    of_none = sized(train_settings(objective="hinge", warm_start_epochs=0.0), alike(40))
    assert (of_none.epochs, of_none.learning_rate) == (without.epochs, without.learning_rate)


def test_small_data_get_more_epochs_where_training_can_stop_early() -> None:
    def epochs(count: int, **flags: Any) -> float:
        return sized(train_settings(**flags), alike(count)).epochs

    assert epochs(400, dev="dev") == 60  # 1,500 steps of 16
    assert epochs(100, dev="dev") == 60  # 420 steps: no more than 60 epochs
    assert epochs(1_000, dev="dev") == epochs(400) == 25
    assert epochs(400, dev="dev", patience=None) == epochs(400, dev="dev", evaluate_every=0) == 25
    assert epochs(400, dev="dev", evaluate_every=50) == 60
    assert epochs(50_000, dev="dev") == epochs(50_000)


def test_a_transducer_learns_more_slowly_in_small_batches() -> None:
    rates = {
        (task, count): sized(train_settings(task=task), alike(count)).learning_rate
        for task in ("tag", "transduce")
        for count in (1_000, 50_000)
    }
    assert rates == {
        ("tag", 1_000): 5e-3, ("transduce", 1_000): 2e-3, ("tag", 50_000): 3e-3, ("transduce", 50_000): 3e-3
    }  # fmt: skip


def test_a_tagger_reads_characters_where_many_words_will_be_unknown(tmp_path: Path) -> None:
    rare = [Example((f"once{place}", *("often",) * 19), ()) for place in range(20)]
    assert estimated_unseen_share(rare) == MANY_UNSEEN
    assert sized(train_settings(), rare).model == train_settings(characters=True).model
    frequent = [Example((*example.source, "often"), ()) for example in rare]
    assert sized(train_settings(), frequent).model == train_settings().model

    decided = [
        train_settings(characters=False),
        train_settings(minimum_count=1),  # refuses unknown words
        train_settings(task="transduce"),
        train_settings(task="tag", init=tmp_path, model="lstm", objective="cross-entropy", language=""),
    ]
    for settings in decided:
        assert sized(settings, rare).model == settings.model
    # A choice that was made is taken over, and one that was written is not.
    for settings, characters in ((train_settings(), True), (decided[0], False)):
        assert sized_like(settings, sized(train_settings(), rare)).model.characters == characters  # type: ignore[attr-defined]


def test_a_model_that_finds_no_entity_yet_gets_better_by_its_cross_entropy(tmp_path: Path) -> None:
    """The F1 of entities is 0 at first, which is no reason to stop."""
    sources = [one.source + (("e",) if place % 4 == 0 else ()) for place, one in enumerate(tagged(48, seed=0))]
    examples = [Example(source, tuple("B-X" if token == "e" else "O" for token in source)) for source in sources]
    files = {name: columns_file(tmp_path / name, examples) for name in ("train", "dev")}
    settings = train_settings(**files, **SIZES, epochs=30.0, batch_size=8, learning_rate=0.01)
    metrics = train_run(settings.with_changes(evaluate_every=8, patience=3), tmp_path / "run")
    seen = json_lines(tmp_path / "run" / "measurements.jsonl")
    assert [line["entity F1"] for line in seen[:4]] == [0.0] * 4  # one more than the patience
    assert metrics["training"]["best"]["entity F1"] > 0.9


def test_training_is_not_resumed_with_other_development_data(settings: Settings, tmp_path: Path) -> None:
    def kill(stage: str, progress: Progress) -> None:
        if progress.step == 8:
            raise Killed

    with pytest.raises(Killed):
        train_run(settings, tmp_path / "run", on_progress=kill)
    other = columns_file(tmp_path / "other", tagged(24, seed=5))
    with pytest.raises(InputError, match="made with other development data"):
        train_run(settings.with_changes(dev=other), tmp_path / "run")
    with pytest.raises(InputError, match=r"started with another (dev|evaluate_every|patience)"):
        train_run(train_settings(train=settings.train, objective="relaxed-beam", **SIZES), tmp_path / "run")


def test_a_measure_that_is_not_defined_is_refused(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undefined = Counts([1.0])
    monkeypatch.setattr(Counts, "value", property(lambda self: float("nan") if self is undefined else 1.0))
    monkeypatch.setattr("seqwise.runs.monitoring.measure", lambda *_: {"accuracy": undefined})
    with pytest.raises(InputError, match=r"dev: accuracy is nan on the development data; give other"):
        train_run(settings, tmp_path / "run")


# ------------------------------------------------------------------------------------------------- masked models


def test_a_masked_model_stops_at_its_best(tmp_path: Path, seqwise: Command) -> None:
    draw = random.Random(0)
    for name in ("train", "dev"):  # nothing can be learnt but how frequent each token is
        lines = (" ".join(draw.choices("abcd", [8, 4, 2, 1], k=5)) for _ in range(24))
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    sizes = ["--hidden-size=8", "--num-heads=2", "--num-layers=1", "--feedforward-size=8", "--learning-rate=0.05"]
    options = [tmp_path / "train", *sizes, "--batch-size=8", "--epochs=40", "--output", tmp_path / "run"]
    evaluated = ["--dev", tmp_path / "dev", "--evaluate-every=3", "--patience=2"]
    metrics = json.loads(seqwise("masked-model", "train", *options, *evaluated, "--json").out)
    seen = json_lines(tmp_path / "run" / "measurements.jsonl")
    best = min(seen, key=lambda line: line["masked_cross_entropy"])
    trained = metrics["training"]
    assert trained["best"] == best | {"epoch": best["step"] / 3}
    assert trained["stopped_early"] and trained["steps"] == best["step"] + 2 * 3 == seen[-1]["step"] < 120
    assert metrics["dev"]["masked_cross_entropy"] == pytest.approx(best["masked_cross_entropy"], rel=1e-5)
    before = weights(tmp_path / "run")
    said = " ".join(seqwise("masked-model", "train", *options, *evaluated).out.split())
    of_best = f"step {best['step']} (masked cross entropy {best['masked_cross_entropy']:.3f} on the evaluated sample)"
    assert f"already trained for {trained['steps']} steps; mean loss over the last steps " in said
    assert f"{of_best}; stopped early, at step {trained['steps']}" in said
    assert weights(tmp_path / "run") == before
    for flag, message in (("--patience=2", "patience: nothing is evaluated"), ("--evaluate-every=2", "evaluate_every")):
        assert seqwise("masked-model", "train", *options, flag).complaint.startswith(message)


def test_evaluations_take_a_quarter_of_the_examples_since_the_last_one() -> None:
    settings = [train_settings(evaluate_every=steps, batch_size=16) for steps in (1, 100, 1000)]
    assert list(map(evaluated_examples, settings)) == [100, 400, 500]


def test_sizes_that_were_chosen_are_taken_over() -> None:
    assert sized_like(train_settings(epochs=3.0), sized(train_settings(), alike(100))).batch_size == 16
