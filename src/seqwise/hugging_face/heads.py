"""Heads that map a decoder's last hidden vectors to scores, with the model's own weights and operations.

Shapes: H features, V output vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seqwise.models.heads import LinearOverLayer


def head_of(model: nn.Module) -> nn.Module:
    """Return the head of a language model: its own linear layer, ``W h + b``, if it is linear.

    A linear head can compute single scores. Otherwise the head is a module without its own parameters, which reads
    those of the model at every call.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=5, n_embd=4, n_layer=1, n_head=1))
        >>> head_of(model) is model.lm_head
        True
    """
    head = OutputHead(model)
    if type(head.linear) is not nn.Linear or head.is_nonlinear:
        return head
    return head.linear if head.logits_bias is None else LinearHead(model)


def head_shape(model: Any) -> torch.Size:
    """Return the shape (V, H) of the weights of the output embeddings.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> head_shape(GPT2LMHeadModel(GPT2Config(vocab_size=5, n_embd=4, n_layer=1, n_head=1)))
        torch.Size([5, 4])
    """
    weight = model.get_output_embeddings().weight
    shape: torch.Size = (weight() if callable(weight) else weight).shape  # a method in torch's quantised layers
    return shape


class OutputHead(nn.Module):
    """Head of output embeddings and, if the model has them, a bias, a factor, a divisor and a soft cap.

    ``f = c tanh(g / c)``, ``g = (W h + b) m / n``.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple, so that the module is not registered

    @property
    def linear(self) -> nn.Module:
        """The output embeddings."""
        module: nn.Module = self._model[0].get_output_embeddings()  # type: ignore[operator]
        return module

    @property
    def logits_bias(self) -> Tensor | None:
        """The bias that Marian and BART add to every row of scores, (1, V)."""
        return getattr(self._model[0], "final_logits_bias", None)

    @property
    def is_nonlinear(self) -> bool:
        """Whether the head does more than add a bias."""
        return any(value is not None for value in self._operations())

    def _operations(self) -> tuple[float | None, float | None, float | None]:
        """Return the factor (Cohere), divisor (Granite) and soft cap (Gemma 2)."""
        model: Any = self._model[0]
        config = model.config.get_text_config(decoder=True)
        return (
            getattr(model, "logit_scale", None),
            getattr(config, "logits_scaling", None),
            getattr(config, "final_logit_softcapping", None),
        )

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.linear(features)
        if self.logits_bias is not None:
            scores = scores + self.logits_bias
        factor, divisor, cap = self._operations()
        if factor is not None:
            scores = scores * factor
        if divisor is not None:
            scores = scores / divisor
        return scores if cap is None else torch.tanh(scores / cap) * cap


class LinearHead(LinearOverLayer):
    """Head ``W h + b`` with the weights of a model's output embeddings and a bias that the model adds elsewhere."""

    def __init__(self, model: nn.Module) -> None:
        nn.Module.__init__(self)
        self._parts = (OutputHead(model),)
        self.out_features, self.in_features = self.weight.shape

    @property
    def layer(self) -> nn.Module:
        """The output embeddings."""
        return self._parts[0].linear

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """W, (V, H)."""
        weight: Any = self._parts[0].linear.weight
        return weight

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """b, (V)."""
        own: Any = self._parts[0].linear.bias
        added: Any = self._parts[0].logits_bias
        return added[0] if own is None else own + added[0]

    def forward(self, features: Tensor) -> Tensor:
        return self._parts[0](features)
