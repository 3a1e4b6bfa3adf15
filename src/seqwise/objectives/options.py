"""Options that several objectives share, and the class that a named objective extends.

Nothing here imports torch, so that the command line can list the options quickly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator, model_validator

from seqwise.configuration import Config, setting
from seqwise.configuration.config import WrongValue
from seqwise.configuration.written import did_you_mean
from seqwise.errors import InputError
from seqwise.names import AlphaUnitName, CostName, Feeding, FeedingPasses, ScoreName
from seqwise.schedules import Alpha, Probability, Schedule

if TYPE_CHECKING:
    from torch import Tensor, nn

    from seqwise.objectives.objective import Objective

BEAM = "beam size, in training and decoding"
"""Help text for beam sizes."""

ALPHA_UNIT = "unit of alpha: that of the scores, or gaps (alpha is divided by the mean squared gap of the best scores)"
"""Help text for the unit of alpha."""

RELAXATION = "inverse temperature of the relaxation: a number, linear(a, b) or exponential(a, b)"
"""Help text for alpha."""


@dataclass(frozen=True)
class Context:
    """Facts about the model and the data that some objectives need.

    Args:
        end: id of the end token, or None.
        tokens: all output tokens, in the order of their ids.
        log_noise_V: function that returns log q of the noise tokens.
        teacher: function that returns the model to distil.
    """

    end: int | None = None
    tokens: Sequence[str] = ()
    log_noise_V: Callable[[], Tensor] | None = None
    teacher: Callable[[], nn.Module] | None = None


NOTHING = Context()
"""An empty context."""


class ObjectiveConfig(Config):
    """A training objective with its options.

    A subclass has a ``name: Literal["..."]``, a field for each option and :meth:`build`; see docs/extending.md.
    """

    name: Any  # narrowed to a Literal by each subclass; checkers refuse that of a mutable str

    from_scratch: ClassVar[bool] = False
    """Whether it trains new weights, without a warm start."""

    searches: ClassVar[bool] = False
    """Whether it searches with a beam."""

    self_normalizing: ClassVar[bool] = False
    """Whether it penalises log Z."""

    @property
    def trained_score(self) -> ScoreName:
        """The score that it trains; raw scores are trained only if whole outputs are normalised."""
        return "local"

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules that its losses read, by the names of the values."""
        return {}

    @property
    def relaxes(self) -> bool:
        """Whether it contains a relaxation that alpha controls."""
        return False

    @property
    def steps_singly(self) -> bool:
        """Whether it steps the model token by token."""
        return self.searches

    @property
    def unrolls(self) -> bool:
        """Whether gradients flow through single steps, which gradient checkpointing can recompute."""
        return self.steps_singly

    def loss_unit(self, token: str) -> str:
        """Describe the unit of its loss and the terms added to it; ``token`` is "label" or "token"."""
        return f"nats per {token}"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the function ``objective(model, batch, values)`` that a training step minimises.

        Raises:
            InputError: an option does not fit the context, or the context lacks something that it needs.
        """
        raise NotImplementedError


class Penalized(ObjectiveConfig):
    """Options of the objectives that penalise log Z."""

    from_scratch = True
    self_normalizing = True

    weight: float = setting(0.1, "weight of (log Z)^2", flag="log_partition_weight", ge=0)
    fraction: float = setting(
        1.0, "fraction of the positions that is penalised", flag="log_partition_fraction", gt=0, le=1
    )

    def loss_unit(self, token: str) -> str:
        return f"nats per {token}, + {self.weight:g} x (log Z)^2"


SCORES = (
    "local (log-softmax) or global (raw) scores, or renormalized ones (log-softmax over the tokens that --language "
    "allows)"
)


class Searching(ObjectiveConfig):
    """Options of the objectives that search with a beam."""

    searches = True

    search_unit: ClassVar[str] = "nats"
    """Unit of the loss of the search itself."""

    k: int = setting(5, BEAM, flag="beam_size", ge=1)
    score: ScoreName = setting("local", SCORES, readers="search-aware objectives")
    cross_entropy_weight: float = setting(0.1, "weight of added cross-entropy", readers="search-aware objectives", ge=0)

    @property
    def trained_score(self) -> ScoreName:
        return self.score

    def loss_unit(self, token: str) -> str:
        added = f", + {self.cross_entropy_weight:g} x cross-entropy" if self.cross_entropy_weight else ""
        return f"{self.search_loss_unit(token)} per {token}{added}"

    def search_loss_unit(self, token: str) -> str:
        """Describe the unit of the loss of the search itself."""
        return self.search_unit

    def beam(self) -> dict[str, Any]:
        """Return the arguments that all losses of a search take."""
        return {"k": self.k, "score": self.score, "cross_entropy_weight": self.cross_entropy_weight}


LOST_MARGIN = "nats by which gold loses in the beam,"
"""Unit of the losses that are margins."""


class Annealed(Config):
    """Option of objectives whose outputs or slots alpha weights."""

    alpha: Alpha = setting("exponential(1, 8)", RELAXATION, metavar="SCHEDULE")

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Alpha."""
        return {"alpha": self.alpha}

    @property
    def relaxes(self) -> bool:
        """Always true."""
        return True


class Relaxed(Annealed):
    """Options of a relaxed beam."""

    unit: AlphaUnitName = setting("scores", ALPHA_UNIT, flag="alpha_unit")

    def alpha_unit(self) -> Any:
        """Return the function that computes the divisor of alpha."""
        from seqwise.search.operators import ALPHA_UNITS

        return ALPHA_UNITS[self.unit]


class Cost(Config):
    """The cost option of objectives with a task cost."""

    cost: CostName = setting("hamming", "task cost of an output")


class Costed(Cost):
    """Options of a search with a cost for each token."""

    wrong_label_costs: str = setting("", "cost of predicting a label wrongly, as in 'O=2,X=.5'", metavar="COSTS")

    @field_validator("wrong_label_costs")
    @classmethod
    def _are_costs(cls, text: str) -> str:
        try:
            parse_label_costs(text)
        except InputError as error:
            raise WrongValue("{name}: " + error.problem, hint=error.hint) from None
        return text

    @model_validator(mode="after")
    def _one_cost(self) -> Any:
        if self.cost == "edit-distance" and self.wrong_label_costs:
            raise InputError("cost: edit-distance weighs all labels alike", hint="leave wrong-label-costs out")
        return self

    def cost_name(self, token: str) -> str:
        """Describe the unit of the cost, in the plural."""
        return "cost" if self.wrong_label_costs else "edits" if self.cost == "edit-distance" else f"wrong {token}s"

    def token_cost(self, context: Context) -> dict[str, Any]:
        """Return the cost of tokens as an argument, empty for the default.

        Raises:
            InputError: a cost names an unknown token.
        """
        if self.cost == "edit-distance":
            from seqwise.search.costs import edit_distance_cost

            return {"cost": partial(edit_distance_cost, end=context.end)}
        costs = parse_label_costs(self.wrong_label_costs)
        if not costs:
            return {}
        unknown = [label for label in costs if label not in context.tokens]
        if unknown:
            problem = f"wrong_label_costs: the training data have no label {unknown[0]!r}"
            raise InputError(problem, hint=did_you_mean(unknown[0], context.tokens))
        import torch

        from seqwise.objectives.search_aware import hamming_cost

        weights_V = torch.tensor([costs.get(label, 1.0) for label in context.tokens])
        return {"cost": lambda gold_BT, size: hamming_cost(gold_BT, size, weights=weights_V.to(gold_BT.device))}


def parse_label_costs(text: str) -> dict[str, float]:
    """Parse ``"O=2, B-PER=0.5"`` into a number per label; a label may contain "=".

    Raises:
        InputError: an entry is not ``LABEL=NUMBER`` with a finite number greater than 0, or a label comes twice.

    Example:
        >>> parse_label_costs("O=2, B-PER=0.5")
        {'O': 2.0, 'B-PER': 0.5}
    """
    costs: dict[str, float] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        label, _, number = (part.strip() for part in entry.rpartition("="))
        try:
            cost = float(number)
        except ValueError:
            cost = math.nan
        if not label or not 0 < cost < math.inf:
            raise InputError(f"{entry!r} is not the cost of a label", hint="write LABEL=NUMBER, such as O=2")
        if label in costs:
            raise InputError(f"the label {label!r} has two costs", hint="give one")
        costs[label] = cost
    return costs


# ---------------------------------------------------------------------------------------- likelihoods over a beam


class Mixed(Relaxed, Costed, Searching):
    """Options of an objective to which relaxed-beam loss can be added; alpha and its unit serve decoding as well."""

    direct_loss_weight: float = setting(0.0, "weight of an added relaxed-beam loss", ge=0)

    @model_validator(mode="after")
    def _reads_cost(self) -> Any:
        for name in ("cost", "wrong_label_costs"):
            if self.direct_loss_weight == 0 and getattr(self, name) != type(self).model_fields[name].default:
                hint = "leave it out, or give direct_loss_weight"
                raise InputError(f"{name}: {self.name} does not use it", hint=hint)
        return self

    @property
    def schedules(self) -> dict[str, Schedule]:
        return {"alpha": self.alpha} if self.relaxes else {}

    @property
    def relaxes(self) -> bool:
        """Whether relaxed-beam loss is added."""
        return self.direct_loss_weight > 0

    def loss_unit(self, token: str) -> str:
        direct = f", + {self.direct_loss_weight:g} x expected {self.cost_name(token)}"
        return super().loss_unit(token) + (direct if self.direct_loss_weight else "")

    def mixed(self, searched: Objective, context: Context) -> Objective:
        """Add the relaxed-beam loss."""
        if self.direct_loss_weight == 0:
            return searched
        from seqwise.objectives.objective import mixed_objective
        from seqwise.objectives.search_aware import relaxed_beam_objective

        options = {"unit": self.alpha_unit(), **self.token_cost(context)}
        relaxed = relaxed_beam_objective(k=self.k, score=self.score, **options)
        return mixed_objective([searched, relaxed], [1.0, self.direct_loss_weight])


class Committed(Mixed):
    """Options of an objective that can train on the search of a stream."""

    commit_delay: int | None = setting(
        None,
        "train for a stream that commits each label N tokens later; a wrong commit is a violation",
        ge=0,
    )

    def beam(self) -> dict[str, Any]:
        """Return the arguments of the search, with the delay."""
        return {**super().beam(), "commit_delay": self.commit_delay}


class OutputCosted(Cost, Searching):
    """Options of the objectives with a cost for each whole output."""

    @property
    def unrolls(self) -> bool:
        """Always false: the beam is found without gradients, and rescored in one pass."""
        return False

    def output_cost(self) -> dict[str, Any]:
        """Return the cost of whole outputs as an argument."""
        from seqwise.objectives.risk import edit_distances, hamming_distances

        return {"cost": edit_distances if self.cost == "edit-distance" else hamming_distances}


class Sampling(Config):
    """Options of scheduled sampling."""

    feeding: Feeding = setting("greedy", "the model's choice that is fed instead of gold")
    feeding_passes: FeedingPasses = setting(
        "step-by-step", "two-pass (transformers) predicts all positions at once from gold, and feeds these predictions"
    )
    gold_probability: Probability = setting(
        "linear(1, 0)",
        "probability of feeding gold: a number, linear(a, b), inverse_sigmoid(k) ...",
        metavar="SCHEDULE",
    )
    alpha: Alpha = setting("exponential(1, 8)", RELAXATION, metavar="SCHEDULE")
