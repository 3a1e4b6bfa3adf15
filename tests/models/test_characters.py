"""Words read by their characters: against a loop over single words, and in taggers of both kinds."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from seqwise.data import EncodedExample, collate
from seqwise.decoding import DECODERS, decode_examples
from seqwise.errors import InputError
from seqwise.models import ChainTagger, Tagger
from seqwise.models.characters import CharacterConvolution, num_spelt_words, spelt_source

TOLERANCE = {"atol": 1e-12, "rtol": 1e-12}
Sentence = list[tuple[int, tuple[int, ...]]]


def sentences(count: int, *, seed: int = 0) -> list[Sentence]:
    """Words by their ids and spellings, some of them again."""
    draw = random.Random(seed)
    words = [(draw.randrange(5), tuple(draw.choices(range(7), k=draw.randint(1, 6)))) for _ in range(12)]
    return [draw.choices(words, k=draw.randint(1, 5)) for _ in range(count)]


def spelt(sentence: Sentence) -> tuple[int, ...]:
    return spelt_source([word for word, _ in sentence], [spelling for _, spelling in sentence])


def by_hand(reader: CharacterConvolution, spelling: tuple[int, ...]) -> Tensor:
    """Each filter at each character, the largest, and these layer-normalised."""
    zeros = torch.zeros(reader.embedding.embedding_dim, dtype=torch.float64)
    embedded = [zeros, *(reader.embedding.weight[token] for token in spelling), zeros]
    weight, bias = reader.convolution.weight, reader.convolution.bias
    assert bias is not None
    outputs = [
        (bias + sum(weight[:, :, offset] @ embedded[place + offset] for offset in range(3))).clamp(min=0)
        for place in range(len(spelling))
    ]
    largest = torch.stack(outputs).amax(0)
    normalized = (largest - largest.mean()) / (largest.var(correction=0) + reader.normalize.eps).sqrt()
    return reader.normalize.weight * normalized + reader.normalize.bias


def test_each_word_is_read_as_if_it_were_alone() -> None:
    reader = CharacterConvolution(7, embedding_size=4, num_filters=5).double()
    given = sentences(9)
    batch = collate([EncodedExample(spelt(sentence), ()) for sentence in given])
    read = reader(batch.sources_BS, batch.source_lengths_B)
    assert read.lengths_B.tolist() == [len(sentence) for sentence in given]
    for row, sentence in enumerate(given):
        assert read.words_BW[row, : len(sentence)].tolist() == [word for word, _ in sentence]
        expected = torch.stack([by_hand(reader, spelling) for _, spelling in sentence])
        torch.testing.assert_close(read.features_BWF[row, : len(sentence)], expected, **TOLERANCE)
        assert not read.features_BWF[row, len(sentence) :].any()


def test_new_features_have_the_mean_and_the_deviation_of_an_embedding() -> None:
    """Largest outputs are positive in every word; so a network would be shifted by all words alike."""
    torch.manual_seed(3)
    reader = CharacterConvolution(7)
    batch = collate([EncodedExample(spelt([word]), ()) for sentence in sentences(4) for word in sentence])
    features_NF = reader(batch.sources_BS, batch.source_lengths_B).features_BWF[:, 0]
    torch.testing.assert_close(features_NF.mean(1), torch.zeros(len(features_NF)), atol=1e-6, rtol=0)
    torch.testing.assert_close(features_NF.std(1, correction=0), torch.ones(len(features_NF)), atol=1e-2, rtol=0)


def test_each_different_spelling_is_read_once() -> None:
    reader = CharacterConvolution(7)
    sizes: list[int] = []
    reader.convolution.register_forward_hook(lambda _, given, output: sizes.append(len(given[0])))
    given = sentences(20)
    batch = collate([EncodedExample(spelt(sentence), ()) for sentence in given])
    reader(batch.sources_BS, batch.source_lengths_B)
    assert sizes == [len({spelling for sentence in given for _, spelling in sentence})]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [Tagger, ChainTagger])
def test_a_tagger_labels_words_whatever_stands_beside_them(
    kind: type[Tagger | ChainTagger], bidirectional: bool
) -> None:
    torch.manual_seed(1)
    sizes = {"source_size": 5, "target_size": 3, "embedding_size": 4, "hidden_size": 6, "num_characters": 7}
    model = kind(**sizes, bidirectional=bidirectional).double().eval()
    given = [EncodedExample(spelt(sentence), ()) for sentence in sentences(8)]
    decoder = DECODERS["beam"](3, 1.0, None)
    together = decode_examples(model, given, decoder)
    for example, outputs in zip(given, together, strict=True):
        (alone,) = decode_examples(model, [example], decoder)
        assert [output.tokens for output in alone] == [output.tokens for output in outputs]
        assert alone[0].score == pytest.approx(outputs[0].score, abs=1e-12)
        assert len(alone[0].tokens) == model.most_steps(example.source_ids) == num_spelt_words(example.source_ids)


def test_an_unknown_word_is_told_by_its_characters() -> None:
    torch.manual_seed(2)
    model = Tagger(source_size=2, target_size=3, num_characters=7).eval()
    sources = [spelt_source([0], [spelling]) for spelling in ((1, 2), (1, 3))]
    batch = collate([EncodedExample(source, ()) for source in sources])
    memory_BSM = model.encode(batch).memory_BSM
    assert not torch.equal(memory_BSM[0], memory_BSM[1])


def test_a_source_that_is_not_spelt_is_refused() -> None:
    batch = collate([EncodedExample((3, 1), ())])
    with pytest.raises(InputError, match="does not begin with a word; make sources with spelt_source"):
        CharacterConvolution(7)(batch.sources_BS, batch.source_lengths_B)
