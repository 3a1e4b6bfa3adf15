"""Sampling from energies of whole sequences: MCMC kernels, diagnostics, and tests of correctness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names

if TYPE_CHECKING:
    from seqwise.sampling.any_order import any_order_bound
    from seqwise.sampling.chains import Trace, load_chains, sample_chains, save_chains
    from seqwise.sampling.combinators import (
        anneal_blocks,
        anneal_target,
        burn_in,
        cycle,
        mixture,
        parallel_tempering,
        repeat,
        replicas,
    )
    from seqwise.sampling.correctness import (
        TableModel,
        boltzmann,
        every_sequence,
        examine,
        examine_draws,
        simulated_matrix,
        table_model,
        transition_matrix,
        unmasking_law,
    )
    from seqwise.sampling.diagnostics import ChainReport, diagnose_chains, to_datatree
    from seqwise.sampling.draws import Draws, SeededDraws
    from seqwise.sampling.energies import (
        Energy,
        constraint,
        contains,
        local_energy,
        pseudo_log_likelihood,
        raw_energy,
        sequence_energy,
    )
    from seqwise.sampling.kernels import delayed_acceptance, exact_gibbs, gibbs, mask_predict, metropolis_hastings
    from seqwise.sampling.options import KernelConfig
    from seqwise.sampling.proposals import anywhere, in_order, masked_conditionals, shuffled
    from seqwise.sampling.scores import TextScore
    from seqwise.sampling.scoring_settings import ScoringSettings
    from seqwise.sampling.settings import (
        ChainSettings,
        DelayedAcceptance,
        ExactGibbs,
        Gibbs,
        LowConfidenceRemasking,
        MaskPredict,
        MetropolisHastings,
        ParallelTempering,
        RandomUnmasking,
        RemaskingDiffusion,
        ThresholdDecoding,
    )
    from seqwise.sampling.state import ChainState, Info, Kernel, start_chains
    from seqwise.sampling.unmasking import (
        low_confidence_remasking,
        random_unmasking,
        remasking_diffusion,
        threshold_decoding,
    )
    from seqwise.sampling.within import (
        LanguageChains,
        RejectionMemory,
        WithinSamples,
        masked_draws,
        regrow_suffix,
        sample_within,
        start_within,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        "seqwise.sampling.any_order",
        "seqwise.sampling.chains",
        "seqwise.sampling.combinators",
        "seqwise.sampling.correctness",
        "seqwise.sampling.diagnostics",
        "seqwise.sampling.draws",
        "seqwise.sampling.energies",
        "seqwise.sampling.kernels",
        "seqwise.sampling.proposals",
        "seqwise.sampling.scores",
        "seqwise.sampling.scoring_settings",
        "seqwise.sampling.state",
        # Before the options that they share: a base class comes with its members.
        "seqwise.sampling.settings",
        "seqwise.sampling.options",
        "seqwise.sampling.unmasking",
        "seqwise.sampling.within",
    )

__all__ = [
    "ChainReport",
    "ChainSettings",
    "ChainState",
    "DelayedAcceptance",
    "Draws",
    "Energy",
    "ExactGibbs",
    "Gibbs",
    "Info",
    "Kernel",
    "KernelConfig",
    "LanguageChains",
    "LowConfidenceRemasking",
    "MaskPredict",
    "MetropolisHastings",
    "ParallelTempering",
    "RandomUnmasking",
    "RejectionMemory",
    "RemaskingDiffusion",
    "ScoringSettings",
    "SeededDraws",
    "TableModel",
    "TextScore",
    "ThresholdDecoding",
    "Trace",
    "WithinSamples",
    "anneal_blocks",
    "anneal_target",
    "any_order_bound",
    "anywhere",
    "boltzmann",
    "burn_in",
    "constraint",
    "contains",
    "cycle",
    "delayed_acceptance",
    "diagnose_chains",
    "every_sequence",
    "exact_gibbs",
    "examine",
    "examine_draws",
    "gibbs",
    "in_order",
    "load_chains",
    "local_energy",
    "low_confidence_remasking",
    "mask_predict",
    "masked_conditionals",
    "masked_draws",
    "metropolis_hastings",
    "mixture",
    "parallel_tempering",
    "pseudo_log_likelihood",
    "random_unmasking",
    "raw_energy",
    "regrow_suffix",
    "remasking_diffusion",
    "repeat",
    "replicas",
    "sample_chains",
    "sample_within",
    "save_chains",
    "sequence_energy",
    "shuffled",
    "simulated_matrix",
    "start_chains",
    "start_within",
    "table_model",
    "threshold_decoding",
    "to_datatree",
    "transition_matrix",
    "unmasking_law",
]
