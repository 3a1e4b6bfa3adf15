"""Sampling of outputs of a step model inside a language: from p(y | y in L).

Masking, which drops disallowed tokens and renormalises the others, samples a different distribution:

    q(y) = prod_t p(y_t | y_<t) / Z_t        Z_t = sum of p(w | y_<t) over the allowed tokens w

Each step loses the mass 1 - Z_t, so prefixes with large later losses are drawn too often. The product of the allowed
masses, prod_t Z_t = p(y) / q(y), corrects this: as the weight of a draw, in the acceptance of a Markov chain, or as the
probability of keeping a draft.

A memory of earlier draws improves q. At visited prefixes, tokens are drawn by p times an upper bound on the mass that
they keep in the language, so what is known to be lost is not drawn again:

    q(w | y_<t) = p(w | y_<t) b(y_<t w) / S(y_<t)     S(y_<t) = sum of p(w | y_<t) b(y_<t w) over the allowed tokens w
    p(y) / q(y) = S() prod_{t > 1} S(y_<t) / b(y_<t)  b = S for visited prefixes, once learnt, and 1 for the others

Shapes: B inputs, N samples of each, M = B N chains, T tokens of the longest output, W tokens that may follow a prefix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqwise.errors import InputError
from seqwise.models.protocols import StepModel, require_evaluation_mode
from seqwise.names import WithinName
from seqwise.sampling.chains import sample_chains
from seqwise.sampling.draws import Draws, SeededDraws
from seqwise.sampling.energies import Energy, rows_of
from seqwise.sampling.state import ChainState, Info, Kernel
from seqwise.search.beam import HELD, longest_search, unroll
from seqwise.search.candidates import Candidates, local
from seqwise.search.language import Language, never_written, require_members
from seqwise.search.selection import HardSelection

METHODS: tuple[WithinName, ...] = get_args(WithinName)
MOST_DRAFTS = 100_000
"""Largest number of drafts of one sample."""

Prefix = tuple[int, tuple[int, ...]]
"""Index of an input, and tokens."""


@dataclass
class RejectionMemory:
    """Upper bounds on the mass of visited prefixes inside a language, for one model, context and number of steps.

    Attributes:
        log_weights: log p(w | prefix) + log b(prefix w), (W,), for each visited prefix and its allowed tokens, in
            descending order of their ids.
    """

    log_weights: dict[Prefix, Tensor] = field(default_factory=dict)

    def log_mass(self, prefix: Prefix) -> float:
        """Return log b of a prefix: a bound on the log-probability that it continues to an output in L."""
        return float(self.log_weights[prefix].logsumexp(0)) if prefix in self.log_weights else 0.0

    def learn(self, visits: _Visits) -> None:
        """Add visited prefixes, and propagate bounds from longer to shorter ones."""
        for prefix, (log_probs_W, tokens_W) in visits.new.items():
            self.log_weights[prefix] = log_probs_W[tokens_W >= 0]
        for prefix in sorted(visits.log_probs, key=lambda prefix: -len(prefix[1])):
            number, written = prefix
            if written:
                place, log_prob = visits.log_probs[prefix]
                self.log_weights[number, written[:-1]][place] = log_prob + self.log_mass(prefix)


@dataclass(frozen=True, eq=False)
class LanguageChains(ChainState):
    """Outputs in a language, the state of :func:`regrow_suffix`, with target p(y | y in L) and energy -log p(y).

    Attributes:
        tokens_BT: continued by end tokens; -1 beyond the steps of an input.
        energy: has no terms, because the energy also depends on the context.
        log_mass_BT: float64, log Z_t, or log S / b with a memory; 0 after the end.
        inputs_B: int64, index of the input of each chain.
        memory: memory that improves q, not changed while the chains run.
    """

    log_mass_BT: Tensor = field(kw_only=True)
    inputs_B: Tensor = field(kw_only=True)
    memory: RejectionMemory | None = field(kw_only=True, default=None)

    @property
    def log_weights_B(self) -> Tensor:
        """``log p(y) - log q(y)``, with q the masked distribution: float64."""
        return self.log_mass_BT.sum(1)

    def take(self, rows_N: Tensor) -> Self:
        """Select chains, int64 (N,), with their caches."""
        return replace(super().take(rows_N), log_mass_BT=self.log_mass_BT[rows_N], inputs_B=self.inputs_B[rows_N])

    def under(self, energy: Energy) -> ChainState:
        """Raise an InputError: kernels of other states would not update the masses."""
        problem = "only regrow_suffix moves chains inside a language, alone or in mixtures and cycles of itself"
        raise InputError(problem, hint="use sample_within, or regrow_suffix without tempering")


class WithinSamples(NamedTuple):
    """Result of :func:`sample_within`.

    Attributes:
        tokens_BNT: int64, continued by end tokens, -1 beyond the steps of an input.
        exact_BN: bool, whether a sample comes from rejection, and so from ``p(y | y in L)`` itself.
        passes_B: int64, passes of the model along an output, for all samples of an input.
    """

    tokens_BNT: Tensor
    exact_BN: Tensor
    passes_B: Tensor


@torch.no_grad()
def sample_within(
    model: StepModel,
    context: Any,
    language: Language,
    *,
    num_steps: int | Tensor,
    num_samples: int = 1,
    method: WithinName = "budgeted",
    num_passes: int = 10,
    independence: float = 0.5,
    memory: RejectionMemory | None = None,
    seed: int = 0,
) -> WithinSamples:
    """Sample outputs from ``p(y | y in L)``, where p is the local distribution over outputs of limited length.

    The methods:

    - ``rejection`` is exact, and its samples are independent. A draw of q is kept with probability
      ``p(y) / (q(y) b())``. Each draw adds to the memory, so this rises from p(y in L) towards 1.
    - ``metropolis`` is approximate: for each sample a chain of one masked draw and ``num_passes - 1`` proposals of
      :func:`regrow_suffix`.
    - ``budgeted`` rejects for as long as each missing sample would still have half of its passes, and then runs chains
      for these, with the memory. The distribution of a sample is at most as far from the conditional, in total
      variation, as the probability that it is not exact.

    :func:`~seqwise.sampling.chains.sample_chains` runs the same chains with a trace for diagnostics.

    Args:
        model: a step model in evaluation mode.
        context: what ``model.encode`` returned: a nest of tensors whose first dimension is B.
        language: the allowed outputs.
        num_steps: number of tokens of the longest output, end token included, or of every output without an end token:
            int, or int64 (B,).
        num_samples: N, for each input.
        method: budgeted, rejection or metropolis.
        num_passes: passes along an output for each sample; on average if budgeted, and without effect on rejection.
        independence: share of the proposals of chains that resample the whole output.
        memory: memory of earlier calls with the same model, context, language and number of steps. Rejection extends
            it. Each call then needs a different seed.
        seed: random seed.

    Raises:
        InputError: an input has no output in the language, or only ones that the model never writes; a sample takes
            more than 100,000 drafts.

    Source: Parys et al. (2025) for the memory; their drafts end where they leave the language, and these are complete.
    Anaya Gonzalez et al. (NeurIPS 2025) for the chains. The budget is new here.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import EncoderDecoder
        >>> from seqwise.search import trie
        >>> model = EncoderDecoder(source_size=5, target_size=4, end=0, embedding_size=4, hidden_size=8).eval()
        >>> context = model.encode(collate([EncodedExample((1, 2), ())]))
        >>> samples = sample_within(model, context, trie([(1, 2), (3,)], end=0), num_steps=3, num_samples=50)
        >>> samples.tokens_BNT.shape, bool(samples.exact_BN.all())
        (torch.Size([1, 50, 3]), True)
    """
    require_evaluation_mode(model)
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}", hint=f"use {', '.join(METHODS)}")
    if num_passes < 1:
        raise InputError(f"the number of passes must be at least 1, got {num_passes}")
    rows_M, steps_M = _rows(model, context, num_steps, num_samples)
    tokens_MT = torch.full((len(rows_M), longest_search(steps_M)), HELD, device=rows_M.device)
    missing_M, passes_M = torch.ones_like(rows_M, dtype=torch.bool), torch.zeros_like(rows_M)
    # Passes for each input; rejection reserves some for the chain of each missing sample.
    budget = {"rejection": math.inf, "budgeted": num_samples * num_passes, "metropolis": 0}[method]
    reserved = num_passes if method == "metropolis" else max(1, num_passes // 2)
    if method != "metropolis":
        memory = RejectionMemory() if memory is None else memory
    # Random numbers: chains use sweeps from 0 on, their start sweep -1, and rejection sweeps from -2 down.
    for number in range(MOST_DRAFTS):
        used_B, missing_B = (each_M.view(-1, num_samples).sum(1) for each_M in (passes_M, missing_M.long()))
        chosen_R = (missing_M & (used_B + (1 + reserved) * missing_B <= budget)[rows_M]).nonzero().flatten()
        if not len(chosen_R):
            break
        draws = SeededDraws(seed, chosen_R, sweep=-2 - number)
        context_R = rows_of(context, rows_M[chosen_R])
        draft = _draw(model, context_R, language, steps_M[chosen_R], rows_M[chosen_R], memory, draws)
        assert memory is not None and draft.visits is not None
        bounds_R = draft.log_mass_MT.new_tensor([memory.log_mass(root) for root in draft.visits.roots])
        kept_R = draws.accepts(draft.log_mass_MT.sum(1) - bounds_R, torch.ones_like(chosen_R, dtype=torch.bool))
        memory.learn(draft.visits)
        if any(memory.log_mass(root) == -math.inf for root in set(draft.visits.roots)):
            raise never_written()
        kept_K = chosen_R[kept_R]
        tokens_MT[kept_K, : draft.tokens_MT.shape[1]] = draft.tokens_MT[kept_R]
        missing_M[kept_K] = False
        passes_M[chosen_R] += 1
    exact_M, left_R = ~missing_M, missing_M.nonzero().flatten()
    if len(left_R) and method == "rejection":
        hint = "use budgeted or metropolis, or a model and a language that agree more"
        raise InputError(f"{MOST_DRAFTS:,} drafts of an output were rejected", hint=hint)
    if len(left_R):
        context_R, inputs_R, steps_R = rows_of(context, rows_M[left_R]), rows_M[left_R], steps_M[left_R]
        draws = SeededDraws(seed, left_R, sweep=-1)
        draft = _draw(model, context_R, language, steps_R, inputs_R, memory, draws)
        chains = _chains(draft, context_R, inputs_R, memory, checked=False)
        if bool(chains.energy_B.isinf().any()):
            tokens_RT, again_R = _redrawn(model, context_R, language, steps_R, inputs_R, draft, left_R, seed)
            chains = start_within(model, context_R, language, tokens_RT, inputs_B=inputs_R, memory=memory)
            passes_M[left_R] += again_R
        chains = replace(chains, chain_B=left_R)
        kernel = regrow_suffix(model, language, independence=independence)
        last = sample_chains(kernel, chains, reserved - 1, seed=seed).state
        tokens_MT[left_R, : last.tokens_BT.shape[1]] = last.tokens_BT
        passes_M[left_R] += reserved
    by_input = (-1, num_samples)
    return WithinSamples(
        tokens_MT.unflatten(0, by_input), exact_M.unflatten(0, by_input), passes_M.unflatten(0, by_input).sum(1)
    )


@torch.no_grad()
def masked_draws(
    model: StepModel,
    context: Any,
    language: Language,
    *,
    num_steps: int | Tensor,
    num_samples: int = 1,
    seed: int = 0,
    checked: bool = True,
) -> LanguageChains:
    """Sample outputs with masking, from ``q(y) = prod_t p(y_t | y_<t) / Z_t``, with the weights ``p(y) / q(y)``.

    The mean weight is an unbiased estimate of p(y in L); weights divided by their sum estimate expectations under
    p(y | y in L).

    Args:
        model, context, language, num_steps, num_samples, seed: see :func:`sample_within`.
        checked: whether a draw to which the model gives no probability raises an error; its weight is 0.

    Returns:
        M = B N chains, grouped by input.

    Raises:
        InputError: an input has no output in the language, or the model never writes a draw.

    Example: with the model of :func:`sample_within`,
        ``masked_draws(model, context, language, num_steps=3, num_samples=100).log_weights_B.exp()``.
    """
    rows_M, steps_M = _rows(model, context, num_steps, num_samples)
    draws = SeededDraws(seed, torch.arange(len(rows_M), device=rows_M.device), sweep=-1)  # chains use sweeps from 0 on
    context = rows_of(context, rows_M)
    draft = _draw(model, context, language, steps_M, rows_M, None, draws)
    return _chains(draft, context, rows_M, None, checked=checked)


@torch.no_grad()
def start_within(
    model: StepModel,
    context: Any,
    language: Language,
    tokens_BT: Tensor,
    *,
    inputs_B: Tensor | None = None,
    memory: RejectionMemory | None = None,
    checked: bool = True,
) -> LanguageChains:
    """Start chains of :func:`regrow_suffix` at given outputs of a language.

    Args:
        model, context, language: see :func:`sample_within`; one output for each input.
        tokens_BT: int64, continued by end tokens, -1 beyond the steps of an input.
        inputs_B: int64, index of each input in the memory; by default 0 to B - 1.
        memory: improves q and is not extended.
        checked: whether an output to which the model gives no probability raises an error; chains cannot run from it.

    Raises:
        InputError: an output is not in the language, or the model never writes it.
    """
    require_members(language, tokens_BT)
    inputs_B = torch.arange(len(tokens_BT), device=tokens_BT.device) if inputs_B is None else inputs_B

    def choose(step: int, weights_MW: Tensor, tokens_MW: Tensor, live_M: Tensor) -> Tensor:
        return _columns(tokens_MW, tokens_BT[:, step])

    width, num_steps_B = tokens_BT.shape[1], _num_steps(tokens_BT)
    draft = _write(model, context, language, num_steps_B, choose, inputs_B, memory, width=width)
    return _chains(draft, context, inputs_B, memory, checked=checked)


def regrow_suffix(model: StepModel, language: Language, *, independence: float = 0.5) -> Kernel:
    """Make a Metropolis-Hastings kernel that resamples the rest of an output, with masking, from a random position on.

    The position t is one of the |y| positions of y, drawn uniformly, or the first with an additional probability:
    ``s(t | y) = r [t = 0] + (1 - r) / |y|``. With y' resampled after y_<t, the model's probabilities cancel except for
    the allowed masses of the two suffixes, and y' is accepted with probability

        min(1, s(t | y') prod_{i >= t} Z_i(y') / (s(t | y) prod_{i >= t} Z_i(y))).

    Chains that started with a memory draw suffixes with it, and S_i / b_i replaces Z_i. If all proposals resample the
    whole output, n of them are at most ``(1 - a)^n`` away from the conditional in total variation, with a the
    probability that rejection with this memory keeps a draw.

    Args:
        model: a step model in evaluation mode.
        language: the language in which the chains started.
        independence: r, the share of proposals that resample the whole output, in [0, 1].

    Returns:
        A kernel for the states of :func:`masked_draws` and :func:`start_within`: one proposal, in one pass along an
        output, for each chain whose positions are all free.

    Raises:
        InputError: the share is not in [0, 1]; in a sweep, if the chains are of another kind.

    Source: Anaya Gonzalez et al. (NeurIPS 2025). Not implemented: caching decoder states at each position, so that a
    pass starts at t.

    Example: see :func:`sample_within`.
    """
    if not 0 <= independence <= 1:
        raise InputError(f"the share of independent proposals must lie between 0 and 1, got {independence}")

    @torch.no_grad()
    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        if not isinstance(state, LanguageChains):
            raise InputError("regrow_suffix moves chains inside a language", hint="start them with masked_draws")
        num_steps_M = _num_steps(state.tokens_BT)
        live_M = state.free_BT.all(1) & (num_steps_M > 0)
        if not bool(live_M.any()):
            return state, Info.none(state)
        log_starts_MT = _log_starts(state.tokens_BT, model.end, independence)
        start_M = draws.categorical(log_starts_MT, live_M)

        def choose(step: int, weights_MW: Tensor, tokens_MW: Tensor, still_M: Tensor) -> Tensor:
            drawn_M = draws.categorical(weights_MW, live_M & still_M & (start_M <= step))
            return torch.where(start_M <= step, drawn_M, _columns(tokens_MW, state.tokens_BT[:, step]))

        width = state.tokens_BT.shape[1]
        inputs_M, memory = state.inputs_B, state.memory
        draft = _write(model, state.context, language, num_steps_M, choose, inputs_M, memory, width=width)
        new = _chains(draft, state.context, inputs_M, memory, checked=False)
        suffix_MT = torch.arange(width, device=start_M.device) >= start_M[:, None]
        log_masses = [torch.where(suffix_MT, each.log_mass_BT, 0.0).sum(1) for each in (new, state)]
        log_starts = [
            each_MT.gather(1, start_M[:, None]).squeeze(1)
            for each_MT in (_log_starts(new.tokens_BT, model.end, independence), log_starts_MT)
        ]
        log_accept_M = log_masses[0] - log_masses[1] + log_starts[0] - log_starts[1]
        accepted_M = draws.accepts(log_accept_M, live_M) & live_M
        novel_M = accepted_M & (new.tokens_BT != state.tokens_BT).any(1)
        accepted_M1 = accepted_M[:, None]
        energy_MT = torch.where(accepted_M1, new.energy_BT, state.energy_BT)
        moved = replace(
            state,
            tokens_BT=torch.where(accepted_M1, new.tokens_BT, state.tokens_BT),
            energy_B=energy_MT.sum(1),
            energy_BT=energy_MT,
            log_mass_BT=torch.where(accepted_M1, new.log_mass_BT, state.log_mass_BT),
        )
        return moved, Info(live_M.long(), accepted_M.long(), novel_M.long(), live_M.long())

    return kernel


# ------------------------------------------------------------------------------------------------- one pass


class _Visits:
    """Prefixes that the rows of a pass visit."""

    def __init__(self, memory: RejectionMemory, inputs_M: Tensor) -> None:
        self.roots: list[Prefix] = [(number, ()) for number in inputs_M.tolist()]
        # For the last token of each: its index among the tokens of its parent, and log p.
        self.log_probs: dict[Prefix, tuple[int, float]] = {}
        self.new: dict[Prefix, tuple[Tensor, Tensor]] = {}  # log-probabilities and tokens after each new prefix
        self._memory = memory
        self._prefixes = list(self.roots)
        self._arcs = [(0, 0.0) for _ in self.roots]

    def weigh(self, log_probs_MW: Tensor, tokens_MW: Tensor, live_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-weights of the allowed tokens, whose ids descend, and log S / b, or log S at the start."""
        weights_MW, log_mass_M = log_probs_MW.clone(), log_probs_MW.logsumexp(1)
        known = []
        for row in live_M.nonzero().flatten().tolist():
            prefix = self._prefixes[row]
            self.log_probs[prefix] = self._arcs[row]
            if prefix in self._memory.log_weights:
                known.append(row)
            elif prefix not in self.new:
                self.new[prefix] = log_probs_MW[row], tokens_MW[row]
        if known:
            prefixes = [self._prefixes[row] for row in known]
            known_KW = pad_sequence([self._memory.log_weights[prefix] for prefix in prefixes], True, -torch.inf)
            weights_MW[known] = -torch.inf
            weights_MW[known, : known_KW.shape[1]] = known_KW
            masses = [0.0 if prefix[1] else self._memory.log_mass(prefix) for prefix in prefixes]
            log_mass_M[known] = log_mass_M.new_tensor(masses)
        return weights_MW, log_mass_M

    def extend(self, columns_M: Tensor, log_probs_M: Tensor, tokens_M: Tensor) -> None:
        """Extend every row by a token, given its column and log-probability."""
        columns, log_probs, tokens = columns_M.tolist(), log_probs_M.tolist(), tokens_M.tolist()
        self._prefixes = [
            (number, (*written, token)) for (number, written), token in zip(self._prefixes, tokens, strict=True)
        ]
        self._arcs = list(zip(columns, log_probs, strict=True))


class _Draft(NamedTuple):
    tokens_MT: Tensor
    log_probs_MT: Tensor  # float64, log p(y_t | y_<t)
    log_mass_MT: Tensor  # float64, log Z_t, or log S_t / b_t
    visits: _Visits | None  # of passes with a memory


Choose = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Maps a step, the log-weights (M, W) of allowed tokens, these tokens, and a mask (M,) of open outputs to columns."""


def _draw(
    model: StepModel,
    context: Any,
    language: Language,
    steps_M: Tensor,
    inputs_M: Tensor,
    memory: RejectionMemory | None,
    draws: Draws,
) -> _Draft:
    """Draw an output of q for each row."""

    def choose(step: int, weights_MW: Tensor, tokens_MW: Tensor, live_M: Tensor) -> Tensor:
        return draws.categorical(weights_MW, live_M)

    return _write(model, context, language, steps_M, choose, inputs_M, memory)


def _redrawn(
    model: StepModel,
    context: Any,
    language: Language,
    steps_M: Tensor,
    inputs_M: Tensor,
    draft: _Draft,
    chain_M: Tensor,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Draw outputs again until the model gives a probability to each; return them, and the number of passes of each.

    Some prefixes lead only to tokens that the model excludes. A memory learns them, so none is drawn twice.
    """
    tokens_MT, passes_M = draft.tokens_MT.clone(), torch.zeros_like(inputs_M)
    learnt, is_dead_M = RejectionMemory(), draft.log_probs_MT.sum(1).isinf()
    for number in range(MOST_DRAFTS):
        rows_R = is_dead_M.nonzero().flatten()
        if not len(rows_R):
            break
        draws = SeededDraws(seed, chain_M[rows_R], sweep=-2 - MOST_DRAFTS - number)  # after those of rejection
        again = _draw(model, rows_of(context, rows_R), language, steps_M[rows_R], inputs_M[rows_R], learnt, draws)
        assert again.visits is not None
        learnt.learn(again.visits)
        if any(learnt.log_mass(root) == -math.inf for root in again.visits.roots):
            raise never_written()
        tokens_MT[rows_R, : again.tokens_MT.shape[1]] = again.tokens_MT
        is_dead_M[rows_R] = again.log_probs_MT.sum(1).isinf()
        passes_M[rows_R] += 1
    return tokens_MT, passes_M


def _write(
    model: StepModel,
    context: Any,
    language: Language,
    steps_M: Tensor,
    choose: Choose,
    inputs_M: Tensor,
    memory: RejectionMemory | None,
    *,
    width: int = 0,
) -> _Draft:
    """Write one output in the language for each row, with tokens chosen by a function, padded to a minimum width."""
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    visits = None if memory is None else _Visits(memory, inputs_M)

    def selector(candidates: Candidates, carry: Any, generator: torch.Generator | None) -> tuple[HardSelection, Any]:
        assert candidates.allowed_BJC is not None
        log_probs_MW, tokens_MW = candidates.scores_BJW[:, 0].double(), candidates.allowed_BJC[:, 0]
        has_steps_M = steps_M > candidates.step
        live_M = has_steps_M & (candidates.finished_BJ[:, 0] == 0)
        if visits is None:
            weights_MW, log_mass_M = log_probs_MW, log_probs_MW.logsumexp(1)
        else:
            tokens_MW, order_MW = tokens_MW.sort(1, descending=True)
            log_probs_MW = log_probs_MW.gather(1, order_MW)
            weights_MW, log_mass_M = visits.weigh(log_probs_MW, tokens_MW, live_M)
        chosen_M = choose(candidates.step, weights_MW, tokens_MW, live_M)
        column_M1 = torch.where(live_M, chosen_M, log_probs_MW.argmax(1))[:, None]
        token_M1, log_prob_M1 = (each_MW.gather(1, column_M1) for each_MW in (tokens_MW.clamp(min=0), log_probs_MW))
        columns.append(
            (
                token_M1[:, 0].masked_fill(~has_steps_M, HELD),
                log_prob_M1[:, 0].masked_fill(~live_M, 0.0),
                log_mass_M.masked_fill(~live_M, 0.0),
            )
        )
        if visits is not None:
            visits.extend(*(each_M1[:, 0] for each_M1 in (column_M1, log_prob_M1, token_M1)))
        # The beam's scores stay 0, so that the scores of its candidates are those of a single step.
        scores_M1, parents_M1 = torch.zeros_like(candidates.prefix_scores_BJ), torch.zeros_like(token_M1)
        return HardSelection(scores_M1, parents_M1, token_M1), carry

    is_shared = bool((steps_M == steps_M[:1]).all())
    num_steps = int(steps_M[0]) if is_shared and len(steps_M) else steps_M
    for _ in unroll(model, context, selector, num_steps=num_steps, score=local, end=model.end, language=language):
        pass
    ended = torch.full_like(steps_M, HELD), torch.zeros_like(steps_M).double(), torch.zeros_like(steps_M).double()
    columns += [ended] * (width - len(columns))
    tokens_MT, log_probs_MT, log_mass_MT = (torch.stack(parts, 1) for parts in zip(ended, *columns, strict=True))
    return _Draft(tokens_MT[:, 1:], log_probs_MT[:, 1:], log_mass_MT[:, 1:], visits)


def _chains(
    draft: _Draft, context: Any, inputs_M: Tensor, memory: RejectionMemory | None, *, checked: bool = True
) -> LanguageChains:
    """Make the state of chains at given outputs."""
    energy_BT = -draft.log_probs_MT
    energy_B = energy_BT.sum(1)
    if checked and not bool(energy_B.isfinite().all()):
        raise never_written()
    return LanguageChains(
        draft.tokens_MT,
        energy_B,
        energy_BT,
        (),
        Energy(),
        torch.ones_like(draft.tokens_MT, dtype=torch.bool),
        torch.arange(len(energy_B), device=energy_B.device),
        context=context,
        log_mass_BT=draft.log_mass_MT,
        inputs_B=inputs_M,
        memory=memory,
    )


def _rows(model: StepModel, context: Any, num_steps: int | Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
    """Return the input and the number of steps of each of the M chains."""
    if num_samples < 1:
        raise InputError(f"the number of samples must be at least 1, got {num_samples}")
    inputs_B1D, _ = model.start(context)
    rows_M = torch.arange(len(inputs_B1D), device=inputs_B1D.device).repeat_interleave(num_samples)
    steps_B = torch.as_tensor(num_steps, device=rows_M.device).expand(len(inputs_B1D))
    return rows_M, steps_B[rows_M]


def _num_steps(tokens_MT: Tensor) -> Tensor:
    return (tokens_MT != HELD).sum(1)


def _columns(tokens_MW: Tensor, token_M: Tensor) -> Tensor:
    """Return the columns of given tokens among the allowed ones."""
    return (tokens_MW == token_M[:, None]).to(torch.uint8).argmax(1)


def _log_starts(tokens_MT: Tensor, end: int | None, independence: float) -> Tensor:
    """Return the log-probability that a suffix starts at each position, minus infinity after the end of the output."""
    is_written_MT = tokens_MT != HELD
    if end is not None:
        is_end_MT = tokens_MT == end
        is_written_MT = is_written_MT & (is_end_MT.cumsum(1) - is_end_MT.long() == 0)
    share_MT = (1 - independence) * is_written_MT.double() / is_written_MT.sum(1, keepdim=True).clamp(min=1)
    share_MT[:, 0] += independence
    return share_MT.log()
