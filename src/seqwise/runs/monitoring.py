"""Measurements during training, on a sample of the development data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from seqwise.data.batches import collate
from seqwise.data.readers import Example
from seqwise.decoding import evaluation_mode
from seqwise.objectives.objective import search_targets
from seqwise.objectives.settings import CrossEntropy
from seqwise.runs.decoder_choice import usual_decoder
from seqwise.runs.measures import decisive, known_targets, log_partitions_of, measure
from seqwise.runs.run import OutputRun
from seqwise.runs.settings import Settings
from seqwise.runs.sizing import evaluated_examples, sample_evenly
from seqwise.search.beam import beam_search
from seqwise.search.candidates import as_score
from seqwise.search.selectors import HardTopK, Selector, SoftTopK

MOST_EXAMPLES = 100
"""Number of examples for measuring log Z and spreads."""

CROSS_ENTROPY = "cross-entropy"
"""Title of the cross-entropy of the gold tokens, in nats per token."""

Monitor = Callable[[Mapping[str, float]], dict[str, float]]
"""Function from the values of the schedules at a step to measurements by title."""


def monitor(run: OutputRun, examples: Sequence[Example], settings: Settings) -> Monitor:
    """Return a function that measures a run's current model, without gradients, on a sample of development data.

    It measures the deciding measure of the trained beam on up to 500 examples, and on up to 100 of them cross-entropy,
    mean log Z at gold positions, and the spread of scores in a beam: hard and, if the objective relaxes, at the current
    alpha. A spread of 0 means that the slots of a relaxed beam have merged.
    """
    # All examples of a source are kept, because each of its targets is correct.
    sample = sample_evenly(examples, evaluated_examples(settings), key=lambda example: example.source)
    few = sample_evenly(sample, MOST_EXAMPLES, key=lambda example: example.source)
    gold = run.codec.encode(known_targets(run, few))
    k, score = settings.beam_size, as_score(settings.trained_score)

    def measured(values: Mapping[str, float]) -> dict[str, float]:
        sums = measure(run, sample, usual_decoder(settings))
        title, _ = decisive(sums, subwords=run.codec.writes_text)
        measurements = {title: sums[title].value}
        if not gold:
            return measurements
        selectors: dict[str, Selector] = {"hard": HardTopK(k)}
        if settings.objective.relaxes:
            selectors["relaxed"] = SoftTopK(k, values["alpha"], settings.divisor_of_alpha)
        batch = collate(gold).to(run.model.embedding_VD.device)
        with evaluation_mode(run.model), torch.no_grad():
            measurements[CROSS_ENTROPY] = CrossEntropy().build()(run.model, batch, {}).item()
            measurements["mean log Z"] = log_partitions_of(run, gold).mean().item()
            context, (_, steps_B) = run.model.encode(batch), search_targets(batch, run.model.end)
            for name, selector in selectors.items():
                beam = beam_search(run.model, context, run.codec.allowed(selector), num_steps=steps_B, score=score)
                measurements[f"spread of slots, {name}"] = score_spread(beam.scores_BK).mean().item()
        return measurements

    return measured


def score_spread(scores_BK: Tensor) -> Tensor:
    """Compute the spread of slot scores of each beam, ``sqrt(mean_k (s_bk - mean_k s_bk)^2)``, in nats."""
    live_BK = scores_BK.masked_fill(~scores_BK.isfinite(), torch.nan)
    gap_BK = live_BK - live_BK.nanmean(1, keepdim=True)
    return gap_BK.square().nanmean(1).sqrt().nan_to_num(0.0)  # without live slots
