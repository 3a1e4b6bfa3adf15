"""Settings: classes filled from YAML files, command-line flags and Python, with errors that name the line.

A :class:`Config` lists its options. If there is a choice (of an objective, a kernel, a model), each alternative is a
separate Config, identified by its ``name``, and the field that holds it is annotated with :class:`OneOf`. So an option
that the chosen alternative does not have is unknown by construction::

    class Kernel(Config):            # options of all kernels
        ...

    class Gibbs(Kernel):
        name: Literal["gibbs"] = "gibbs"
        blocks: int = setting(1, "positions masked together", ge=1)

    class Sampling(Config):
        kernel: Annotated[Kernel, OneOf(Kernel)] = setting("gibbs", "kernel of each sweep")

    Sampling(kernel=Gibbs(blocks=2)) == Sampling(kernel={"name": "gibbs", "blocks": 2}) == configure(
        Sampling, kernel="gibbs", blocks=2
    )

Nothing here imports torch.
"""

from __future__ import annotations

from seqwise.configuration.config import Config, OneOf, setting
from seqwise.configuration.flat import configure, dump, load

__all__ = ["Config", "OneOf", "configure", "dump", "load", "setting"]
