"""Settings that nothing in a training would read are refused; all others are not."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from seqwise import InputError
from seqwise.names import ONLY_FOR
from seqwise.runs.effects import _EFFECTS, require_effect
from seqwise.runs.settings import Settings, check, load_settings
from seqwise.runs.stages import resolve
from seqwise.runs.training import train_run

ALWAYS_READ = {
    "task", "train", "dev", "minimum_count", "model", "hidden_size", "dropout", "objective", "beam_size", "alpha",
    "epochs", "learning_rate", "batch_size", "clip", "seed", "save_every",
}  # fmt: skip
SHARED = {"embedding_size", "label_embedding_size", "warm_start_epochs", "warm_start_learning_rate"}
REFUSED_BY_CHECK = {*ONLY_FOR, "score", "feeding_passes"}


def test_every_setting_is_known() -> None:
    names = {field.name for field in fields(Settings)}
    assert names == ALWAYS_READ | SHARED | REFUSED_BY_CHECK | set(_EFFECTS)
    assert not set(_EFFECTS) & (ALWAYS_READ | SHARED | REFUSED_BY_CHECK)


@pytest.mark.parametrize(
    ("named", "settings"),
    [
        ("token_column", {"task": "transduce", "token_column": 1}),
        ("label_column", {"task": "transduce", "label_column": 1}),
        ("encoder", {"task": "transduce", "encoder": "left-to-right"}),
        ("source_units", {"source_units": "characters"}),
        ("target_units", {"target_units": "subwords"}),
        ("subword_vocabulary", {"task": "transduce", "subword_vocabulary": 50}),
        ("num_layers", {"task": "transduce", "num_layers": 3}),
        ("num_heads", {"num_heads": 2}),
        ("feedforward_size", {"model": "chain", "feedforward_size": 3}),
        ("feeding", {"objective": "hinge", "feeding": "sample"}),
        ("feeding", {"feeding": "sample"}),
        ("gold_probability", {"objective": "cross-entropy", "gold_probability": "0.5"}),
        ("log_partition_weight", {"objective": "hinge", "log_partition_weight": 0.3}),
        ("log_partition_fraction", {"objective": "cross-entropy", "log_partition_fraction": 0.3}),
        ("log_partition_fraction",
         {"objective": "hinge", "warm_start": "self-normalized", "warm_start_epochs": 0.0,
          "log_partition_fraction": 0.3}),
        ("decoder_learning_rate", {"decoder_learning_rate": 0.1}),
        ("decoder_learning_rate", {"model": "./my-bart", "decoder_learning_rate": 0.1}),
        ("encoder", {"task": "tag", "model": "./my-bert", "encoder": "left-to-right"}),
        ("minimum_count", {"task": "tag", "model": "./my-bert", "minimum_count": 1}),
        ("noise_tokens", {"objective": "hinge", "noise_tokens": 3}),
        ("cross_entropy_weight", {"objective": "crf", "model": "chain", "cross_entropy_weight": 0.5}),
        ("cross_entropy_weight", {"objective": "distillation", "cross_entropy_weight": 0.5}),
        ("cross_entropy_weight", {"cross_entropy_weight": 0.5}),
        ("warm_start", {"objective": "cross-entropy", "warm_start": "self-normalized"}),
        ("warm_start", {"objective": "hinge", "warm_start": "self-normalized", "warm_start_epochs": 0.0}),
    ],
)  # fmt: skip
def test_what_nothing_reads_is_refused(named: str, settings: dict[str, Any]) -> None:
    wanted = check(Settings(train=Path("missing"), **settings))
    said = f"^{named}: nothing in this training reads it; leave {named.replace('_', '-')} out, or use "
    with pytest.raises(InputError, match=said):
        require_effect(wanted)
    with pytest.raises(InputError, match=said):  # before the data are looked for
        train_run(wanted, Path("missing") / "run")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"warm_start_epochs": 3.0},
        {"encoder": "left-to-right", "warm_start_learning_rate": 0.1, "gold_probability": "0.5", "feeding": "sample",
         "cross_entropy_weight": 0.5},
        {"token_column": 1, "label_column": 2, "embedding_size": 8, "label_embedding_size": 8},
        {"model": "chain", "embedding_size": 8},
        {"task": "transduce", "source_units": "subwords", "subword_vocabulary": 50, "embedding_size": 8},
        {"task": "tag", "model": "./my-bert", "hidden_size": 8, "label_embedding_size": 8, "dropout": 0.0,
         "token_column": 1, "decoder_learning_rate": 0.1},
        {"task": "transduce", "model": "transformer", "num_layers": 3, "num_heads": 2, "feedforward_size": 8},
        {"objective": "crf", "model": "chain", "warm_start_epochs": 1.0, "cross_entropy_weight": 0.0},
        {"objective": "cross-entropy", "warm_start": "none", "warm_start_epochs": 0.0, "log_partition_weight": 0.0},
        {"objective": "scheduled-sampling", "warm_start_learning_rate": 0.1, "gold_probability": "0.5"},
        {"objective": "hinge", "warm_start": "scheduled-sampling", "feeding": "sample"},
        {"objective": "hinge", "warm_start": "self-normalized", "log_partition_weight": 0.3},
        {"objective": "unnormalized-likelihood", "log_partition_fraction": 0.3},
        {"objective": "noise-contrastive", "noise_tokens": 3},
        {"task": "transduce", "model": "transformer", "objective": "hinge", "warm_start": "scheduled-sampling",
         "feeding_passes": "two-pass"},
    ],
)  # fmt: skip
def test_what_is_read_is_accepted_and_so_is_what_auto_makes_of_it(settings: dict[str, Any]) -> None:
    wanted = check(Settings(train=Path("train.conll"), **settings))
    require_effect(wanted)
    require_effect(check(resolve(wanted)))


def test_the_line_of_the_file_is_named_unless_a_flag_overrides_it(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("objective: hinge\nnoise_tokens: 3\n")
    with pytest.raises(InputError, match=r"s\.yaml:2: noise_tokens: nothing in this training reads it"):
        require_effect(load_settings(path, {}), path=path)
    flags = {"noise_tokens": "4"}
    with pytest.raises(InputError, match=r"^noise_tokens: nothing"):
        require_effect(load_settings(path, flags), path=path, flags=flags)
