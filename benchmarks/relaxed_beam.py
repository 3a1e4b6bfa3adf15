"""What does a training step through the relaxed beam cost in time and memory, compared with cross-entropy?

There is one LSTM tagger of each size. The relaxed beam runs in these forms, which take turns, round by round:

- local, global: with local and with global scores, using the certificate.
- dense: all candidates are summed at every step, which is the cost of an uncertified step.
- checkpointed: the same, in the plain form under a checkpoint, as with a non-linear head.
- plain: the plain form, with its k x k x V weights.
- untrained: as local, with near-uniform scores (below).

The main number is the time per beam element: the time of a step over k times that of cross-entropy, in CPU seconds of
the process, which other processes on a busy machine affect least. On a GPU it is wall-clock time, with products in
bfloat16. ``saved`` is the memory that the graph keeps and ``peak`` the largest of a step, as shares of those of
cross-entropy. ``certified`` is the share of inputs and steps with a certificate, and ``kept`` their mean number of
candidates.

    python -m benchmarks.relaxed_beam
    python -m benchmarks.relaxed_beam --device cuda

The certificate needs scores that differ widely, like those of trained models. Here the head is random, and scaled until
its softmax has the perplexity ``--perplexity``. ``untrained`` is the same model at a thousandth of that scale, with the
automatic choice of the form.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.command import Ratio, add_device, make_parser, run, signed
from benchmarks.timing import clock_of, median_ratio, peak_bytes, time_in_turn
from seqwise.data import Batch, EncodedExample, collate
from seqwise.models import Tagger
from seqwise.objectives import cross_entropy, direct_loss, hamming_cost
from seqwise.search import Candidates, Score, Selection, SoftTopK, beam_search, global_, local
from seqwise.search.candidates import MANY
from seqwise.search.selection import SummedSelection
from seqwise.search.selectors import Form, automatic, expanded, summed

SOURCE_SIZE = 50


@dataclass(frozen=True)
class Size:
    """Sizes of a model and its batch, and targets for the cost of a beam element, by system."""

    vocabulary: int
    hidden: int
    k: int
    batch: int
    steps: int
    targets: dict[str, float] = field(default_factory=dict)


SIZES = (
    Size(32_000, 256, 3, 16, 12, {"local": 1.35, "global": 0.7, "dense": 2.6}),
    Size(1_284, 512, 5, 16, 20, {"local": 1.8}),
    Size(10, 64, 3, 32, 20, {"local": 2.3}),
)
GPU_SIZES = (
    Size(32_000, 1024, 3, 64, 50, {"local": 0.85}),
    Size(128_000, 1024, 3, 64, 50, {"local": 1.1}),
)
MOST_SAVED, MOST_PEAK = 0.5, 2.0


@dataclass
class System:
    """Training of a model with one loss, its memory in bytes, and its CPU and wall-clock seconds in each round.

    ``dtype`` is the type of matrix products.
    """

    name: str
    loss: Callable[[], Tensor]
    model: Tagger
    device: torch.device
    dtype: torch.dtype = torch.float32
    saved: int = 0
    peak: int = 0
    seconds: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def forward(self) -> Tensor:
        """Compute the loss."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            return self.loss()

    def step(self) -> None:
        """Take a forward and backward pass, starting without gradients."""
        self.model.zero_grad(set_to_none=True)
        self.forward().backward()

    def measure_memory(self) -> None:
        """Measure the memory of the graph, and the peak memory of a step."""
        self.step()
        self.saved, self.peak = saved_bytes(self), peak_bytes(self.step, self.device)

    def timed(self) -> None:
        """Time a step after an untimed step of the same kind, so that it finds memory as in training.

        Directly after the plain form, which returns a gigabyte to the operating system, cross-entropy takes a third
        longer.
        """
        self.step()
        of_process, of_wall = clock_of(self.device, time.process_time), clock_of(self.device)
        start, start_wall = of_process(), of_wall()
        self.step()
        self.wall.append(of_wall() - start_wall)
        self.seconds.append(of_process() - start)


def random_batch(size: Size, seed: int) -> Batch:
    """Draw random sources and labels."""
    draw = torch.Generator().manual_seed(seed)
    shape = size.batch, size.steps
    sources = torch.randint(SOURCE_SIZE, shape, generator=draw).tolist()
    targets = torch.randint(size.vocabulary, shape, generator=draw).tolist()
    pairs = zip(sources, targets, strict=True)
    return collate([EncodedExample(tuple(x), tuple(y)) for x, y in pairs])


def make_model(size: Size, batch: Batch, perplexity: float, seed: int) -> Tagger:
    """Make a random model whose head is scaled, by bisection, to a mean perplexity along gold."""
    torch.manual_seed(seed)
    model = Tagger(
        source_size=SOURCE_SIZE,
        target_size=size.vocabulary,
        embedding_size=size.hidden,
        hidden_size=size.hidden,
        label_embedding_size=size.hidden,
        dropout=0.0,
    ).to(batch.targets_BT.device)
    with torch.no_grad():
        features_ND = model.teacher_forced(model.encode(batch), batch.targets_BT).flatten(0, 1)
        low, high = 1.0, 10_000.0
        for _ in range(30):
            middle = (low * high) ** 0.5
            log_probs_NV = (middle * model.head(features_ND)).log_softmax(-1)
            found = (-(log_probs_NV.exp() * log_probs_NV).sum(-1)).mean().exp()
            low, high = (middle, high) if found > perplexity else (low, middle)
        model.head.weight.mul_(low)
        model.head.bias.mul_(low)
    return model


def relaxed_loss(model: Tagger, batch: Batch, size: Size, score: Score, alpha: float, form: Form) -> Tensor:
    """Compute the direct loss through the relaxed beam, with Hamming cost."""
    cost = hamming_cost(batch.targets_BT, size.vocabulary)
    selector = SoftTopK(size.k, alpha, form=form)
    beam = beam_search(model, model.encode(batch), selector, num_steps=size.steps, score=score, cost=cost)
    return direct_loss(beam, alpha)


def systems_of(size: Size, options: argparse.Namespace) -> list[System]:
    """Return all systems: cross-entropy first, then the relaxed beams."""
    device, perplexity = options.device, min(options.perplexity, size.vocabulary / 3)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    batch = random_batch(size, options.seed).to(device)
    model = make_model(size, batch, perplexity, options.seed)
    untrained, opaque = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        untrained.head.weight.mul_(1e-3)
        untrained.head.bias.mul_(1e-3)
    opaque.head = nn.Sequential(opaque.head)  # a search does not recognise it as linear

    def beam(name: str, score: Score, form: Form, searched: Tagger = model) -> System:
        loss = partial(relaxed_loss, searched, batch, size, score, options.alpha, form)
        return System(name, loss, searched, device, dtype)

    def likelihood() -> Tensor:
        logits_BTV = model.head(model.teacher_forced(model.encode(batch), batch.targets_BT))
        return cross_entropy(logits_BTV, batch.targets_BT)

    return [
        System("cross-entropy", likelihood, model, device, dtype),
        beam("local", local, automatic),
        beam("global", global_, automatic),
        beam("dense", local, summed(tolerance=-1)),
        beam("checkpointed", local, summed(tolerance=-1), opaque),
        beam("untrained", local, automatic, untrained),
        beam("plain", local, expanded),
    ]


def saved_bytes(system: System) -> int:
    """Return the bytes that the graph of one step keeps, without parameters, each storage counted once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in system.model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in weights:
            kept[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = system.forward()
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del loss
    return found


def certified_share(system: System) -> tuple[float, float]:
    """Return the share of inputs and steps with a certificate, and the mean number of candidates that these kept."""
    total, kept = 0, []
    call = SoftTopK.__call__

    def watched(
        selector: SoftTopK, candidates: Candidates, carry: Any, generator: torch.Generator | None
    ) -> tuple[Selection, Any]:
        nonlocal total
        selection, carry = call(selector, candidates, carry, generator)
        total += len(selection.scores_BK)
        for _, make in selection.parts if isinstance(selection, SummedSelection) else ():
            part = make()
            if part.token_ids_BX is not None:
                kept.extend((part.token_weights_BKX > 0).any(1).sum(1).tolist())
        return selection, carry

    SoftTopK.__call__ = watched  # type: ignore[method-assign]
    try:
        with torch.no_grad():
            system.forward()
    finally:
        SoftTopK.__call__ = call  # type: ignore[method-assign]
    return len(kept) / max(total, 1), statistics.mean(kept) if kept else 0.0


def floor(size: dict[str, Any], row: dict[str, Any]) -> float:
    """Return a lower bound on the cost of a beam element: operations of matrix products over those of cross-entropy.

    A row's product with the output layer is 2 H V operations. Cross-entropy needs three of them: the scores, and the
    gradients of features and weights. So does the plain form. A certified element needs the scores, and if they are
    local, also the expected row of weights, the scores once more and the gradient of the weights; an element that sums
    all candidates needs seven. The recurrent layer's products, forward and backward, are added to both.
    """
    hidden, vocabulary, few = size["hidden"], size["vocabulary"], size["k"] * size["vocabulary"] < MANY
    certified, units = {"local": 4, "global": 1}.get(row["system"], 7), 3.0
    if row["system"] not in ("cross-entropy", "plain") and not (few and row["system"] != "dense"):
        units = row["certified"] * certified + (1 - row["certified"]) * 7
    recurrent = 3 * 16 * hidden**2
    return float(2 * hidden * vocabulary * units + recurrent) / (2 * hidden * vocabulary * 3 + recurrent)


def measure_size(size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all systems of one size, in turn; those that run out of memory are only named."""
    systems = systems_of(size, options)
    without_room = [system.name for system in systems if not fits_in_memory(system)]
    systems = [system for system in systems if system.name not in without_room]
    time_in_turn({system.name: system.timed for system in systems}, options.rounds)
    rows = []
    reference = systems[0]
    base = {"saved": reference.saved, "peak": reference.peak}
    for system in systems:
        ratio = median_ratio(system.seconds, reference.seconds)
        share, kept = certified_share(system)
        elements = 1 if system is reference else size.k
        rows.append(
            {
                "system": system.name,
                "milliseconds": 1000 * statistics.median(system.seconds),
                "ratio": ratio,
                "per_element": ratio / elements,
                "wall_per_element": median_ratio(system.wall, reference.wall) / elements,
                "saved": system.saved / base["saved"],
                "peak": system.peak / base["peak"],
                "certified": share,
                "kept": kept,
                "seconds_by_round": system.seconds,
            }
        )
    return {"size": asdict(size), "cross_entropy_bytes": base, "rows": rows, "without_room": without_room}


def fits_in_memory(system: System) -> bool:
    """Measure the memory of a system; return false if it runs out of memory, which is then freed."""
    try:
        system.measure_memory()
    except torch.OutOfMemoryError:
        system.model.zero_grad(set_to_none=True)
    else:
        return True
    gc.collect()
    torch.accelerator.empty_cache()
    return False


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes."""
    torch.set_num_threads(options.threads)
    own, others = (SIZES, GPU_SIZES) if options.device.type == "cpu" else (GPU_SIZES, SIZES)
    known = {size.vocabulary: size for size in (*others, *own)}
    chosen = [known[vocabulary] for vocabulary in options.sizes] or own
    results = [measure_size(size, options) for size in chosen]
    return {"sizes": results, **signed("relaxed beam beside cross-entropy, LSTM tagger", options, data="random")}


def target_of(size: dict[str, Any], system: str) -> float | None:
    """Return the current target of a system, in cross-entropies per element."""
    targets = {(known.vocabulary, known.hidden): known.targets for known in (*SIZES, *GPU_SIZES)}
    return targets[size["vocabulary"], size["hidden"]].get(system)


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Return the time of a beam element in cross-entropies, of systems with a target, for the summary."""
    return [
        Ratio(
            "relaxed beam, {}, V = {vocabulary:,}, H = {hidden:,}: a slot over cross-entropy".format(
                row["system"], **found["size"]
            ),
            row["per_element"],
            most=most,
        )
        for found in result["sizes"]
        for row in found["rows"]
        if (most := target_of(found["size"], row["system"])) is not None
    ]


def table(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = []
    for found in result["sizes"]:
        size, base = found["size"], found["cross_entropy_bytes"]
        lines += [
            "V = {vocabulary:,}, H = {hidden}, k = {k}; {batch} inputs of {steps} steps".format(**size)
            + f"; cross-entropy saves {base['saved'] / 1e6:.1f} MB, peak {base['peak'] / 1e6:.1f} MB",
            f"{'':14}      ms  ratio  per element (by wall)  target  floor  saved   peak  certified  kept",
        ]
        for row in found["rows"]:
            most = target_of(size, row["system"])
            target = "" if most is None else f"{most:.2f}"
            lines.append(
                f"{row['system']:14} {row['milliseconds']:7.1f}  {row['ratio']:5.2f}  {row['per_element']:11.2f}"
                f"  {row['wall_per_element']:8.2f}"
                f"  {target:>6}  {floor(size, row):5.2f}  {row['saved']:5.2f}  {row['peak']:5.2f}"
                f"  {100 * row['certified']:8.0f}%  {row['kept']:4.1f}"
            )
        lines += [f"{name:14} out of memory" for name in found.get("without_room", ())]
    return "\n".join([*lines, result["signature_line"]])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; print a table and write JSON."""
    parser = make_parser("relaxed_beam", __doc__, rounds=15, seed="the model and the batch")
    vocabularies = sorted({size.vocabulary for size in (*SIZES, *GPU_SIZES)})
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[], choices=vocabularies, help="vocabulary sizes; default: by device"
    )
    add_device(parser)
    parser.add_argument("--alpha", type=float, default=4.0, help="inverse temperature of the beam")
    parser.add_argument(
        "--perplexity", type=float, default=10.0, help="perplexity of the model's softmax, set by the head's scale"
    )
    return run(parser, measure, table, arguments)


if __name__ == "__main__":
    main()
