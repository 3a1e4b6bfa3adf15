"""How fast is a wide beam in a catalogue, compared with ``generate(prefix_allowed_tokens_fn=...)`` of Transformers?

A T5-shaped model with random weights (4 + 4 layers of 128, 8,000 tokens), k = 50, summed log-probabilities, no length
penalty. The catalogue has 2,400 items of 7 tokens. Both systems decode the same sources and return all k items. Times
are CPU seconds, which a busy machine affects less.

- generate: allowed tokens by prefix, looked up in a dictionary, as documented for catalogues.
- seqwise: ``step_model(model)`` of the same model with ``language = trie(catalogue)``, decoded with ``HardTopK(k)``.
- in a pattern: the same, with a language of one state that allows three of five tokens at every step, like the strings
  of a grammar.
- in two states: the same, with two such states, each reached by half of the tokens.
- without a language: the same search among all outputs, to show what the languages cost or save.

    python -m benchmarks.constrained_decoding
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.command import Ratio, at_least, make_parser, run, signed
from benchmarks.timing import median_ratio, time_in_turn
from seqwise import Decoder, HardTopK, decode, local
from seqwise.data import EncodedExample, collate
from seqwise.hugging_face import step_model
from seqwise.search import Automaton, trie

LEAST, LEAST_OF_FREE = 3.0, 0.9
"""Targets: ratios of tokens per second to those of ``generate``, and of the same search without a language."""

END, FEW = 1, 58  # the end token, and the number of tokens in items after their first ones

Item = tuple[int, ...]
Write = Callable[[torch.Tensor], list[list[Item]]]
"""Function from sources to the k items of each, best first."""


def t5(*, layers: int, hidden: int, vocabulary: int, seed: int) -> Any:
    """Make a model with random weights; 0 is padding and start token, and 1 is the end token."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=vocabulary, d_model=hidden, d_kv=hidden // 4, d_ff=2 * hidden, num_layers=layers,
        num_heads=4, decoder_start_token_id=0, pad_token_id=0, eos_token_id=END,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def make_catalogue(options: argparse.Namespace) -> list[Item]:
    """Draw items: any token, followed by tokens from a few."""
    generator = torch.Generator().manual_seed(options.seed)
    firsts = torch.randint(2, options.vocabulary, (options.items, 1), generator=generator)
    others = torch.randint(2, 2 + FEW, (options.items, options.length - 1), generator=generator)
    return sorted({tuple(item) for item in torch.cat([firsts, others], 1).tolist()})


def make_pattern(options: argparse.Namespace, *, num_states: int = 1) -> Automaton:
    """Make a language in which each state allows three of five tokens, drawn at random, and which ends nowhere."""
    generator, arcs = torch.Generator().manual_seed(options.seed), []
    for state in range(num_states):
        tokens = 2 + torch.randperm(options.vocabulary - 2, generator=generator)[: 3 * options.vocabulary // 5]
        arcs.append(torch.stack([torch.full_like(tokens, state), tokens, torch.arange(len(tokens)) % num_states], 1))
    return Automaton(torch.cat(arcs), torch.ones(num_states, dtype=torch.bool))


def by_generate(model: Any, catalogue: Sequence[Item], options: argparse.Namespace) -> Write:
    """Make a function that decodes by ``generate``, restricted to prefixes of items."""
    following: dict[Item, set[int]] = {}
    for item in catalogue:
        for place in range(len(item) + 1):
            following.setdefault(item[:place], set()).add((*item, END)[place])
    allowed = {prefix: sorted(tokens) for prefix, tokens in following.items()}

    def write(sources_BS: torch.Tensor) -> list[list[Item]]:
        with torch.inference_mode():
            found = model.generate(
                sources_BS,
                attention_mask=torch.ones_like(sources_BS),
                num_beams=options.k,
                num_return_sequences=options.k,
                max_new_tokens=options.length + 1,
                length_penalty=0.0,
                do_sample=False,
                prefix_allowed_tokens_fn=lambda _, written: allowed.get(tuple(written.tolist()[1:]), [END]),
            )
        items = [tuple(token for token in row[1:] if token > END) for row in found.tolist()]
        return [items[first : first + options.k] for first in range(0, len(items), options.k)]

    return write


def by_seqwise(adapted: Any, options: argparse.Namespace) -> Write:
    """Make a function that decodes by :func:`seqwise.decode`, in the language of the model."""

    def write(sources_BS: torch.Tensor) -> list[list[Item]]:
        batch = collate([EncodedExample(tuple(row), ()) for row in sources_BS.tolist()])
        # A number of steps for each input, as predict has.
        decoder, steps = Decoder(HardTopK(options.k), local), torch.full((len(sources_BS),), options.length + 1)
        with torch.inference_mode():
            found = decode(adapted, adapted.encode(batch), decoder, num_steps=steps, n_best=options.k)
        return [[best.tokens for best in ranked] for ranked in found]

    return write


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time all systems, and compare their outputs."""
    torch.set_num_threads(options.threads)
    model = t5(layers=options.layers, hidden=options.hidden, vocabulary=options.vocabulary, seed=options.seed)
    catalogue = make_catalogue(options)
    sources_BS = torch.randint(2, options.vocabulary, (options.batch, options.source_length))
    free, inside, in_pattern, in_two = (step_model(model) for _ in range(4))
    inside.language, in_pattern.language = trie(catalogue, end=END), make_pattern(options)
    in_two.language = make_pattern(options, num_states=2)
    writers = {
        "generate": by_generate(model, catalogue, options),
        "seqwise": by_seqwise(inside, options),
        "in a pattern": by_seqwise(in_pattern, options),
        "in two states": by_seqwise(in_two, options),
        "without a language": by_seqwise(free, options),
    }
    calls = {name: partial(write, sources_BS) for name, write in writers.items()}
    written = {name: calls[name]() for name in ("generate", "seqwise")}
    seconds = time_in_turn(calls, options.rounds, clock=time.process_time)
    digest = hashlib.sha256(sources_BS.numpy().tobytes())
    digest.update(repr(catalogue).encode())
    tokens = options.batch * options.k * (options.length + 1)
    pairs = list(zip(written["generate"], written["seqwise"], strict=True))
    return {
        "same_best": statistics.mean(float(theirs[0] == ours[0]) for theirs, ours in pairs),
        "same_items": statistics.mean(len({*theirs} & {*ours}) / options.k for theirs, ours in pairs),
        "tokens_per_second": {name: tokens / statistics.median(times) for name, times in seconds.items()},
        "against_generate": median_ratio(seconds["generate"], seconds["seqwise"]),
        "against_free": median_ratio(seconds["without a language"], seconds["seqwise"]),
        "pattern_against_free": median_ratio(seconds["without a language"], seconds["in a pattern"]),
        "two_states_against_free": median_ratio(seconds["without a language"], seconds["in two states"]),
        "seconds_by_round": seconds,
        **signed("constrained decoding", options, data=digest.hexdigest()),
    }


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of tokens per second to those of each other system, for the summary."""
    found = [
        Ratio("beam of 50 in a catalogue over `generate`", result["against_generate"], least=LEAST),
        Ratio("the same over a beam without a language", result["against_free"], least=LEAST_OF_FREE),
    ]
    for name, ratio in _in_patterns(result).items():
        found.append(Ratio(f"beam of 50 {name} over one without a language", ratio, least=LEAST_OF_FREE))
    return found


def _in_patterns(result: dict[str, Any]) -> dict[str, float]:
    """Return the ratios of patterns, which older files do not have."""
    keys = {"in a pattern": "pattern_against_free", "in a pattern of two states": "two_states_against_free"}
    return {name: result[key] for name, key in keys.items() if key in result}


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    met = "met" if result["against_generate"] >= LEAST else "missed"
    return "\n".join(
        [
            *(f"{name:18} {value:8.0f} tokens a second" for name, value in result["tokens_per_second"].items()),
            f"seqwise against generate: {result['against_generate']:.2f} (target {LEAST:g}, {met})",
            f"seqwise against itself without a language: {result['against_free']:.2f}",
            *(f"{name} against the same: {ratio:.2f}" for name, ratio in _in_patterns(result).items()),
            f"equal items: {result['same_items']:.1%}; equal best items: {result['same_best']:.1%}",
            result["signature_line"],
        ]
    )


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("constrained_decoding", __doc__, rounds=7, seed="the model, the catalogue and the sources")
    for name, value, meaning in (
        ("batch", 4, "number of sources"),
        ("source-length", 12, "tokens of each source"),
        ("items", 2400, "items of the catalogue"),
        ("length", 7, "tokens of each item"),
        ("k", 50, "size of the beam"),
        ("layers", 4, "layers of the encoder, and of the decoder"),
        ("hidden", 128, "hidden size of the model"),
        ("vocabulary", 8000, "vocabulary size"),
    ):
        parser.add_argument(f"--{name}", type=at_least(1), default=value, help=meaning)
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
