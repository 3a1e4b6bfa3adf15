"""Try `step_model` on every causal and seq2seq model of the installed Transformers: writes docs/hugging-face-models.md.

Usage: python -m scripts.try_models [--results results/hugging-face-models.json] [MODEL_TYPE ...]

Each architecture is made small, with random weights, in a process of its own. If it is adapted, a hard beam of three
writes ten tokens for each of three inputs of different lengths in one batch; they must be those of `generate` for one
input at a time. Windows of attention are narrower than the outputs. Models that cannot be made small from the usual
names of sizes, that have parts for images or sound, or that take too long, are not tried.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from reproductions.grids import markdown_grid
from seqwise.data import EncodedExample, collate
from seqwise.data.durable import write_atomically
from seqwise.errors import InputError, first_line
from seqwise.evaluation.signature import Signature, sign, signature_line
from seqwise.hugging_face import generation_selector, step_model
from seqwise.search import HardTopK, backtrace, beam_search

ROOT = Path(__file__).resolve().parent.parent
RESULT, PAGE = ROOT / "results" / "hugging-face-models.json", ROOT / "docs" / "hugging-face-models.md"

PAD, END, START, VOCABULARY = 0, 1, 2, 24
BEAM_SIZE, STEPS = 3, 10
SOURCES = ((9, 4, 17, 5, 11, 3, 8), (20, 6, 13), (7, 7, 15, 4, 22))
TOKENS = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": START, "decoder_start_token_id": START}
UNFORCED = {"forced_eos_token_id": None, "forced_bos_token_id": None}
# Sizes by their names in configurations.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size",), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "embedding_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "n_inner"), 32),
    **dict.fromkeys(("ffn_hidden_size",), 32),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "kv_lora_rank", "q_lora_rank", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("sliding_window", "rotary_dim", "linear_num_value_heads"), 4),
    **dict.fromkeys(("linear_num_key_heads", "mamba_n_heads", "n_mamba_heads", "attn_layer_period"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_head", "mamba_d_state"), 8),
    **dict.fromkeys(("mamba_d_ssm",), 16),
    **dict.fromkeys(("expand", "mamba_expand", "mamba_n_groups", "n_groups", "attn_layer_offset"), 1),
    "cross_attention_hidden_size": 16,
    "partial_rotary_factor": 0.5,
    "attn_layer_indices": [1],
    "is_decoder": True,
}
OTHER_PARTS = {"vision_config", "audio_config", "encoder_config", "speech_config"}
LARGEST = 30_000_000  # weights of a model that is not small
SECONDS = 60

WORKS, REFUSED, DIFFERS, UNTRIED = "works", "refused", "differs", "not tried"
HEAD = """\
# Which Hugging Face models

`python -m scripts.try_models` writes this page; do not edit it. Every causal and seq2seq architecture of the
Transformers release named at the end was made small, with random weights. Of {tried} that could be tried, {works}
work: scores agree with the model's own, step by step and all at once, and a hard beam writes what `generate` writes.
The others are refused, with the reason, before anything is trained or searched. Each architecture counts once,
whatever its size and weights.

In a hard beam without gradients, the slots of an input share all keys and values, or each has copies, which takes
more time and memory. Settings of `generate` that change scores are refused for all of them:
[not supported](hugging-face.md#not-supported).
"""


def main() -> None:
    """Try all models, or some, and write the results and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="MODEL_TYPE", help="only these; results are printed, not written")
    parser.add_argument("--results", type=Path, default=RESULT, help="file for the results")
    options = parser.parse_args()
    found = {}
    for kind, model_type, name in architectures():
        if options.types and model_type not in options.types:
            continue
        found[f"{kind} {model_type}"] = outcome = in_a_process(name)
        print(f"{kind} {model_type}: {': '.join(filter(None, outcome))}", file=sys.stderr, flush=True)
    if options.types:
        return
    signature = sign(f"transformers {transformers.__version__}", seeds=[0], data=f"{len(found)} models")
    result = {"models": found, "signature": asdict(signature)}
    write_atomically(options.results, json.dumps(result, indent=1) + "\n")
    write_atomically(PAGE, page(result))


def architectures() -> Iterator[tuple[str, str, str]]:
    """Yield kind, model type and class of all causal and seq2seq models."""
    for kind, names in (
        ("causal", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("seq2seq", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    ):
        for model_type, name in names.items():
            yield kind, model_type, name if isinstance(name, str) else name[0]


def in_a_process(name: str) -> tuple[str, str]:
    """Try a model in its own process, which may crash or be stopped."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        try:
            outcome = attempt(name)
        except BaseException as error:
            outcome = DIFFERS, f"{type(error).__name__}: {first_line(error)}"
        os.write(writing, json.dumps(outcome).encode()[: 2**15])
        os._exit(0)
    os.close(writing)
    answered = bool(select.select([reading], [], [], SECONDS)[0])
    answer = os.read(reading, 2**16) if answered else b""
    if not answered:
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(reading)
    if not answer:
        return UNTRIED, "it takes too long, or too much memory"
    status, detail = json.loads(answer)
    return status, detail


def attempt(name: str) -> tuple[str, str]:
    """Make a model, adapt it, and compare its beam with that of ``generate``."""
    try:
        kind = getattr(transformers, name)
        if OTHER_PARTS & set(kind.config_class.sub_configs):
            return UNTRIED, "it has parts for images or sound"
        model = small_model(kind)
    except Exception as error:
        return UNTRIED, f"{type(error).__name__}: {first_line(error)}"
    if model.num_parameters() > LARGEST:
        return UNTRIED, "it is not small with small sizes"
    if model.main_input_name != "input_ids":
        return UNTRIED, f"it reads {model.main_input_name}"
    model.generation_config.update(**TOKENS, suppress_tokens=[PAD], min_new_tokens=STEPS)
    try:
        adapted, selector = step_model(model), generation_selector(HardTopK(BEAM_SIZE), model)
    except InputError as error:
        return REFUSED, error.problem
    with torch.no_grad():
        context = adapted.encode(collate([EncodedExample(source, ()) for source in SOURCES]))
        found = backtrace(beam_search(adapted, context, selector, num_steps=STEPS))[:, 0].tolist()
    if found != [generated(model, source) for source in SOURCES]:
        return DIFFERS, "its beam is not that of generate"
    return WORKS, "shared" if adapted.shares else "copies"


def small_model(kind: Any) -> Any:
    """Make a model of a class with small sizes, and weights large enough to affect the scores."""
    config = small_config(kind.config_class)
    if config.is_encoder_decoder and getattr(config, "is_decoder", False):
        config.is_decoder = False
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.3)
    return model


def small_config(kind: Any) -> Any:
    """Make a configuration with small sizes, also of its parts."""
    known = set(kind.attribute_map)
    for base in kind.__mro__:
        known |= {*getattr(base, "__annotations__", {}), *inspect.signature(base.__init__).parameters}
    settings = {key: value for key, value in {**SIZES, **UNFORCED, **TOKENS}.items() if key in known or key in TOKENS}
    layers = _layer_types(kind)
    if len(layers) > 1 and "layer_types" in known:
        settings |= {"layer_types": layers, "num_hidden_layers": len(layers)}
    parts = {name: part for name, part in kind.sub_configs.items() if part is not transformers.AutoConfig}
    return kind(**settings, **{name: small_config(part) for name, part in parts.items()})


def _layer_types(kind: Any) -> list[str]:
    """Return one layer of each type for a configuration with recurrences, and an attention layer to count steps."""
    name = kind.attribute_map.get("layer_types", "layer_types")
    if isinstance(getattr(kind, name, None), property):
        return []  # derived from other settings
    try:
        types = list(dict.fromkeys(getattr(kind(), name, None) or ()))
    except Exception:  # it cannot be created without settings
        return []
    if not {"linear_attention", "conv"} & set(types):
        return []
    return types if len(types) > 1 else [*types, "full_attention"]


def generated(model: Any, source: tuple[int, ...]) -> list[int]:
    """Return the output of ``generate`` for one input."""
    ids = model.generate(
        torch.tensor([source]), num_beams=BEAM_SIZE, do_sample=False, length_penalty=0.0, max_new_tokens=STEPS
    )
    written: list[int] = ids[0, 1 if model.config.is_encoder_decoder else len(source) :].tolist()
    return written


def page(result: dict[str, Any]) -> str:
    """Return the page for some results."""
    models = result["models"]
    by_status: dict[str, list[str]] = {}
    for name, (status, _) in models.items():
        by_status.setdefault(status, []).append(name)
    works, tried = len(by_status.get(WORKS, [])), len(models) - len(by_status.get(UNTRIED, []))
    parts = [HEAD.format(works=works, tried=tried)]
    for kind, title in (("causal", "Causal"), ("seq2seq", "Seq2seq")):
        rows = [
            (
                how,
                _listed(name for name in by_status.get(WORKS, []) if name.startswith(kind) and models[name][1] == how),
            )
            for how in ("shared", "copies")
        ]
        parts += [f"## {title} models that work\n", markdown_grid(("keys and values", "model types"), rows)]
    reasons: dict[str, list[str]] = {}
    for name in [*by_status.get(DIFFERS, []), *by_status.get(REFUSED, [])]:
        reasons.setdefault(_reason(models[name]), []).append(name)
    rows = [(reason, _listed(names)) for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1]))]
    parts += ["## Refused\n", markdown_grid(("reason", "model types"), rows)]
    parts += ["## Not tried\n", f"{_listed(by_status.get(UNTRIED, []))}.\n"]
    signature = Signature(**{**result["signature"], "seeds": tuple(result["signature"]["seeds"]), "training": ()})
    return "\n".join([*parts, f"`{signature_line(signature)}`\n"])


def _reason(outcome: tuple[str, str]) -> str:
    """Return the reason in the same words for all models with the same problem."""
    status, detail = outcome
    if status == DIFFERS:
        return f"**{detail}**"
    for words, reason in (
        ("Indexed", "keeps an index of what to attend to"),
        ("cannot be gathered and mixed", "keeps more than keys and values"),
        ("unknown steps between", "has layers between its decoder and its output embeddings"),
        ("its scores differ", "gives different scores from embeddings, or with padding, than from tokens alone"),
        ("cannot be run as a step model", "cannot be run on embeddings, with a cache of keys and values"),
        ("embeds", "scores different tokens from those it embeds"),
        ("generation_config", "is made with settings of `generate` that change scores"),
    ):
        if words in detail:
            return reason
    return detail.partition(" ")[2]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name.partition(' ')[2]}`" for name in sorted(names)) or "none"


if __name__ == "__main__":
    main()
