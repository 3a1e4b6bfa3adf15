"""Examples shown at the end of ``--help``."""

from __future__ import annotations

EXAMPLES = {
    "": (
        "seqwise train --train train.conll --dev dev.conll --output runs/tagger",
        'seqwise predict runs/tagger "the old man the boats"',
        "seqwise --install-completion",
    ),
    "train": (
        "seqwise train --task tag --train train.conll --dev dev.conll \\\n"
        "    --encoder left-to-right --output runs/tagger",
        "seqwise train --task transduce --train pairs.tsv \\\n    --source-units characters --output runs/g2p",
        "seqwise train --task transduce --train de-en.tsv --model transformer \\\n"
        "    --source-units subwords --target-units subwords --output runs/de-en",
        "seqwise train --model facebook/bart-base --train pairs.tsv --dev dev.tsv \\\n"
        "    --objective relaxed-beam --output runs/bart",
        "seqwise train --model gpt2 --train prompts-and-continuations.tsv \\\n    --output runs/gpt2",
        "seqwise train --task tag --model bert-base-cased --train train.conll \\\n"
        "    --dev dev.conll --output runs/bert-tagger",
        "seqwise train --config settings.yaml --seed 1 --output runs/seed1",
    ),
    "tune": ("seqwise tune settings.yaml --trials 30 --output tuned",),
    "debug-data": (
        "seqwise debug-data train.conll dev.conll test.conll",
        "seqwise debug-data pairs.tsv dev.tsv --task transduce \\\n    --source-units characters",
    ),
    "predict": (
        'seqwise predict runs/tagger "the old man the boats"',
        "seqwise predict runs/tagger test.conll --format columns > labelled.conll",
        "seqwise predict runs/tagger sentences.txt --text",
        "seqwise predict runs/g2p words.txt --decoder beam --beam-size 5 --n-best 3",
        "seqwise predict runs/de-en german.txt --json > english.jsonl",
    ),
    "evaluate": (
        "seqwise evaluate runs/tagger test.conll",
        "seqwise evaluate runs/de-en test.tsv --decoder best --json",
    ),
    "stream": (
        "seqwise stream runs/tagger",
        "seqwise stream runs/tagger sentences.txt --text --commit 'delay(2)' --json",
    ),
    "score": (
        "seqwise score runs/mlm sentences.txt",
        "seqwise score bert-base-cased sentences.txt --output scores.jsonl",
        "seqwise score gpt2 pairs.jsonl --pairs --unit bits",
        "seqwise score ./my-esm proteins.fasta",
    ),
    "sample": (
        "seqwise sample runs/mlm --length 8-12 --count 20",
        'seqwise sample runs/mlm "the _ sees a _ dog" --every 5',
        "seqwise sample runs/proteins --contain GKS --without C \\\n      --visits anywhere --blocks 3",
        'seqwise sample bert-base-cased "the [MASK] sees a _ ." --chains 4',
        "seqwise sample runs/de-en-mlm german.txt --length-beam 5 \\\n"
        "    --temperature 0.5 --anneal 0.04 --best --output samples",
    ),
    "diagnose": (
        "seqwise diagnose runs/tagger test.conll",
        "seqwise diagnose runs/tagger test.conll --example 3 --plot beam.png",
    ),
    "card": ("seqwise card runs/tagger --repo ada/tagger > runs/tagger/README.md",),
    "push": ("seqwise push runs/tagger ada/tagger --dry-run", "seqwise push runs/tagger ada/tagger --private"),
    "report": (
        "seqwise report runs/tagger",
        "seqwise report runs/local runs/global --file test.conll -o both.html",
        "seqwise report runs/tagger --file test.conll --example 3 --example 17",
        "seqwise report runs/mlm samples --output sampling.html",
    ),
    "explore": (
        "seqwise explore runs/tagger",
        "seqwise explore runs/mlm --port 8500",
        "seqwise explore ./my-bert",
    ),
    "masked-model": (
        "seqwise masked-model train sentences.txt --dev dev.txt --output runs/mlm",
        "seqwise score runs/mlm sentences.txt",
        "seqwise sample runs/mlm --length 8-12 --count 20",
    ),
    "masked-model train": (
        "seqwise masked-model train sentences.txt --dev dev.txt --output runs/mlm",
        "seqwise masked-model train proteins.fasta.gz --format fasta \\\n    --output runs/proteins",
        "seqwise masked-model train de-en.tsv --format pairs --units subwords \\\n"
        "    --source-units subwords --output runs/de-en-mlm",
    ),
}
"""Examples by command; long lines continue on the next one."""


def examples(command: str) -> str:
    """Return the examples of a command, formatted for ``--help``."""
    return shown(*EXAMPLES[command])


def shown(*commands: str) -> str:
    """Return the end of a help text, keeping its line breaks."""
    lines = [line for command in commands for line in command.split("\n")]
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
