"""Tagger with label history: a Hugging Face encoder and a decoder that reads the previous labels.

Shapes: B batch, S source length in pieces, P previous pieces, C pieces so far, W words of the longest source, M encoder
output.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from seqwise import tree
from seqwise.data.records import read_record
from seqwise.decoding import evaluation_mode
from seqwise.errors import InputError
from seqwise.hugging_face.agreement import narrow_windows
from seqwise.hugging_face.caches import Layers, cache_argument, cache_in, cache_of, layers_of, require_plain_layers
from seqwise.hugging_face.masked_model import require_no_prompt, unwrapped
from seqwise.hugging_face.positions import num_positions
from seqwise.hugging_face.sparse_attention import attend_as_first, attention_restored, switching_part
from seqwise.models.fast_layers import fast_layers
from seqwise.models.look_ahead import NO_LOOK_AHEAD, LookAhead, Waiting, require_look_ahead
from seqwise.models.recurrent import LEFT_TO_RIGHT, READS_BOTH_WAYS, Context, FixedAttentionTagger
from seqwise.training.checkpoints import load_model_file, seal, verify

Piece = Literal["first", "last"]
"""Piece that represents a word."""

BACKBONE, SIZES, WEIGHTS = "backbone", "tagger.json", "model.safetensors"
"""Names in a folder of :func:`save_tagger`: the folder of the encoder's configuration, and two files."""

# Largest difference of outputs that agree up to rounding, as a share of the largest output.
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-4}


class PieceEncoder(nn.Module):
    """Hugging Face encoder without a head, which keeps only the output of the marked piece of each word.

    Sources are made by :func:`word_pieces`. With a :class:`~seqwise.models.look_ahead.LookAhead`, an LSTM reads the
    outputs of a word and of later ones.
    """

    def __init__(self, backbone: Any, *, look_ahead: int = 0, ahead_size: int = 128) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.output_size = int(backbone.config.hidden_size)
        self.ahead = LookAhead(self.output_size, ahead_size, look_ahead=look_ahead) if look_ahead else None
        self.output_size += ahead_size if look_ahead else 0

    @property
    def look_ahead(self) -> int:
        """Number of words read after each."""
        return 0 if self.ahead is None else self.ahead.size

    @cached_property
    def _switching(self) -> Any:
        return switching_part(self.backbone)

    def num_outputs(self, source_ids: Sequence[int]) -> int:
        """Return the number of words of a source."""
        return sum(token < 0 for token in source_ids)

    def forward(self, sources_BS: Tensor, lengths_B: Tensor) -> Context:
        context = self._whole(sources_BS, lengths_B)
        if self.ahead is None:
            return context
        return context._replace(memory_BSM=self.ahead(context.memory_BSM, context.memory_BSM, context.lengths_B))

    def _whole(self, sources_BS: Tensor, lengths_B: Tensor) -> Context:
        """Encode whole sources without the look-ahead."""
        pieces = self._pieces(sources_BS, lengths_B)
        self._require_positions(sources_BS.shape[1])
        attend_as_first(self._switching, sources_BS.shape[1])
        with fast_layers(self.backbone):
            hidden_BSM = self.backbone(input_ids=pieces.ids_BS, attention_mask=pieces.mask_BS.long()).last_hidden_state
        return _of_words(hidden_BSM, pieces.marked_BS)

    def require_left_to_right(self) -> None:
        """Raise an InputError if a piece sees later ones, or keys and values cannot be cached.

        Runs pieces through the model at once and in two parts.
        """
        kind = type(self.backbone).__name__
        require_plain_layers(self.backbone.config, kind)
        vocabulary_size = self.backbone.get_input_embeddings().num_embeddings
        device = next(self.backbone.parameters()).device
        draw = torch.Generator().manual_seed(0)
        sources_BS = ~torch.randint(vocabulary_size, (2, 7), generator=draw).to(device)
        lengths_B = torch.full((2,), 7, device=device)
        with (
            evaluation_mode(self.backbone),
            narrow_windows(self.backbone),
            torch.no_grad(),
            attention_restored(self.backbone),
        ):
            whole_BSM = self._whole(sources_BS, lengths_B).memory_BSM
            prefix_BPM = self._whole(sources_BS[:, :4], lengths_B - 3).memory_BSM
            scale = float(whole_BSM.abs().max())
            tolerance = scale * ROUNDING.get(whole_BSM.dtype, 5e-2)
            if float((whole_BSM[:, :4] - prefix_BPM).abs().max()) > tolerance:
                if self.look_ahead:
                    raise InputError(NO_LOOK_AHEAD, hint="leave look_ahead out, or use a causal model such as GPT-2")
                raise InputError(READS_BOTH_WAYS, hint=LEFT_TO_RIGHT)
            _, seen = self._part(sources_BS[:, :4], lengths_B - 3, None)
            # The second source is one piece shorter, which tests padding.
            sources_BS[:, 6] = ~sources_BS[:, 6]
            lengths_B = torch.tensor([3, 2], device=device)
            context, _ = self._part(sources_BS[:, 4:], lengths_B, seen)
        if float((context.memory_BSM - whole_BSM[:, 4:6]).abs().max()) > tolerance:
            problem = f"{kind} computes other states for parts of a source than for the whole"
            raise InputError(problem, hint="use a model with plain attention and position_ids")

    def read(self, sources_BS: Tensor, lengths_B: Tensor, past: _Past | None) -> tuple[Context, _Past]:
        """Read the next words of sources, the same number of each."""
        context, seen = self._part(sources_BS, lengths_B, None if past is None else past[0])
        if self.ahead is None:
            return context, (seen, ())
        words_BWH = context.memory_BSM
        memory_BWM, waiting = self.ahead.read(words_BWH, words_BWH, (past[1] or None) if past else None)
        return _whole_rows(memory_BWM), (seen, waiting)

    def read_end(self, past: _Past) -> tuple[Context, _Past]:
        """Read the ends of sources with a look-ahead."""
        seen, waiting = past
        assert self.ahead is not None and waiting
        memory_BWM, waiting = self.ahead.read_end(waiting)
        return _whole_rows(memory_BWM), (seen, waiting)

    def _part(self, sources_BS: Tensor, lengths_B: Tensor, seen: _Seen | None) -> tuple[Context, _Seen]:
        """Encode the next words of sources without the look-ahead."""
        pieces = self._pieces(sources_BS, lengths_B)
        layers, seen_BP = ((), pieces.mask_BS[:, :0]) if seen is None else seen
        if not bool(seen_BP.all()):
            # Drop padding that all inputs have, and move other padding to the front: no gap is left in a sliding window
            # of the next pieces.
            kept_BW = seen_BP.byte().argsort(dim=1, stable=True)[:, -int(seen_BP.sum(1).max()) :]
            layers = tree.map(lambda leaf: leaf.take_along_dim(kept_BW[:, None, :, None], dim=2), layers)
            seen_BP = seen_BP.gather(1, kept_BW)
        mask_BC = torch.cat([seen_BP, pieces.mask_BS], dim=1)
        self._require_positions(int(mask_BC.sum(1).max()))
        positions_BS = seen_BP.sum(1, keepdim=True) + torch.arange(sources_BS.shape[1], device=sources_BS.device)
        takes_positions = "position_ids" in inspect.signature(self.backbone.forward).parameters
        with fast_layers(self.backbone):
            output = self.backbone(
                input_ids=pieces.ids_BS,
                attention_mask=mask_BC.long(),
                use_cache=True,
                **{cache_argument(self.backbone): cache_of(layers)},
                **({"position_ids": positions_BS * pieces.mask_BS} if takes_positions else {}),
            )
        layers = layers_of(cache_in(output), type(self.backbone).__name__)
        return _of_words(output.last_hidden_state, pieces.marked_BS), (layers, mask_BC)

    def _pieces(self, sources_BS: Tensor, lengths_B: Tensor) -> _Pieces:
        marked_BS = sources_BS < 0
        if bool((~marked_BS).all(1).any()):
            raise InputError("a source has no word", hint="make sources with word_pieces")
        mask_BS = torch.arange(sources_BS.shape[1], device=sources_BS.device) < lengths_B[:, None]
        padding = getattr(self.backbone.config, "pad_token_id", None) or 0
        return _Pieces(
            torch.where(marked_BS, ~sources_BS, sources_BS).masked_fill(~mask_BS, padding), mask_BS, marked_BS
        )

    def _require_positions(self, positions: int) -> None:
        limit = num_positions(self.backbone)
        if limit is not None and positions > limit:
            problem = f"a source has {positions} pieces, and {type(self.backbone).__name__} has {limit}"
            raise InputError(f"{problem} positions", hint="split it")


_Seen = tuple[Layers, Tensor]
"""Keys and values of all pieces so far, and their mask."""

_Past = tuple[_Seen, Waiting | tuple[()]]
"""What has been read, and with a look-ahead the words that wait."""


class _Pieces(NamedTuple):
    """Input pieces of a model, their padding mask, and the mask of those that represent a word."""

    ids_BS: Tensor
    mask_BS: Tensor
    marked_BS: Tensor


def _whole_rows(memory_BWM: Tensor) -> Context:
    """Make the context of sources of equally many words."""
    mask_BW = memory_BWM.new_ones(memory_BWM.shape[:2], dtype=torch.bool)
    return Context(memory_BWM, mask_BW, mask_BW.sum(1))


def _of_words(hidden_BSM: Tensor, marked_BS: Tensor) -> Context:
    """Make the context from the marked piece of each word."""
    words_B = marked_BS.sum(1)
    places_BW = (~marked_BS).long().argsort(dim=1, stable=True)[:, : int(words_B.max())]
    memory_BWM = hidden_BSM.gather(1, places_BW[..., None].expand(-1, -1, hidden_BSM.shape[-1]))
    is_word_BW = torch.arange(places_BW.shape[1], device=words_B.device) < words_B[:, None]
    return Context(memory_BWM, is_word_BW, words_B)


def pretrained_tagger(
    model: nn.Module,
    *,
    num_labels: int | None = None,
    hidden_size: int = 128,
    label_embedding_size: int = 16,
    dropout: float = 0.1,
    look_ahead: int = 0,
) -> FixedAttentionTagger:
    """Make a tagger with a Hugging Face encoder and a decoder that reads the previous labels.

    ``h_i = LSTM(h_{i-1}, [E[y_{i-1}]; m_i])``, ``f(h_i, w) = W_w . h_i + b_w``, with m_i the encoder output at the
    piece of word i that :func:`word_pieces` marks. A token classifier labels each word independently, so beam search
    cannot help; here labels depend on each other, so local and raw scores differ and search can help. It works with all
    objectives, :func:`~seqwise.training.trainer.fit` and all decoders.

    Args:
        model: a Hugging Face model such as BERT, DistilBERT, ModernBERT or RoBERTa; its head, if any, is not used. Its
            weights are shared and trained too; the tagger follows its train / eval mode. A causal one (GPT-2,
            Llama) does not see later words, so the tagger can stream; for it, mark the last piece of each word, which
            sees the whole word.
        num_labels: V; by default ``config.num_labels``.
        hidden_size: hidden size of the decoder.
        label_embedding_size: size D of a label embedding.
        dropout: rate on features; the encoder has its own.
        look_ahead: number N of words that a causal model reads after each before it is labelled: ``m_i = [h_i; b_i]``,
            where an LSTM of ``hidden_size`` reads the outputs from word i + N, or the last one, back to word i.

    Raises:
        InputError: the model is an encoder-decoder, has no base model, or has an adapter of PEFT that learns a prompt;
            the look-ahead is negative, or the model sees all words anyway.

    Source: Goyal et al. (AAAI 2018), section 3, for the decoder. Not implemented: pooling over several pieces; sources
    longer than the encoder's positions. The decoder is initialised randomly: give it a larger learning rate than the
    encoder (``rates`` of :func:`~seqwise.training.trainer.fit`).

    Example:
        >>> from seqwise.data import EncodedExample
        >>> from seqwise.decoding import DECODERS, decode_examples
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        >>> tagger = pretrained_tagger(BertModel(BertConfig(vocab_size=9, **sizes)), num_labels=3)
        >>> source = (2, ~5, 6, ~7, 3)  # [CLS], a word of two pieces, a word of one, [SEP]
        >>> decoder = DECODERS["raw-beam"](3, 1.0, None)
        >>> len(decode_examples(tagger, [EncodedExample(source, ())], decoder)[0][0].tokens)
        2
    """
    given: Any = unwrapped(model)
    backbone = getattr(given, "base_model", None)
    if backbone is None or not hasattr(given, "config"):
        raise InputError(f"{type(model).__name__} is not a Hugging Face model", hint="load it with AutoModel")
    if getattr(given.config, "is_encoder_decoder", False):
        hint = "use an encoder, such as BERT, or step_model"
        raise InputError(f"{type(model).__name__} is an encoder-decoder, not an encoder", hint=hint)
    require_no_prompt(model)
    _require_merged(backbone, "Wrapper")
    tagger = _tagger_over(
        backbone,
        num_labels=given.config.num_labels if num_labels is None else num_labels,
        hidden_size=hidden_size,
        label_embedding_size=label_embedding_size,
        dropout=dropout,
        look_ahead=look_ahead,
    )
    if look_ahead:
        tagger.require_left_to_right()
    return tagger


def _tagger_over(
    backbone: Any, *, num_labels: int, hidden_size: int, label_embedding_size: int, dropout: float, look_ahead: int
) -> FixedAttentionTagger:
    """Make a :func:`pretrained_tagger` without running the model."""
    if num_labels < 1:
        raise InputError(f"num_labels must be at least 1, got {num_labels}")
    require_look_ahead(look_ahead)
    tagger = FixedAttentionTagger(
        encoder=PieceEncoder(backbone, look_ahead=look_ahead, ahead_size=hidden_size),
        target_size=num_labels,
        hidden_size=hidden_size,
        label_embedding_size=label_embedding_size,
        dropout=dropout,
    )
    # The encoder is not cast: it may keep rotary positions in float32 beside weights of half precision.
    for name, parameter in tagger.named_parameters():
        if not name.startswith("encoder.backbone."):
            parameter.data = parameter.data.to(next(backbone.parameters()).dtype)
    return tagger.train(backbone.training)  # one mode for both, so that training applies the encoder's dropout


def word_pieces(tokenizer: Any, words: Sequence[str], *, piece: Piece = "first") -> tuple[int, ...]:
    """Encode a sentence for :func:`pretrained_tagger`, with one piece of each word marked.

    Args:
        tokenizer: the model's own, fast or slow. A byte-level one (RoBERTa, ModernBERT, GPT-2) reads each word,
            including the first, as after a blank, whatever its ``add_prefix_space``.
        words: at least one word. A word without pieces becomes the unknown token.
        piece: "first", or "last" for a causal model, whose first piece does not see the others.

    Returns:
        Ids with special tokens around them; ``~id``, which is negative, for the piece that represents a word.

    Raises:
        InputError: there are no words, or a word has no pieces and the tokenizer no unknown token.

    Example:
        >>> from transformers import BertTokenizer
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "run"]
        >>> tokenizer = BertTokenizer(vocab={piece: place for place, piece in enumerate(pieces)})
        >>> word_pieces(tokenizer, ["dogs", "run"])
        (2, -6, 6, -8, 3)
    """
    before, pieces, after = split_pieces(tokenizer, words, piece=piece)
    return (*before, *chain.from_iterable(pieces), *after)


def split_pieces(
    tokenizer: Any, words: Sequence[str], *, piece: Piece = "first"
) -> tuple[tuple[int, ...], list[tuple[int, ...]], tuple[int, ...]]:
    """Return the ids that :func:`word_pieces` joins: those before the words, of each word, and after them.

    Example:
        >>> from transformers import BertTokenizer
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "run"]
        >>> tokenizer = BertTokenizer(vocab={piece: place for place, piece in enumerate(pieces)})
        >>> split_pieces(tokenizer, ["dogs", "run"], piece="last")
        ((2,), [(5, -7), (-8,)], (3,))
    """
    without = set(words_without_pieces(tokenizer, words))
    words = [_unknown(tokenizer, word) if place in without else word for place, word in enumerate(words)]
    if getattr(tokenizer, "is_fast", False):
        ids, columns = _pieces(tokenizer, words)
        if len(columns) != len(words):
            raise InputError(
                "the tokenizer loses a word of the sentence", hint="remove control characters from its words"
            )
        starts = [columns[place].start for place in range(len(words))]
        end = columns[len(words) - 1].stop
    else:
        alone = [_alone(tokenizer, word) for word in words]
        # Negated, to be told from the special tokens.
        ids = tokenizer.build_inputs_with_special_tokens([~token for pieces in alone for token in pieces])
        first = next(column for column, token in enumerate(ids) if token < 0)
        *starts, end = accumulate(map(len, alone), initial=first)
        ids = [max(token, ~token) for token in ids]
    marked = -1 if piece == "last" else 0
    by_word = [ids[start:stop] for start, stop in pairwise([*starts, end])]
    for pieces in by_word:
        pieces[marked] = ~pieces[marked]
    return tuple(ids[: starts[0]]), list(map(tuple, by_word)), tuple(ids[end:])


def words_without_pieces(tokenizer: Any, words: Sequence[str]) -> tuple[int, ...]:
    r"""Return the indices of words without pieces, such as soft hyphens and zero-width blanks.

    Example:
        >>> from transformers import BertTokenizer
        >>> tokenizer = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "dog": 5})
        >>> words_without_pieces(tokenizer, ["dog", "\u200b", "cat"])
        (1,)
    """
    if isinstance(words, str) or not words:
        raise InputError("words were expected, at least one", hint="split the sentence")
    if not getattr(tokenizer, "is_fast", False):
        return tuple(place for place, word in enumerate(words) if not _alone(tokenizer, word))
    _, columns = _pieces(tokenizer, words)
    return tuple(place for place in range(len(words)) if place not in columns)


def _pieces(tokenizer: Any, words: Sequence[str]) -> tuple[list[int], dict[int, range]]:
    """Return a fast tokenizer's ids, special tokens included, and the columns of each word by its index."""
    pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    if pre_tokenizer is not None and b"ByteLevel" in pre_tokenizer.__getstate__():
        # Here a blank is part of the next token: a word without one would be read as the end of another word.
        words = [f" {word}" for word in words]
    encoded = tokenizer(list(words), is_split_into_words=True, truncation=False, padding=False, verbose=False)
    columns: dict[int, range] = {}
    for column, word in enumerate(encoded.word_ids()):
        if word is not None:
            columns[word] = range(columns[word].start if word in columns else column, column + 1)
    return list(encoded["input_ids"]), columns


def _alone(tokenizer: Any, word: str) -> list[int]:
    return list(tokenizer(word, add_special_tokens=False, verbose=False)["input_ids"])


def _unknown(tokenizer: Any, word: str) -> str:
    if getattr(tokenizer, "unk_token", None) is None:
        raise InputError(
            f"the tokenizer returns nothing for {word!r} and has no unknown token", hint="replace the word"
        )
    return str(tokenizer.unk_token)


def save_tagger(tagger: FixedAttentionTagger, folder: str | os.PathLike[str]) -> None:
    """Save a tagger of :func:`pretrained_tagger`: all weights as safetensors, sizes, and the encoder's configuration.

    The configuration has the names of the labels (``id2label``), if the model was loaded with them. Adapters of PEFT,
    such as LoRA, are merged into the saved weights, so that the folder is loaded without them.

    Not saved: its language; set ``tagger.language`` again after loading.

    Args:
        tagger: the tagger to save.
        folder: created if needed; sealed with a manifest of SHA-256.

    Raises:
        InputError: it is a different kind of tagger, or has an adapter that cannot be merged.
    """
    if not isinstance(tagger.encoder, PieceEncoder):
        raise InputError("the encoder is not a Hugging Face model", hint="call save_pretrained")
    tagger, folder = _without_adapters(tagger), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tagger.encoder.backbone.config.save_pretrained(folder / BACKBONE)
    num_labels, label_embedding_size = tagger.label_embedding.weight.shape
    sizes = {"num_labels": num_labels, "label_embedding_size": label_embedding_size}
    sizes |= {"hidden_size": tagger.decoder.hidden_size, "look_ahead": tagger.look_ahead}
    (folder / SIZES).write_text(json.dumps({**sizes, "dropout": tagger.dropout.p}, indent=1), encoding="utf-8")
    # Cloned, because safetensors refuses tensors that share memory.
    weights = {name: weight.detach().cpu().clone().contiguous() for name, weight in tagger.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    seal(folder)


def _without_adapters(tagger: FixedAttentionTagger) -> FixedAttentionTagger:
    """Return the tagger, or a copy in which adapters of PEFT are merged into the weights of the encoder."""
    if not any(_is_adapter(module) for module in tagger.encoder.modules()):
        return tagger
    merged = copy.deepcopy(tagger)
    for name, module in list(merged.encoder.named_modules()):
        if _is_adapter(module) and hasattr(module, "merge"):
            if not module.disable_adapters:
                module.merge()
            merged.encoder.set_submodule(name, module.get_base_layer())
    _require_merged(merged.encoder)
    return merged


def _require_merged(encoder: nn.Module, kind: str = "") -> None:
    """Raise an InputError if a part of the encoder belongs to PEFT; ``kind`` is the end of its class name."""
    for module in encoder.modules():
        name = type(module).__name__
        if _is_adapter(module) and name.endswith(kind):
            problem = f"the adapter of the encoder has a {name}, which cannot be merged into the saved weights"
            raise InputError(problem, hint="use LoRA without modules_to_save and trainable tokens")


def _is_adapter(module: nn.Module) -> bool:
    return type(module).__module__.startswith("peft.")


def load_tagger(folder: str | os.PathLike[str]) -> FixedAttentionTagger:
    """Load a tagger saved by :func:`save_tagger`, in evaluation mode; code in the folder is never executed.

    Args:
        folder: folder whose files are checked against its manifest.

    Raises:
        InputError: a file is missing or damaged, or contains code.
    """
    from transformers import AutoConfig, AutoModel

    folder = Path(folder)
    verify(folder)
    hint = "use another copy"
    names = ["num_labels", "label_embedding_size", "hidden_size", "dropout", "look_ahead"]
    sizes = read_record(folder / SIZES, names, what="sizes", hint=hint)
    if "auto_map" in json.loads((folder / BACKBONE / "config.json").read_bytes()):
        problem = "the encoder has its own code (auto_map), which is never run"
        raise InputError(problem, path=folder / BACKBONE, hint="use a model class of transformers")
    config = AutoConfig.from_pretrained(folder / BACKBONE, local_files_only=True, trust_remote_code=False)
    weights = load_model_file(folder / WEIGHTS)
    # The weights determine the precision: the configuration may have another, or none.
    dtype = weights["head.weight"].dtype if "head.weight" in weights else torch.float32
    tagger = _tagger_over(AutoModel.from_config(config, trust_remote_code=False, dtype=dtype), **sizes)
    missing, unexpected = tagger.load_state_dict(weights, strict=False)
    # A pooler, which only a head would read, is optional.
    wrong = [name for name in (*missing, *unexpected) if not name.startswith("encoder.backbone.pooler.")]
    if wrong:
        raise InputError(f"the weights do not fit the configuration ({wrong[0]})", path=folder / WEIGHTS, hint=hint)
    return tagger.eval()
