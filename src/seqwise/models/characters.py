"""Character features of words: spelt sources, and the convolution that reads them.

Shapes: B batch, S ids of a spelt source, W words, N words of the batch, U distinct spellings, C characters, F filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqwise.errors import InputError


def spelt_source(words: Sequence[int], characters: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Make a sequence of word ids and character ids, for a model with ``num_characters``.

    Args:
        words: the id of each word.
        characters: the ids of its characters.

    Returns:
        For each word, ``~id``, which is negative, followed by its characters.

    Example:
        >>> spelt_source([7, 0], [[1, 2], [3]])
        (-8, 1, 2, -1, 3)
    """
    ids: list[int] = []
    for word, spelling in zip(words, characters, strict=True):
        ids += [~word, *spelling]
    return tuple(ids)


def num_spelt_words(source_ids: Sequence[int]) -> int:
    """Count the words of a spelt source."""
    return sum(token < 0 for token in source_ids)


class SpeltWords(NamedTuple):
    """Words of a batch and their character features; zeros after the last word of a row."""

    words_BW: Tensor
    lengths_B: Tensor
    features_BWF: Tensor


class CharacterConvolution(nn.Module):
    """Convolution over the characters of a word with max-pooling and layer normalisation.

    ``g(w)_f = max_c relu(sum_i U_{f,i} . e(w_{c+i}) + b_f)``, i from -1 to 1, with zeros around the word; features are
    ``a_f (g_f - mean_f g_f) / sd_f g_f + d_f``. Each spelling of a batch is read once.

    Source: dos Santos and Zadrozny (ICML 2014); Ma and Hovy (ACL 2016); Ba et al. (2016) for the normalisation.

    Example:
        >>> reader = CharacterConvolution(9, embedding_size=4, num_filters=6)
        >>> reader(torch.tensor([spelt_source([7, 0], [[1, 2], [3]])]), torch.tensor([5])).features_BWF.shape
        torch.Size([1, 2, 6])
    """

    def __init__(self, num_characters: int, *, embedding_size: int = 32, num_filters: int = 64) -> None:
        super().__init__()
        # The last row, of zeros, is padding after the end of a word.
        self.embedding = nn.Embedding(num_characters + 1, embedding_size, padding_idx=num_characters)
        self.convolution = nn.Conv1d(embedding_size, num_filters, kernel_size=3, padding=1)
        # Maxima are positive in every word. Without normalisation, each training step would shift the next layer in the
        # same direction for all words, and small models would learn less with characters than without.
        self.normalize = nn.LayerNorm(num_filters)
        self.output_size = num_filters

    def forward(self, spelt_BS: Tensor, lengths_B: Tensor) -> SpeltWords:
        """Split spelt sources into words, and read each word."""
        columns_S = torch.arange(spelt_BS.shape[1], device=spelt_BS.device)
        is_real_BS = columns_S < lengths_B[:, None]
        is_word_BS = is_real_BS & (spelt_BS < 0)
        if bool((is_real_BS[:, :1] & ~is_word_BS[:, :1]).any()):
            raise InputError("a source does not begin with a word", hint="make sources with spelt_source")
        num_words_B = is_word_BS.sum(1)
        words_N = ~spelt_BS[is_word_BS]
        features_NF = self._read(self._spellings(spelt_BS, is_real_BS & ~is_word_BS, is_word_BS))
        exists_BW = torch.arange(int(num_words_B.max()), device=spelt_BS.device) < num_words_B[:, None]
        words_BW = spelt_BS.new_zeros(exists_BW.shape)
        words_BW[exists_BW] = words_N
        features_BWF = features_NF.new_zeros(*exists_BW.shape, self.output_size)
        features_BWF[exists_BW] = features_NF
        return SpeltWords(words_BW, num_words_B, features_BWF)

    def _spellings(self, spelt_BS: Tensor, is_character_BS: Tensor, is_word_BS: Tensor) -> Tensor:
        """Return the characters of each word as a row, padded with the last id, (N, C)."""
        words_so_far_BS = is_word_BS.flatten().cumsum(0).view_as(is_word_BS)
        word_of_character = words_so_far_BS[is_character_BS] - 1
        column_of_word_N = is_word_BS.nonzero()[:, 1]
        position = is_character_BS.nonzero()[:, 1] - column_of_word_N[word_of_character] - 1
        longest = int(position.max()) + 1 if len(position) else 1
        characters_NC = spelt_BS.new_full((len(column_of_word_N), longest), self.embedding.num_embeddings - 1)
        characters_NC[word_of_character, position] = spelt_BS[is_character_BS]
        return characters_NC

    def _read(self, characters_NC: Tensor) -> Tensor:
        distinct_UC, index_N = characters_NC.unique(dim=0, return_inverse=True)
        outputs_UFC = self.convolution(self.embedding(distinct_UC).transpose(1, 2)).relu()
        is_padding_UC = distinct_UC == self.embedding.num_embeddings - 1
        largest_UF = outputs_UFC.masked_fill(is_padding_UC[:, None], 0.0).amax(-1)
        return self.normalize(largest_UF)[index_N]
