"""Sampling of outputs of a step model inside a language: from p(y | y in L).

Masking, which drops disallowed tokens and renormalises the others, samples a different distribution:

    q(y) = prod_t p(y_t | y_<t) / Z_t        Z_t = sum of p(w | y_<t) over the allowed tokens w

Each step loses the mass 1 - Z_t, so prefixes with large later losses are drawn too often. The product of the allowed
masses, prod_t Z_t = p(y) / q(y), corrects this: as the weight of a draw, in the acceptance of a Markov chain, or as the
probability of keeping a draft.

Shapes: B inputs, N samples of each, M = B N chains, T tokens of the longest output, W tokens that may follow a prefix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.sampling.chains import sample_chains
from seqwise.sampling.draws import Draws, SeededDraws
from seqwise.sampling.energies import Energy, rows_of
from seqwise.sampling.state import ChainState, Info, Kernel
from seqwise.search.beam import HELD, unroll
from seqwise.search.candidates import Candidates, local
from seqwise.search.language import Language, require_members
from seqwise.search.selection import HardSelection

MOST_DRAFTS = 100_000
"""Largest number of drafts of one sample."""


@dataclass(frozen=True, eq=False)
class LanguageChains(ChainState):
    """Outputs in a language, the state of :func:`regrow_suffix`, with target p(y | y in L) and energy -log p(y).

    Attributes:
        tokens_BT: continued by end tokens; -1 beyond the steps of an input.
        energy: has no terms, because the energy also depends on the context.
        log_mass_BT: float64, log Z_t; 0 after the end.
    """

    log_mass_BT: Tensor = field(kw_only=True)

    @property
    def log_weights_B(self) -> Tensor:
        """``log p(y) - log q(y)``, with q the masked distribution: float64."""
        return self.log_mass_BT.sum(1)

    def take(self, rows_N: Tensor) -> Self:
        """Select chains, int64 (N,), with their caches."""
        return replace(super().take(rows_N), log_mass_BT=self.log_mass_BT[rows_N])


@torch.no_grad()
def sample_within(
    model: StepModel,
    context: Any,
    language: Language,
    *,
    num_steps: int | Tensor,
    num_samples: int = 1,
    num_proposals: int = 9,
    independence: float = 0.5,
    seed: int = 0,
) -> Tensor:
    """Sample outputs from ``p(y | y in L)``, where p is the local distribution over outputs of limited length.

    Each sample is a Markov chain: a masked draw (:func:`masked_draws`), then proposals of :func:`regrow_suffix`. Its
    distribution converges to the conditional as their number grows. :func:`~seqwise.sampling.chains.sample_chains` runs
    the same chains with a trace for diagnostics; :func:`rejection_within` is exact, but slow if p(y in L) is small.

    Args:
        model: a step model in evaluation mode.
        context: what ``model.encode`` returned: a nest of tensors whose first dimension is B.
        language: the allowed outputs.
        num_steps: number of tokens of the longest output, end token included, or of every output without an end token:
            int, or int64 (B,).
        num_samples: N, for each input.
        num_proposals: proposals of each chain. A sample takes ``num_proposals + 1`` passes along an output.
        independence: share of proposals that resample the whole output.
        seed: random seed.

    Returns:
        int64 (B, N, T), continued by end tokens, -1 beyond the steps of an input.

    Raises:
        InputError: an input has no output in the language, or only ones that the model never writes.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import EncoderDecoder
        >>> from seqwise.search import trie
        >>> model = EncoderDecoder(source_size=5, target_size=4, end=0, embedding_size=4, hidden_size=8).eval()
        >>> context = model.encode(collate([(0, EncodedExample((1, 2), ()))]))
        >>> sample_within(model, context, trie([(1, 2), (3,)], end=0), num_steps=3, num_samples=5).shape
        torch.Size([1, 5, 3])
    """
    chains = masked_draws(model, context, language, num_steps=num_steps, num_samples=num_samples, seed=seed)
    kernel = regrow_suffix(model, language, independence=independence)
    last = sample_chains(kernel, chains, num_proposals, seed=seed).state
    return last.tokens_BT.unflatten(0, (-1, num_samples))


@torch.no_grad()
def masked_draws(
    model: StepModel,
    context: Any,
    language: Language,
    *,
    num_steps: int | Tensor,
    num_samples: int = 1,
    seed: int = 0,
) -> LanguageChains:
    """Sample outputs with masking, from ``q(y) = prod_t p(y_t | y_<t) / Z_t``, with the weights ``p(y) / q(y)``.

    The mean weight is an unbiased estimate of p(y in L); weights divided by their sum estimate expectations under
    p(y | y in L).

    Args: see :func:`sample_within`.

    Returns:
        M = B N chains, grouped by input.

    Raises:
        InputError: an input has no output in the language, or the model never writes a draw.

    Example: with the model of :func:`sample_within`,
        ``masked_draws(model, context, language, num_steps=3, num_samples=100).log_weights_B.exp()``.
    """
    if num_samples < 1:
        raise InputError(f"the number of samples must be at least 1, got {num_samples}")
    rows_M, steps_M = _rows(model, context, num_steps, num_samples)
    draws = SeededDraws(seed, torch.arange(len(rows_M), device=rows_M.device), sweep=-1)  # chains begin at sweep 0

    def choose(step: int, log_probs_MW: Tensor, tokens_MW: Tensor, live_M: Tensor) -> Tensor:
        return draws.categorical(log_probs_MW, live_M)

    context = rows_of(context, rows_M)
    return _chains(_write(model, context, language, steps_M, choose), context)


@torch.no_grad()
def start_within(model: StepModel, context: Any, language: Language, tokens_BT: Tensor) -> LanguageChains:
    """Start chains of :func:`regrow_suffix` at given outputs of a language.

    Args:
        model, context, language: see :func:`sample_within`; one output for each input.
        tokens_BT: int64, continued by end tokens, -1 beyond the steps of an input.

    Raises:
        InputError: an output is not in the language, or the model never writes it.
    """
    require_members(language, tokens_BT)

    def choose(step: int, log_probs_MW: Tensor, tokens_MW: Tensor, live_M: Tensor) -> Tensor:
        return _columns(tokens_MW, tokens_BT[:, step])

    draft = _write(model, context, language, _num_steps(tokens_BT), choose, width=tokens_BT.shape[1])
    return _chains(draft, context)


def regrow_suffix(model: StepModel, language: Language, *, independence: float = 0.5) -> Kernel:
    """Make a Metropolis-Hastings kernel that resamples the rest of an output, with masking, from a random position on.

    The position t is one of the |y| positions of y, drawn uniformly, or the first with an additional probability:
    ``s(t | y) = r [t = 0] + (1 - r) / |y|``. With y' resampled after y_<t, the model's probabilities cancel except for
    the allowed masses of the two suffixes, and y' is accepted with probability

        min(1, s(t | y') prod_{i >= t} Z_i(y') / (s(t | y) prod_{i >= t} Z_i(y))).

    Args:
        model: a step model in evaluation mode.
        language: the language in which the chains started.
        independence: r, the share of proposals that resample the whole output, in [0, 1].

    Returns:
        A kernel for the states of :func:`masked_draws` and :func:`start_within`: one proposal, in one pass along an
        output, for each chain whose positions are all free.

    Raises:
        InputError: the share is not in [0, 1]; later, chains come from elsewhere.

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

        def choose(step: int, log_probs_MW: Tensor, tokens_MW: Tensor, still_M: Tensor) -> Tensor:
            drawn_M = draws.categorical(log_probs_MW, live_M & still_M & (start_M <= step))
            return torch.where(start_M <= step, drawn_M, _columns(tokens_MW, state.tokens_BT[:, step]))

        width = state.tokens_BT.shape[1]
        draft = _write(model, state.context, language, num_steps_M, choose, width=width)
        new = _chains(draft, state.context, checked=False)
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


# ------------------------------------------------------------------------------------------------- rejection


Prefix = tuple[int, tuple[int, ...]]
"""Index of an input, and tokens."""


@dataclass
class RejectionMemory:
    """Memory of :func:`rejection_within`: an upper bound on the mass of each visited prefix inside the language.

    For other prefixes, the bound is their whole mass.
    """

    following: dict[Prefix, tuple[list[int], Tensor]] = field(default_factory=dict)
    """Allowed tokens of each visited prefix, and their log-probabilities."""
    log_mass: dict[Prefix, float] = field(default_factory=dict)
    """Log of an upper bound on the probability that each visited prefix continues to an output in L."""

    def log_masses_after(self, prefix: Prefix, tokens: list[int]) -> list[float]:
        """Return bounds of the prefix extended by some tokens."""
        number, written = prefix
        return [self.log_mass.get((number, (*written, token)), 0.0) for token in tokens]

    def update(self, visited: Iterable[Prefix]) -> None:
        """Propagate bounds from longer to shorter prefixes of some drafts."""
        for prefix in sorted(visited, key=lambda prefix: -len(prefix[1])):
            tokens, log_probs_W = self.following[prefix]
            bounds_W = torch.tensor(self.log_masses_after(prefix, tokens), dtype=torch.float64)
            self.log_mass[prefix] = float((log_probs_W + bounds_W).logsumexp(0)) if tokens else -math.inf


class Accepted(NamedTuple):
    """Accepted outputs, int64 (B, N, T), and the number of drafts for each, int64 (B, N)."""

    tokens_BNT: Tensor
    drafts_BN: Tensor


@torch.no_grad()
def rejection_within(
    model: StepModel,
    context: Any,
    language: Language,
    *,
    num_steps: int | Tensor,
    num_samples: int = 1,
    memory: RejectionMemory | None = None,
    seed: int = 0,
) -> Accepted:
    """Sample outputs from ``p(y | y in L)`` exactly, by rejecting drafts from p that leave the language.

    Rejections are remembered: at visited prefixes, tokens are drawn by p times the bound on the mass that stays in the
    language. So continuations known to be outside are never drafted again, and the acceptance rate rises with every
    draft, while accepted outputs remain independent samples of the conditional.

    Args:
        model, context, language, num_steps, num_samples, seed: see :func:`sample_within`.
        memory: memory of earlier calls with the same model, context and language, which is extended. Each call then
            needs a different seed.

    Returns:
        The outputs, see :func:`sample_within`, and the numbers of drafts, accepted ones included.

    Raises:
        InputError: an input has no output in the language, or none that the model writes, or too many rejections.

    Source: Parys et al. (2025). Park et al. (NeurIPS 2024) keep the same masses without rejecting, which is exact only
    in the limit.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import EncoderDecoder
        >>> from seqwise.search import trie
        >>> model = EncoderDecoder(source_size=5, target_size=4, end=0, embedding_size=4, hidden_size=8).eval()
        >>> context = model.encode(collate([(0, EncodedExample((1, 2), ()))]))
        >>> rejection_within(model, context, trie([(1, 2), (3,)], end=0), num_steps=3, num_samples=5).tokens_BNT.shape
        torch.Size([1, 5, 3])
    """
    memory = RejectionMemory() if memory is None else memory
    rows_M, steps_M = _rows(model, context, num_steps, num_samples)
    tokens_MT = torch.full((len(rows_M), int(steps_M.max())), HELD, device=rows_M.device)
    drafts_M = torch.zeros_like(rows_M)
    waiting_R = torch.arange(len(rows_M), device=rows_M.device)
    while len(waiting_R):
        number = int(drafts_M.max())
        draws = SeededDraws(seed, waiting_R, sweep=number)
        inputs_R = rows_M[waiting_R]
        draft_RT, kept_R = _draft(
            model, rows_of(context, inputs_R), language, steps_M[waiting_R], inputs_R.tolist(), memory, draws
        )
        drafts_M[waiting_R] += 1
        tokens_MT[waiting_R[kept_R], : draft_RT.shape[1]] = draft_RT[kept_R]
        waiting_R = waiting_R[~kept_R]
        if any(memory.log_mass[place, ()] == -math.inf for place in set(rows_M[waiting_R].tolist())):
            raise _never_written()
        if number > MOST_DRAFTS:
            raise InputError(
                f"{number:,} drafts of an output were rejected",
                hint="use sample_within, or a model and a language that agree more",
            )
    return Accepted(tokens_MT.unflatten(0, (-1, num_samples)), drafts_M.unflatten(0, (-1, num_samples)))


def _draft(
    model: StepModel,
    context: Any,
    language: Language,
    steps_M: Tensor,
    inputs: list[int],
    memory: RejectionMemory,
    draws: Draws,
) -> tuple[Tensor, Tensor]:
    """Make one draft for each row, and decide whether to keep it; update the memory."""
    visited: set[Prefix] = set()
    kept_M = torch.ones_like(steps_M, dtype=torch.bool)
    prefixes: list[Prefix] = [(number, ()) for number in inputs]

    def choose(step: int, log_probs_MW: Tensor, tokens_MW: Tensor, live_M: Tensor) -> Tensor:
        nonlocal kept_M
        weights_MW, known_M = torch.full_like(log_probs_MW, -torch.inf), torch.zeros_like(log_probs_MW[:, 0])
        seen: dict[Prefix, Tensor] = {}
        for row in (live_M & kept_M).nonzero().flatten().tolist():
            prefix = prefixes[row]
            if prefix not in seen:
                ids_W = tokens_MW[row].tolist()
                bounds_W = log_probs_MW.new_tensor(memory.log_masses_after(prefix, ids_W))
                seen[prefix] = log_probs_MW[row] + bounds_W
                if prefix not in memory.following:
                    places = [place for place, token in enumerate(ids_W) if token >= 0]
                    log_probs_C = log_probs_MW[row, places].cpu()
                    memory.following[prefix] = [ids_W[place] for place in places], log_probs_C
            weights_MW[row], known_M[row] = seen[prefix], memory.log_mass.get(prefix, 0.0)
        visited.update(seen)
        # What came before took the prefix to hold so much mass in the language; rejected with what it does not hold.
        going_M = live_M & kept_M
        kept_M = kept_M & (draws.accepts(weights_MW.logsumexp(1) - known_M, going_M) | ~going_M)
        columns_M = draws.categorical(weights_MW, live_M & kept_M)
        chosen_M = tokens_MW.gather(1, columns_M[:, None]).squeeze(1).tolist()
        for row in (live_M & kept_M).nonzero().flatten().tolist():
            number, written = prefixes[row]
            prefixes[row] = number, (*written, chosen_M[row])
        return torch.where(kept_M, columns_M, log_probs_MW.argmax(1))

    draft = _write(model, context, language, steps_M, choose)
    memory.update(visited)
    return draft.tokens_MT, kept_M


# ------------------------------------------------------------------------------------------------- one pass


class _Draft(NamedTuple):
    tokens_MT: Tensor
    log_probs_MT: Tensor  # float64, log p(y_t | y_<t)
    log_mass_MT: Tensor  # float64, log Z_t


Choose = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Function from a step, log p (M, W) of the allowed tokens, these, and a mask of open outputs (M,), to columns (M,)."""


def _write(
    model: StepModel, context: Any, language: Language, steps_M: Tensor, choose: Choose, *, width: int = 0
) -> _Draft:
    """Write one output in the language for each row, with tokens chosen by a function, padded to a minimum width."""
    columns: list[tuple[Tensor, Tensor, Tensor]] = []

    def selector(candidates: Candidates, carry: Any, generator: torch.Generator | None) -> tuple[HardSelection, Any]:
        assert candidates.allowed_BJC is not None
        log_probs_MW, tokens_MW = candidates.scores_BJW[:, 0].double(), candidates.allowed_BJC[:, 0]
        has_steps_M = steps_M > candidates.step
        live_M = has_steps_M & (candidates.finished_BJ[:, 0] == 0)
        chosen_M = choose(candidates.step, log_probs_MW, tokens_MW, live_M)
        column_M1 = torch.where(live_M, chosen_M, log_probs_MW.argmax(1))[:, None]
        parents_M1 = torch.zeros_like(column_M1)
        token_M1 = candidates.tokens_at(parents_M1, column_M1)
        columns.append(
            (
                token_M1[:, 0].masked_fill(~has_steps_M, HELD),
                log_probs_MW.gather(1, column_M1)[:, 0].masked_fill(~live_M, 0.0),
                log_probs_MW.logsumexp(1).masked_fill(~live_M, 0.0),
            )
        )
        # The beam's own scores stay 0, so that those of its candidates are of one step.
        return HardSelection(torch.zeros_like(candidates.prefix_scores_BJ), parents_M1, token_M1), carry

    is_shared = bool((steps_M == steps_M[:1]).all())
    num_steps = int(steps_M[0]) if is_shared and len(steps_M) else steps_M
    for _ in unroll(model, context, selector, num_steps=num_steps, score=local, end=model.end, language=language):
        pass
    ended = torch.full_like(steps_M, HELD), torch.zeros_like(steps_M).double(), torch.zeros_like(steps_M).double()
    columns += [ended] * (width - len(columns))
    if not columns:
        return _Draft(*(column_M[:, None][:, :0] for column_M in ended))
    return _Draft(*(torch.stack(parts, 1) for parts in zip(*columns, strict=True)))


def _chains(draft: _Draft, context: Any, *, checked: bool = True) -> LanguageChains:
    """Make the state of chains at given outputs."""
    energy_BT = -draft.log_probs_MT
    energy_B = energy_BT.sum(1)
    if checked and not bool(energy_B.isfinite().all()):
        raise _never_written()
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
    )


def _rows(model: StepModel, context: Any, num_steps: int | Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
    """Return the input and the number of steps of each of the M chains."""
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


def _never_written() -> InputError:
    return InputError(
        "the model gives no probability to an output of the language",
        hint="widen the language, or use a model whose scores exclude fewer tokens",
    )
