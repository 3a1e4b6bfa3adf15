"""Scores of texts under masked, causal and encoder-decoder Hugging Face models.

Shapes: B rows, T free tokens, L input tokens of a model with special ones and padding, M scored positions, V
vocabulary.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqwise.data.batches import IGNORE
from seqwise.devices import at_least_float32, moved, reading_is_free
from seqwise.errors import InputError, placed
from seqwise.hugging_face.adapter import HuggingFaceStepModel
from seqwise.hugging_face.masked_model import HuggingFaceMaskedModel, unwrapped
from seqwise.hugging_face.masked_text import adapted_with_codec
from seqwise.hugging_face.positions import num_positions
from seqwise.hugging_face.sparse_attention import attend_as_first, switching_part
from seqwise.hugging_face.tokens import TextTokens, before_targets, checked_text, special_around, text_tokens
from seqwise.models.fast_layers import fast_layers
from seqwise.models.heads import log_partition
from seqwise.models.protocols import require_evaluation_mode
from seqwise.names import Pieces
from seqwise.sampling.any_order import any_order_bound
from seqwise.sampling.energies import scored_passes
from seqwise.sampling.problems import of_one_length
from seqwise.sampling.scores import Span, TextScore, with_contexts
from seqwise.sampling.scoring_settings import ScoringSettings, refuse_ignored

MOST_SCORES = 2**27
"""Largest number of scores, positions times vocabulary, that are held at once."""


class ScoredText(NamedTuple):
    """Text prepared for scoring.

    ``ids`` are all free tokens, including those of a prefix and a suffix; ``scored`` are the indices of scored ones,
    which have their spans in the text and the numbers of their words. ``source`` is the input of an encoder.
    """

    text: str
    prefix: str
    ids: tuple[int, ...]
    words: tuple[int, ...]
    scored: tuple[int, ...]
    spans: tuple[Span | None, ...]
    source: tuple[int, ...] = ()
    suffix: str = ""


class _Row(NamedTuple):
    """Row of a model's input: ids, their words, and the indices of scored ones, here and among the text's tokens."""

    text: int
    ids: tuple[int, ...]
    words: tuple[int, ...]
    scored: tuple[int, ...]
    places: tuple[int, ...]
    source: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class TextScorer:
    """Model with its tokenizer, made by :func:`text_scorer`.

    Attributes:
        kind: "masked", "causal" or "encoder-decoder".
        prepare: converts a text, its prefix and its suffix to a ``ScoredText``; raises an InputError if it cannot.
        window: number of free tokens in a window, or None without a limit.
        model: the adapted masked model, or the Hugging Face model.
        tokenizer: the model's own.
    """

    kind: str
    prepare: Callable[[str, str, str], ScoredText]
    window: int | None
    model: Any
    tokenizer: Any
    _log_probs: Callable[[Sequence[_Row]], Iterator[tuple[_Row, Tensor]]]
    _rows_of: Callable[[int, ScoredText], list[_Row]]
    _bound: Callable[[ScoredText], float] | None = None

    @torch.no_grad()
    def scores(self, texts: Sequence[ScoredText]) -> list[TextScore]:
        """Score texts; texts share passes, and results are read once all passes are launched."""
        groups = [self._rows_of(number, text) for number, text in enumerate(texts)]
        found = [*self._log_probs([row for group in groups for row in group])]
        values = torch.cat([log_probs_M for _, log_probs_M in found]).cpu().double() if found else torch.zeros(0)
        log_probs = [torch.full((len(text.ids),), torch.nan, dtype=torch.float64) for text in texts]
        for (row, _), log_probs_M in zip(found, values.split([len(row.places) for row, _ in found]), strict=True):
            if bool(log_probs_M.isnan().any()):
                problem = f"the model's scores of {texts[row.text].text[:60]!r} are not numbers"
                raise InputError(problem, hint="check its weights; score in float32")
            log_probs[row.text][list(row.places)] = log_probs_M
        return [
            self._result(text, value_T[list(text.scored)], num_windows=self._num_windows(text, group))
            for text, value_T, group in zip(texts, log_probs, groups, strict=True)
        ]

    def _num_windows(self, text: ScoredText, rows: Sequence[_Row]) -> int:
        if self.window is None or len(text.ids) <= self.window:
            return 0
        return len({row.places[0] - row.scored[0] for row in rows})

    def _result(self, text: ScoredText, log_probs_M: Tensor, *, num_windows: int) -> TextScore:
        ids = [text.ids[place] for place in text.scored]
        tokens = tuple(self.tokenizer.convert_ids_to_tokens(ids))
        words = tuple(text.words[place] for place in text.scored)
        # GPT-2's end token is its unknown token too.
        own = ids[:-1] if ids[-1] == self.tokenizer.eos_token_id and text.spans[-1] == (len(text.text),) * 2 else ids
        unknown = own.count(self.tokenizer.unk_token_id)
        options: dict[str, Any] = {"words_T": words, "spans": text.spans, "prefix": text.prefix}
        options |= {"suffix": text.suffix, "is_pseudo": self.kind == "masked"}
        if self._bound is not None:
            options["lower_bound"] = self._bound(text)
        return TextScore(tokens, log_probs_M, text.text, num_windows=num_windows, num_unknown=unknown, **options)


def score_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    prefixes: Sequence[str] | None = None,
    suffixes: Sequence[str] | None = None,
    settings: ScoringSettings | None = None,
) -> list[TextScore]:
    """Score texts under a masked, causal or encoder-decoder model.

    A masked model gives ``log p(y_t | unmasked tokens)``, in one pass per token; a causal one
    ``log p(y_t | y_1 .. y_{t-1})``, and an encoder-decoder ``log p(y_t | source, y_1 .. y_{t-1})``, in one pass per
    text. Special tokens around the text are not scored (but see ``settings.end``).

    Texts too long for the model are read in windows, which ``num_windows`` of a result counts. A masked model sees as
    many tokens on both sides of each token as fit; a causal one reads windows that start half a window apart, and
    scores a token in a window with at least half a window before it; an encoder-decoder reads such windows with the
    whole source.

    Args:
        model: a Hugging Face model in evaluation mode, or the result of :func:`~seqwise.hugging_face.masked_model` or
            :func:`~seqwise.hugging_face.step_model`.
        tokenizer: the model's own.
        texts: texts to score; unknown characters are scored as the unknown token.
        prefixes: context before each text, which is not scored; for an encoder-decoder, the source, by default an
            empty text.
        suffixes: context after each text, which is not scored; for masked models.
        settings: masks, words, batches, windows.

    Returns:
        A score for each text, in order, in nats.

    Raises:
        InputError: a text is empty or contains a mask; the model is in training mode, gives NaN, or does not fit the
            tokenizer; a source is longer than the model; there are suffixes, but the model reads from left to right.

    Source: Salazar et al. (ACL 2020), section 2; Kauf and Ivanova (ACL 2023). Not implemented: windows of sources; the
    probability of a length under a masked model.

    Example:
        >>> from transformers import BertConfig, BertForMaskedLM, BertTokenizer
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "see", "a", "cat"]
        >>> tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(words)})
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        >>> bert = BertForMaskedLM(BertConfig(vocab_size=11, **sizes)).eval()
        >>> (score,) = score_texts(bert, tokenizer, ["see a cat"], prefixes=["The dogs"])
        >>> score.tokens, score.log_prob < 0, [word.word for word in score.words(score.text)]
        (('see', 'a', 'cat'), True, ['see', 'a', 'cat'])
    """
    scorer = text_scorer(model, tokenizer, settings or ScoringSettings())
    return scorer.scores(prepared(scorer, texts, prefixes, suffixes))


def pseudo_log_likelihoods(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    pieces: Pieces = "within-word-l2r",
    max_tokens: int | None = None,
) -> list[TextScore]:
    """Score texts under a masked model: :func:`score_texts` with two named settings.

    Args:
        model: see :func:`score_texts`.
        tokenizer: the model's own. ESM's accepts residues with and without blanks, ProtBert's with blanks.
        texts: texts to score.
        pieces: tokens masked with the scored one: the rest of its word, the whole word ("whole-word"), or none
            ("original").
        max_tokens: number of tokens per call of the model; fewer need less memory.

    Returns:
        A score for each text, in order, in nats: ``log_prob`` is the sum over its tokens.

    Raises:
        InputError: see :func:`score_texts`.

    Source: Salazar et al. (ACL 2020), section 2; Kauf and Ivanova (ACL 2023).

    Example: see :func:`score_texts`.
    """
    options: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    return score_texts(model, tokenizer, texts, settings=ScoringSettings(pieces=pieces, **options))


def prepared(
    scorer: TextScorer,
    texts: Sequence[str],
    prefixes: Sequence[str] | None,
    suffixes: Sequence[str] | None,
) -> list[ScoredText]:
    """Prepare texts; errors name the number of the text."""
    ready = []
    for number, given in enumerate(with_contexts(texts, prefixes, suffixes), start=1):
        with placed(f"text {number}: "):
            ready.append(scorer.prepare(*given))
    return ready


def text_scorer(model: Any, tokenizer: Any, settings: ScoringSettings) -> TextScorer:
    """Detect the kind of a model, and make its scorer."""
    if isinstance(model, HuggingFaceStepModel):
        model = model.model
    if not writes_text(model):
        refuse_ignored(settings, "masked")
        return _masked_scorer(model, tokenizer, settings)
    inner = unwrapped(model)
    if settings.bound:
        problem = "bound: a left-to-right model has exact log-probabilities"
        raise InputError(problem, hint="leave it out")
    refuse_ignored(settings, "encoder-decoder" if inner.config.is_encoder_decoder else "causal")
    require_evaluation_mode(inner)
    return (_seq2seq_scorer if inner.config.is_encoder_decoder else _causal_scorer)(model, tokenizer, settings)


def writes_text(model: Any) -> bool:
    """Whether a model, adapted or not, is causal or an encoder-decoder, not masked."""
    if isinstance(model, HuggingFaceMaskedModel | HuggingFaceStepModel):
        return isinstance(model, HuggingFaceStepModel)
    inner = unwrapped(model)
    return hasattr(inner, "can_generate") and bool(inner.can_generate())


# ----------------------------------------------------------------------------------------------------- masked models


def _masked_scorer(model: Any, tokenizer: Any, settings: ScoringSettings) -> TextScorer:
    adapted, codec = adapted_with_codec(model, tokenizer, max_tokens=settings.max_tokens)
    num_special = len(adapted.before) + len(adapted.after)
    window = _smaller(adapted.max_length, settings.window)

    def prepare(text: str, prefix: str, suffix: str) -> ScoredText:
        ready = _in_context(tokenizer, text, prefix, suffix, settings)
        codec.require_whole(ready.ids)
        if settings.bound and window is not None and len(ready.ids) > window:
            problem = f"bound: a text has {len(ready.ids)} tokens, and the model has room for {window}"
            raise InputError(problem, hint="cut it; bounds are not taken by windows")
        return ready

    def bound(text: ScoredText) -> float:
        tokens_T = torch.tensor(text.ids, device=adapted.device)
        return seeded_bound(adapted, tokens_T, text.scored, settings)

    def rows_of(number: int, text: ScoredText) -> list[_Row]:
        length = len(text.ids)
        if window is None or length <= window:
            return [_Row(number, text.ids, text.words, text.scored, text.scored)]
        starts = [min(max(place - window // 2, 0), length - window) for place in text.scored]
        return [
            _Row(
                number, text.ids[start : start + window], text.words[start : start + window], (place - start,), (place,)
            )
            for start, place in zip(starts, text.scored, strict=True)
        ]

    def most_rows(length: int) -> int:
        return max(1, min(settings.max_tokens // (length + num_special), MOST_SCORES // adapted.vocab_size))

    def groups(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        if adapted.padding_is_neutral and not reading_is_free(next(adapted.parameters())):
            # On a GPU, a pass of few rows costs as much as one of many, so rows of several lengths share it.
            yield from _by_budget(rows, settings.max_tokens, special=num_special, passes=lambda row: len(row.scored))
            return
        for places in of_one_length([len(row.ids) for row in rows], most_rows):
            yield [rows[place] for place in places]

    def log_probs(rows: Sequence[_Row]) -> Iterator[tuple[_Row, Tensor]]:
        for group in groups(rows):
            ids_BT = _filled([row.ids for row in group], IGNORE)
            scored_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
            for number, row in enumerate(group):
                scored_BT[number, list(row.scored)] = True
            passes = scored_passes(
                adapted,
                ids_BT,
                words_BT=_filled([row.words for row in group], -1),
                pieces=settings.pieces,
                scored_BT=scored_BT,
                max_rows=most_rows(ids_BT.shape[1]),
            )
            # In the order of rows and their tokens, as the words of a text are.
            values_A = torch.cat([values_A for _, _, values_A in passes])
            yield from zip(group, values_A.split([len(row.scored) for row in group]), strict=True)

    bound_of = bound if settings.bound else None
    return TextScorer("masked", prepare, window, adapted, tokenizer, log_probs, rows_of, bound_of)


def seeded_bound(model: Any, tokens_T: Tensor, scored: Sequence[int], settings: ScoringSettings) -> float:
    """Bound log p of some tokens given the others; the masks depend only on the seed and the text."""
    text = repr((settings.seed, tokens_T.tolist(), tuple(scored))).encode()
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7]))
    free_T = torch.zeros(len(tokens_T), dtype=torch.bool)
    free_T[list(scored)] = True
    rows = min(settings.max_tokens // len(tokens_T), MOST_SCORES // (len(tokens_T) * model.vocab_size))
    options: dict[str, Any] = {"free_T": free_T, "max_rows": max(1, rows)}
    return any_order_bound(model, tokens_T, num_passes=settings.bound, generator=generator, **options)


# ------------------------------------------------------------------------------- models that read from left to right


def _causal_scorer(model: Any, tokenizer: Any, settings: ScoringSettings) -> TextScorer:
    before: tuple[int, ...] = ()
    if settings.start == "token":
        before, _ = special_around(tokenizer)
        if not before and tokenizer.bos_token_id is not None:
            before = (tokenizer.bos_token_id,)
    end = _end_token(tokenizer, settings)
    positions = num_positions(model)
    window = _smaller(None if positions is None else positions - len(before), settings.window)

    def prepare(text: str, prefix: str, suffix: str) -> ScoredText:
        _refuse_suffix(suffix)
        ready = _with_end(_in_context(tokenizer, text, prefix, "", settings), end)
        if before or ready.scored[0] > 0:
            return ready
        if len(ready.scored) == 1:
            problem = "the only token of the text is the first, which is not scored"
            raise InputError(problem, hint="give a longer text or a prefix, or a tokenizer with a start token")
        return ready._replace(scored=ready.scored[1:], spans=ready.spans[1:])

    def rows_of(number: int, text: ScoredText) -> list[_Row]:
        return _overlapping(number, text, before, window)

    def log_probs(rows: Sequence[_Row]) -> Iterator[tuple[_Row, Tensor]]:
        return _left_to_right(model, rows, settings, lambda ids_BL, mask_BL, _: {"input_ids": ids_BL, **mask_BL})

    return TextScorer("causal", prepare, window, model, tokenizer, log_probs, rows_of)


def _overlapping(number: int, text: ScoredText, before: tuple[int, ...], window: int | None) -> list[_Row]:
    """Return windows that start half a window apart; a token is scored in the first window that contains it."""
    size = len(text.ids) if window is None else window
    rows, done, start = [], 0, 0
    while done < len(text.ids):
        places = tuple(place for place in text.scored if done <= place < start + size)
        ids = before + text.ids[start : start + size]
        scored = tuple(len(before) + place - start for place in places)
        if places:
            rows.append(_Row(number, ids, (), scored, places, text.source))
        done = start + size
        start += max(1, size // 2)
    return rows


def _refuse_suffix(suffix: str) -> None:
    if suffix:
        problem = "suffix: a model that reads from left to right does not see what comes after a text"
        raise InputError(problem, hint="leave it out, or score under a masked model")


def _seq2seq_scorer(model: Any, tokenizer: Any, settings: ScoringSettings) -> TextScorer:
    from seqwise.hugging_face.generation import first_tokens

    inner = unwrapped(model)
    first, forced_first = first_tokens(inner, inner.generation_config)
    before = (first, *before_targets(tokenizer, forced_first))
    end = _end_token(tokenizer, settings)
    positions, limit = (num_positions(model, side) for side in ("decoder", "encoder"))
    window = _smaller(None if positions is None else positions - len(before), settings.window)

    def prepare(text: str, prefix: str, suffix: str) -> ScoredText:
        _refuse_suffix(suffix)
        tokens = text_tokens(tokenizer, text, words=settings.words, target=True)
        places = tuple(range(len(tokens.ids)))
        source = tuple(tokenizer(checked_text(prefix), truncation=False, verbose=False)["input_ids"])
        if not source:
            problem = "the source is empty, and the tokenizer puts no special tokens around it"
            raise InputError(problem, hint="give a prefix: it is the source")
        ready = _with_end(ScoredText(text, prefix, tokens.ids, tokens.words, places, tokens.spans, source), end)
        if limit is not None and len(source) > limit:
            problem = f"a source has {len(source)} tokens, and the model has {limit} positions"
            raise InputError(problem, hint="cut it; sources are not read in windows")
        return ready

    def rows_of(number: int, text: ScoredText) -> list[_Row]:
        return _overlapping(number, text, before, window)

    def inputs(ids_BL: Tensor, mask_BL: dict[str, Tensor], rows: Sequence[_Row]) -> dict[str, Tensor]:
        sources_BS, mask_BS = _padded([row.source for row in rows], tokenizer.pad_token_id or 0, ids_BL.device)
        return {"input_ids": sources_BS, "attention_mask": mask_BS, "decoder_input_ids": ids_BL}

    def log_probs(rows: Sequence[_Row]) -> Iterator[tuple[_Row, Tensor]]:
        return _left_to_right(model, rows, settings, inputs)

    return TextScorer("encoder-decoder", prepare, window, model, tokenizer, log_probs, rows_of)


def _left_to_right(
    model: Any,
    rows: Sequence[_Row],
    settings: ScoringSettings,
    inputs: Callable[[Tensor, dict[str, Tensor], Sequence[_Row]], dict[str, Tensor]],
) -> Iterator[tuple[_Row, Tensor]]:
    """Score the tokens of a row from the position before it; rows are padded on the right, by token budget."""
    inner = unwrapped(model)
    device = next(model.parameters()).device
    padding = getattr(inner.config, "pad_token_id", None) or 0
    reads_mask = "attention_mask" in inspect.signature(inner.forward).parameters
    vocab_size = len(inner.get_output_embeddings().weight)
    switching = switching_part(model)
    budget = min(settings.max_tokens, MOST_SCORES // vocab_size)
    for group in _by_budget(rows, budget):
        ids_BL, mask_BL = _padded([row.ids for row in group], padding, device)
        masks = {"attention_mask": mask_BL} if reads_mask else {}
        given = inputs(ids_BL, masks, group)
        attend_as_first(switching, given["input_ids"].shape[1])
        with fast_layers(model):
            logits_BLV = model(**given, use_cache=False, return_dict=True).logits
        for row, logits_LV in zip(group, logits_BLV, strict=True):
            places_M = moved(torch.tensor(row.scored), device)
            logits_MV = at_least_float32(logits_LV[places_M - 1])
            tokens_M = moved(torch.tensor([row.ids[place] for place in row.scored]), device)
            yield row, logits_MV.gather(-1, tokens_M[:, None]).squeeze(-1) - log_partition(logits_MV)


def _by_budget(
    rows: Sequence[_Row], budget: int, *, special: int = 0, passes: Callable[[_Row], int] = lambda _: 1
) -> Iterator[list[_Row]]:
    """Group rows of similar length, shortest first, within a token budget with padding, but at least one row.

    ``special`` tokens are added to each row, and ``passes`` counts the passes that a row needs.
    """
    group, count = list[_Row](), 0
    for row in sorted(rows, key=lambda row: (len(row.ids), len(row.source))):
        width = special + max([len(row.ids), *(len(other.source) for other in (*group, row))])
        if group and (count + passes(row)) * width > budget:
            yield group
            group, count = [], 0
        group.append(row)
        count += passes(row)
    if group:
        yield group


def _joined(prefix: str, text: str, suffix: str, settings: ScoringSettings) -> str:
    return settings.separator.join(part for part in (prefix, text, suffix) if part)


def _in_context(tokenizer: Any, text: str, prefix: str, suffix: str, settings: ScoringSettings) -> ScoredText:
    """Split a text between its prefix and its suffix; a token that overlaps the text belongs to it.

    So does the separator after the prefix, as a token of its own or not. Then log p(prefix text) is the sum of
    log p(prefix) and log p(text | prefix).
    """
    own = text_tokens(tokenizer, text, words=settings.words)
    if not prefix and not suffix:
        return ScoredText(text, prefix, own.ids, own.words, tuple(range(len(own.ids))), own.spans)
    start = len(prefix) + len(settings.separator) if prefix else 0
    stop = start + len(text)
    tokens = text_tokens(tokenizer, _joined(prefix, text, suffix, settings), words=settings.words)
    if all(span is not None for span in tokens.spans):
        scored = tuple(
            place
            for place, (begin, end) in enumerate(_reaches(tokens))
            if begin < stop and (not prefix or end > len(prefix))
        )
    else:
        head = text_tokens(tokenizer, _joined(prefix, text, "", settings)) if suffix else tokens
        first = _shared_tokens(tokens, text_tokens(tokenizer, prefix)) if prefix else 0
        scored = tuple(range(first, _shared_tokens(tokens, head) if suffix else len(tokens.ids)))
    if not scored:
        raise InputError("between its prefix and suffix, the text has no token", hint="fill it in or drop it")
    spans = tuple(
        None if span is None else (min(max(span[0], start), stop) - start, min(span[1], stop) - start)
        for span in (tokens.spans[place] for place in scored)
    )
    return ScoredText(text, prefix, tokens.ids, tokens.words, scored, spans, suffix=suffix)


def _reaches(tokens: TextTokens) -> Iterator[Span]:
    """Yield the characters of each token, without blanks around them; all of them for a token of blanks."""
    last = 0
    for span, offset in zip(tokens.spans, tokens.offsets, strict=True):
        assert span is not None and offset is not None
        begin, end = span if span[0] < span[1] else offset
        # Empty offsets are at the end of the blanks, which begin where the token before ends.
        yield (last if begin == end else begin), end
        last = offset[1]


def _shared_tokens(whole: TextTokens, prefix: TextTokens) -> int:
    count = len(prefix.ids)
    if whole.ids[:count] != prefix.ids or len(whole.ids) == count:
        problem = "the tokenizer splits a prefix differently when text follows, and returns no offsets"
        raise InputError(problem, hint="end prefixes with whole words, or use a fast tokenizer")
    return count


def _with_end(text: ScoredText, end: int | None) -> ScoredText:
    if end is None:
        return text
    place, word = len(text.ids), text.words[-1] + 1
    after = (len(text.text), len(text.text))
    return text._replace(
        ids=(*text.ids, end), words=(*text.words, word), scored=(*text.scored, place), spans=(*text.spans, after)
    )


def _end_token(tokenizer: Any, settings: ScoringSettings) -> int | None:
    if not settings.end:
        return None
    if tokenizer.eos_token_id is None:
        raise InputError("end: the tokenizer has no end token", hint="leave it out")
    return int(tokenizer.eos_token_id)


def _smaller(limit: int | None, asked: int | None) -> int | None:
    return min((size for size in (limit, asked) if size is not None), default=None)


def _padded(rows: Sequence[Sequence[int]], padding: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids (B, L), padded on the right, and their mask as int64."""
    ids_BL = _filled(rows, padding)
    lengths_B = torch.tensor([len(row) for row in rows])
    mask_BL = (torch.arange(ids_BL.shape[1]) < lengths_B[:, None]).long()
    return moved(ids_BL, device), moved(mask_BL, device)


def _filled(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    """Return int64 rows of one width on the CPU, padded on the right."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=padding)
