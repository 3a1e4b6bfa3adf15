"""Neural sequence models, trained, searched and sampled as whole sequences.

A model scores each next token. This package searches over complete outputs, trains models through that search, and
samples sequences from masked models. The main entry points are:

* ``fit`` trains any model by any objective, and resumes if it was interrupted;
* ``load_run`` and ``predict`` use a run folder of ``seqwise train``;
* ``SearchAwareTrainer`` trains a Hugging Face model by the same objectives;
* ``beam_search`` searches with ``HardTopK``, or with ``SoftTopK``, which has gradients.

Example:
    Train a tagger through its beam, and decode with it:

    >>> import tempfile
    >>> from seqwise import Tagger, fit
    >>> from seqwise.data import EncodedExample
    >>> from seqwise.decoding import decode_examples
    >>> from seqwise.objectives import relaxed_beam_objective
    >>> data = [EncodedExample((1, 2), (0, 1)), EncodedExample((2, 1), (1, 0))] * 8
    >>> tagger, objective = Tagger(source_size=3, target_size=2), relaxed_beam_objective(k=2, score="global")
    >>> result = fit(tagger, objective, data, output=tempfile.mkdtemp(), steps=20, batch_size=8, learning_rate=0.01,
    ...              seed=0, schedules={"alpha": "exponential(1, 8)"})
    >>> [best.tokens for best, *_ in decode_examples(tagger, data[:2], "raw-beam")]
    [(0, 1), (1, 0)]

    Search with a hard beam, and with a relaxed beam whose cost has gradients:

    >>> from seqwise import HardTopK, SoftTopK, beam_search, direct_loss, hamming_cost
    >>> from seqwise.data import collate
    >>> batch = collate([data[0]])
    >>> search = {"num_steps": 2, "cost": hamming_cost(batch.targets_BT, vocab_size=2)}
    >>> beam_search(tagger, tagger.encode(batch), HardTopK(1), **search).costs_BK.tolist()
    [[0.0]]
    >>> beam = beam_search(tagger, tagger.encode(batch), SoftTopK(2, alpha=1.0), **search)
    >>> direct_loss(beam, alpha=1.0).backward()

    Train on a file as ``seqwise train`` does, and predict from the run:

    >>> from pathlib import Path
    >>> from seqwise import load_run, predict
    >>> from seqwise.runs import train_run, train_settings
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "train.conll").write_text("dogs N\\nrun V\\n\\n" * 40)
    >>> metrics = train_run(train_settings(train=folder / "train.conll", epochs=2.0), folder / "run")
    >>> predict(load_run(folder / "run"), ["dogs run"])[0][0].tokens
    ('N', 'V')

See also: ``seqwise.search.selection`` (the idea), ``seqwise.search.beam`` (the search loop), ``seqwise.objectives``
(training objectives), ``seqwise.hugging_face`` (Transformers models), ``seqwise.sampling`` (samples from masked
models). Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqwise._lazy import lazy_names

if TYPE_CHECKING:
    from seqwise.decoding import Decoder, decode, hypotheses
    from seqwise.errors import InputError
    from seqwise.hugging_face import SearchAwareConfig, SearchAwareTrainer
    from seqwise.models import EncoderDecoder, StepModel, Tagger
    from seqwise.objectives import (
        cross_entropy,
        direct_loss,
        gold_scores,
        hamming_cost,
        hinge_loss,
        self_normalized_cross_entropy,
    )
    from seqwise.runs import Stream, Streams, load_run, predict
    from seqwise.sampling import (
        energies,
        gibbs,
        mask_predict,
        masked_conditionals,
        metropolis_hastings,
        sample_chains,
        start_chains,
    )
    from seqwise.search import (
        Beam,
        Gumbel,
        HardTopK,
        Score,
        SoftArgmax,
        SoftTopK,
        beam_search,
        best_first,
        cost_augmented,
        global_,
        hard_top_k,
        interpolated,
        local,
        peaked_softmax,
        soft_top_k,
        stochastic_beam_search,
    )
    from seqwise.training import fit
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        "seqwise.errors",
        "seqwise.search",
        "seqwise.models",
        "seqwise.objectives",
        "seqwise.decoding",
        "seqwise.sampling",
        "seqwise.training",
        "seqwise.runs",
        "seqwise.hugging_face",
    )

__version__ = "0.2.0"

__all__ = [
    "Beam",
    "Decoder",
    "EncoderDecoder",
    "Gumbel",
    "HardTopK",
    "InputError",
    "Score",
    "SearchAwareConfig",
    "SearchAwareTrainer",
    "SoftArgmax",
    "SoftTopK",
    "StepModel",
    "Stream",
    "Streams",
    "Tagger",
    "beam_search",
    "best_first",
    "cost_augmented",
    "cross_entropy",
    "decode",
    "direct_loss",
    "energies",
    "fit",
    "gibbs",
    "global_",
    "gold_scores",
    "hamming_cost",
    "hard_top_k",
    "hinge_loss",
    "hypotheses",
    "interpolated",
    "load_run",
    "local",
    "mask_predict",
    "masked_conditionals",
    "metropolis_hastings",
    "peaked_softmax",
    "predict",
    "sample_chains",
    "self_normalized_cross_entropy",
    "soft_top_k",
    "start_chains",
    "stochastic_beam_search",
]
