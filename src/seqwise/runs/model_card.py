"""Model card of a run: description, use, results with their signature, and citation."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from seqwise.configuration.flat import flat_values
from seqwise.errors import InputError
from seqwise.names import count_of, measure_heading, measure_text
from seqwise.runs.codecs import Codec
from seqwise.runs.decoder_choice import usual_decoder
from seqwise.runs.model_settings import HUB_NAME
from seqwise.runs.paths import language_file
from seqwise.runs.run import MaskedRun, OutputRun, Run
from seqwise.runs.settings import Settings
from seqwise.runs.trainer_options import AnyOptions, TrainerOptions

CITATION = """\
@software{seqwise,
  title = {seqwise},
  author = {{The seqwise developers}},
  note = {Search-aware and energy-based training and decoding of sequence models in PyTorch}
}
@phdthesis{goyal-2021,
  title = {Characterizing and Overcoming the Limitations of Neural Autoregressive Models},
  author = {Goyal, Kartik},
  school = {Carnegie Mellon University},
  year = {2021}
}"""
"""BibTeX entry on every card."""

_RAW_SCORES = """\
The model was trained on raw scores, which are not normalised at every step. `generate` normalises them, so it searches
for different outputs. Decode with `seqwise predict {repo} "a text"`, which uses the raw-score beam."""


def public_settings(settings: AnyOptions) -> AnyOptions:
    """Reduce the paths in settings to the names of files and folders."""
    changes: dict[str, Any] = {name: Path(value.name) for name, value in settings if isinstance(value, Path)}
    if isinstance(settings, Settings):
        model: Any = settings.model
        if model.pretrained and not _base_model(settings):
            changes["model"] = model.replace(path=f"./{Path(model.path).name}")
        language = language_file(settings.language)
        if language is not None:
            changes["language"] = language.name
    return settings.model_copy(update=changes)


def model_card(run: Run[Any, Codec], metrics: Mapping[str, Any], *, repo: str) -> str:
    """Return the card of a run: the hub's metadata, then Markdown. ``repo`` is a name on the hub, or a folder."""
    from huggingface_hub import ModelCardData

    if run.codec.kind not in _CARDS:
        hint = "give the --output of seqwise train or masked-model train"
        raise InputError("the model was not trained by seqwise", path=repo, hint=hint)
    try:
        data, parts = _CARDS[run.codec.kind](run, metrics, repo)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"the metrics do not belong to such a run ({error!r})"
        raise InputError(problem, path="metrics.json", hint="restore it as it was saved") from error
    parts.append(f"## Citation\n\n```bibtex\n{CITATION}\n```")
    metadata = f"---\n{ModelCardData(**data).to_yaml().strip()}\n---"
    return "\n\n".join([metadata, f"# {repo.rpartition('/')[2]}", *parts]) + "\n"


def _tagged(*tags: str) -> dict[str, Any]:
    """Return the metadata of every model trained here."""
    return {"library_name": "seqwise", "tags": ["seqwise", *tags]}


def _base_model(settings: Settings) -> str | None:
    """Return the hub name of the model that training started from, or None."""
    name = settings.model.path
    is_on_hub = HUB_NAME.fullmatch(name) and not Path(name.partition("/")[0]).exists()
    return name if is_on_hub else None


Card = tuple[dict[str, Any], list[str]]
"""The hub's metadata, and the paragraphs of a card."""


def _output_card(run: OutputRun, metrics: Mapping[str, Any], repo: str) -> Card:
    """Make the card of a tagger, transducer or generator."""
    settings, use = run.settings, _use(repo)
    labels = f"{len(run.codec.target_vocabulary):,} labels"
    base = getattr(public_settings(settings).model, "path", "")
    data: dict[str, Any] = {"pipeline_tag": "token-classification" if settings.task == "tag" else None}
    if settings.model.pretrained:
        data["base_model"] = _base_model(settings)
    look_ahead = getattr(settings.model, "look_ahead", 0)
    ahead = f" that looks {count_of(look_ahead, 'token')} ahead" if look_ahead else ""
    if run.codec.kind == "word-pieces":
        what = f"A tagger with {labels} over the Hugging Face encoder `{base}`{ahead}"
    elif run.codec.kind == "text":
        is_encoder_decoder = bool(run.model.model.config.is_encoder_decoder)
        kind = "An encoder-decoder" if is_encoder_decoder else "A causal language model"
        what = f"{kind} fine-tuned from `{base}`"
        data |= {"library_name": "transformers", "pipeline_tag": None if is_encoder_decoder else "text-generation"}
        use = _use_of_transformers(settings, repo, is_encoder_decoder=is_encoder_decoder)
    elif settings.task == "tag":
        encoder = f"{getattr(settings.model, 'encoder', '')} encoder{ahead}"
        what = f"A tagger (`{settings.model.name}`, {encoder}, {labels})"
    else:
        what = f"A transducer (`{settings.model.name}`) from {settings.source_units} to {settings.target_units}"
    return _tagged(settings.objective.name) | data, _parts(run, metrics, what=what, use=use)


def _parts(run: OutputRun, metrics: Mapping[str, Any], *, what: str, use: str) -> list[str]:
    settings = run.settings
    scores = {"global": "raw (globally normalised)", "renormalized": "renormalised"}
    score = scores.get(settings.trained_score, settings.trained_score)
    summary = f"{what}, trained with seqwise by `{settings.objective.name}` on {score} scores."
    if "training" in metrics:
        size, steps = metrics["train_examples"], metrics["training"]["steps"]
        summary += f" Training data: `{settings.train.name}`, {size:,} examples; {steps:,} steps."
    results = _results(metrics["dev"], settings) if "dev" in metrics else "None: there were no development data."
    return [summary, f"## Use\n\n{use}", f"## Results\n\n{results}", _settings(public_settings(settings))]


def _settings(settings: TrainerOptions) -> str:
    """List the settings that differ from their defaults."""
    plain = flat_values(settings, only_changed=True)
    written = yaml.safe_dump(plain, sort_keys=False).strip() if plain else "# none"
    return f"## Settings other than the defaults\n\n```yaml\n{written}\n```"


def _use(repo: str) -> str:
    return f"""\
```python
from seqwise import load_run, predict

run = load_run("{repo}")
print(run.codec.target_text(predict(run, ["a text"])[0][0].tokens))
```

Or `seqwise predict {shlex.quote(repo)} "a text"`."""


def _use_of_transformers(settings: Settings, repo: str, *, is_encoder_decoder: bool) -> str:
    loader = "AutoModelForSeq2SeqLM" if is_encoder_decoder else "AutoModelForCausalLM"
    without_prompt = "" if is_encoder_decoder else "[:, inputs.input_ids.shape[1] :]"
    search = f"num_beams={settings.beam_size}, length_penalty=0.0, max_new_tokens=64"
    plain = f"""\
```python
from transformers import {loader}, AutoTokenizer
tokenizer, model = AutoTokenizer.from_pretrained("{repo}"), {loader}.from_pretrained("{repo}")
inputs = tokenizer("a text", return_tensors="pt", return_token_type_ids=False)
written = model.generate(**inputs, {search})
print(tokenizer.batch_decode(written{without_prompt}, skip_special_tokens=True)[0])
```
"""
    if settings.trained_score == "global":
        return f"{plain}\n{_RAW_SCORES.format(repo=shlex.quote(repo))}"
    command = f'seqwise predict {shlex.quote(repo)} "a text"'
    return f"{plain}\nIt was trained for this beam; `{command}` searches in the same way."


def _results(dev: Mapping[str, Any], settings: Settings) -> str:
    titles = list(next(iter(dev["decoders"].values())))
    usual = usual_decoder(settings)
    rows = [["decoder", *(measure_heading(title) for title in titles)], ["---"] * (len(titles) + 1)]
    for name, row in dev["decoders"].items():
        marks = [word for word, marked in (("best here", dev["best decoder"]), ("default", usual)) if marked == name]
        shown = f"{name} ({', '.join(marks)})" if marks else name
        rows.append([shown, *(measure_text(title, row[title]) for title in titles)])
    signed = [dev.get("signature"), *(f"{title}: {text}" for title, text in dev["signatures"].items())]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "On the development data:\n\n" + "\n".join(lines) + "".join(f"\n\n`{text}`" for text in signed if text)


def _masked_card(run: MaskedRun, metrics: Mapping[str, Any], repo: str) -> Card:
    settings = run.settings
    size = f" on {metrics['train_examples']:,} sequences" if "train_examples" in metrics else ""
    summary = f"A masked model (`{settings.model.name}`) of {settings.units}, trained with seqwise{size}."
    typed = shlex.quote(repo)
    use = f"""\
```python
from seqwise.runs import Scorer
scorer = Scorer("{repo}", pieces="original")
for score in scorer.score_examples(scorer.run.codec.read("sequences.txt")):
    print(score.log_prob, *score.tokens)
```

Or `seqwise score {typed} sequences.txt`; `seqwise sample {typed}` draws sequences and fills in."""
    parts = [summary, f"## Use\n\n{use}", f"## Results\n\n{_measured(metrics)}", _settings(public_settings(settings))]
    return _tagged("masked-lm", "energy-based-model"), parts


def _measured(metrics: Mapping[str, Any]) -> str:
    """Return a table of the measures on the development data."""
    dev = metrics.get("dev", {})
    if not dev:
        return "None: there were no development data."
    numbers = {name: value for name, value in dev.items() if isinstance(value, int | float)}
    lines = [f"| {name.replace('_', ' ')} | {_plain(value)} |" for name, value in numbers.items()]
    signed = f"\n\n`{dev['signature']}`" if "signature" in dev else ""
    return "On the development data:\n\n| measure | value |\n| --- | --- |\n" + "\n".join(lines) + signed


def _plain(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if math.isfinite(value) else str(value)


_CARDS: dict[str, Callable[[Any, Mapping[str, Any], str], Card]] = {
    **dict.fromkeys(("tokenizers", "spelling", "word-pieces", "text"), _output_card),
    "masked": _masked_card,
}
"""Kind of card, by codec."""
