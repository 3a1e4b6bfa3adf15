"""Draws of one sampler from one masked model: every state of every chain, its energies, and its cost.

Chains start as in the thesis: all masks, filled greedily at the likeliest length. Both energies of each state are
computed from the masked scores that the chain caches, so that neither costs a pass.

Shapes: N sentences, C chains of each, S sweeps; B chains of one length T that are advanced together, V vocabulary,
L largest length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reproductions.goyal_2021.length_beams import predict_with_lengths
from seqwise.data.batches import FREE
from seqwise.data.readers import Example
from seqwise.data.spooled import in_blocks
from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.runs.run import MaskedRun
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.sampling import ChainState, Draws, MaskPredict, SeededDraws, local_energy, raw_energy, start_chains
from seqwise.sampling.energies import rows_of
from seqwise.sampling.problems import ChainProblem, ChainRunner, encode_sources
from seqwise.sampling.refinement import likeliest_lengths

AT_ONCE = 256  # sources that are encoded together

Ids = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Drawn:
    """States of N sentences, C chains and S sweeps; a search has C = S = 1, and candidates have C = 1."""

    tokens: list[list[list[Ids]]]  # ids, by sentence, chain and sweep
    # "local_NCS" and "raw_NCS", the energies in nats; "proposals_NCS", "accepted_NCS" and "novel_NCS"; "passes_N", the
    # number of masked sequences evaluated for one chain, including its start; for chains also "start_local_N" and
    # "start_raw_N".
    numbers: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    # Ids from which all chains of a sentence start, by sentence; empty without chains.
    starts: list[Ids] = field(default_factory=list)


def draw(
    run: MaskedRun,
    examples: Sequence[Example],
    settings: SampleSettings,
    *,
    candidates: int = 0,
    on_done: Callable[[int, int], None] | None = None,
) -> Drawn:
    """Run chains for sentences, or search, or draw candidates.

    Source: Goyal (2021), Algorithm 4 and section 6.5.
    """
    allowed_V = None if bool(run.codec.allowed_V.all()) else run.codec.allowed_V
    runner = ChainRunner(run.model, settings, settings.seed, allowed_V, starts="greedy")
    sampler = _Sampler(run, settings, candidates, runner)
    if not settings.kernel.draws and not candidates:
        parts, work = sampler.searches(examples), sampler.search
    else:
        parts, work = sampler.groups(examples), sampler.candidates_of if candidates else sampler.sweep
    found: list[Drawn] = []
    done = 0
    for problems in parts:
        found.append(work(problems))
        done += len(problems)
        if on_done is not None:
            on_done(done, len(examples))
    order = np.argsort([problem.problem for problems in parts for problem in problems])
    numbers = {
        name: np.concatenate([part.numbers[name] for part in found])[order]
        for name in (found[0].numbers if found else {})
    }
    tokens = [sentence for part in found for sentence in part.tokens]
    starts = [start for part in found for start in part.starts]
    return Drawn([tokens[place] for place in order], numbers, [starts[place] for place in order] if starts else [])


@dataclass(frozen=True, eq=False)
class _Sampler:
    """Model, settings and chain runner that the parts share."""

    run: MaskedRun
    settings: SampleSettings
    num_candidates: int
    runner: ChainRunner

    @property
    def iterations(self) -> int:
        """Return the number of iterations of Mask-Predict."""
        assert isinstance(self.settings.kernel, MaskPredict)
        return self.settings.kernel.iterations

    def sources(self, examples: Sequence[Example]) -> list[Ids]:
        return (
            [encoded.source_ids for encoded in self.run.codec.encode(examples)]
            if self.run.codec.conditional
            else [(0,)] * len(examples)
        )

    def lengths(self, examples: Sequence[Example]) -> list[int]:
        """Return the likeliest length of each output; without sources, the length of the given sequence."""
        if not self.run.codec.conditional:
            return [len(example.target) for example in examples]
        found: list[int] = []
        for part in in_blocks(self.sources(examples), AT_ONCE):
            log_probs_BL = encode_sources(self.run.model, part).length_log_probs_BL
            found += likeliest_lengths(log_probs_BL, beam=1)[:, 0].tolist()
        return found

    def groups(self, examples: Sequence[Example]) -> list[list[ChainProblem]]:
        """Group sentences of one length that are advanced together."""
        each = self.num_candidates or self.settings.num_chains
        problems = [
            ChainProblem((FREE,) * length, source, each, place * each, problem=place)
            for place, (length, source) in enumerate(zip(self.lengths(examples), self.sources(examples), strict=True))
        ]
        return [[problems[place] for place in places] for places in self.runner.groups(problems)]

    def sweep(self, problems: Sequence[ChainProblem]) -> Drawn:
        model, count = self.run.model, len(problems)
        state = self.runner.start(problems)
        start_BT, energies = state.tokens_BT, [_energies(model, state)]
        trace, _ = self.runner.advance(
            state, self.settings.num_sweeps, progress=lambda now, _: energies.append(_energies(model, now))
        )
        local_SB, raw_SB = (torch.stack(each) for each in zip(*energies, strict=True))
        passes_B = trace.passes_SB.sum(0) + 1 + start_BT.shape[1]
        counts = {name: getattr(trace, f"{name}_SB") for name in ("proposals", "accepted", "novel")}
        numbers = {f"{name}_NCS": _by_sentence(values_SB, count) for name, values_SB in counts.items()}
        numbers |= {"local_NCS": _by_sentence(local_SB[1:], count), "raw_NCS": _by_sentence(raw_SB[1:], count)}
        numbers |= {
            "start_local_N": _by_sentence(local_SB[:1], count)[:, 0, 0],
            "start_raw_N": _by_sentence(raw_SB[:1], count)[:, 0, 0],
            "passes_N": passes_B.double().view(count, -1).mean(1).cpu().numpy(),
        }
        tokens = trace.tokens_SBT.transpose(0, 1).unflatten(0, (count, -1)).tolist()
        starts = start_BT.view(count, -1, start_BT.shape[1])[:, 0].tolist()
        return Drawn(_as_ids(tokens), numbers, [tuple(start) for start in starts])

    def candidates_of(self, problems: Sequence[ChainProblem]) -> Drawn:
        model, length, iterations = self.run.model, len(problems[0].tokens), self.iterations
        count, chain_B, context = len(problems), self.runner.numbers(problems), self.runner.context(problems)
        masks_BT = torch.zeros(len(chain_B), length, dtype=torch.int64, device=chain_B.device)
        draws = SeededDraws(self.settings.seed, chain_B, sweep=0)
        options: dict[str, Any] = {"num_iterations": iterations, "allowed_V": self.runner.allowed_V}
        tokens_BT = refine_from_draws(draws, model, masks_BT, context=context, **options)
        state = start_chains(local_energy(model), tokens_BT, context=context, chain_B=chain_B)
        each = self.num_candidates * (_num_passes(length, iterations) + length)
        # Candidates take the place of the sweeps of a chain: (N, 1, candidates).
        numbers = {
            name: values_B.view(count, 1, -1).cpu().numpy()
            for name, values_B in zip(("local_NCS", "raw_NCS"), _energies(model, state), strict=True)
        }
        return Drawn(
            _as_ids(tokens_BT.view(count, 1, -1, length).tolist()),
            numbers | _no_proposals(count, self.num_candidates) | {"passes_N": np.full(count, float(each))},
        )

    def searches(self, examples: Sequence[Example]) -> list[list[ChainProblem]]:
        """Group sentences that are searched together, without lengths."""
        if not self.run.codec.conditional:
            raise InputError("a model without sources cannot predict a length", hint="sample with chains")
        problems = [ChainProblem((), ids, problem=place) for place, ids in enumerate(self.sources(examples))]
        return [list(part) for part in in_blocks(problems, AT_ONCE)]

    @torch.no_grad()
    def search(self, problems: Sequence[ChainProblem]) -> Drawn:
        model, settings = self.run.model, self.settings
        context = encode_sources(model, [problem.source for problem in problems])
        iterations, beam = self.iterations, settings.length_beam
        lengths_BK = likeliest_lengths(context.length_log_probs_BL, beam=beam)
        best = predict_with_lengths(
            model, context, beam=beam, num_iterations=iterations, allowed_V=self.runner.allowed_V
        )
        passes = [sum(_num_passes(length, iterations) for length in row) for row in lengths_BK.tolist()]
        energies = []
        for row, output in enumerate(best):
            own_1 = torch.tensor([row], device=output.tokens.device)
            state = start_chains(local_energy(model), output.tokens[None], context=rows_of(context, own_1))
            energies.append([each.item() for each in _energies(model, state)])
        numbers = {
            name: np.array(values)[:, None, None]
            for name, values in zip(("local_NCS", "raw_NCS"), zip(*energies, strict=True), strict=True)
        }
        tokens = [[[tuple(output.tokens.tolist())]] for output in best]
        return Drawn(tokens, numbers | _no_proposals(len(best), 1) | {"passes_N": np.array(passes, dtype=float)})


@torch.no_grad()
def refine_from_draws(
    draws: Draws,
    model: MaskedModel,
    masks_BT: Tensor,
    *,
    num_iterations: int,
    context: Any = None,
    allowed_V: Tensor | None = None,
) -> Tensor:
    """Run Mask-Predict with a sampled first fill: all tokens independently, ``y_t ~ softmax f(., h(masks))``.

    Later iterations mask the least certain tokens and fill them with the likeliest: :func:`~seqwise.sampling.refine`.
    """

    def log_probs(tokens_BT: Tensor, masked_BT: Tensor) -> Tensor:
        logits_MV = model.masked_logits(tokens_BT, masked_BT, context).cpu().double()
        if allowed_V is not None:
            logits_MV = logits_MV.masked_fill(~allowed_V, -torch.inf)
        return logits_MV.log_softmax(-1)

    every_BT, length = torch.ones_like(masks_BT, dtype=torch.bool), masks_BT.shape[1]
    first_BTV = log_probs(masks_BT, every_BT).view(*masks_BT.shape, -1)
    live_B = every_BT[:, 0]
    tokens_BT = torch.stack([draws.categorical(first_BTV[:, place], live_B) for place in range(length)], 1)
    certainty_BT = first_BTV.gather(2, tokens_BT[..., None]).squeeze(2)
    for iteration in range(1, num_iterations):
        masked_BT = (
            certainty_BT.argsort(dim=1, stable=True).argsort(1)
            < length * (num_iterations - iteration) // num_iterations
        )
        if bool(masked_BT.any()):
            certainty_BT[masked_BT], tokens_BT[masked_BT] = log_probs(tokens_BT, masked_BT).max(-1)
    return tokens_BT


def _energies(model: MaskedModel, state: ChainState) -> tuple[Tensor, Tensor]:
    """Return E_local and E_raw of a state of either energy, from its cached masked scores."""
    first, second = (
        energy(model).of_positions(state.tokens_BT, state.logits).sum(1) for energy in (local_energy, raw_energy)
    )
    return first, second


def _num_passes(length: int, iterations: int) -> int:
    """Count the iterations of Mask-Predict that mask anything."""
    return sum(length * (iterations - iteration) // iterations > 0 for iteration in range(iterations))


def _no_proposals(count: int, states: int) -> dict[str, npt.NDArray[Any]]:
    return {f"{name}_NCS": np.zeros((count, 1, states), dtype=np.int64) for name in ("proposals", "accepted", "novel")}


def _by_sentence(values_SB: Tensor, count: int) -> npt.NDArray[Any]:
    """Reshape (S, B) to (N, C, S)."""
    return values_SB.T.reshape(count, -1, len(values_SB)).cpu().numpy()


def _as_ids(tokens: list[list[list[list[int]]]]) -> list[list[list[Ids]]]:
    return [[[tuple(ids) for ids in chain] for chain in sentence] for sentence in tokens]
