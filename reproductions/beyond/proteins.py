"""Variants of proteins: a small masked Transformer as an energy, and what is proposed at fixed distances of wild types.

Not in the papers. The models are trained on a thousand short sequences, so that what they know of proteins is little,
and is measured beside counts of residues. Samplers can be compared by a poor model's energy as well as by a good one's.

::

    {train,dev,wild-types}.fasta
    seed-N/model-HASH/          a run, for seqwise score and seqwise sample, and record.json
    seed-N/variants-HASH/       a file for each wild type
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reproductions.beyond.protein_data import Proteins, choose_wild_types, proteins, residue_shares
from reproductions.beyond.protein_table import Measured, build_outcome, draw
from reproductions.beyond.protein_variants import VariantSize, measure_variants
from reproductions.cells import fingerprint_of, stopwatch, train_seconds, trained_on
from reproductions.outcome import Outcome
from reproductions.workers import Job, ProgressFactory, Report, run_jobs
from seqwise.configuration.flat import plain_values
from seqwise.data.durable import write_atomically
from seqwise.data.readers import Example
from seqwise.evaluation.signature import Signature, sha256_of_examples, sign
from seqwise.runs.inputs import read_sequences
from seqwise.runs.loading import load_run
from seqwise.runs.masked_model_settings import MaskedModelSettings, masked_settings
from seqwise.runs.masked_model_training import train_masked_model
from seqwise.runs.scoring import score_sequences
from seqwise.training.trainer import Progress

RECORD = "record.json"


@dataclass(frozen=True)
class Size:
    """How much is trained and drawn."""

    settings: MaskedModelSettings  # of the masked model; each seed puts itself in
    wild_types: int  # how many held-out sequences are changed
    lengths: tuple[int, int]  # of those, the shortest and the longest
    variants: VariantSize  # of each of them


SIZES = {
    "cpu": Size(
        masked_settings(
            format="fasta", units="characters", hidden_size=64, num_layers=2, feedforward_size=256, masking="0.15",
            epochs=80.0, batch_size=32, learning_rate=3e-3,
        ),
        wild_types=10,
        lengths=(40, 60),
        variants=VariantSize(),
    )
}  # fmt: skip
"""By scale."""


def reproduce(folder: Path, *, seeds: Sequence[int], scale: str, progress: ProgressFactory) -> list[Outcome]:
    """Train a masked model with each seed, propose variants of held-out proteins, and compare their energies."""
    size, data = SIZES[scale], proteins()
    wild_types = choose_wild_types(data.test, count=size.wild_types, lengths=size.lengths)
    _write_files(folder, data, wild_types)
    homes = {seed: _homes(folder, size, data, wild_types, seed) for seed in seeds}
    run_jobs(_jobs(folder, size, data, wild_types, homes), progress=progress)
    models = [_read(model / RECORD) for model, _ in homes.values()]
    cells = [
        [_read(variants / f"{place:02}.json") for place in range(len(wild_types))] for _, variants in homes.values()
    ]
    measured = Measured(
        data,
        size.variants.distances,
        nats=[model["nats"] for model in models],
        seconds=[model["seconds"] for model in models],
        variants=[[_by_distance(cell["variants"]) for cell in row] for row in cells],
        model_signature=_signature(models[0], seeds, data.dev, data),
        variant_signature=_signature(cells[0][0], seeds, wild_types, data),
    )
    figure = folder / "proteins.png"
    run = homes[seeds[0]][0]
    free = "".join(residue if place % 6 else "_" for place, residue in enumerate(wild_types[0].target, start=1))
    hints = (f"seqwise score {run} {folder / 'wild-types.fasta'}", f"seqwise sample {run} {free}")
    outcome = build_outcome(measured, {"figure": figure, "run": run}, hints)
    draw(outcome.table, figure)
    return [outcome]


def _jobs(
    folder: Path,
    size: Size,
    data: Proteins,
    wild_types: Sequence[Example],
    homes: Mapping[int, tuple[Path, Path]],
) -> list[Job]:
    """What is not done yet, seed by seed."""
    jobs, shares = [], residue_shares(data.train)
    for seed, (model, variants) in homes.items():
        name, trained = f"proteins, seed {seed}", (model / RECORD).exists()
        if not trained:
            work = partial(train_model, folder, size.settings.with_changes(seed=seed), model)
            jobs.append(Job(name, work))
        for place, wild_type in enumerate(wild_types):
            output = variants / f"{place:02}.json"
            if output.exists():
                continue
            # So that no two chains share their random numbers.
            own = 1_000 * seed + place
            work = partial(measure_wild_type, model, wild_type, size.variants, output, shares=shares, seed=own)
            jobs.append(Job(f"{name}: {wild_type.key}", work, None if trained else name))
    return jobs


def train_model(folder: Path, settings: MaskedModelSettings, output: Path, report: Report) -> None:
    """Train the model of one seed, from its last checkpoint where there is one, and measure it on development data."""
    watch = stopwatch(output)

    def on_progress(step: Progress) -> None:
        watch(step.step, steps)
        if step.step % 20 == 0:
            report(step.step, steps + 1, f"loss {step.loss:.3f}")

    train, dev = (read_sequences(folder / f"{part}.fasta", settings) for part in ("train", "dev"))
    assert settings.batch_size is not None
    steps = max(1, round(settings.epochs * -(-len(train) // settings.batch_size)))
    train_masked_model(folder / "train.fasta", output, settings, on_progress=on_progress)
    scores = score_sequences(load_run(output), dev)
    record = {
        "nats": [-float(one.token_log_probs_T[1:].double().sum()) for one in scores],
        "seconds": train_seconds(output),
        # Made here and kept, so that what is read back later is not signed as new.
        "signature": asdict(sign("proteins", seeds=[settings.seed], data=sha256_of_examples(dev))),
    }
    write_atomically(output / RECORD, json.dumps(record, indent=1) + "\n")
    report(steps + 1, steps + 1, "")


def measure_wild_type(
    model: Path,
    wild_type: Example,
    size: VariantSize,
    output: Path,
    report: Report,
    *,
    shares: Mapping[str, float],
    seed: int,
) -> None:
    """Propose variants of one wild type by all ways, and write down what they came to."""
    run = load_run(model)
    (encoded,) = run.codec.encode([wild_type])
    shares_V = torch.tensor([shares.get(residue, 0.0) for residue in run.codec.sequence.vocabulary.tokens])
    wild_T = torch.tensor(encoded.target_ids)
    found = measure_variants(run.model, wild_T, size, shares_V=shares_V, seed=seed, report=report)
    record = {
        "wild type": wild_type.key,
        "variants": found,
        "signature": asdict(sign("proteins", seeds=[seed], data=sha256_of_examples([wild_type]))),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, json.dumps(record, indent=1) + "\n")
    report(1, 1, "")


# ------------------------------------------------------------------------------------------------- files


def _write_files(folder: Path, data: Proteins, wild_types: Sequence[Example]) -> None:
    """The sequences as files, which ``seqwise score`` and ``seqwise masked-model train`` read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, examples in (("train", data.train), ("dev", data.dev), ("wild-types", wild_types)):
        text = "".join(f">{one.key}\n{''.join(one.target)}\n" for one in examples)
        write_atomically(folder / f"{name}.fasta", text)


def _homes(folder: Path, size: Size, data: Proteins, wild_types: Sequence[Example], seed: int) -> tuple[Path, Path]:
    """The folders of one seed's model and variants; other settings or other data have others."""
    settings = json.dumps(plain_values(size.settings.with_changes(seed=seed)), sort_keys=True)
    model = _hash(settings, sha256_of_examples(data.train), sha256_of_examples(data.dev))
    variants = _hash(model, json.dumps(asdict(size.variants), sort_keys=True), sha256_of_examples(wild_types))
    return folder / f"seed-{seed}" / f"model-{model}", folder / f"seed-{seed}" / f"variants-{variants}"


def _hash(*parts: str) -> str:
    return fingerprint_of(*parts)[:8]


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def _by_distance(variants: Mapping[str, Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """JSON has text for the names of its fields."""
    return {name: {int(distance): value for distance, value in row.items()} for name, row in variants.items()}


def _signature(
    record: Mapping[str, Any], seeds: Sequence[int], measured_on: Sequence[Example], data: Proteins
) -> Signature:
    """The signature of one record, for all of them; the names of their folders hold them to these training data."""
    training = trained_on(data.train, data.sources)
    of_record = Signature(**record["signature"])
    return replace(of_record, seeds=tuple(seeds), data=sha256_of_examples(measured_on), training=training)
