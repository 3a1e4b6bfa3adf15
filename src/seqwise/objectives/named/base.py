"""Base of all named objectives, and the options that several of them share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import field_validator, model_validator

from seqwise.configuration import Config, OneOf, setting
from seqwise.configuration.config import WrongValue
from seqwise.configuration.written import did_you_mean
from seqwise.errors import InputError
from seqwise.names import AlphaUnitName, CostName, ScoreName
from seqwise.schedules import Alpha, Schedule

if TYPE_CHECKING:
    from torch import Tensor, nn

    from seqwise.objectives.objective import Objective


@dataclass(frozen=True)
class Context:
    """Context of an objective: facts about the model and the data that some of them need.

    Args:
        end: the token that ends an output, or None.
        tokens: all output tokens, in the order of their ids.
        log_noise_V: called for log q of the noise tokens.
        teacher: called for the model that is distilled.
    """

    end: int | None = None
    tokens: Sequence[str] = ()
    log_noise_V: Callable[[], Tensor] | None = None
    teacher: Callable[[], nn.Module] | None = None


NOTHING = Context()
"""A context in which nothing is known."""


class ObjectiveConfig(Config):
    """A training objective with its options.

    A subclass has a ``name: Literal["..."]``, a field for each option and :meth:`build`; see docs/extending.md.
    """

    name: str

    from_scratch: ClassVar[bool] = False
    """Whether it trains new weights, without a warm start."""

    searches: ClassVar[bool] = False
    """Whether it looks at a beam of outputs."""

    self_normalizing: ClassVar[bool] = False
    """Whether it draws log Z to a constant."""

    @property
    def trained_score(self) -> ScoreName:
        """Scores that it trains: raw ones count only where the whole output is normalised."""
        return "local"

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules that its losses read, by the names under which they get the values."""
        return {}

    @property
    def relaxes(self) -> bool:
        """Whether there is a relaxed beam in it."""
        return False

    @property
    def steps_singly(self) -> bool:
        """Whether it takes one step of the model after the other."""
        return self.searches

    def loss_unit(self, token: str) -> str:
        """Name what its loss counts, per gold token; what is added to that is named too.

        Args:
            token: "label" or "token".
        """
        return f"nats per {token}"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the function ``objective(model, batch, values)`` that a training step minimises.

        Raises:
            InputError: an option does not go with the context, or needs more of it.
        """
        raise NotImplementedError


AnyObjective = Annotated[ObjectiveConfig, OneOf(ObjectiveConfig)]
"""A setting that is a named objective."""


BEAM = "slots of the beam, in training and decoding; fewer where there are fewer candidates"
"""Help on the size of a beam."""

RELAXATION = "inverse temperature of relaxations: a number, linear(a, b) or exponential(a, b)"
"""Help on alpha."""


class Penalized(ObjectiveConfig):
    """Options of the objectives that draw log Z to a constant."""

    from_scratch = True
    self_normalizing = True

    weight: float = setting(0.1, "weight of (log Z)^2", flag="log_partition_weight", ge=0)
    fraction: float = setting(
        1.0, "the part of the positions that is penalised", flag="log_partition_fraction", gt=0, le=1
    )

    def loss_unit(self, token: str) -> str:
        """Nats, and the penalty."""
        return f"nats per {token}, + {self.weight:g} x (log Z)^2"


class Searching(ObjectiveConfig):
    """Options of the objectives that see a beam."""

    searches = True

    k: int = setting(5, BEAM, flag="beam_size", ge=1)
    score: ScoreName = setting("local", "local (log-softmax) or global (raw) scores", readers="search-aware objectives")
    cross_entropy_weight: float = setting(0.1, "weight of added cross-entropy", readers="search-aware objectives", ge=0)

    @property
    def trained_score(self) -> ScoreName:
        """The scores that it searches with."""
        return self.score

    def loss_unit(self, token: str) -> str:
        """Unit of the loss, and the added cross-entropy."""
        return self.counted(token) + self.added()

    def counted(self, token: str) -> str:
        """Name what the loss of the search itself counts."""
        return f"nats per {token}"

    def added(self) -> str:
        """Name the added cross-entropy, where there is any."""
        return f", + {self.cross_entropy_weight:g} x cross-entropy" if self.cross_entropy_weight else ""

    def beam(self) -> dict[str, Any]:
        """The options that all losses of a search take."""
        return {"k": self.k, "score": self.score, "cross_entropy_weight": self.cross_entropy_weight}


class Relaxed(Config):
    """Options of a relaxed beam."""

    alpha: Alpha = setting(
        "exponential(1, 8)",
        RELAXATION,
        metavar="SCHEDULE",
    )
    unit: AlphaUnitName = setting(
        "scores", "gaps: alpha is divided by the mean squared gap of the best scores", flag="alpha_unit"
    )

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Alpha."""
        return {"alpha": self.alpha}

    @property
    def relaxes(self) -> bool:
        """Always."""
        return True

    def alpha_unit(self) -> Any:
        """The function that alpha is divided by."""
        from seqwise.search.operators import mean_squared_gap, of_scores

        return {"scores": of_scores, "gaps": mean_squared_gap}[self.unit]


class Costed(Config):
    """Options of a search that knows what each wrong token costs."""

    cost: CostName = setting("hamming", "what a wrong output costs")
    wrong_label_costs: str = setting("", "cost of wrongly choosing a label, as in 'O=2,X=.5'", metavar="COSTS")

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
        """Unit of the cost, in the plural."""
        return "cost" if self.wrong_label_costs else "edits" if self.cost == "edit-distance" else f"wrong {token}s"

    def token_cost(self, context: Context) -> dict[str, Any]:
        """The cost of tokens as an argument, where it is not the default.

        Raises:
            InputError: a cost is that of a token that there is not.
        """
        if self.cost == "edit-distance":
            from functools import partial

            from seqwise.search.costs import edit_distance_cost

            return {"cost": partial(edit_distance_cost, end=context.end)}
        costs = parse_label_costs(self.wrong_label_costs)
        if not costs:
            return {}
        unknown = [label for label in costs if label not in context.tokens]
        if unknown:
            problem = f"wrong_label_costs: no label of the training data is called {unknown[0]!r}"
            raise InputError(problem, hint=did_you_mean(unknown[0], context.tokens))
        import torch

        from seqwise.objectives.search_aware import hamming_cost

        weights_V = torch.tensor([costs.get(label, 1.0) for label in context.tokens])
        return {"cost": lambda gold_BT, size: hamming_cost(gold_BT, size, weights=weights_V.to(gold_BT.device))}


class Mixed(Relaxed, Costed, Searching):
    """Options of an objective to which relaxed-beam loss can be added; alpha and its unit serve decoding as well."""

    direct_loss_weight: float = setting(0.0, "weight of added relaxed-beam loss", ge=0)

    @model_validator(mode="after")
    def _reads_cost(self) -> Any:
        for name in ("cost", "wrong_label_costs"):
            if self.direct_loss_weight == 0 and getattr(self, name) != type(self).model_fields[name].default:
                hint = "leave it out, or give direct_loss_weight"
                raise InputError(f"{name}: {self.name} does not use it", hint=hint)
        return self

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Alpha, where it is read."""
        return {"alpha": self.alpha} if self.relaxes else {}

    @property
    def relaxes(self) -> bool:
        """Whether relaxed-beam loss is added."""
        return self.direct_loss_weight > 0

    def loss_unit(self, token: str) -> str:
        """Unit of the loss, and all that is added."""
        direct = f", + {self.direct_loss_weight:g} x expected {self.cost_name(token)}"
        return super().loss_unit(token) + (direct if self.direct_loss_weight else "")

    def mixed(self, searched: Objective, context: Context) -> Objective:
        """Add the relaxed-beam loss."""
        if self.direct_loss_weight == 0:
            return searched
        from seqwise.objectives.objective import mixed_objective, relaxed_beam_objective

        options = {"unit": self.alpha_unit(), **self.token_cost(context)}
        relaxed = relaxed_beam_objective(k=self.k, score=self.score, **options)
        return mixed_objective([searched, relaxed], [1.0, self.direct_loss_weight])


def parse_label_costs(text: str) -> dict[str, float]:
    """``"O=2, B-PER=0.5"`` to numbers by label; a label may itself hold "=".

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
