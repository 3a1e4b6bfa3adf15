"""How many tokens per second does beam search write, compared with ``generate`` of Transformers?

A Marian-shaped model with random weights (3 + 3 layers of 256, 8,000 tokens), k = 4, summed log-probabilities, no
length penalty. All systems decode the same sources and must write the same tokens. No output can end before the last
step, so all write the same number of tokens.

- generate: ``model.generate(num_beams=k)`` with its cache, as documented.
- seqwise: ``step_model(model)`` of the same model, decoded with ``HardTopK(k)``.
- ctranslate2: the same weights in float32, through its loader of Marian models and ``translate_batch``: a C++ engine
  with its own kernels, which shows what can be gained beyond Python modules. It runs in its own process, so that its
  idle threads and its memory do not slow the others. It is left out if it is not installed, and on a GPU.

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
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from benchmarks.command import Ratio, add_device, make_parser, run, signed
from benchmarks.processes import own_process
from benchmarks.timing import clock_of, median_ratio, products_a_second, time_in_turn
from seqwise import Decoder, HardTopK, decode, local
from seqwise.data import EncodedExample, collate
from seqwise.hugging_face import generation_selector, step_model

ENGINE = "ctranslate2"
LEAST, LEAST_OF_ENGINE = 2.5, 1.0
"""Targets: ratios of tokens per second to those of ``generate`` and of CTranslate2."""


def marian(options: argparse.Namespace) -> Any:
    """Make the model, on the CPU; the last token is padding and start token, and 0 is the end token."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(options.seed)
    size, pad = options.hidden, options.vocabulary - 1
    config = MarianConfig(
        vocab_size=options.vocabulary, d_model=size, encoder_layers=options.layers, decoder_layers=options.layers,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=4 * size, decoder_ffn_dim=4 * size,
        max_position_embeddings=512, pad_token_id=pad, eos_token_id=0, bos_token_id=None, decoder_start_token_id=pad,
        forced_eos_token_id=None, scale_embedding=True,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    for name, weights in model.named_parameters():
        if "layers" in name and weights.ndim == 2:  # so that outputs depend on sources
            weights.data.mul_(4)
    model.generation_config.min_new_tokens = options.steps
    model.generation_config.bad_words_ids = [[pad]]
    return model


def by_generate(model: Any, sources_BS: Tensor, options: argparse.Namespace) -> list[list[int]]:
    """Decode by ``generate``, without the start token."""
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        found = model.generate(
            sources_BS,
            attention_mask=torch.ones_like(sources_BS),
            num_beams=options.k,
            do_sample=False,
            length_penalty=0.0,
            max_new_tokens=options.steps,
        )
    return found[:, 1 : 1 + options.steps].tolist()


def by_seqwise(adapted: Any, sources_BS: Tensor, options: argparse.Namespace) -> list[list[int]]:
    """Decode by :func:`seqwise.decode`."""
    batch = collate([EncodedExample(tuple(row), ()) for row in sources_BS.tolist()]).to(sources_BS.device)
    selector = generation_selector(HardTopK(options.k), adapted, num_steps=options.steps)
    with torch.inference_mode():
        found = decode(adapted, adapted.encode(batch), Decoder(selector, local), num_steps=options.steps)
    return [list(best[0].tokens) for best in found]


class Names:
    """Names of ids, in the form of a tokenizer that CTranslate2's loader needs."""

    eos_token, unk_token = "</s>", "<unk>"

    def __init__(self, size: int) -> None:
        self.names = [self.eos_token, self.unk_token, *(f"t{place}" for place in range(2, size - 1)), "<pad>"]

    def get_vocab(self) -> dict[str, int]:
        """Return the ids by name."""
        return {name: place for place, name in enumerate(self.names)}


def by_ctranslate2(options: argparse.Namespace) -> Callable[[list[list[int]]], list[list[int]]]:
    """Make a function that decodes by CTranslate2, with weights from the same seed."""
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    tokens = Names(options.vocabulary)
    ids = tokens.get_vocab()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        specification = MarianMTLoader()(marian(options), tokens)
        specification.validate()
        specification.optimize()
        specification.save(folder)
        translator = ctranslate2.Translator(
            folder, device="cpu", compute_type="float32", inter_threads=1, intra_threads=options.threads
        )
    search = {"beam_size": options.k, "length_penalty": 0.0, "max_batch_size": 0, "return_scores": False}
    search |= {"min_decoding_length": options.steps, "max_decoding_length": options.steps}

    def write(sources: list[list[int]]) -> list[list[int]]:
        named = [[tokens.names[place] for place in row] for row in sources]
        return [[ids[name] for name in found.hypotheses[0]] for found in translator.translate_batch(named, **search)]

    return write


def operations_of_a_token(options: argparse.Namespace) -> float:
    """Count the floating-point operations of matrix products for one token of one output, in all k slots."""
    size, steps = options.hidden, options.steps
    # A layer: four products of self-attention, two of attention to the source, two of the feed-forward part.
    layer = 2 * (4 + 2 + 2 * 4) * size**2 + 4 * size * (steps / 2 + options.source_length)
    return float(options.k * (options.layers * layer + 2 * size * options.vocabulary))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time all systems, and compare their outputs."""
    torch.set_num_threads(options.threads)
    model = marian(options)
    sources_BS = torch.randint(1, options.vocabulary - 1, (options.batch, options.source_length))
    digest = hashlib.sha256(sources_BS.numpy().tobytes())
    digest.update(model.get_input_embeddings().weight.detach().numpy().tobytes())
    model, sources_BS = model.to(options.device), sources_BS.to(options.device)
    adapted = step_model(model)  # not timed: it also tests that it agrees with the model
    calls: dict[str, Callable[[], Any]] = {
        "generate": lambda: by_generate(model, sources_BS, options),
        "seqwise": lambda: by_seqwise(adapted, sources_BS, options),
    }
    on_cpu, sources = options.device.type == "cpu", sources_BS.tolist()
    with own_process(by_ctranslate2, options) if on_cpu else nullcontext() as write:
        if write is not None:
            calls[ENGINE] = lambda: write(sources)
        written = {name: call() for name, call in calls.items()}
        seconds = time_in_turn(calls, options.rounds, clock=clock_of(options.device))
    tokens = options.batch * options.steps
    return {
        "same_tokens": {
            name: statistics.mean(float(a == b) for a, b in zip(written["seqwise"], others, strict=True))
            for name, others in written.items()
            if name != "seqwise"
        },
        "against_engine": median_ratio(seconds[ENGINE], seconds["seqwise"]) if ENGINE in seconds else None,
        "engine": f"{ENGINE} {metadata.version(ENGINE)}" if ENGINE in seconds else None,
        "tokens_per_second": {name: tokens / statistics.median(times) for name, times in seconds.items()},
        "operations_of_a_token": operations_of_a_token(options),
        "products_a_second": products_a_second(options.device),
        "against_generate": median_ratio(seconds["generate"], seconds["seqwise"]),
        "seconds_by_round": seconds,
        **signed("beam decoding", options, data=digest.hexdigest()),
    }


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of tokens per second to those of each peer, for the summary."""
    found = [Ratio("hard beam, k = 4, over `generate`", result["against_generate"], least=LEAST)]
    if result["engine"]:
        found.append(Ratio("the same over CTranslate2", result["against_engine"], least=LEAST_OF_ENGINE))
    return found


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = [f"{name:12} {value:8.0f} tokens a second" for name, value in result["tokens_per_second"].items()]
    operations, speed = result["operations_of_a_token"], result["products_a_second"]
    lines.append(
        f"{'floor':12} {speed / operations:8.0f}: {operations / 1e6:.1f} million operations in products for a token,"
        f" at the {speed / 1e9:.0f} billion a second of one large product"
    )
    met = "met" if result["against_generate"] >= LEAST else "missed"
    lines += [
        f"seqwise against generate: {result['against_generate']:.2f} (target {LEAST:g}, {met})",
        *([f"seqwise against {result['engine']}: {result['against_engine']:.2f}"] if result["engine"] else []),
        "outputs equal to those of seqwise: "
        + ", ".join(f"{name} {share:.1%}" for name, share in result["same_tokens"].items()),
        result["signature_line"],
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("beam_decoding", __doc__, rounds=7, seed="the model and the sources")
    for name, value, meaning in (
        ("batch", 32, "number of sources"),
        ("source-length", 20, "tokens of each source"),
        ("steps", 30, "tokens of each output"),
        ("k", 4, "size of the beam"),
        ("layers", 3, "layers of the encoder, and of the decoder"),
        ("hidden", 256, "hidden size of the model"),
        ("vocabulary", 8000, "vocabulary size"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=meaning)
    add_device(parser)
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
