"""Language of a run: read from ``--language``, saved with the model, and used by every search."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch.nn.utils.rnn import pad_sequence

from seqwise.data.batches import IGNORE, EncodedExample
from seqwise.data.readers import Example, read_lines
from seqwise.data.subwords import BLANK
from seqwise.errors import InputError, placed
from seqwise.evaluation.entities import valid_transitions
from seqwise.names import count_of
from seqwise.runs.hugging_face_codecs import GeneratorCodec
from seqwise.runs.inputs import example_of, file_units
from seqwise.runs.measures import known_targets
from seqwise.runs.paths import BIO, language_file
from seqwise.runs.run import OutputRun
from seqwise.search.automata import Automaton, regular, transitions, trie
from seqwise.search.grammars import Grammar, grammar
from seqwise.search.language import Language, chosen_by, language_of, members
from seqwise.search.selectors import HardTopK
from seqwise.training.checkpoints import load_model_file

FILE, GRAMMAR_FILE = "language.safetensors", "language.json"
GRAMMARS = (".lark", ".gbnf")
SCHEMA = ".json"
AnyLanguage = TypeVar("AnyLanguage", Automaton, Grammar)
AT_ONCE = 256  # targets in a batch


def in_language(run: OutputRun, language: str) -> OutputRun:
    """Return a run whose searches stay in a new language.

    Args:
        run: a run of ``seqwise train``; its model is changed in place.
        language: "bio" for well-formed entity labels; a file with one output per line, a JSON schema (``.json``) or a
            grammar (``.lark``, ``.gbnf``); or a regular expression that must match the whole output. "" allows
            everything.

    Raises:
        InputError: the file or the pattern cannot be read, the model cannot write an output of the file, or its
            generation config forbids all outputs or depends on the step.
    """
    run.model.language = _writable(run, _language(run, language)) if language else None
    if run.settings.language == language:
        return run
    return replace(run, settings=run.settings.model_copy(update={"language": language}))


def _writable(run: OutputRun, language: Language) -> Language | None:
    """Return a language without the tokens that the codec forbids, so that lengths without an output are known."""
    return chosen_by(run.codec.allowed(HardTopK(1)), language)


def _language(run: OutputRun, language: str) -> Language:
    if language == BIO:
        return _of_labels(run)
    path = language_file(language)
    if path is None:
        return _of_text(run, regular, language)
    if path.suffix not in (SCHEMA, *GRAMMARS):
        return _of_file(run, path)
    source: Any = "\n".join(text for _, text in read_lines(path))
    try:
        source = json.loads(source) if path.suffix == SCHEMA else source
    except json.JSONDecodeError as error:
        hint = 'write a JSON schema, such as {"type": "integer"}'
        raise InputError(f"invalid JSON ({error.msg})", path=path, line=error.lineno, hint=hint) from None
    if path.suffix == SCHEMA and not isinstance(source, dict):
        raise InputError("a JSON schema must be a JSON object", path=path)
    with placed(path=path):
        return _of_text(run, grammar, source)


def _of_labels(run: OutputRun) -> Automaton:
    if run.settings.task != "tag":
        raise InputError("language: bio is for taggers, which write labels", hint="give a file or a pattern")
    allowed_VV, first_V, last_V = map(torch.tensor, valid_transitions(run.codec.target_vocabulary.tokens))
    if bool(allowed_VV.all() and first_V.all() and last_V.all()):  # as with the labels L-LOC and U-LOC of BILOU
        hint = "it is for labels such as B-LOC and I-LOC; give a file or a pattern"
        raise InputError("language: bio allows all sequences of this run's labels", hint=hint)
    return transitions(allowed_VV, first_V=first_V, last_V=last_V)


def _of_file(run: OutputRun, path: Path) -> Automaton:
    units, unknown = file_units(run.settings.target_units), run.codec.target_vocabulary.unknown_id
    outputs = []
    for line, text in read_lines(path):
        if not text.strip():
            continue
        tokens = example_of(text, units=units).source
        ids = run.codec.output_ids(Example((), tokens, path=str(path), line=line))
        if unknown in ids:
            hint = "leave it out, or train with it in the training data"
            raise InputError(f"the model cannot write {text!r}", path=path, line=line, hint=hint)
        outputs.append(ids)
    if not outputs:
        raise InputError("the file has no output", path=path, hint="write one per line")
    return trie(outputs, end=run.model.end)


def _of_text(run: OutputRun, make: Callable[..., AnyLanguage], source: Any) -> AnyLanguage:
    """Make the language of a pattern or a grammar over the texts of the run's tokens."""
    texts, first = _texts(run)
    return make(source, texts, first=first, end=run.model.end).after(_before_outputs(run))


def _texts(run: OutputRun) -> tuple[dict[int, str], dict[int, str]]:
    """Return the text of each token, after others and at the beginning of an output, by id."""
    vocabulary = run.codec.target_vocabulary
    if isinstance(run.codec, GeneratorCodec):
        from seqwise.hugging_face.language import token_texts

        later, first = token_texts(run.codec.tokenizer)
        if run.codec.model.model.config.is_encoder_decoder:
            return later, first
        # As in its targets, an output of a causal model begins with the blank after the prompt.
        return later, {token: text[1:] for token, text in later.items() if text.startswith(" ")} or first
    special = {vocabulary.unknown, vocabulary.end}
    written = {token: text for token, text in enumerate(vocabulary.tokens) if text not in special}
    if run.settings.target_units == "characters":
        return written, written
    # A word, and the first piece of a word, includes the blank before it.
    blank = "" if run.codec.writes_text else " "
    texts = {token: blank + text.replace(BLANK, " ") for token, text in written.items()}
    return texts, {token: text[1:] for token, text in texts.items() if text.startswith(" ")}


def _before_outputs(run: OutputRun) -> tuple[int, ...]:
    """Return the special tokens before every output: those of an encoder-decoder's tokenizer, such as BART's."""
    if isinstance(run.codec, GeneratorCodec) and run.codec.model.model.config.is_encoder_decoder:
        from seqwise.hugging_face.tokens import before_targets

        return before_targets(run.codec.tokenizer, run.codec.model.forced_first)
    return ()


def require_gold_inside(run: OutputRun, encoded: Sequence[EncodedExample], examples: Sequence[Example]) -> None:
    """Raise an InputError for training data with an output outside the language, naming its line."""
    for index in _outside(run, encoded):
        example = examples[index]
        problem = f"the target {_shown(run, example)} is not in the language {run.settings.language!r}"
        raise InputError(problem, **example.place, hint="drop the example, or widen the language")


def targets_outside(run: OutputRun, examples: Sequence[Example]) -> str | None:
    """Return a warning about targets that the run could write but for its language, or None."""
    known = known_targets(run, examples)
    outside = [known[index] for index in _outside(run, run.codec.encode(known))]
    if not outside:
        return None
    are = "is not in the language and counts" if len(outside) == 1 else "are not in the language and count"
    first = f"the first is {outside[0].path}:{outside[0].line}: {_shown(run, outside[0])}"
    return f"{len(outside):,} of {count_of(len(examples), 'target')} {are} as wrong; {first}"


def _outside(run: OutputRun, encoded: Sequence[EncodedExample]) -> Iterator[int]:
    """Yield the indices of examples whose targets are not in the language of the run."""
    language = language_of(run.model)
    if language is None:
        return
    for start in range(0, len(encoded), AT_ONCE):
        targets = [torch.tensor(each.target_ids, dtype=torch.long) for each in encoded[start : start + AT_ONCE]]
        inside_B = members(language, pad_sequence(targets, batch_first=True, padding_value=IGNORE))
        yield from (start + (~inside_B).nonzero().flatten()).tolist()


def _shown(run: OutputRun, example: Example) -> str:
    joined = " ".join(example.target)
    return repr((joined if run.codec.writes_text else run.codec.target_text(example.target))[:60])


def save_language(model: object, folder: Path) -> None:
    """Save the language of a model, if any, in its folder."""
    language = language_of(model)
    if isinstance(language, Automaton):
        save_file({"arcs": language.arcs, "final": language.final_S}, folder / FILE)
    if isinstance(language, Grammar):
        (folder / GRAMMAR_FILE).write_text(json.dumps(language.source), encoding="utf-8")


def load_language(run: OutputRun, folder: Path) -> OutputRun:
    """Load the language that was saved with a run."""
    if (folder / FILE).exists():
        saved = load_model_file(folder / FILE)
        run.model.language = Automaton(saved["arcs"], saved["final"])
    if (folder / GRAMMAR_FILE).exists():
        source = json.loads((folder / GRAMMAR_FILE).read_text(encoding="utf-8"))
        run.model.language = _of_text(run, grammar, source)
    language = language_of(run.model)
    if language is not None:
        with suppress(InputError):  # which a search raises, unless the command replaces the language
            run.model.language = _writable(run, language)
    return run
