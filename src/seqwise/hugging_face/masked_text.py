"""Text sampling and infilling with masked Hugging Face models.

Samples are tokens between special tokens, which never change; lengths exclude these. Tokenizing the text of a sample
may give different tokens (a word piece next to one that it joins with, bytes that are not UTF-8);
then :attr:`TextSample.survives <seqwise.hugging_face.TextSample.survives>` is false. ``tokens`` are the sampled ones.

Shapes: S sweeps, B chains, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import FREE
from seqwise.errors import InputError, placed
from seqwise.hugging_face.masked_model import HuggingFaceMaskedModel, masked_model
from seqwise.hugging_face.text_codec import TextCodec
from seqwise.models.protocols import require_evaluation_mode
from seqwise.sampling.chains import Trace, tally
from seqwise.sampling.diagnostics import ChainReport, diagnose_chains
from seqwise.sampling.problems import ChainProblem, Progress, run_problems, samples_of
from seqwise.sampling.settings import ChainSettings


@dataclass(frozen=True)
class TextSample:
    """Text sample of a chain.

    Attributes:
        text: text of the tokens.
        tokens: tokens without special ones.
        energy: energy at temperature 1, soft constraints included.
        problem: index among the texts to fill in, or among the lengths of the starts, from 0.
        chain: index of the chain within its problem, from 0.
        sweep: number of sweeps before the sample.
        survives: whether tokenizing the text gives the same tokens.
    """

    text: str
    tokens: tuple[str, ...]
    energy: float
    problem: int
    chain: int
    sweep: int
    survives: bool


@dataclass(frozen=True, eq=False)
class SampledTexts:
    """Text samples, and the traces of their chains.

    Attributes:
        samples: samples by problem, chain and sweep.
        chains: a trace for each problem.
        discard: number of initial sweeps that are discarded.
    """

    samples: Sequence[TextSample]
    chains: Sequence[Trace]
    discard: int

    @property
    def texts(self) -> list[str]:
        """Texts of the samples, in order."""
        return [sample.text for sample in self.samples]

    @property
    def acceptance(self) -> float:
        """Acceptance rate over counted sweeps, including proposals equal to the state."""
        return tally(self.chains, sweeps=slice(self.discard, None)).acceptance

    @property
    def novelty(self) -> float:
        """Share of proposals that were accepted and changed the state, over counted sweeps."""
        return tally(self.chains, sweeps=slice(self.discard, None)).novelty

    def diagnose(self, features: Mapping[str, Callable[[Tensor], Tensor]] | None = None) -> list[ChainReport]:
        """Compute acceptance, R-hat, effective sample size and warnings for each problem.

        Args:
            features: functions, by name, from token ids (S, B, T) to numbers (S, B), which are diagnosed like the
                energy.

        Raises:
            InputError: fewer than 4 sweeps are counted, or ArviZ is missing.
        """
        return [diagnose_chains(trace, discard=self.discard, features=features) for trace in self.chains]


def sample_texts(
    model: Any,
    tokenizer: Any,
    *,
    length: int | None = None,
    texts: Sequence[str] | None = None,
    num_chains: int | None = None,
    num_sweeps: int = 33,
    discard: int | None = None,
    every: int | None = None,
    seed: int = 0,
    allowed: Sequence[str] | None = None,
    settings: ChainSettings | None = None,
    progress: Progress | None = None,
) -> SampledTexts:
    """Sample texts from a masked language model as an energy: ``p(y) proportional to exp(-E(y) / T)``.

    The target is a distribution over all sequences of a fixed number of tokens. Metropolis-Hastings proposes from the
    model's masked conditionals and leaves the target invariant; special tokens are never proposed.

    Args:
        model: a Hugging Face model in evaluation mode, or the result of :func:`~seqwise.hugging_face.masked_model`.
        tokenizer: the model's own.
        length: number of tokens; the first chain starts from greedy choices, the others from sequences that are drawn
            token by token.
        texts: starts of the chains, one for each, instead of a length. Those of equal length sample the same target,
            and are diagnosed together.
        num_chains: number of chains for a length; by default 5.
        num_sweeps: sweeps of each chain; a sweep visits every position.
        discard: initial sweeps to discard; by default 7, or half of all if there are fewer than 14.
        every: return the texts of every n-th counted sweep (thinning); None for the last sweep only.
        seed: random seed.
        allowed: tokens that may be proposed, as in the vocabulary (such as residues); by default all but special
            ones.
        settings: kernel, energy, temperatures, blocks, and phrases that must or must not occur. Phrases are matched
            as whole words of the text, in any tokenization: "cat" does not match "cats". Residues that the tokenizer
            separates, and scripts without blanks between words, have no word boundaries, and match anywhere.
        progress: called after each sweep with the state and the record of the sweep.

    Returns:
        The samples, one text for each chain without ``every``, and the traces of the chains.

    Raises:
        InputError: there is neither a length nor a text, or both; a text, phrase or setting cannot be used; no start
            satisfies the constraints; model and tokenizer do not fit, or the model is in training mode.

    Source: Goyal (2021), sections 6.3 and 6.4. Not implemented: moves between lengths.

    Example:
        >>> from transformers import BertConfig, BertForMaskedLM, BertTokenizer
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "sees", "a", "cat"]
        >>> tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(words)})
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        >>> bert = BertForMaskedLM(BertConfig(vocab_size=10, **sizes)).eval()
        >>> sampled = sample_texts(bert, tokenizer, length=4, num_chains=2, num_sweeps=10)
        >>> [len(text.split()) for text in sampled.texts], 0 < sampled.acceptance <= 1
        ([4, 4], True)
    """
    settings = settings or ChainSettings()
    adapted, codec = adapted_with_codec(model, tokenizer)
    allowed_V = _allowed(codec, allowed)
    if (length is None) == (texts is None):
        raise InputError("texts are sampled at a length or from given texts", hint="give length or texts")
    if texts is None:
        assert length is not None
        if length < 1:
            raise InputError(f"length must be at least 1, got {length}")
        adapted.require_room(length)
        chains = _at_least_one("num_chains", 5 if num_chains is None else num_chains)
        problems = [ChainProblem((FREE,) * length, num_chains=chains)]
    else:
        if num_chains is not None:
            raise InputError("num_chains: each text is the start of one chain", hint="leave it out, or give a length")
        problems = _from_starts(codec, _encoded(adapted, codec.ids, texts), allowed_V)
    options: dict[str, Any] = {"num_sweeps": num_sweeps, "discard": discard, "every": every, "seed": seed}
    options |= {"allowed_V": allowed_V, "progress": progress}
    return _sampled(adapted, codec, problems, codec.text, None, settings, **options)


def infill(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    num_chains: int = 5,
    num_sweeps: int = 33,
    discard: int | None = None,
    every: int | None = None,
    seed: int = 0,
    allowed: Sequence[str] | None = None,
    settings: ChainSettings | None = None,
    progress: Progress | None = None,
) -> SampledTexts:
    """Fill in the mask tokens of texts, one token for each: samples of the target given all other tokens.

    ``p(y) proportional to exp(-E(y) / T)`` over the sequences that agree with the text at all other positions.

    Args:
        model: see :func:`sample_texts`.
        tokenizer: the model's own; its mask token marks free positions.
        texts: texts with at least one mask token each.
        num_chains: number of chains for each text.
        num_sweeps, discard, every, seed, allowed, settings, progress: see :func:`sample_texts`.

    Returns:
        Samples by text and chain. The given part is unchanged, if it is read as the same tokens.

    Raises:
        InputError: a text has no mask token; as for :func:`sample_texts`.

    Source: Goyal (2021), sections 6.3 and 6.4. Not implemented: an unknown number of tokens.

    Example:
        >>> from transformers import BertConfig, BertForMaskedLM, BertTokenizer
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "sees", "a", "cat"]
        >>> tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(words)})
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        >>> bert = BertForMaskedLM(BertConfig(vocab_size=10, **sizes)).eval()
        >>> wanted = ChainSettings(contain=("a cat",), kernel={"name": "metropolis-hastings", "blocks": (2,)})
        >>> infill(bert, tokenizer, ["The dog  sees [MASK] [MASK]"], num_chains=2, settings=wanted).texts
        ['The dog  sees a cat', 'The dog  sees a cat']
    """
    adapted, codec = adapted_with_codec(model, tokenizer)
    _at_least_one("num_chains", num_chains)
    problems = []
    for place, ids in enumerate(_encoded(adapted, codec.ids_to_fill, texts)):
        if FREE not in ids:
            mask = codec.tokenizer.mask_token
            raise InputError(f"text {place + 1}: no position is free", hint=f"write {mask} for each token to be drawn")
        chains: dict[str, Any] = {"num_chains": num_chains, "first_chain": place * num_chains}
        problems.append(ChainProblem(ids, **chains, problem=place, path=f"text {place + 1}"))
    options: dict[str, Any] = {"num_sweeps": num_sweeps, "discard": discard, "every": every, "seed": seed}
    options |= {"allowed_V": _allowed(codec, allowed), "progress": progress}
    return _sampled(adapted, codec, problems, codec.filled, texts, settings or ChainSettings(), **options)


def _sampled(
    adapted: HuggingFaceMaskedModel,
    codec: TextCodec,
    problems: Sequence[ChainProblem],
    text_of: Callable[..., str],
    texts: Sequence[str] | None,
    settings: ChainSettings,
    *,
    num_sweeps: int,
    discard: int | None,
    every: int | None,
    **options: Any,
) -> SampledTexts:
    """Run chains over the problems, and convert their samples to texts, each with the text that it fills in."""
    _at_least_one("num_sweeps", num_sweeps)
    discard = min(7, num_sweeps // 2) if discard is None else discard
    if not 0 <= discard < num_sweeps:
        raise InputError(f"discard: {discard} of {num_sweeps} sweeps are discarded", hint="discard fewer")
    discard = max(discard, settings.burn_in if settings.burn_in < num_sweeps else 0)
    sweeps = [num_sweeps]
    if every is not None:
        _at_least_one("every", every)
        sweeps = [sweep for sweep in range(discard + 1, num_sweeps + 1) if sweep % every == 0]
        if not sweeps:
            reason = f"none of {num_sweeps} sweeps would be returned, because {discard} are discarded"
            raise InputError(f"every: {reason}", hint="sample more, or give a smaller number")
    options |= {"phrase": codec.phrase, "spell": codec.plain}
    chains = run_problems(adapted, problems, settings, num_sweeps=num_sweeps, **options)
    samples = []
    for problem, trace in zip(problems, chains, strict=True):
        given = () if texts is None else (texts[problem.problem],)
        for place, chain, sweep, tokens, energy in samples_of(problem, trace, sweeps):
            text, pieces = text_of(*given, tokens), codec.pieces(tokens)
            samples.append(TextSample(text, pieces, energy, place, chain, sweep, codec.survives(text, tokens)))
    return SampledTexts(samples, chains, discard)


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name} must be at least 1, got {value}")
    return value


def adapted_with_codec(model: Any, tokenizer: Any, **options: Any) -> tuple[HuggingFaceMaskedModel, TextCodec]:
    """Adapt a masked model if needed, and make the codec of its tokenizer; raise in training mode."""
    adapted = (
        model if isinstance(model, HuggingFaceMaskedModel) else masked_model(model, tokenizer=tokenizer, **options)
    )
    codec = adapted.codec
    if codec is None or codec.tokenizer is not tokenizer:
        codec = TextCodec(tokenizer, vocab_size=adapted.vocab_size)
        if (codec.mask_id, codec.before, codec.after) != (adapted.mask_id, adapted.before, adapted.after):
            raise InputError("the tokenizer adds other special tokens than the model was adapted with")
    require_evaluation_mode(adapted)
    return adapted, codec


def _encoded(
    adapted: HuggingFaceMaskedModel, encode: Callable[[str], tuple[int, ...]], texts: Sequence[str]
) -> list[tuple[int, ...]]:
    if isinstance(texts, str):
        raise InputError("one text was given where several were expected", hint="give a list of texts")
    encoded = []
    for number, text in enumerate(texts, start=1):
        with placed(f"text {number}: "):
            encoded.append(encode(text))
            adapted.require_room(len(encoded[-1]))
    return encoded


def _allowed(codec: TextCodec, allowed: Sequence[str] | None) -> Tensor:
    if allowed is None:
        return codec.allowed_V
    vocabulary = codec.tokenizer.get_vocab()
    refused = [token for token in allowed if token not in vocabulary or not codec.allowed_V[vocabulary[token]]]
    if refused or not allowed:
        problem = f"{refused[0]!r} is a special token, or not in the vocabulary" if refused else "no token"
        raise InputError(f"allowed: {problem}", hint="give tokens as tokenizer.tokenize writes them")
    flags_V = torch.zeros_like(codec.allowed_V)
    flags_V[[vocabulary[token] for token in allowed]] = True
    return flags_V


def _from_starts(codec: TextCodec, encoded: Sequence[tuple[int, ...]], allowed_V: Tensor) -> list[ChainProblem]:
    """Make a problem for each length, shortest first, whose chains start from the texts of that length."""
    for number, ids in enumerate(encoded, start=1):
        for piece, token in zip(codec.pieces(ids), ids, strict=True):
            if not allowed_V[token]:
                hint = "start from other texts: a chain could never come back to it"
                raise InputError(f"text {number}: the token {piece!r} is never drawn", hint=hint)
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for ids in sorted(encoded, key=len):
        by_length.setdefault(len(ids), []).append(ids)
    firsts = accumulate((len(starts) for starts in by_length.values()), initial=0)
    return [
        ChainProblem((FREE,) * length, num_chains=len(starts), first_chain=first, starts=starts, problem=place)
        for place, ((length, starts), first) in enumerate(zip(by_length.items(), firsts, strict=False))
    ]
