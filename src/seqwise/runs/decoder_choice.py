"""Choice of a decoder: by name, the best one on development data, or the one that the run was trained for."""

from __future__ import annotations

import os
from pathlib import Path

from seqwise.configuration.written import did_you_mean
from seqwise.data.records import read_json_object
from seqwise.decoding import DECODERS, Decoder
from seqwise.errors import InputError
from seqwise.runs.model_settings import Chain
from seqwise.runs.settings import Settings
from seqwise.search.candidates import as_score


def usual_decoder(settings: Settings) -> str:
    """Return the decoder that the run was trained for: a beam with the trained scores."""
    return {"global": "raw-beam", "renormalized": "renormalized-beam"}.get(settings.trained_score, "beam")


def decoders_for(settings: Settings) -> list[str]:
    """List the decoders of a run: all, but Viterbi only for chains, and renormalised scores only with a language."""
    possible = {"viterbi": isinstance(settings.model, Chain), "renormalized-beam": bool(settings.language)}
    return [name for name in DECODERS if possible.get(name, True)]


def best_decoder(folder: str | os.PathLike[str]) -> str:
    """Return the decoder that was best on development data, from ``metrics.json``."""
    path = Path(folder) / "metrics.json"
    if not path.exists():
        raise InputError("the file is missing, so the best decoder is unknown", path=path, hint="name a decoder")
    metrics = read_json_object(path, what="metrics of a run", hint="name a decoder")
    try:
        name = metrics["dev"]["best decoder"]
    except (TypeError, KeyError):
        problem = "the best decoder is unknown, because the run was trained without development data"
        raise InputError(problem, path=path, hint="name a decoder, or train with --dev") from None
    if name not in DECODERS:
        raise InputError(f"the best decoder {name!r} is unknown", path=path, hint=f"name one of {', '.join(DECODERS)}")
    return str(name)


def choose_decoder(settings: Settings, name: str | None = None, *, beam_size: int | None = None) -> Decoder:
    """Make a decoder by name, with the final alpha of training.

    Args:
        settings: settings of the run.
        name: one of :data:`seqwise.decoding.DECODERS`; None for the one that the run was trained for.
        beam_size: by default as in training.

    Raises:
        InputError: there is no such decoder, it is not for this model, or the beam size is less than 1.
    """
    score = as_score(settings.trained_score)
    name = name or usual_decoder(settings)
    if name not in DECODERS:
        raise InputError(f"no decoder is called {name!r}", hint=did_you_mean(name, DECODERS))
    if name not in decoders_for(settings):
        problem = f"{name} is for chains (--model chain), whose labels depend on the previous one only"
        if name == "renormalized-beam":
            problem = f"{name} sums over the tokens that a language allows, and this run has no language"
        raise InputError(problem, hint=f"choose one of {', '.join(decoders_for(settings))}")
    _, final_alpha = settings.alpha.ends
    k = settings.beam_size if beam_size is None else beam_size
    return DECODERS[name](k, final_alpha, score, settings.divisor_of_alpha)
