"""How many tokens per second does beam search write, compared with ``generate`` of Transformers?

Models have random weights. All systems decode the same sources, with summed log-probabilities and no length penalty,
and must write the same tokens. No output can end before the last step, so all write the same number of tokens.

Marian shapes, sources of 20 tokens, k = 4, the best output returned:

- 3 + 3 layers of 256, batch 32: V = 8,000, 30 steps.
- 3 + 3 layers of 256, batch 16: V = 8,000, 40 steps.
- 6 + 6 layers of 512: V = 32,000, batch 8, 30 steps.
- 6 + 6 layers of 512, batch 64: V = 58,000, 40 steps, for a GPU.

And a wide beam:

- T5, k = 50: 4 + 4 layers of 128, V = 8,000, batch 4, sources of 12 tokens, 8 steps, all k outputs returned.

The systems:

- generate: ``model.generate(num_beams=k)`` with its cache, as documented.
- seqwise: ``step_model(model)`` of the same model, decoded with ``HardTopK(k)``.
- ctranslate2: the same weights in float32, through its loaders of models and ``translate_batch``: a C++ engine with its
  own kernels, which shows what can be gained beyond Python modules. It runs in its own process, so that its idle
  threads and its memory do not slow the others. It is left out if it is not installed, and on a GPU.
- int8, for Marian shapes on a CPU: seqwise with the linear layers of the adapted model replaced by torch's dynamic int8
  layers, and CTranslate2 with ``compute_type="int8"``. They round differently, so their outputs may differ. Seqwise
  in int8 is left out where torch has no such layers.

On AMD processors with AVX-512, where torch's MKL uses AVX2 only, seqwise computes linear layers by torch's oneDNN.
``generate`` and int8 layers are as torch has them.

    python -m benchmarks.beam_decoding
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.command import Ratio, add_device, make_parser, run, signed
from benchmarks.constrained_decoding import t5
from benchmarks.processes import own_process
from benchmarks.timing import clock_of, median_ratio, products_a_second, time_in_turn
from seqwise import Decoder, HardTopK, decode, local
from seqwise.data import EncodedExample, collate
from seqwise.hugging_face import generation_selector, step_model

ENGINE, INT8, ENGINE_INT8 = "ctranslate2", "seqwise int8", "ctranslate2 int8"
COMPUTE_TYPES = {ENGINE: "float32", ENGINE_INT8: "int8"}


def marian(*, layers: int, hidden: int, vocabulary: int, seed: int) -> Any:
    """Make a model with random weights; the last token is padding and start token, and 0 is the end token."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(seed)
    pad = vocabulary - 1
    config = MarianConfig(
        vocab_size=vocabulary, d_model=hidden, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=4 * hidden, decoder_ffn_dim=4 * hidden,
        max_position_embeddings=512, pad_token_id=pad, eos_token_id=0, bos_token_id=None, decoder_start_token_id=pad,
        forced_eos_token_id=None, scale_embedding=True,
    )  # fmt: skip
    return MarianMTModel(config).eval()


@dataclass(frozen=True)
class Family:
    """Architecture of a model: how it is made, and what else depends on it."""

    make: Callable[..., Any]
    loader: str  # in ctranslate2.converters.transformers
    feedforward: int  # inner size of the feed-forward part, as a multiple of the hidden size
    num_special: tuple[int, int]  # tokens at the beginning and at the end of the vocabulary that sources do not have
    suppressed: tuple[str, ...] = ()  # tokens that the loader leaves in the vocabulary, and that may not be written
    in_int8: bool = True


MARIAN = Family(marian, "MarianMTLoader", feedforward=4, num_special=(1, 1))
T5 = Family(t5, "T5Loader", feedforward=2, num_special=(2, 0), suppressed=("<pad>",), in_int8=False)


@dataclass(frozen=True)
class Shape:
    """Model and search of a row, and targets: ratios of tokens per second to those of ``generate`` and CTranslate2."""

    layers: int
    hidden: int
    vocabulary: int
    batch: int
    steps: int
    k: int = 4
    num_outputs: int = 1
    source_length: int = 20
    family: Family = MARIAN
    least: float | None = None
    least_of_engine: float | None = None


SHAPES = {
    "3 + 3 layers of 256, batch 32": Shape(3, 256, 8000, batch=32, steps=30, least=2.5, least_of_engine=1.0),
    "3 + 3 layers of 256, batch 16": Shape(3, 256, 8000, batch=16, steps=40, least=2.0, least_of_engine=1.0),
    "6 + 6 layers of 512": Shape(6, 512, 32_000, batch=8, steps=30, least_of_engine=1.0),
    "T5, k = 50": Shape(4, 128, 8000, batch=4, steps=8, k=50, num_outputs=50, source_length=12, family=T5, least=5.0),
}
OTHERS = {
    "6 + 6 layers of 512, batch 64": Shape(6, 512, 58_000, batch=64, steps=40, least=2.5),
    "tiny Marian": Shape(1, 32, 500, batch=2, steps=3, source_length=4),
    "tiny T5": Shape(1, 32, 500, batch=2, steps=3, k=5, num_outputs=5, source_length=4, family=T5),
}
"""Shapes that are measured by name only: one for a GPU, and two to see whether everything works."""

ALL = SHAPES | OTHERS

Outputs = list[list[tuple[int, ...]]]
"""Outputs of each source, best first."""


def model_of(shape: Shape, seed: int) -> Any:
    """Make the model, on the CPU."""
    sizes = {"layers": shape.layers, "hidden": shape.hidden, "vocabulary": shape.vocabulary, "seed": seed}
    model = shape.family.make(**sizes)
    for name, weights in model.named_parameters():
        if ("layers" in name or "block" in name) and weights.ndim == 2:  # so that outputs depend on sources
            weights.data.mul_(4)
    model.generation_config.min_new_tokens = shape.steps
    model.generation_config.bad_words_ids = [[model.config.pad_token_id]]
    return model


def quantized(adapted: nn.Module) -> nn.Module | None:
    """Copy an adapted model with dynamic int8 layers; None if torch has none, or no engine for them."""
    try:
        from torch.ao.quantization import quantize_dynamic
    except ImportError:
        return None
    if torch.backends.quantized.engine == "none":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are deprecated
        copied: nn.Module = quantize_dynamic(adapted, {nn.Linear}, dtype=torch.qint8)
    return copied


def by_generate(model: Any, sources_BS: Tensor, shape: Shape) -> Outputs:
    """Decode by ``generate``, without the start token."""
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        found = model.generate(
            sources_BS,
            attention_mask=torch.ones_like(sources_BS),
            num_beams=shape.k,
            num_return_sequences=shape.num_outputs,
            do_sample=False,
            length_penalty=0.0,
            max_new_tokens=shape.steps,
        )
    rows = [tuple(row) for row in found[:, 1 : 1 + shape.steps].tolist()]
    return [rows[first : first + shape.num_outputs] for first in range(0, len(rows), shape.num_outputs)]


def by_seqwise(adapted: Any, sources_BS: Tensor, shape: Shape) -> Outputs:
    """Decode by :func:`seqwise.decode`."""
    batch = collate([EncodedExample(tuple(row), ()) for row in sources_BS.tolist()]).to(sources_BS.device)
    selector = generation_selector(HardTopK(shape.k), adapted, num_steps=shape.steps)
    decoder, n_best = Decoder(selector, local), shape.num_outputs
    with torch.inference_mode():
        found = decode(adapted, adapted.encode(batch), decoder, num_steps=shape.steps, n_best=n_best)
    return [[tuple(best.tokens) for best in ranked] for ranked in found]


class Names:
    """Names of ids, in the form of a tokenizer that CTranslate2's loaders need."""

    pad_token, eos_token, unk_token = "<pad>", "</s>", "<unk>"

    def __init__(self, config: Any) -> None:
        end = config.eos_token_id
        special = {config.pad_token_id: self.pad_token, end: self.eos_token, end + 1: self.unk_token}
        self.names = [special.get(place, f"t{place}") for place in range(config.vocab_size)]

    def get_vocab(self) -> dict[str, int]:
        """Return the ids by name."""
        return {name: place for place, name in enumerate(self.names)}

    def convert_ids_to_tokens(self, place: int) -> str:
        """Return the name of an id."""
        return self.names[place]


def by_ctranslate2(shape: Shape, options: argparse.Namespace) -> Callable[[tuple[str, list[list[int]]]], Outputs]:
    """Make a function that decodes, given a type of numbers and sources, by CTranslate2 with weights from this seed."""
    import ctranslate2
    from ctranslate2.converters import transformers as converters

    model = model_of(shape, options.seed)
    tokens = Names(model.config)
    ids = tokens.get_vocab()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        specification = getattr(converters, shape.family.loader)()(model, tokens)
        specification.validate()
        specification.optimize()
        specification.save(folder)
        settings = {"device": "cpu", "inter_threads": 1, "intra_threads": options.threads}
        translators = {
            kind: ctranslate2.Translator(folder, compute_type=kind, **settings) for kind in COMPUTE_TYPES.values()
        }
    search = {"beam_size": shape.k, "num_hypotheses": shape.num_outputs, "length_penalty": 0.0, "max_batch_size": 0}
    search |= {"return_scores": False, "min_decoding_length": shape.steps, "max_decoding_length": shape.steps}
    if shape.family.suppressed:
        search["suppress_sequences"] = [[token] for token in shape.family.suppressed]

    def write(asked: tuple[str, list[list[int]]]) -> Outputs:
        kind, sources = asked
        named = [[tokens.names[place] for place in row] for row in sources]
        found = translators[kind].translate_batch(named, **search)
        return [[tuple(ids[name] for name in output) for output in ranked.hypotheses] for ranked in found]

    return write


def operations_of_a_token(shape: Shape) -> float:
    """Count the floating-point operations of matrix products for one token that is returned, in all k slots."""
    size, steps = shape.hidden, shape.steps
    # A layer: four products of self-attention, two of attention to the source, two of the feed-forward part.
    layer = 2 * (4 + 2 + 2 * shape.family.feedforward) * size**2 + 4 * size * (steps / 2 + shape.source_length)
    return float(shape.k * (shape.layers * layer + 2 * size * shape.vocabulary) / shape.num_outputs)


def same(ours: Outputs, theirs: Outputs) -> float:
    """Return the share of our outputs that the other system found for the same sources."""
    found = zip(ours, theirs, strict=True)
    return statistics.mean(len({*mine} & {*others}) / len(mine) for mine, others in found)


def measure_shape(name: str, options: argparse.Namespace, digest: Any) -> dict[str, Any]:
    """Return one row: tokens per second, their ratios and the shares of equal outputs; add its data to the digest."""
    shape = ALL[name]
    model = model_of(shape, options.seed)
    first, last = shape.family.num_special
    sources_BS = torch.randint(first, shape.vocabulary - last, (shape.batch, shape.source_length))
    digest.update(sources_BS.numpy().tobytes())
    digest.update(model.get_input_embeddings().weight.detach().numpy().tobytes())
    model, sources_BS = model.to(options.device), sources_BS.to(options.device)
    adapted = step_model(model)  # not timed: it also tests that it agrees with the model
    calls: dict[str, Callable[[], Outputs]] = {
        "generate": lambda: by_generate(model, sources_BS, shape),
        "seqwise": lambda: by_seqwise(adapted, sources_BS, shape),
    }
    on_cpu, sources = options.device.type == "cpu", sources_BS.tolist()
    in_int8 = quantized(adapted) if on_cpu and shape.family.in_int8 else None
    if in_int8 is not None:
        calls[INT8] = lambda: by_seqwise(in_int8, sources_BS, shape)
    with own_process(partial(by_ctranslate2, shape), options) if on_cpu else nullcontext() as write:
        if write is not None:
            names = [ENGINE, *([ENGINE_INT8] if shape.family.in_int8 else [])]
            calls |= {name: partial(write, (COMPUTE_TYPES[name], sources)) for name in names}
        written = {name: call() for name, call in calls.items()}
        seconds = time_in_turn(calls, options.rounds, clock=clock_of(options.device))
    tokens = shape.batch * shape.num_outputs * shape.steps

    def ratio(above: str, below: str) -> float | None:
        return median_ratio(seconds[above], seconds[below]) if {above, below} <= seconds.keys() else None

    return {
        "shape": name,
        "same_tokens": {
            other: same(written["seqwise"], outputs) for other, outputs in written.items() if other != "seqwise"
        },
        "against_engine": ratio(ENGINE, "seqwise"),
        "int8_against_engine": ratio(ENGINE_INT8, INT8),
        "int8_against_float32": ratio("seqwise", INT8),
        "tokens_per_second": {other: tokens / statistics.median(times) for other, times in seconds.items()},
        "operations_of_a_token": operations_of_a_token(shape),
        "products_a_second": products_a_second(options.device),
        "against_generate": ratio("generate", "seqwise"),
        "seconds_by_round": seconds,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all shapes."""
    torch.set_num_threads(options.threads)
    digest = hashlib.sha256()
    rows = [measure_shape(name, options, digest) for name in options.shapes]
    return {
        "rows": rows,
        "engine": f"{ENGINE} {metadata.version(ENGINE)}" if rows[0]["against_engine"] is not None else None,
        **signed("beam decoding", options, data=digest.hexdigest()),
    }


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of tokens per second to those of each peer, for the summary."""
    found = []
    for row in result["rows"]:
        shape, what = ALL[row["shape"]], f"hard beam, {row['shape']}"
        found.append(Ratio(f"{what}, over `generate`", row["against_generate"], least=shape.least))
        if row["against_engine"] is not None:
            found.append(Ratio(f"{what}, over CTranslate2", row["against_engine"], least=shape.least_of_engine))
        if row["int8_against_engine"] is not None:
            found.append(Ratio(f"{what}, int8, over CTranslate2", row["int8_against_engine"]))
    return found


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = []
    for row in result["rows"]:
        shape, engine_name = ALL[row["shape"]], result["engine"]
        lines += [row["shape"]]
        lines += [f"{name:16} {value:8.0f} tokens a second" for name, value in row["tokens_per_second"].items()]
        operations, speed = row["operations_of_a_token"], row["products_a_second"]
        lines.append(
            f"{'floor':16} {speed / operations:8.0f}: {operations / 1e6:.1f} million operations in products for a"
            f" token, at the {speed / 1e9:.0f} billion a second of one large product"
        )
        for what, ratio, least in (
            ("seqwise against generate", row["against_generate"], shape.least),
            (f"seqwise against {engine_name}", row["against_engine"], shape.least_of_engine),
            (f"seqwise against {engine_name}, both in int8", row["int8_against_engine"], None),
            ("seqwise in int8 against float32", row["int8_against_float32"], None),
        ):
            if ratio is not None:
                target = "" if least is None else f" (target {least:g}, {'met' if ratio >= least else 'missed'})"
                lines.append(f"{what}: {ratio:.2f}{target}")
        shares = (f"{name} {share:.1%}" for name, share in row["same_tokens"].items())
        lines.append("outputs equal to those of seqwise: " + ", ".join(shares))
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("beam_decoding", __doc__, rounds=5, seed="the models and the sources")
    parser.add_argument("--shapes", nargs="+", choices=list(ALL), default=list(SHAPES), help="models and searches")
    add_device(parser)
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
