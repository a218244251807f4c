"""The networks of a benchmark: for each task a model that sees its measurements, and what else a solver is made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from macs.errors import ConfigError
from macs.models.consistency import ConsistencyModel
from macs.models.prior import Prior
from macs.models.store import catalogue, load, model_digest

#: The task that needs a blur network, and the one that is bundled.
NONLINEAR, BLUR = "nonlinear-deblurring", "blur64"


@dataclass(frozen=True)
class Names:
    """Networks beside the models, each a name or a path.

    Args:
        controls: ControlNets by task.
        blur: the blur of nonlinear deblurring.
        denoiser: what diffusion solvers walk down.
        deft: DEFT's correction of that denoiser.
    """

    controls: dict[str, str] = field(default_factory=dict)
    blur: str | None = None
    denoiser: str = "fashion-mnist-edm"
    deft: str | None = None

    def control(self, model: str, task: str) -> str | None:
        """The ControlNet of a model for a task: the one that was given, else the bundled one, else none."""
        bundled = f"{model}-{task}"
        return self.controls.get(task, bundled if bundled in catalogue() else None)

    def digests(self, models: Sequence[str], tasks: Sequence[str], parts: Iterable[str]) -> dict[str, str]:
        """The SHA-256 of every network that rows come from; ``parts`` are the fields of :class:`Networks` that are used."""
        out = {}
        for model in models:
            out[model] = model_digest(model)
            for task in tasks:
                control = self.control(model, task)
                if control is not None:
                    out[f"{model}, {task}"] = model_digest(control)
        others = {"denoiser": self.denoiser, "deft": self.deft}
        out |= {part: model_digest(name) for part, name in others.items() if part in parts and name is not None}
        return out | {"blur": model_digest(self.blur or BLUR)} if NONLINEAR in tasks else out


@dataclass(frozen=True)
class Networks:
    """What a solver is made of: the model of its task, and what is loaded when a solver first asks for it.

    ``compiled`` runs the backbone of every network through ``torch.compile``.
    """

    model: ConsistencyModel
    names: Names
    compiled: bool = False

    @property
    def prior(self) -> Prior:
        """The model without its measurement."""
        return Prior(self.model)

    @cached_property
    def denoiser(self) -> ConsistencyModel:
        """A posterior mean."""
        return prepared(load(self.names.denoiser), self.compiled)

    @cached_property
    def deft(self) -> ConsistencyModel:
        """DEFT's correction of the denoiser."""
        if self.names.deft is None:
            raise ConfigError("DEFT needs the network that corrects its denoiser; give --deft PATH")
        return prepared(load(self.names.deft), self.compiled)


def loaded(names: Names, model: str, task: str, compiled: bool = False) -> Networks:
    """The networks for a task."""
    return Networks(prepared(load(model, control=names.control(model, task)), compiled), names, compiled)


def prepared(network: ConsistencyModel, compiled: bool) -> ConsistencyModel:
    """The network, its backbone compiled if asked for."""
    if compiled:
        network.compile_network()
    return network


def check_conditions(names: Names, models: Iterable[str], tasks: Iterable[str]) -> None:
    """Refuse a model that would not see the measurements of a task, before anything is computed."""
    for model in models:
        alone = [task for task in tasks if names.control(model, task) is None]
        if alone and not hasattr(load(model), "condition"):
            raise ConfigError(
                f"a model must see the measurements; {model} alone does not, and there is no ControlNet of it for {alone[0]}; "
                f"give --control {alone[0]}=PATH, or leave the task out"
            )
