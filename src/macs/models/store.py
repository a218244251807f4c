"""Where weights are kept: one safetensors file per model, half precision, with its configuration in the header.

A bundled model's SHA-256 is checked before anything in it is parsed, a file of your own against ``<file>.sha256`` if there is
one; then the configuration, the names, the shapes and the numbers. What is loaded is whole, or a sentence says what is wrong.
"""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor, nn

from macs.errors import ConfigError, MacsError, ModelError
from macs.models import manifest
from macs.models.backbone import folder_digest, folder_of, from_pretrained, is_repository, load_backbone, stored_shape
from macs.models.build import PARTS, ModelConfig, build
from macs.models.consistency import ConsistencyModel
from macs.models.controlnet import ControlledModel, ControlNet
from macs.models.manifest import catalogue, verify
from macs.models.nonlinear_blur import BlurNetwork
from macs.models.transform import HTransform
from macs.training.checkpoint import write_atomically

__all__ = ["catalogue", "load", "read_model", "register", "save_model", "verify"]

#: The largest whole number a configuration may hold, and by key where it is smaller; a damaged file must not ask for a giant.
LARGEST = 4096
SMALLER = {"layers": 16, "patch": 64}
DAMAGED = "it is damaged or was made by another version; get it again"


def load(
    name_or_path: str | Path, task: str | None = None, *, control: str | Path | None = None, label: int | None = None
) -> ConsistencyModel:
    """A model, ready to use: float32, evaluation mode, no gradients.

    Args:
        name_or_path: a name that ``macs models list`` shows, the path of a ``.safetensors`` file, a diffusers folder, or a
            repository of the Hugging Face Hub (``owner/name``).
        task: a task, such as "inpainting", to attach the bundled ControlNet for it, ``<name>-<task>``.
        control: a ControlNet to attach instead: a diffusers folder, such as ``macs models convert`` makes of CoSIGN's files,
            or the path of a ``.safetensors`` file.
        label: the class to draw from, for a model of classes.
    """
    if not is_own(name_or_path):
        model = load_backbone(name_or_path, label)
    elif label is not None:
        raise ConfigError(f"{name_or_path} knows no classes; leave label out; got {label}")
    else:
        model = load_own(name_or_path)
    if task is not None and control is not None:
        raise ConfigError(f"task and control both name a ControlNet; give one of them; got {task!r} and {str(control)!r}")
    if task is not None:
        control = f"{name_or_path}-{task}"
    return model if control is None else ControlledModel(model, load_control(control)).eval()


def is_own(name_or_path: str | Path) -> bool:
    """Whether a name stands for a model or a file of this package, and not for a diffusers folder or repository."""
    if Path(name_or_path).is_dir():
        return False
    return (
        str(name_or_path) in catalogue() or str(name_or_path).endswith(".safetensors") or not is_repository(str(name_or_path))
    )


def load_own(name_or_path: str | Path) -> ConsistencyModel:
    """A model from a file of this package."""
    model, config, info = stored(name_or_path)
    if not isinstance(model, ConsistencyModel):
        raise ModelError(
            f"{name_or_path} is a {PARTS[config.family]} and no model by itself; "
            "attach a ControlNet with macs.load(backbone, control=...), give a blur network to macs.task"
        )
    model.digest = model_digest(name_or_path)
    if isinstance(model, HTransform):
        model.trained_with = str(info.get("denoiser_sha256", ""))
    return model


def load_control(name_or_path: str | Path) -> ControlNet:
    """A ControlNet from a diffusers folder, or from a file of this package."""
    if Path(name_or_path).is_dir():
        return from_pretrained(ControlNet, Path(name_or_path)).eval().requires_grad_(False)
    control, _, info = stored(name_or_path)
    if not isinstance(control, ControlNet):
        raise ModelError(f"{name_or_path} must hold a ControlNet; it holds another network; load that by itself")
    control.register_to_config(backbone=str(info.get("fingerprint", "")))
    return control


def load_blur(name_or_path: str | Path) -> BlurNetwork:
    """A blur network from a diffusers folder, or from a file of this package."""
    if Path(name_or_path).is_dir():
        return from_pretrained(BlurNetwork, Path(name_or_path)).eval().requires_grad_(False)
    network = stored(name_or_path)[0]
    if not isinstance(network, BlurNetwork):
        raise ModelError(f"{name_or_path} must hold a blur network; it holds another network; load that by itself")
    return network


def stored(name_or_path: str | Path) -> tuple[nn.Module, ModelConfig, dict[str, Any]]:
    """The network in a file of this package, ready to use, its configuration, and what its maker said of it."""
    tensors, config, info = read_model(name_or_path)
    network = skeleton(config)
    if isinstance(network, ConsistencyModel):
        network.kind = checked_kind(info.get("kind", network.kind), str(name_or_path))
    check_fit(tensors, network.state_dict(), str(name_or_path))
    network.load_state_dict(tensors, assign=True)
    return network.to(memory_format=torch.channels_last).eval().requires_grad_(False), config, info


def save_model(path: str | Path, model_state: dict[str, Tensor], config: ModelConfig, info: dict[str, Any]) -> str:
    """Write a model in half precision, and its SHA-256 beside it; returns that.

    The old digest is removed first and the new one written last, so that no interruption leaves a file beside another's digest.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ConfigError(f"a model file must be named .safetensors; got {path.name!r}")
    check_fit(model_state, skeleton(config).state_dict(), "the model to be saved")
    half = {name: t.detach().to("cpu", torch.float16).contiguous() for name, t in model_state.items()}
    check_finite(half, "the model to be saved, in half precision,")
    record = json.dumps({"config": dataclasses.asdict(config), "info": info}, sort_keys=True)
    content = tensor_bytes(half, metadata={"model": record})
    sidecar(path).unlink(missing_ok=True)
    write_atomically(path, content)
    write_atomically(sidecar(path), f"{manifest.digest(content)}  {path.name}\n".encode())
    return manifest.digest(content)


def read_model(name_or_path: str | Path) -> tuple[dict[str, Tensor], ModelConfig, dict[str, Any]]:
    """The tensors of a model in float32, its configuration, and what its maker said of it."""
    content, label = model_bytes(name_or_path), str(name_or_path)
    try:
        stored = parse_tensors(content)
        record = json.loads(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["model"])
        values, info = record["config"], dict(record["info"])
    except KeyError as error:
        raise ModelError(f"{label} is no model file of this package (it has no {error}); {DAMAGED}") from error
    except (SafetensorError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise ModelError(f"{label} is no readable model file ({' '.join(str(error).split())[:200]}); {DAMAGED}") from error
    for name, tensor in stored.items():
        if tensor.dtype not in (torch.float16, torch.float32):
            raise ModelError(f"{label} must hold numbers in half or single precision; {name!r} is {tensor.dtype}; {DAMAGED}")
    check_finite(stored, label)
    return {name: t.to(torch.float32, copy=True) for name, t in stored.items()}, checked_config(values, label), info


def model_bytes(name_or_path: str | Path) -> bytes:
    """The content of a bundled model or of a file, checked against its digest."""
    path = Path(name_or_path)
    if str(name_or_path) in catalogue() or path.suffix != ".safetensors":
        return manifest.released_bytes(str(name_or_path))
    content = manifest.read_bytes(path)
    if sidecar(path).exists():
        expected = manifest.read_bytes(sidecar(path)).split()[:1] or [b""]
        manifest.check_digest(content, expected[0].decode("ascii", "replace"), path)
    return content


def model_digest(name_or_path: str | Path) -> str:
    """The SHA-256 of a model's bytes; for a diffusers folder or repository over its files."""
    if is_own(name_or_path):
        return manifest.digest(model_bytes(name_or_path))
    return folder_digest(folder_of(name_or_path))


def image_shape(name_or_path: str | Path) -> tuple[int, int, int]:
    """(C, H, W) of the images that a model takes, read without its network."""
    if not is_own(name_or_path):
        return stored_shape(folder_of(name_or_path))
    c, h, w = read_model(name_or_path)[1].image_shape
    return c, h, w


def sidecar(path: Path) -> Path:
    """Where the digest of a model file is kept, in the form of ``sha256sum``."""
    return path.with_name(path.name + ".sha256")


def skeleton(config: ModelConfig) -> nn.Module:
    """The network of a configuration, with shapes and no numbers."""
    try:
        with torch.device("meta"):
            return build(config)
    except (MacsError, ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        raise ModelError(f"no network can be built from {config} ({' '.join(str(error).split())[:200]}); {DAMAGED}") from error


def checked_config(values: Any, label: str) -> ModelConfig:
    """The configuration in a file: known keys, values of the right kind, numbers within reason."""
    if not isinstance(values, dict):
        raise ModelError(f"{label} must hold a configuration by keys; got {type(values).__name__}; {DAMAGED}")
    kinds = dataclasses.asdict(ModelConfig())
    for key, value in values.items():
        if key in kinds and not plausible(value, kinds[key], SMALLER.get(key, LARGEST)):
            raise ModelError(f"{label} has an impossible setting {key} = {str(value)[:50]}; {DAMAGED}")
    try:
        config = ModelConfig.of(values)
    except MacsError as error:
        raise ModelError(f"{label} has a configuration that is none ({error})") from error
    if len(config.image_shape) != 3 or not config.t_min < config.t_max:
        raise ModelError(f"{label} must have an image shape (C, H, W) and t_min < t_max; got {config}; {DAMAGED}")
    return config


def checked_kind(kind: Any, label: str) -> str:
    """What the network was trained to be, as its maker said; a consistency model where nothing is said."""
    if kind not in ("consistency", "denoiser"):
        raise ModelError(f"{label} must be of the kind 'consistency' or 'denoiser'; got {str(kind)[:50]!r}; {DAMAGED}")
    return kind


def plausible(value: Any, example: Any, largest: int) -> bool:
    """Whether a setting read from JSON is of the kind of ``example``, and a number neither absurd nor below zero."""
    if isinstance(example, tuple):
        return isinstance(value, list) and 1 <= len(value) <= 8 and all(plausible(v, example[0], largest) for v in value)
    if isinstance(example, int):
        return type(value) is int and 1 <= value <= largest
    if isinstance(example, float):
        return type(value) in (int, float) and math.isfinite(value) and 0 < value < 1e6
    return type(value) is type(example)


def check_finite(tensors: dict[str, Tensor], label: str) -> None:
    """Refuse NaN and infinity."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{label} must hold finite numbers; the tensor {name!r} does not; {DAMAGED}")


def check_fit(tensors: dict[str, Tensor], wanted: dict[str, Tensor], label: str) -> None:
    """Refuse a set of tensors that is not exactly the network's, and name the first that differs."""
    missing, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing:
        raise ModelError(f"{label} lacks the tensor {missing[0]!r} ({len(missing)} in all); {DAMAGED}")
    if extra:
        raise ModelError(f"{label} has a tensor {extra[0]!r} that its network has not ({len(extra)} in all); {DAMAGED}")
    for name, tensor in wanted.items():
        if tensors[name].shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)}; got {tuple(tensors[name].shape)}"
            raise ModelError(f"the tensor {name!r} of {label} must be of shape {shapes}; {DAMAGED}")


def register(
    name: str,
    path: str | Path,
    card: str | Path,
    quality: dict[str, Any],
    license: str = "MIT",
) -> dict[str, Any]:
    """Bundle a model: copy its file and its card (Markdown) into the package and enter it in the manifest; a step of a release.

    Args:
        name: what ``macs.load`` will know it by: small letters, digits, dots and dashes.
        path: its file, which must load.
        card: what it is, what it was trained on, what it is good for and what not.
        quality: what was measured, such as ``{"psnr": 25.1}``; shown by ``macs models list``.
        license: of the weights.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise ConfigError(f"a model's name must be of small letters, digits, dots and dashes; got {name!r}")
    stored(path)
    content, text = model_bytes(path), manifest.read_bytes(Path(card))
    entry: dict[str, Any] = {
        "file": f"{name}.safetensors", "sha256": manifest.digest(content), "bytes": len(content),
        "card": f"{name}.md", "quality": quality, "license": license,
    }  # fmt: skip
    write_atomically(manifest.WEIGHTS / entry["file"], content)
    write_atomically(manifest.WEIGHTS / entry["card"], text)
    entries = json.dumps({**catalogue(), name: entry}, indent=2, sort_keys=True) + "\n"
    write_atomically(manifest.WEIGHTS / "manifest.json", entries.encode())
    return entry
