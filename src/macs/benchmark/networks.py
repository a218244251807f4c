"""The networks of a benchmark: for each task a model that sees its measurements, and what else a solver is made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from macs.errors import ConfigError
from macs.models.consistency import ConsistencyModel
from macs.models.store import catalogue, load, model_digest

#: The task that needs a blur network, and the one that is bundled.
NONLINEAR, BLUR = "nonlinear-deblurring", "blur64"


@dataclass(frozen=True)
class Names:
    """Networks beside the models, each a name or a path: ControlNets by task, and the blur of nonlinear deblurring."""

    controls: dict[str, str] = field(default_factory=dict)
    blur: str | None = None

    def control(self, model: str, task: str) -> str | None:
        """The ControlNet of a model for a task: the one that was given, else the bundled one, else none."""
        bundled = f"{model}-{task}"
        return self.controls.get(task, bundled if bundled in catalogue() else None)

    def digests(self, models: Sequence[str], tasks: Sequence[str]) -> dict[str, str]:
        """The SHA-256 of every network that rows come from, by what it is there for."""
        out = {}
        for model in models:
            out[model] = model_digest(model)
            for task in tasks:
                control = self.control(model, task)
                if control is not None:
                    out[f"{model}, {task}"] = model_digest(control)
        return out | {"blur": model_digest(self.blur or BLUR)} if NONLINEAR in tasks else out


@dataclass(frozen=True)
class Networks:
    """What a solver is made of."""

    model: ConsistencyModel


def loaded(names: Names, model: str, task: str) -> Networks:
    """The networks for a task."""
    return Networks(load(model, control=names.control(model, task)))


def check_conditions(names: Names, models: Iterable[str], tasks: Iterable[str]) -> None:
    """Refuse a model that would not see the measurements of a task, before anything is computed."""
    for model in models:
        alone = [task for task in tasks if names.control(model, task) is None]
        if alone and not hasattr(load(model), "condition"):
            raise ConfigError(
                f"a model must see the measurements; {model} alone does not, and there is no ControlNet of it for {alone[0]}; "
                f"give --control {alone[0]}=PATH, or leave the task out"
            )
