"""Hugging Face seq2seq and causal language models as step models, with their cache as decoder state."""

from __future__ import annotations

from torch import nn
from transformers import GenerationConfig

from seqwise.errors import InputError
from seqwise.hugging_face.adapter import HuggingFaceStepModel
from seqwise.hugging_face.agreement import feature_scale, require_agreement, slots_may_share
from seqwise.hugging_face.causal import CausalModel
from seqwise.hugging_face.generation import special_tokens
from seqwise.hugging_face.masked_model import require_no_prompt, unwrapped
from seqwise.hugging_face.seq2seq import Seq2SeqModel


def step_model(model: nn.Module, *, generation_config: GenerationConfig | None = None) -> HuggingFaceStepModel:
    """Adapt a Hugging Face seq2seq or causal language model to search, with exactly the same scores.

    Scores are the model's own and ignore its generation config, except for a forced first token
    (``forced_bos_token_id``, such as mBART's language), which is the first token of every output, at score 0, and of
    every target. Forbidden tokens (``suppress_tokens``, the padding in Marian's ``bad_words_ids``, ...) are left to the
    search: :func:`~seqwise.hugging_face.generation.generation_selector` excludes them as ``generate`` does.

    The keys and values of the output so far are the decoder state, which selections gather or mix; those of the source
    (or the prompt of a causal model) are kept once per input. Those that leave a sliding window are kept too, and
    hidden. Recurrent states (Mamba, Qwen 3.5) are gathered or mixed likewise. Without gradients, and if the
    model has plain scaled dot-product attention, the slots of an input share all keys and values (``shares``): a hard
    selection then moves indices (``SharedCache``). Input embeddings are the model's own, including their scale.
    Construction checks that the adapter agrees with the model on a padded batch and on outputs that contain padding,
    with windows of two steps if it has any. (M2M100 and NLLB skip padding when they count positions: they raise unless
    ``generation_config.suppress_tokens`` forbids writing it.)

    Args:
        model: a model with a head (``AutoModelForSeq2SeqLM``, ``AutoModelForCausalLM``); its weights are shared,
            dropout follows its mode, and it is not modified.
        generation_config: gives the first and the last token; by default the model's own. Without an end token, outputs
            are as long as the search. Where a chat model has several end tokens, the trainer and ``seqwise train`` take
            the tokenizer's.

    Returns:
        A module that is a step model and parallel model. Its ``state_dict`` is that of the model, its attribute
        ``model``. It reads sources and targets of a :class:`~seqwise.data.Batch`: a causal model continues the source
        with the target. Padding has no effect, whatever its ids.

    Raises:
        InputError: the model has no head, no start token or several end tokens; it does not write token by token, or
            its parts cannot be called separately; its cache cannot follow a selection (static, quantised,
            of chunks); or the adapter does not agree with it. Later: a prompt is empty, a position has no embedding
            (or, with longrope or dynamic rope, would change those of other inputs of its batch), a target does not
            begin with the forced token, a model in training with layer drop takes single steps, or a kernel
            computes the states of a recurrence without gradients.

    With the model's own gradient checkpointing, all steps at once are recomputed by layers, and the steps of a search
    by segments (``seqwise.search.segments``).

    A hard beam search finds the same outputs as ``generate(num_beams=k, length_penalty=0)`` until a hypothesis ends. In
    ``generate``, it then leaves the beam and k others continue; here it keeps its slot until a better one displaces it.

    As in the model, the embedding of padding gets no gradient when it is looked up, even as the start token, but does
    when it is mixed.

    Not implemented: encoders that do not read tokens; ``EncoderDecoderModel``; prompt and prefix tuning; models split
    over devices by FSDP or DeepSpeed, whose parts cannot be called separately, except in the training of a
    :class:`~seqwise.hugging_face.SearchAwareTrainer`; shared keys and values in training, or with ALiBi,
    custom attention or recurrences, for which each slot has copies; torch's dynamic int8 layers, whose scores depend on
    the other inputs of a batch (an adapted model may be quantised afterwards).

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.search import SoftTopK, beam_search
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=5, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1)
        >>> model = step_model(GPT2LMHeadModel(config).eval())
        >>> context = model.encode(collate([EncodedExample((2, 3), ()), EncodedExample((4,), ())]))
        >>> beam_search(model, context, SoftTopK(k=3, alpha=1.0), num_steps=4).scores_BK.shape
        torch.Size([2, 3])
    """
    plain = unwrapped(model)
    if hasattr(plain, "_orig_mod"):
        problem = f"{type(plain._orig_mod).__name__} is compiled, and a search calls its parts"
        raise InputError(problem, hint="give the model as it was before torch.compile")
    if not hasattr(plain, "get_output_embeddings") or plain.get_output_embeddings() is None:
        raise InputError(
            f"{type(plain).__name__} has no language model head",
            hint="load it with AutoModelForSeq2SeqLM or AutoModelForCausalLM",
        )
    if isinstance(plain.get_output_embeddings(), nn.ModuleList):
        problem = f"{type(plain).__name__} has a head for each of several outputs at a time"
        raise InputError(problem, hint="use a model that writes one token at a time")
    if not plain.can_generate():
        raise InputError(
            f"{type(plain).__name__} writes no outputs: it is neither an encoder-decoder nor a causal language model",
            hint="load it with AutoModelForSeq2SeqLM or AutoModelForCausalLM; a masked model is for masked_model",
        )
    if plain.main_input_name != "input_ids":
        problem = f"{type(plain).__name__} reads {plain.main_input_name}, and a source is tokens"
        raise InputError(problem, hint="use a model of texts")
    if plain.config.model_type == "encoder-decoder":
        problem = f"{type(plain).__name__} joins two models, whose parts are not called as a search needs"
        raise InputError(problem, hint="use a model that was made as an encoder-decoder, such as BART or T5")
    require_no_prompt(model)
    tokens = special_tokens(plain, plain.generation_config if generation_config is None else generation_config)
    kind = Seq2SeqModel if plain.config.is_encoder_decoder else CausalModel
    adapted = kind(plain, tokens, feature_scale(plain))
    require_agreement(adapted, model)
    adapted.shares = not adapted.recurs and slots_may_share(adapted)
    return adapted
