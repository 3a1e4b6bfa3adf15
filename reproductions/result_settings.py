"""One line of training settings for each table, read from the code that trains its systems.

Result files hold seeds, data and versions, but no settings, so a line describes the present code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from reproductions.andreas_klein_2015 import language_models
from reproductions.beyond import (
    any_order_bound,
    constrained_sampling,
    defaults,
    frontier,
    improvements,
    label_bias_toy,
    masked_diffusion_audit,
    proteins,
    search_objectives,
    spelling,
    stress,
    training_inside,
)
from reproductions.beyond import transformer_translation as transformers
from reproductions.goyal_2018.exposure_bias import PLANS, SLOWER, Plan, family
from reproductions.goyal_2019.label_bias import LOG_PARTITION_WEIGHT, plan_of
from reproductions.goyal_2021 import figure_6_1_phonemes
from reproductions.goyal_2021.energy_training import fit_enumerated
from reproductions.goyal_2021.phonemes import SETTINGS, Setting
from reproductions.goyal_2021.sampler_tasks import GERMAN, PHONEMES, ROMANIAN, SPELLING, SamplerTask
from reproductions.goyal_2021.sequence_contrastive import NOISE_BATCH
from reproductions.goyal_2021.table_6_1 import BUDGETS
from reproductions.result_files import longest_prefix
from reproductions.systems import System
from reproductions.tuning import RATES
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.runs.paths import BIO
from seqwise.runs.settings import Settings

SIZES = {
    "num_layers": "layers", "embedding_size": "embedding", "hidden_size": "hidden", "feedforward_size": "feed-forward",
    "label_embedding_size": "label embedding", "dropout": "dropout",
}  # fmt: skip
STAGES = {
    "longer": "longer cross-entropy",
    "feeding": "scheduled sampling",
    "search": "relaxed beam and hinge",
    "likelihood": "beam likelihoods",
}


def settings_line(name: str, scale: str, systems: Collection[str] = ()) -> str:
    """Return the settings of a table at a scale, or "" if the code has none.

    A frontier of streams may be older than some of today's systems; only those of the table are described.
    """
    if name in LINES_BY_SYSTEMS:
        return LINES_BY_SYSTEMS[name](scale, systems)
    prefix = longest_prefix(name, LINES)
    return LINES[prefix](scale) if prefix else ""


def _sizes(model: Any) -> str:
    options = dict(model)
    return ", ".join(f"{text} {options[name]:g}" for name, text in SIZES.items() if name in options)


def _default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def _stage(name: str, epochs: float, rate: float) -> str:
    return f"{name} {epochs:g} × {rate:.2g}"


def _alphas(stages: Sequence[str], systems: Mapping[str, System]) -> str:
    """Describe the schedules of alpha of the relaxed beam, or of relaxed scheduled sampling."""
    keys = {"": "direct-annealed", "with raw scores ": "direct-global"}
    if "search" not in stages:
        keys = {"fixed ": "fixed-greedy", "annealed ": "annealed-greedy"} if "feeding" in stages else {}
    schedules = {name: systems[key].settings.alpha for name, key in keys.items()}
    return ", ".join(f"{name}{_schedule(alpha)}" for name, alpha in schedules.items())


def _schedule(alpha: Any) -> str:
    return f"{alpha.start:g} to {alpha.end:g}" if hasattr(alpha, "end") else f"{alpha.value:g}"


def _planned(plan: Plan, stages: Sequence[str], scale: str) -> str:
    """Describe the training of Chapters 3 to 5; ``stages`` are the second stages in the table."""
    start = plan.start[scale]
    _, options = plan.options_at(scale, 1)
    budget, slower = options["budget"], options.get("slower", SLOWER)
    systems = family(start, 0, **options)
    alphas = _alphas(stages, systems)
    parts = [_sizes(start.model), f"batch {start.batch_size}", f"k = {start.beam_size}"]
    parts += [f"alpha {alphas}"] if alphas else []
    if "search" in stages:
        parts += [f"costs {plan.label_costs}"] if plan.label_costs else []
        mixed = options.get("cross_entropy_weight", _default(family, "cross_entropy_weight"))
        parts.append(f"cross-entropy weight {mixed:g} where mixed in" if mixed else "no cross-entropy mixed in")
    if "feeding" not in stages:
        parts.append(f"λ = {LOG_PARTITION_WEIGHT:g}")
    trained = [_stage("cross-entropy", start.epochs, start.learning_rate)]
    trained += [_stage(STAGES[kind], budget[kind], start.learning_rate / slower[kind]) for kind in stages]
    line = f"{'; '.join(parts)}; epochs × learning rate: {', '.join(trained)}"
    if scale != "converged":
        return f"{line}; untuned."
    return f"{line}; {_tuned()}"


def _chapter_5(task: str, stages: Sequence[str], scale: str) -> str:
    return _planned(plan_of(task, scale), stages, scale)


def _listed(systems: Iterable[System], scale: str) -> str:
    """Describe the training of a family, system by system."""
    systems = list(systems)
    start = systems[0].settings
    stages = [
        _stage(
            system.name.removesuffix(f" ({system.settings.seed})").replace(", ", " "),
            system.settings.epochs,
            system.settings.learning_rate,
        )
        for system in systems
    ]
    sizes = f"{_sizes(start.model)}; batch {start.batch_size}; k = {start.beam_size}"
    return f"{sizes}; epochs × learning rate: {', '.join(stages)}."


def _searched(corpus: str, make: Callable[..., Mapping[str, System]], scale: str) -> str:
    _, start, epochs = search_objectives.CORPORA[corpus]
    return _listed(make(start, epochs, 0).values(), scale)


def _streamed(corpus: str, scale: str, rows: Collection[str]) -> str:
    named = {**frontier.GLOBAL, **frontier.TRAINED}
    systems = frontier.systems(corpus, scale, 1, 0).items()
    line = _listed([each for key, each in systems if named.get(key) in {None, *rows}], scale)
    if frontier.AHEAD in rows:
        line = f"{line.removesuffix('.')}; models with a look-ahead as those without, but for 2 × H decoder inputs."
    line = f"{line.removesuffix('.')}; two-way models as the plain ones."
    return f"{line.removesuffix('.')}; {_tuned()}" if scale == "converged" else line


def _inside(name: str, scale: str) -> str:
    inside = training_inside.TASKS[name]
    systems = training_inside.family(inside, inside.start.batch_size or 1, BIO, 0).values()
    return f"{_listed(systems, scale).removesuffix('.')}; {_tuned()}"


def _tuned() -> str:
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    return f"at most these epochs, each stage stopped early on dev; rate times {rates}, chosen on dev."


def _variants(start: Settings, epochs: Mapping[str, float], seed: int) -> dict[str, System]:
    """Return the start, and the systems that are not among the search objectives."""
    systems = improvements.variants(start, epochs, seed)
    before = search_objectives.family(start, epochs, seed)
    return {key: system for key, system in systems.items() if key == "cross-entropy" or key not in before}


def _trained_once(model: Any, training: MaskedModelSettings | Setting, rates: Sequence[float]) -> str:
    """Describe a model that is trained in one stage."""
    sizes = f"{_sizes(model)}; batch {training.batch_size}"
    return f"{sizes}; {training.epochs:g} epochs, learning rate {_rates(rates)}."


def _rates(rates: Sequence[float]) -> str:
    return f"{', '.join(f'{rate:g}' for rate in rates)}{', chosen on dev' if len(rates) > 1 else ''}"


def _sampled(task: SamplerTask, scale: str) -> str:
    settings = task.settings[scale]
    ended = " At most these epochs; best model on dev." if settings.evaluate_every else ""
    return _trained_once(settings.model, settings, [settings.learning_rate]) + ended


def _language_models(scale: str) -> str:
    size = language_models.SIZES[scale]
    passes, epochs, early = "one pass", f"{size.translator_epochs:g} epochs", ""
    if size.stops_early:
        passes, epochs = f"at most {size.most_epochs} passes", f"at most {epochs}"
        early = " All are stopped early on dev."
    rates = ", ".join(f"{rate:g}" for rate in size.rates)
    tuned = f" Learning rate of the language model times {rates}, chosen on dev." if len(size.rates) > 1 else ""
    return (
        f"Language model: {passes} over {size.positions:,} positions, batch {language_models.BATCH}, "
        f"{size.num_weights:,} weights. Translator and channel model: {epochs}, {size.candidates}-best lists."
        f"{early}{tuned}"
    )


def _transformers(scale: str) -> str:
    size = transformers.SIZES[scale]
    start = size.training
    stages = {"cross-entropy": start.epochs, "longer": size.longer, "sampling": size.sampling, "search": size.search}
    epochs = ", ".join(f"{name} {count:g}" for name, count in stages.items())
    sizes = f"{_sizes(size.shape)}; batch {start.batch_size}; k = {start.beam_size}"
    return f"{sizes}; learning rate {start.learning_rate:g}; epochs: {epochs}."


def _proteins(scale: str) -> str:
    settings = proteins.SIZES[scale].settings
    return f"{_sizes(settings.model)}; {settings.epochs:g} epochs, learning rate {settings.learning_rate:g}."


def _by_hand(scale: str) -> str:
    usual, *others = (
        ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in flags.items())
        for flags in (defaults.USUAL, *(flags for flags in defaults.BY_HAND.values() if flags))
    )
    return (
        f"Beam of 5. By hand: {usual}; variants that differ in one setting: {'; '.join(others)}; taggers also with "
        "characters where the defaults have none, or without."
    )


def _phonemes(scale: str) -> str:
    setting = SETTINGS[scale]
    return _trained_once(vars(setting), setting, setting.learning_rates)


def _projected(scale: str) -> str:
    setting = figure_6_1_phonemes.SETTING
    epochs = (f"{figure_6_1_phonemes.epochs_of(size, setting)} for {size:,}" for size in figure_6_1_phonemes.SIZES)
    masked = _trained_once(vars(setting), setting, setting.learning_rates)
    return f"MLM: {masked} Methods: epochs by number of sequences {', '.join(epochs)}."


def _enumerated(scale: str) -> str:
    steps, rates = (BUDGETS[scale].get(name, _default(fit_enumerated, name)) for name in ("steps", "learning_rates"))
    return f"Full-batch steps, at most {steps}, learning rate {_rates(rates)}, stopped early on dev."


def _audited(scale: str) -> str:
    audit = masked_diffusion_audit
    return (
        f"{audit.SIZE}^{audit.LENGTH} sequences; a masked LSTM reads {audit.NUM_SEQUENCES:,} in {audit.STEPS:,} "
        f"steps of {NOISE_BATCH}; a random table is not trained."
    )


def _bounded(scale: str) -> str:
    bound = any_order_bound
    return (
        f"{bound.NUM_TEXTS} test words of {bound.LENGTH} phonemes, {bound.ESTIMATES} estimates each; a masked LSTM "
        f"that reads {bound.STEPS:,} batches of {bound.BATCH} words, and one with random weights times "
        f"{bound.SHARPNESS:g}."
    )


def _constrained(scale: str) -> str:
    sampling = constrained_sampling
    return (
        f"Words of up to {sampling.LONGEST} phonemes; bigrams of a bootstrap sample of the lexicon, and an LSTM that "
        f"reads {sampling.STEPS} batches of {sampling.BATCH} words. The total variation of `sample_within` is an upper "
        "bound, the share of its samples that are not exact, and that of SMC a lower bound."
    )


_SAMPLED = {"translation": GERMAN, "translation-ro": ROMANIAN, "g2p": SPELLING, "phonemes": PHONEMES}
_TAGGED = {"pmb": "supertags", "ewt": "supertags-ewt", "erg": "supertags-erg"}
_FEEDING, _SEARCH, _LOCAL_GLOBAL = ("longer", "feeding"), ("longer", "feeding", "search", "likelihood"), (
    "longer", "search", "likelihood",
)  # fmt: skip
LINES: dict[str, Callable[[str], str]] = {
    "table-3.1-ner": partial(_planned, PLANS["ner"], _FEEDING),
    "table-3.1-translation": partial(_planned, PLANS["translation"], _FEEDING),
    "table-3.2": partial(_planned, PLANS["ner"], _FEEDING),
    "table-4.1": partial(_planned, PLANS["supertags-bi"], _SEARCH),
    "table-4.1-uni": partial(_planned, PLANS["supertags"], _SEARCH),
    "table-4.2": partial(_planned, PLANS["ner"], _SEARCH),
    "large-alpha": partial(_planned, PLANS["supertags"], ("longer", "search")),
    "wider-beams-pmb": partial(_planned, PLANS["supertags"], ("longer", "search")),
    "wider-beams-translation": partial(_chapter_5, "translation", ("longer", "search")),
    **{f"table-5.1-{plan}": partial(_planned, PLANS[plan], ()) for plan in _TAGGED.values()},
    "table-5.1-translation": partial(_chapter_5, "translation", ()),
    **{f"table-5.{number}-{corpus}": partial(_chapter_5, plan, _LOCAL_GLOBAL)
       for number in "23" for corpus, plan in _TAGGED.items()},
    **{f"table-5.{number}": partial(_chapter_5, "translation", _LOCAL_GLOBAL) for number in "456"},
    "table-6.1": _enumerated,
    "table-6.1-phonemes": _phonemes,
    "figure-6.1-phonemes": _projected,
    **{f"{kind}-6.{n}-{task}": partial(_sampled, sampled)
       for kind in ("table", "figure") for n in "23456" for task, sampled in _SAMPLED.items()},
    "andreas-klein": _language_models,
    "label-bias-toy": partial(_listed, label_bias_toy.systems(0)),
    "stress": partial(_listed, stress.systems(0)),
    "g2p": partial(_listed, spelling.systems(0)),
    **{f"search-objectives-{corpus}": partial(_searched, corpus, search_objectives.family)
       for corpus in search_objectives.CORPORA},
    **{f"improvements-{corpus}": partial(_searched, corpus, _variants) for corpus in improvements.TAGGED},
    "improvements-g2p": partial(_listed, improvements.spelling_family(0).values()),
    **{f"training-inside-{name}": partial(_inside, name) for name in training_inside.TASKS},
    "transformer-translation": _transformers,
    "proteins": _proteins,
    "masked-diffusion-audit": _audited,
    "any-order-bound": _bounded,
    "constrained-sampling": _constrained,
    "defaults": _by_hand,
}  # fmt: skip
"""Functions from a scale to a line, by a prefix of a table's name."""

LINES_BY_SYSTEMS: dict[str, Callable[[str, Collection[str]], str]] = {
    f"frontier-{corpus}": partial(_streamed, corpus) for corpus in frontier.CORPORA
}
"""Functions from a scale and the systems of a table to a line, by name."""
