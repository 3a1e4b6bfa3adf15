"""Any Hugging Face seq2seq or causal language model as a step model: its cache is its decoder state."""

from __future__ import annotations

from torch import nn
from transformers import GenerationConfig

from seqwise.errors import InputError
from seqwise.hugging_face.adapter import HuggingFaceStepModel
from seqwise.hugging_face.agreement import feature_scale, require_agreement, slots_may_share
from seqwise.hugging_face.causal import CausalModel
from seqwise.hugging_face.generation import special_tokens
from seqwise.hugging_face.masked_model import unwrapped
from seqwise.hugging_face.seq2seq import Seq2SeqModel


def step_model(model: nn.Module, *, generation_config: GenerationConfig | None = None) -> HuggingFaceStepModel:
    """Adapt a Hugging Face seq2seq or causal language model to search: a step model that is exactly that model.

    Scores are the model's own, whatever its generation config says but for one thing: where it forces a first token
    (``forced_bos_token_id``, as mBART's language), that token is the first of every output, at score 0, and the first
    of every target. What it forbids (``suppress_tokens``, the padding in Marian's ``bad_words_ids``, ...) is a matter
    of search: :func:`~seqwise.hugging_face.generation.generation_selector` respects it as ``generate`` does.

    The keys and values of the output so far are the decoder state and follow selections, gathered or mixed; those of
    the source (of the prompt, in a causal model) are kept once for each input. Where nothing asks for gradients and the
    model's attention is the softmax of scaled products, the slots of an input share all of them (``shares``): a hard
    selection then moves indices (``SharedCache``). A fed embedding is the model's own, its scale
    included. Whatever cannot be reproduced is found out here: a batch with padding, and outputs in which padding is
    written, are run through the model and through the adapter, and they must agree. (M2M100 and NLLB count positions by
    what is not padding: they are refused unless ``generation_config.suppress_tokens`` forbids it to be written.)

    Args:
        model: with a head (``AutoModelForSeq2SeqLM``, ``AutoModelForCausalLM``); its weights are shared, and dropout
            follows its mode. It is left as it is.
        generation_config: where the first and the last token are looked up; the model's own by default. An end token
            of None makes outputs that are as long as the search.

    Returns:
        A step model and parallel model, and a module. Its ``state_dict`` is that of the model, which is its ``model``.
        Of a :class:`~seqwise.data.Batch` it reads sources and targets: a causal model continues the source by the
        target. Padding is of no consequence, whatever ids it has.

    Raises:
        InputError: the model has no head, no start token or several end tokens; it does not write token by token, or
            its parts cannot be called one by one; its cache cannot follow a selection (static, sliding, quantised,
            recurrent); or the adapter does not agree with it. Later: a prompt is empty, a position has no embedding
            (or, with longrope or dynamic rope, would change those of other inputs of its batch), a target does not
            begin with the forced token, or single steps are asked of a model in training with gradient checkpointing or
            layer drop.

    A hard beam search finds what ``generate(num_beams=k, length_penalty=0)`` finds as long as nothing ends. There,
    an output that ends leaves the beam and k others go on; here it keeps its slot until something better takes it.

    As in the model, an embedding of padding that is looked up gets no gradient, not even as the start token; one that
    is mixed does.

    Not implemented: encoders that read no tokens; models split over devices by FSDP or DeepSpeed, whose parts cannot
    be called one by one; slots that share keys and values in training, or where attention is more than that (T5's
    relative positions, ALiBi, soft caps): there each slot has copies.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.search import SoftTopK, beam_search
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=5, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1)
        >>> model = step_model(GPT2LMHeadModel(config).eval())
        >>> context = model.encode(collate([(0, EncodedExample((2, 3), ())), (1, EncodedExample((4,), ()))]))
        >>> beam_search(model, context, SoftTopK(k=3, alpha=1.0), num_steps=4).scores_BK.shape
        torch.Size([2, 3])
    """
    plain = unwrapped(model)
    if not hasattr(plain, "get_output_embeddings") or plain.get_output_embeddings() is None:
        raise InputError(
            f"{type(plain).__name__} has no language model head",
            hint="load it with AutoModelForSeq2SeqLM or AutoModelForCausalLM",
        )
    if not plain.can_generate():
        raise InputError(
            f"{type(plain).__name__} writes no outputs: it is neither an encoder-decoder nor a causal language model",
            hint="load it with AutoModelForSeq2SeqLM or AutoModelForCausalLM; a masked model is for masked_model",
        )
    if plain.main_input_name != "input_ids":
        problem = f"{type(plain).__name__} reads {plain.main_input_name}, and a source is tokens"
        raise InputError(problem, hint="use a model of texts")
    tokens = special_tokens(plain, plain.generation_config if generation_config is None else generation_config)
    kind = Seq2SeqModel if plain.config.is_encoder_decoder else CausalModel
    adapted = kind(plain, tokens, feature_scale(plain))
    require_agreement(adapted, model)
    adapted.shares = slots_may_share(adapted)
    return adapted
