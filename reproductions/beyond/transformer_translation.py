"""Transformers that translate German to English: one of seqwise, and a Hugging Face model in the shape of Marian.

Both read the pairs of Table 3.1 in the same subwords and start from new weights. All other systems start from
cross-entropy, and longer cross-entropy is the control; training seconds are among the results, because a relaxed beam
takes longer. The second model is used like a user's own: a folder that ``from_pretrained`` reads, raw text, and
``seqwise train --model FOLDER``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from reproductions import Setup
from reproductions.comparison import Measured, best_on_dev, examine, rows_of
from reproductions.corpora import readers as corpora
from reproductions.goyal_2019.label_bias_tables import OURS, best_beats_longer, examined, raw_beam_hurts
from reproductions.outcome import Outcome
from reproductions.report import Claim
from reproductions.systems import Data, System, systems_of
from reproductions.tasks import Task, bleu_of_pieces, make_table, require_sacrebleu
from seqwise.data.subwords import UNKNOWN_PIECE, Subwords
from seqwise.data.tokenizer import END, Tokenizer, library_tokenizer
from seqwise.data.vocabulary import Vocabulary
from seqwise.evaluation.metrics import Sums
from seqwise.evaluation.translation import bleu_signature
from seqwise.runs.pretrained import quiet
from seqwise.runs.settings import Settings, train_settings
from seqwise.training.checkpoints import publishing

NAMES = {
    "cross-entropy": "cross-entropy",
    "cross-entropy-longer": "cross-entropy, longer",
    "sampling": "scheduled sampling, two-pass",
    "local": "relaxed beam, local",
    "global": "relaxed beam, global",
}
CONTROLS = ("cross-entropy", "cross-entropy-longer")
POSITIONS = 256
"""Largest number of tokens of a source or a target; the longest of the corpus has a quarter of it."""


@dataclass(frozen=True)
class Size:
    """Sizes of the models, and epochs of their stages."""

    shape: Mapping[str, Any]  # settings of a Transformer
    training: Settings  # of the cross-entropy stage that all systems start from
    # Epochs of the second stage.
    longer: float
    sampling: float
    search: float


_CPU = train_settings(
    task="transduce", objective="cross-entropy", epochs=4.0, learning_rate=1e-3, batch_size=32, beam_size=3,
    save_every=500,
)  # fmt: skip
SIZES = {
    "cpu": Size(
        {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "feedforward_size": 512, "dropout": 0.1},
        _CPU, longer=1.5, sampling=0.7, search=0.35,
    ),
    "gpu": Size(
        {"hidden_size": 256, "num_layers": 4, "num_heads": 4, "feedforward_size": 1024, "dropout": 0.2},
        _CPU.with_changes(epochs=20.0, batch_size=64), longer=8.0, sampling=4.0, search=2.0,
    ),
}  # fmt: skip
"""Sizes by scale."""

EVERY = 4
"""One in this many development sources is searched, because they choose nothing but decoders."""
DECODERS = ("greedy", "beam", "raw-beam")


@cache
def split() -> Data:
    """Read the pairs in subwords, for the first model."""
    return _fewer(corpora.translation())


@cache
def raw_text() -> Data:
    """Read the pairs as raw text, which the second model splits by its own tokenizer."""
    return _fewer(corpora.translation_text())


def _fewer(data: Data) -> Data:
    return replace(data, dev=data.dev[::EVERY])


def _count(part: str, outputs: Sequence[tuple[str, ...]]) -> Sums:
    references = corpora.translation_references(part)
    return bleu_of_pieces(outputs, references[::EVERY] if part == "dev" else references)


def _count_text(part: str, outputs: Sequence[tuple[str, ...]]) -> Sums:
    """Return BLEU of the pieces, without the special tokens that this model can write."""
    known = set(corpora.translation_subwords().pieces)
    return _count(part, [tuple(piece for piece in pieces if piece in known) for pieces in outputs])


OWN = Task(
    "transformer", "German to English (Tatoeba), a Transformer of seqwise", "BLEU", split, _count, DECODERS,
    require_sacrebleu,
)  # fmt: skip
MARIAN = Task(
    "marian", "German to English (Tatoeba), Marian-shaped", "BLEU", raw_text, _count_text, DECODERS, require_sacrebleu
)
"""The same task as raw text, which the model's own tokenizer splits."""


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Make a table for each of the two models."""
    for task in (OWN, MARIAN):
        task.require()
    size, seeds = SIZES[setup.scale], setup.seeds
    own = size.training.with_changes(model="transformer", minimum_count=2, **size.shape)
    folders = {seed: make_marian(setup.folder / "new-marian" / f"seed-{seed}", size.shape, seed=seed) for seed in seeds}
    shaped = {seed: size.training.with_changes(model=str(path)) for seed, path in folders.items()}
    for task, start in ((OWN, dict.fromkeys(seeds, own)), (MARIAN, shaped)):
        name, runs = f"transformer-translation-{task.name}", setup.inside(task.name)
        title, systems = f"{task.title}: BLEU", partial(_family_of, start, size)
        outcome = make_table(name, title, task, systems, rows_of(NAMES), runs, controls=CONTROLS, claims=_claims)
        note = bleu_signature(corpora.translation_references("test"))
        yield replace(outcome, table=replace(outcome.table, note=note))


def _family_of(start: Mapping[int, Settings], size: Size, seed: int) -> dict[str, System]:
    return family(start[seed].with_changes(seed=seed), size)


def family(start: Settings, size: Size) -> dict[str, System]:
    """Return the systems of one seed, by key."""
    after = start.with_changes(learning_rate=start.learning_rate / 2)
    # A third of the rate, because a cost through the search moves weights further than a likelihood does.
    searched = after.with_changes(
        objective="relaxed-beam",
        learning_rate=start.learning_rate / 6,
        epochs=size.search,
        alpha="exponential(1, 10)",
        cross_entropy_weight=0.1,
    )
    settings = {
        "cross-entropy-longer": after.with_changes(epochs=size.longer),
        "sampling": after.with_changes(
            objective="scheduled-sampling",
            epochs=size.sampling,
            feeding="soft-greedy",
            feeding_passes="two-pass",
            alpha="2",
            gold_probability="linear(1, 0.5)",
        ),
        "local": searched,
        "global": searched.with_changes(score="global", alpha="exponential(0.5, 4)"),
    }
    second = {key: (stage, "cross-entropy") for key, stage in settings.items()}
    return systems_of({"cross-entropy": (start, None), **second}, start.seed)


def _claims(measured: Mapping[str, Measured]) -> list[Claim]:
    plain = measured["cross-entropy"]
    return [
        *examined(measured, OURS, ("Search-aware and local beats cross-entropy, in a beam.", "local", "cross-entropy")),
        examine(
            "Search-aware and global beats cross-entropy, in a beam.",
            OURS, measured["global"], plain, decoders=("raw-beam", "beam"),
        ),
        examine(
            "Relaxed scheduled sampling in two passes improves on cross-entropy.",
            OURS, measured["sampling"], plain, decoders=("greedy", "greedy"),
        ),
        best_beats_longer(measured, best_on_dev(measured, ["sampling", "local", "global"])),
        raw_beam_hurts(plain, OURS),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- the Marian-shaped model


def subword_tokenizer(subwords: Subwords) -> Any:
    """Return a ``PreTrainedTokenizerFast`` that splits text as ``seqwise.data.subwords.split_text`` does.

    Ids: 0 the unknown character, then the pieces in order, ``</s>`` and ``<pad>``. Every text ends in ``</s>``.

    Example:
        >>> from seqwise.data.subwords import learn_subwords
        >>> tokenizer = subword_tokenizer(learn_subwords(["low lower", "low"], size=9))
        >>> tokenizer("lower  low")["input_ids"], tokenizer.decode([9, 1, 4, 9, 10], skip_special_tokens=True)
        ([9, 1, 4, 9, 10], 'lower low')
        >>> len(tokenizer)
        12
    """
    from transformers import PreTrainedTokenizerFast

    vocabulary = Vocabulary(
        tuple(dict.fromkeys((UNKNOWN_PIECE, *subwords.pieces, END))), unknown=UNKNOWN_PIECE, end=END
    )
    tokenizer = library_tokenizer(Tokenizer(vocabulary, "subwords", subwords))
    tokenizer.add_special_tokens(["<pad>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN_PIECE, eos_token=END, pad_token="<pad>"
    )


def make_marian(folder: Path, shape: Mapping[str, Any], *, seed: int) -> Path:
    """Write a Marian-shaped Hugging Face model with new weights, and a tokenizer of the corpus' subwords."""
    from transformers import MarianConfig, MarianMTModel

    tokenizer = subword_tokenizer(corpora.translation_subwords())
    layers = {
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in (
            ("layers", shape["num_layers"]), ("attention_heads", shape["num_heads"]),
            ("ffn_dim", shape["feedforward_size"]),
        )
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = MarianConfig(
            vocab_size=len(tokenizer),
            d_model=shape["hidden_size"],
            dropout=shape["dropout"],
            scale_embedding=True,
            max_position_embeddings=POSITIONS,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
            forced_eos_token_id=None,
            **layers,
        )
        model = MarianMTModel(config)
    with publishing(folder) as partial_folder, quiet():
        model.save_pretrained(partial_folder)
        tokenizer.save_pretrained(partial_folder)
    return folder
