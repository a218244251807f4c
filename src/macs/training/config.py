"""The configuration of a training run: a small TOML file, checked key by key."""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from macs.errors import ConfigError, unknown
from macs.models.build import FAMILIES, ModelConfig, build

#: The objectives of each family.
LOSSES = {**dict.fromkeys(FAMILIES, ("edm", "ect", "cd", "score")), "controlled": ("recon", "ect"), "blur": ("blur",)}


@dataclass(frozen=True)
class Stage:
    """A part of a run with one objective: its budget in images, its learning rate (from ``lr`` to ``lr_end``), its average.

    ``lpips`` is what LPIPS weighs beside the pixels' distance, where its network is given.
    """

    loss: str
    images: int
    lr: float
    lr_end: float
    ema: float = 0.9995
    warmup: int = 200
    doublings_from: int = 1
    doublings_to: int = 6
    huber: float = 0.015
    lpips: float = 1.0


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the weights of a run, besides the data."""

    name: str
    stages: tuple[Stage, ...]
    model: ModelConfig = field(default_factory=ModelConfig)
    seed: int = 0
    batch: int = 128
    nominal: float = 0.7
    drop: float = 0.1
    clip: float = 1.0
    flip: bool = False

    def steps(self, stage: int) -> int:
        """The number of steps of a stage."""
        return -(-self.stages[stage].images // self.batch)


def plain_values(config: TrainConfig) -> dict[str, Any]:
    """A configuration as plain values; what is younger than the first runs is there only where it is set."""
    values = dataclasses.asdict(config)
    if not config.flip:
        del values["flip"]
    for stage in values["stages"]:
        if stage["lpips"] == Stage.lpips:
            del stage["lpips"]
    return values


def load_config(path: Path) -> TrainConfig:
    """Read a TOML file; unknown keys and missing ones are errors."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is no training configuration ({error})") from error
    return parse_config(values)


def parse_config(values: dict[str, Any]) -> TrainConfig:
    """From plain values, as in the TOML file: ``[model]`` and one ``[[stage]]`` for each part."""
    values = dict(values)
    stages = tuple(made(Stage, stage, "stage setting") for stage in values.pop("stage", []))
    if not stages:
        raise ConfigError("a training configuration must have at least one [[stage]]; see src/macs/configs/fashion-mnist.toml")
    model = parse_model(values.pop("model", {}))
    for stage in stages:
        if stage.loss not in LOSSES[model.family]:
            raise unknown("loss", stage.loss, LOSSES[model.family])
    losses = [stage.loss for stage in stages]
    if "cd" in losses and "edm" not in losses[: losses.index("cd")]:
        raise ConfigError('a stage with loss = "cd" distils a denoiser; put a stage with loss = "edm" before it')
    if "score" in losses and set(losses) != {"score"}:
        raise ConfigError('loss = "score" goes on from a finished model; give it a configuration of its own, and --start')
    return made(TrainConfig, {**values, "stages": stages, "model": model}, "training setting")


def parse_model(values: Any) -> ModelConfig:
    """The network of ``[model]``, of which one can be built."""
    if not isinstance(values, dict):
        raise ConfigError(f"[model] must hold settings by name; got {values!r}")
    config = ModelConfig.of(values)
    for name, example in dataclasses.asdict(ModelConfig()).items():
        check_setting(f"model setting {name!r}", getattr(config, name), example)
    if len(config.image_shape) != 3 or not config.t_min < config.t_max:
        raise ConfigError(
            "model settings must have an image_shape of [channels, height, width] and t_min below t_max; "
            f"got {list(config.image_shape)}, {config.t_min} and {config.t_max}"
        )
    unit = config.patch * 2 ** (len(config.channels) - 1)
    if config.family in FAMILIES and any(n % unit for n in config.image_shape[1:]):
        raise ConfigError(f"the sides of 'image_shape' must be multiples of {unit} for this network; got {config.image_shape}")
    try:
        with torch.device("meta"):
            build(config)
    except (ConfigError, ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"no network can be built from the settings in [model] ({reason}); change them") from error
    return config


def check_setting(what: str, value: Any, example: Any) -> None:
    """Refuse a setting of a network that is of another kind than ``example``, or a number of 0."""
    if not isinstance(example, tuple):
        check_kind(what, value, type(example), least=1 if isinstance(example, int) else 1e-6)
    elif not isinstance(value, tuple) or not value:
        raise ConfigError(f"{what} must be a list of whole numbers; got {value!r}")
    else:
        for number in value:
            check_kind(what, number, int, least=1)


def made(cls: type, values: dict[str, Any], kind: str) -> Any:
    """An instance from plain values, with a sentence for a key that is unknown or missing."""
    known = {f.name: f for f in dataclasses.fields(cls)}
    for key in values:
        if key not in known:
            raise unknown(kind, key, known)
        check_kind(f"{kind} {key!r}", values[key], known[key].type, least=1 if key in COUNTS else 0)
    missing = [
        n
        for n, f in known.items()
        if n not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{kind} {missing[0]!r} must be given")
    return cls(**values)


#: Settings that count something and cannot be 0.
COUNTS = ("batch", "images", "warmup")
#: What a value of a TOML file must be where a setting is of one of these types.
KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
}


def check_kind(what: str, value: Any, kind: Any, least: float = 0) -> None:
    """Refuse a value of the wrong type; numbers must not be below ``least``."""
    if kind is bool and not isinstance(value, bool):
        raise ConfigError(f"{what} must be true or false; got {value!r}")
    if kind not in KINDS:
        return
    types, name = KINDS[kind]
    if isinstance(value, bool) or not isinstance(value, types):
        raise ConfigError(f"{what} must be {name}; got {value!r}")
    if isinstance(value, int | float) and not least <= value < float("inf"):
        raise ConfigError(f"{what} must be {name} of at least {least:g}; got {value!r}")
