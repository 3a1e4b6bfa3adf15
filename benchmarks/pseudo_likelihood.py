"""How many tokens per second does pseudo-log-likelihood scoring take, compared with minicons?

All systems score the same texts of 8 to 30 words, each word one token, with the same BERT with random weights and a
vocabulary of 30,522. There are two shapes: a small one, in which the output layer dominates, and that of bert-base, in
which it does not.

- seqwise: ``pseudo_log_likelihoods`` of a model adapted once, as minicons makes its scorer once. Texts of one length
  share passes, on a GPU those of several lengths; the output layer and the last feed-forward network are computed at
  masked positions only.
- minicons: ``MaskedLMScorer.sequence_score`` on batches of ten texts, as documented, with the output layer at every
  position of every masked copy. The tokenizer is called beforehand, because Transformers 5 no longer has the method
  that minicons calls. Without the package, the others are timed alone.
- loop: a careful implementation in twenty lines: masked copies of all texts, sorted by length, 256 rows at a time, with
  the output layer at masked positions only.

On AMD processors with AVX-512, where torch's MKL uses AVX2 only, seqwise computes linear layers by torch's oneDNN.
The others use MKL.

Scores are compared before anything is timed. For memory, seqwise scores a text of 350 tokens under the first shape in
its own process, whose peak is read from the operating system; on a GPU, from its allocator. The size of all scores of
all 350 copies at once is computed for comparison.

    python -m benchmarks.pseudo_likelihood
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import Ratio, add_device, at_least, make_parser, run, signed
from benchmarks.timing import clock_of, median_ratio, peak_bytes, products_a_second, time_in_turn
from seqwise.hugging_face import masked_model, pseudo_log_likelihoods

PEER = "minicons"
LEAST = {"4 layers of 256": 4.0, "bert-base": 1.6}
"""Targets: ratios of tokens per second to those of minicons."""

LEAST_OF_LOOP = 1.2
"""Target: ratio of tokens per second to those of the loop."""

LOOP_ROWS = 256

MOST_GIGABYTES = 2.0
"""Target: peak memory for a text of ``LONG`` tokens."""

LONG = 350
VOCABULARY = 30_522
PEER_BATCH = 10
SHAPES = {
    "4 layers of 256": {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "bert-base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MOST_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest difference of mean log-probabilities between correct systems."""


def bert(shape: str, *, positions: int = 512) -> tuple[Any, Any]:
    """Make a model with random weights, and its tokenizer, for which each word w0, w1, ... is one token."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *(f"w{place}" for place in range(VOCABULARY - len(special)))]
    tokenizer = BertTokenizer(vocab={piece: place for place, piece in enumerate(pieces)})
    config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=positions, **SHAPES[shape])
    return BertForMaskedLM(config).eval(), tokenizer


def texts_of(lengths: Sequence[int], generator: torch.Generator) -> list[str]:
    """Draw texts of random words."""
    rows = (torch.randint(VOCABULARY - 5, (length,), generator=generator).tolist() for length in lengths)
    return [" ".join(f"w{place}" for place in row) for row in rows]


def by_seqwise(adapted: Any, tokenizer: Any, texts: Sequence[str]) -> list[float]:
    """Return the mean log-probability of the tokens of each text."""
    return [float(score.token_log_probs_T.mean()) for score in pseudo_log_likelihoods(adapted, tokenizer, texts)]


def by_minicons(model: Any, tokenizer: Any) -> Callable[[Sequence[str]], list[float]]:
    """Make a function that computes the same by minicons, ten texts at a time.

    Raises:
        ImportError: minicons is not installed.
    """
    from minicons.scorer import MaskedLMScorer

    scorer = MaskedLMScorer(model, str(model.device), tokenizer=tokenizer)

    def encoded(batch: list[str]) -> Any:
        return tokenizer(batch, padding="longest", return_attention_mask=True)

    def scores(texts: Sequence[str]) -> list[float]:
        batches = (list(texts[first : first + PEER_BATCH]) for first in range(0, len(texts), PEER_BATCH))
        return [score for batch in batches for score in scorer.sequence_score(encoded(batch))]

    return scores


@torch.no_grad()
def by_loop(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[float]:
    """Compute the same by a careful loop."""
    encoded = tokenizer(list(texts))["input_ids"]
    rows = sorted((len(ids), text, place) for text, ids in enumerate(encoded) for place in range(1, len(ids) - 1))
    sums = [0.0] * len(texts)
    for first in range(0, len(rows), LOOP_ROWS):
        part = rows[first : first + LOOP_ROWS]
        width = part[-1][0]
        ids_NL = torch.full((len(part), width), tokenizer.pad_token_id)
        for row, (length, text, _) in enumerate(part):
            ids_NL[row, :length] = torch.tensor(encoded[text])
        places_N = torch.tensor([place for *_, place in part], device=model.device)
        ids_NL, rows_N = ids_NL.to(model.device), torch.arange(len(part), device=model.device)
        real_NL = (ids_NL != tokenizer.pad_token_id).long()
        tokens_N = ids_NL[rows_N, places_N]
        ids_NL[rows_N, places_N] = tokenizer.mask_token_id
        hidden_NLH = model.bert(input_ids=ids_NL, attention_mask=real_NL).last_hidden_state
        log_probs_NV = model.cls(hidden_NLH[rows_N, places_N]).float().log_softmax(-1)
        found = log_probs_NV[rows_N, tokens_N].tolist()
        for log_prob, (length, text, _) in zip(found, part, strict=True):
            sums[text] += log_prob / (length - 2)
    return sums


def operations(shape: str, length: int) -> float:
    """Count the floating-point operations of matrix products for a text: a pass and scores for each masked token.

    The last layer's feed-forward network and the output layer compute one position only.
    """
    layers, hidden, feedforward = (
        SHAPES[shape][name] for name in ("num_hidden_layers", "hidden_size", "intermediate_size")
    )
    positions = length + 2
    attention = positions * (2 * 4 * hidden**2 + 4 * hidden * positions)
    network = 2 * 2 * hidden * feedforward
    layer = attention + positions * network
    last = attention + network
    return float(length * ((layers - 1) * layer + last + 2 * hidden * (hidden + VOCABULARY)))


def measure_shape(shape: str, texts: Sequence[str], rounds: int, *, device: torch.device, dtype: str) -> dict[str, Any]:
    """Return one row: tokens per second of each system, their ratios, and the largest difference of scores."""
    model, tokenizer = bert(shape)
    model.to(device, DTYPES[dtype])
    adapted = masked_model(model, tokenizer=tokenizer)
    systems: dict[str, Callable[[], list[float]]] = {
        "seqwise": lambda: by_seqwise(adapted, tokenizer, texts),
        "loop": lambda: by_loop(model, tokenizer, texts),
    }
    try:
        peer = by_minicons(model, tokenizer)
        systems[PEER] = lambda: peer(texts)
    except ImportError:
        pass  # timed alone
    means = {name: torch.tensor(system()) for name, system in systems.items()}
    differences = {name: float((values - means["seqwise"]).abs().max()) for name, values in means.items()}
    for name, difference in differences.items():
        if not difference < MOST_DIFFERENCE[dtype]:
            raise SystemExit(f"seqwise and {name} differ by {difference:.2g}: there is nothing to compare")
    seconds = time_in_turn(systems, rounds, clock=clock_of(device))
    lengths = [len(text.split()) for text in texts]
    tokens = sum(lengths)
    return {
        "shape": shape,
        "dtype": dtype,
        "tokens": tokens,
        "operations_of_a_token": sum(operations(shape, length) for length in lengths) / tokens,
        "products_a_second": products_a_second(device, dtype=DTYPES[dtype]),
        "largest_difference": max(differences.values()),
        "tokens_per_second": {name: tokens / statistics.median(times) for name, times in seconds.items()},
        "against_minicons": median_ratio(seconds[PEER], seconds["seqwise"]) if PEER in seconds else None,
        "against_loop": median_ratio(seconds["loop"], seconds["seqwise"]),
        "seconds_by_round": seconds,
    }


def peak_of_a_long_text(shape: str, length: int, device: torch.device) -> float:
    """Return the peak memory, in gigabytes, while one text of so many tokens is scored, the model included.

    On the CPU it is that of a whole process.
    """
    if device.type != "cpu":
        return peak_bytes(lambda: _score_a_long_text(shape, length, device), device) / 1e9
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return float(pool.apply(_score_a_long_text, (shape, length, device)))


def _score_a_long_text(shape: str, length: int, device: torch.device) -> float:
    torch.set_num_threads(1)
    model, tokenizer = bert(shape, positions=length + 2)
    by_seqwise(model.to(device), tokenizer, texts_of([length], torch.Generator().manual_seed(0)))
    return peak_of_this_process() / 1e9


def peak_of_this_process() -> float:
    """Return the peak memory of this process, in bytes.

    On Linux, ``ru_maxrss`` includes memory of the parent process; ``VmHWM`` does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * float(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak * (1 if sys.platform == "darwin" else 1024))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all shapes, then the memory."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    lengths = torch.randint(8, 31, (options.texts,), generator=generator).tolist()
    texts = texts_of(lengths, generator)
    # Times of a larger model are steady with fewer texts.
    rows = [
        measure_shape(
            shape,
            texts[: options.texts if index == 0 else max(1, options.texts // 8)],
            options.rounds,
            device=options.device,
            dtype=dtype,
        )
        for index, shape in enumerate(options.shapes)
        for dtype in options.dtypes
    ]
    data = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return {
        "rows": rows,
        "gigabytes_of_a_long_text": peak_of_a_long_text(options.shapes[0], options.long, options.device),
        "gigabytes_of_all_logits": options.long * (options.long + 2) * VOCABULARY * 4 / 1e9,
        "long": options.long,
        "device": options.device.type,
        "peer": f"{PEER} {metadata.version(PEER)}" if rows[0]["against_minicons"] else None,
        **signed("pseudo-likelihood", options, data=data),
    }


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of tokens per second to those of each peer, for the summary."""
    found = []
    for row in result["rows"]:
        what = f"pseudo-log-likelihoods, {row['shape']}"
        if row.get("dtype", "float32") != "float32":
            what += f", {row['dtype']}"
        if row["against_minicons"] is not None:
            found.append(Ratio(f"{what}, over minicons", row["against_minicons"], least=LEAST[row["shape"]]))
        found.append(Ratio(f"{what}, over a careful loop", row["against_loop"], least=LEAST_OF_LOOP))
    return found


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = []
    for row in result["rows"]:
        speeds = "  ".join(f"{name} {value:7.0f}" for name, value in row["tokens_per_second"].items())
        kind = f"{row['dtype']}, " if "dtype" in row and row["dtype"] != "float32" else ""
        lines.append(f"{row['shape']:16} {kind}tokens a second: {speeds}")
        targets = {PEER: (row["against_minicons"], LEAST[row["shape"]]), "loop": (row["against_loop"], LEAST_OF_LOOP)}
        for name, (ratio, least) in targets.items():
            if ratio is not None:
                met = "met" if ratio >= least else "missed"
                lines.append(f"{'':16} seqwise against {name}: {ratio:.2f} (target {least:g}, {met})")
        most, speed = row["products_a_second"] / row["operations_of_a_token"], row["products_a_second"] / 1e9
        lines.append(
            f"{'':16} floor: {row['operations_of_a_token'] / 1e6:.0f} million operations in products for a token;"
            f" at the {speed:.0f} billion a second of one large product {most:.0f}"
        )
    peak = result["gigabytes_of_a_long_text"]
    held = "model and torch" if result.get("device", "cpu") == "cpu" else "model"
    lines += [
        f"{result['long']} tokens, {result['rows'][0]['shape']}: peak {peak:.2f} GB, {held} included"
        f" (target {MOST_GIGABYTES:g}, {'met' if peak <= MOST_GIGABYTES else 'missed'});"
        f" all scores at once would take {result['gigabytes_of_all_logits']:.1f} GB",
        f"peer: {result['peer'] or f'{PEER} is not installed'}",
        result["signature_line"],
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("pseudo_likelihood", __doc__, rounds=3, seed="the models and the texts")
    parser.add_argument(
        "--texts",
        type=at_least(1),
        default=24,
        help="number of texts for the small shape; the large one has an eighth of them",
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="shapes of the model")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["float32"], help="types of the weights")
    parser.add_argument("--long", type=at_least(1), default=LONG, help="tokens of the text whose memory is measured")
    add_device(parser)
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
