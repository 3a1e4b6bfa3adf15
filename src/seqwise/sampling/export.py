"""Chains as ArviZ and xarray have them: labelled arrays by chain and draw.

Shapes: S sweeps, B chains, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from seqwise.errors import InputError
from seqwise.sampling.chains import Trace
from seqwise.sampling.diagnostics import sweeps_left_out


def to_datatree(
    chains: Trace,
    *,
    discard: int = 0,
    features: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
) -> Any:
    """Return chains as an ``xarray.DataTree``, which the functions of ArviZ take.

    The draws are the sweeps that :func:`~seqwise.sampling.diagnostics.diagnose_chains` judges, named by their numbers
    from 1.

    Args:
        chains: from :func:`~seqwise.sampling.chains.sample_chains`, or one of ``SampledTexts.chains``.
        discard: how many sweeps are left out at least.
        features: names and functions from tokens (S, B, T) to numbers (S, B).

    Returns:
        Three groups, each of arrays (chain, draw): ``posterior`` has the energy and the features; ``sample_stats`` has
        ``proposals``, ``accepted``, ``novel`` and ``passes`` of each sweep; ``samples`` has the tokens
        (chain, draw, position) of the sweeps whose sequences are kept.

    Raises:
        InputError: xarray is missing, or a feature has the name "energy".

    Example:
        >>> import pytest, torch
        >>> _ = pytest.importorskip("xarray")
        >>> from seqwise.sampling import exact_gibbs, local_energy, sample_chains, start_chains, table_model
        >>> target = local_energy(table_model(num_positions=2, vocab_size=3))
        >>> chains = sample_chains(exact_gibbs(target), start_chains(target, torch.zeros(4, 2).long()), 50)
        >>> tree = to_datatree(chains, discard=5, features={"sum": lambda y: y.sum(-1)})
        >>> dict(tree.posterior.sizes), list(tree.posterior), tree.samples.tokens.shape
        ({'chain': 4, 'draw': 45}, ['energy', 'sum'], (4, 45, 2))
        >>> tree.posterior.attrs["tuning_steps"], int(tree.posterior.draw[0])
        (5, 6)
    """
    try:
        import xarray
    except ImportError as error:
        raise InputError("labelled arrays need xarray", hint="pip install 'seqwise[diagnostics]'") from error
    from seqwise import __version__

    features = features or {}
    if "energy" in features:
        raise InputError("a feature has the name 'energy', which that of the chains has", hint="give it another name")
    start = sweeps_left_out(chains, discard)
    kept = [sweep for sweep in sorted(chains.tokens) if sweep > start]
    tokens_NBT = chains.tokens_SBT[len(chains.tokens) - len(kept) :]
    values = {"energy": chains.energy_SB[start:]}
    values |= {name: feature(tokens_NBT) for name, feature in features.items()}
    counts = {name: getattr(chains, f"{name}_SB")[start:] for name in ("proposals", "accepted", "novel", "passes")}
    draws = range(start + 1, len(chains) + 1)
    attributes = {
        "inference_library": "seqwise",
        "inference_library_version": __version__,
        "sampling_time": chains.seconds,
        "tuning_steps": start,
    }

    def dataset(arrays: Mapping[str, Tensor], draws: Any, *dimensions: str) -> Any:
        # (sweep, chain, ...) to (chain, draw, ...)
        variables = {
            name: (("chain", "draw", *dimensions), values_SB.detach().cpu().transpose(0, 1).numpy())
            for name, values_SB in arrays.items()
        }
        num_chains = chains.energy_SB.shape[1]
        return xarray.Dataset(variables, {"chain": range(num_chains), "draw": list(draws)}, attributes)

    return xarray.DataTree.from_dict(
        {
            "posterior": dataset(values, draws),
            "sample_stats": dataset(counts, draws),
            "samples": dataset({"tokens": tokens_NBT}, kept, "position"),
        }
    )
