"""A masked model for each seed, and a cell for each sampler on it, which is made and measured once and then read back.

::

    TASK/seed-N/model/          a run of a masked model, with cell.json beside its files
    TASK/seed-N/PART/SAMPLER/   numbers.safetensors, outputs.jsonl and cell.json, which is written last

Shapes: N sentences, C chains of each, S sweeps, K sums of the measure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file, save_file

from reproductions import Setup
from reproductions.cells import CellJob, fingerprint_of, run_cells, timed, train_seconds, trained_on
from reproductions.goyal_2021.sampler_draws import Drawn, draw
from reproductions.goyal_2021.sampler_tasks import Part, SamplerTask, Size
from reproductions.workers import Report
from seqwise.configuration.flat import flat_values, plain_values
from seqwise.data.durable import write_atomically
from seqwise.devices import find_device
from seqwise.evaluation.signature import Signature, sha256_of_examples, sign
from seqwise.runs.loading import load_run, save_run
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.runs.masked_model_training import fit_masked_run, measure_masked_run, new_masked_run
from seqwise.runs.run import MaskedRun
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.runs.training import fingerprints_of
from seqwise.sampling.diagnostics import effective_sample_size, split_r_hat

Numbers = Mapping[str, npt.NDArray[Any]]
MODEL, CELL, NUMBERS = "model", "cell.json", "numbers.safetensors"
FEWEST_SWEEPS = 4  # for R-hat


@dataclass(frozen=True)
class SamplerSpec:
    """Sampler, independent of task and seed."""

    key: str  # the name of its folder, which several tables share
    settings: SampleSettings  # without chains, sweeps and seed, which come from the size of the task
    candidates: int = 0  # number of drawn Mask-Predicts instead of chains; 0 for none

    @property
    def draws_chains(self) -> bool:
        """Whether the sampler draws chains."""
        return self.settings.kernel.draws

    def sized(self, size: Size, *, part: str, seed: int) -> SampleSettings:
        """Return the settings of one cell."""
        if not self.draws_chains:
            return self.settings.replace(seed=seed)
        chains = size.chains if part == "test" else 1
        return self.settings.replace(chains=chains, sweeps=size.sweeps, seed=seed)


@dataclass(frozen=True, eq=False)
class SamplerCell:
    """Numbers of one sampler on one model.

    ``numbers`` are those of :class:`~reproductions.goyal_2021.sampler_draws.Drawn`; if there is a measure, "sums_NCSK",
    the terms of each state in its sums ("start_sums_NK", of the start); "ess_N" and "r_hat_N" of the energy that is
    sampled from, NaN if unknown; and "agree_N", whether all chains end in the same state.
    """

    spec: SamplerSpec
    numbers: Numbers
    combine: Callable[..., Any] | None  # from sums (..., K) to the measure; None without a measure
    discard: int  # number of sweeps that are not counted
    seconds: float  # CPU time on one thread
    model: Mapping[str, float]  # measures of the model on development data, and the CPU seconds of its training
    signature: Signature


def run_samplers(
    task: SamplerTask, requested: Sequence[tuple[str, SamplerSpec]], setup: Setup
) -> dict[tuple[str, str], list[SamplerCell]]:
    """Train a model for each seed and run samplers on its "dev" or "test" data, or read finished cells back.

    The folder of the setup has ``seed-N`` folders, which tables share. Cells are returned by part and key.
    """
    task.require()
    scale, jobs = setup.scale, []
    for seed in setup.seeds:  # seed by seed, so that an interrupted table has complete seeds
        home = setup.folder / f"seed-{seed}"
        model = model_cell(task, scale, seed, home / MODEL)
        jobs.append(model)
        for part, spec in dict.fromkeys(requested):
            which = (task, spec, part, scale, seed, home)
            jobs.append(
                CellJob(
                    f"{model.name}: {spec.key} ({part})",
                    home / part / spec.key / CELL,
                    partial(_fingerprint, *which),
                    partial(_sample, *which),
                    after=model.name,
                    folder=home / part / spec.key,
                )
            )
    run_cells(jobs, progress=setup.progress)
    return {
        (part, spec.key): [_load_cell(task, spec, setup.folder / f"seed-{seed}", part) for seed in setup.seeds]
        for part, spec in requested
    }


def model_cell(task: SamplerTask, scale: str, seed: int, output: Path) -> CellJob:
    """Return the cell of the masked model of one seed."""
    make = partial(_train, task, scale, seed, output)
    fingerprint = partial(_model_fingerprint, task, scale, seed)
    return CellJob(f"{task.name}, seed {seed}", output / CELL, fingerprint, make, folder=output)


def _train(task: SamplerTask, scale: str, seed: int, output: Path, report: Report) -> dict[str, Any]:
    """Train a masked model, from its last checkpoint if there is one."""
    settings, data = _model_settings(task, scale, seed), task.load()
    run = new_masked_run(data.train, settings)
    progress = timed(output, report, every=settings.evaluate_every)
    encoded = run.codec.encode(data.train)
    result = fit_masked_run(
        run,
        encoded,
        data.train,
        data.dev.examples,
        output=output,
        fingerprints=fingerprints_of(run.settings, data.dev.examples),
        on_progress=progress,
    )
    run.model.cpu()
    save_run(run, output)
    measured = measure_masked_run(run, task.part("dev", scale).examples)
    kept = {name: value for name, value in measured.items() if name.endswith(("perplexity", "entropy"))}
    report(result.steps + 1, result.steps + 1, "")
    return {"model": {**kept, "training seconds": train_seconds(output)}}


def _sample(
    task: SamplerTask, spec: SamplerSpec, part: str, scale: str, seed: int, home: Path, report: Report
) -> dict[str, Any]:
    """Run one sampler on the model of one seed, and measure every state."""
    output = home / part / spec.key
    run, measured_on = load_run(home / MODEL), task.part(part, scale)
    run.model.to(find_device("auto"))
    settings = spec.sized(task.sizes[scale], part=part, seed=seed)

    def on_done(done: int, count: int) -> None:
        report(done, count + 1, f"{done} of {count} sentences")

    began = time.process_time()
    drawn = draw(run, measured_on.examples, settings, candidates=spec.candidates, on_done=on_done)
    seconds = time.process_time() - began
    numbers = {**drawn.numbers, **_measure(task, measured_on, run, drawn)}
    if spec.draws_chains:
        numbers |= _diagnose(drawn, settings)
    save_file({name: np.ascontiguousarray(values) for name, values in numbers.items()}, output / NUMBERS)
    write_atomically(output / "outputs.jsonl", "".join(_output_lines(run, measured_on, drawn)))
    training = trained_on(task.load().train, task.load().sources)
    signature = sign(spec.key, seeds=[seed], data=sha256_of_examples(measured_on.examples), training=training)
    report(1, 1, "")
    return {
        # Made here and stored, so that a cell that is read back later is not signed as new.
        "signature": asdict(signature),
        "seconds": seconds,
        "discard": settings.num_discarded if spec.draws_chains else 0,
    }


def _measure(task: SamplerTask, part: Part, run: MaskedRun, drawn: Drawn) -> dict[str, npt.NDArray[Any]]:
    """Return the terms of each state in the sums of the measure; repeated states of a sentence are scored once."""
    if task.score is None:
        return {}
    states = [[ids for chain in sentence for ids in chain] for sentence in drawn.tokens]
    if drawn.starts:
        states = [[*row, start] for row, start in zip(states, drawn.starts, strict=True)]
    distinct = dict.fromkeys((place, ids) for place, row in enumerate(states) for ids in row)
    columns_DK = task.score(
        [run.codec.decode(ids) for _, ids in distinct], [part.references[place] for place, _ in distinct]
    ).columns_NC
    row_of = {key: row for row, key in enumerate(distinct)}
    rows_NM = np.array([[row_of[place, ids] for ids in row] for place, row in enumerate(states)])
    sums_NMK = columns_DK[rows_NM].astype(np.float32)
    shape = (len(states), len(drawn.tokens[0]), len(drawn.tokens[0][0]), -1)
    if not drawn.starts:
        return {"sums_NCSK": sums_NMK.reshape(shape)}
    return {"sums_NCSK": sums_NMK[:, :-1].reshape(shape), "start_sums_NK": sums_NMK[:, -1]}


def _diagnose(drawn: Drawn, settings: SampleSettings) -> dict[str, npt.NDArray[Any]]:
    """Return ESS and R-hat of each sentence's energy, and whether its chains end in the same state."""
    energy_NCS = torch.from_numpy(drawn.numbers[f"{settings.energy}_NCS"])[:, :, settings.num_discarded :]
    found, has_arviz = [], find_spec("arviz_stats") is not None
    for energy_CS in energy_NCS:
        if energy_CS.shape[1] < FEWEST_SWEEPS or not has_arviz:
            found.append((np.nan, np.nan))
        elif bool((energy_CS == energy_CS[0, 0]).all()):
            found.append((1.0, np.nan))  # chains that stand still are a single sample
        else:
            found.append((effective_sample_size(energy_CS.T), split_r_hat(energy_CS.T)))
    ess_N, r_hat_N = np.array(found).T
    agree_N = np.array([len({chain[-1] for chain in sentence}) == 1 for sentence in drawn.tokens], dtype=np.float64)
    return {"ess_N": ess_N, "r_hat_N": r_hat_N, "agree_N": agree_N}


def _output_lines(run: MaskedRun, part: Part, drawn: Drawn) -> list[str]:
    """Format, for inspection, the last state of each chain, and its state of the lowest E_local."""
    lines = []
    for place, (example, sentence) in enumerate(zip(part.examples, drawn.tokens, strict=True)):
        lowest_C = drawn.numbers["local_NCS"][place].argmin(1)
        line = {
            "source": " ".join(example.source),
            "start": run.codec.text(drawn.starts[place]) if drawn.starts else None,
            "last": [run.codec.text(chain[-1]) for chain in sentence],
            "lowest": [run.codec.text(chain[best]) for chain, best in zip(sentence, lowest_C, strict=True)],
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return lines


# ------------------------------------------------------------------------------------------------- cells


def _model_settings(task: SamplerTask, scale: str, seed: int) -> MaskedModelSettings:
    return task.settings[scale].replace(seed=seed)


def _model_fingerprint(task: SamplerTask, scale: str, seed: int) -> str:
    data, dev = sha256_of_examples(task.load().train), sha256_of_examples(task.part("dev", scale).examples)
    return fingerprint_of(json.dumps(plain_values(_model_settings(task, scale, seed)), sort_keys=True), data, dev)


def _fingerprint(task: SamplerTask, spec: SamplerSpec, part: str, scale: str, seed: int, home: Path) -> str:
    """Return a fingerprint of the settings, the data, the measure and the model."""
    settings, measured_on = spec.sized(task.sizes[scale], part=part, seed=seed), task.part(part, scale)
    return fingerprint_of(
        json.dumps(flat_values(settings), sort_keys=True),
        str(spec.candidates),
        sha256_of_examples(measured_on.examples),
        repr(measured_on.references),
        task.measure,
        (home / MODEL / "model" / "manifest.json").read_text("utf-8"),
    )


def _load_cell(task: SamplerTask, spec: SamplerSpec, home: Path, part: str) -> SamplerCell:
    output = home / part / spec.key
    record = json.loads((output / CELL).read_text("utf-8"))
    signature = Signature(**record["signature"])
    model = json.loads((home / MODEL / CELL).read_text("utf-8"))["model"]
    combine = None if task.score is None else task.score([()], task.load().test.references[:1]).combine
    numbers = load_file(output / NUMBERS)
    return SamplerCell(spec, numbers, combine, record["discard"], record["seconds"], model, signature)
