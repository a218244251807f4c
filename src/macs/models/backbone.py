"""Consistency models in diffusers' form: a folder on this machine, or a repository of the Hugging Face Hub.

The folder is that of a pipeline (``unet/``, ``scheduler/``), as the models of Song et al. are published in, or of the
``UNet2DModel`` alone. Public models are told ``1000 * 0.25 * ln t`` and were trained with ``sigma_data = 0.5`` on levels from
0.002 to 80; where a scheduler is beside the network, its own numbers are taken.

References:
    Song et al., "Consistency Models", 2023; https://huggingface.co/openai/diffusers-cd_bedroom256_lpips
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import UNet2DModel

from macs.errors import ModelError
from macs.levels import T_MAX, T_MIN
from macs.models.consistency import ConsistencyModel, LabelledModel

#: A name on the Hub: owner/name.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: What is fetched of a repository: weights without code, in full precision.
WANTED = ["model_index.json", "config.json", "*.safetensors", "unet/config.json", "unet/*.safetensors", "scheduler/*.json"]
UNWANTED = ["*.fp16.safetensors"]


def is_repository(name: str) -> bool:
    """Whether a name has the form of a Hub repository."""
    return REPOSITORY.fullmatch(name) is not None


def load_backbone(name_or_folder: str | Path, label: int | None = None) -> ConsistencyModel:
    """A diffusers consistency model as a :class:`ConsistencyModel`: a folder where there is one, else a repository.

    Args:
        name_or_folder: the folder, or ``owner/name``.
        label: the class to draw from, for a model of classes (ImageNet-64).
    """
    return read_backbone(folder_of(name_or_folder), label)


def folder_of(name_or_folder: str | Path) -> Path:
    """The folder itself, or that of a repository."""
    folder = Path(name_or_folder)
    return folder if folder.is_dir() else downloaded(str(name_or_folder))


def folder_digest(folder: Path) -> str:
    """The SHA-256 over the names and contents of a folder's weights and settings."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".safetensors", ".json") and path.is_file())
    if not files:
        raise ModelError(f"{folder} holds no network in safetensors form; pass another folder")
    total = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return total.hexdigest()


def downloaded(repository: str) -> Path:
    """The folder of a repository, fetched where it is not yet on this machine."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ModelError(
            f"{repository} is no folder here and could not be fetched from the Hugging Face Hub ({reason}); "
            "check the name and the network, or pass the folder of a copy"
        ) from error


def read_backbone(folder: Path, label: int | None) -> ConsistencyModel:
    """The model in a folder."""
    unet = read_unet(unet_folder(folder))
    shape, settings = image_shape(unet.config, folder), levels(folder)
    if unet.config.num_class_embeds is not None:
        return LabelledModel(unet, shape, label, **settings).eval().requires_grad_(False)
    if label is not None:
        raise ModelError(f"the model in {folder} knows no classes; leave label out; got {label}")
    return ConsistencyModel(unet, shape, **settings).eval().requires_grad_(False)


def unet_folder(folder: Path) -> Path:
    """Where the network of a pipeline is; the folder itself where it is that of the network alone."""
    return folder / "unet" if (folder / "unet").is_dir() else folder


def stored_shape(folder: Path) -> tuple[int, int, int]:
    """(C, H, W) of the images of a model, from its settings alone."""
    return image_shape(read_json(unet_folder(folder) / "config.json"), folder)


def read_unet(folder: Path) -> Any:
    """The network in a folder; a tensor that is missing, too many or of another shape is an error."""
    kind = read_json(folder / "config.json").get("_class_name")
    if kind != "UNet2DModel":
        raise ModelError(f"{folder} must hold a diffusers UNet2DModel; its config.json names {kind}; pass another folder")
    unet = from_pretrained(UNet2DModel, folder)
    if unet.config.class_embed_type is not None or any("Skip" in kind for kind in unet.config.down_block_types):
        raise ModelError(f"the UNet2DModel in {folder} is of a form that no consistency model has; pass another folder")
    return unet


def from_pretrained(kind: Any, folder: Path) -> Any:
    """A diffusers model from its folder, safetensors only, every tensor accounted for, in float32."""
    try:
        model, found = kind.from_pretrained(folder, use_safetensors=True, output_loading_info=True, torch_dtype=torch.float32)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{folder} holds no readable {kind.__name__} in safetensors form ({reason}); get it again") from error
    for sort, words in (("missing_keys", "lacks the tensor"), ("unexpected_keys", "has a tensor it should not have,")):
        if found[sort]:
            raise ModelError(f"the {kind.__name__} in {folder} {words} {sorted(found[sort])[0]!r}; get it again")
    for name, tensor in model.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{folder} must hold finite numbers; the tensor {name!r} does not; get it again")
    return model


def image_shape(config: Mapping[str, Any], folder: Path) -> tuple[int, int, int]:
    """(C, H, W) of the images that a network was made for."""
    size, channels, made = (config.get(key) for key in ("sample_size", "in_channels", "out_channels"))
    sides: tuple[Any, ...] = tuple(size) if isinstance(size, list | tuple) else (size, size)
    whole = len(sides) == 2 and all(isinstance(n, int) and n > 0 for n in sides)
    if channels != made or not isinstance(made, int) or not whole:
        raise ModelError(
            f"the network in {folder} must turn images into images of a known size; it turns {channels} "
            f"channels into {made} at sample_size {size}; pass a consistency model"
        )
    height, width = sides
    return made, height, width


def levels(folder: Path) -> dict[str, Any]:
    """``sigma_data``, ``t_min`` and ``t_max``, from the scheduler where one is beside the network."""
    path = folder / "scheduler" / "scheduler_config.json"
    said = read_json(path) if path.is_file() else {}
    names = {"sigma_data": ("sigma_data", 0.5), "t_min": ("sigma_min", T_MIN), "t_max": ("sigma_max", T_MAX)}
    out = {ours: said.get(theirs, default) for ours, (theirs, default) in names.items()}
    if not all(isinstance(v, int | float) and 0 < v < 1e6 for v in out.values()) or not out["t_min"] < out["t_max"]:
        raise ModelError(f"{path} must give positive levels, sigma_min below sigma_max; got {out}; get it again")
    return {name: float(v) for name, v in out.items()}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds keys and values."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is missing or damaged ({' '.join(str(error).split())[:200]}); get it again") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} must hold keys and values; got {type(values).__name__}; get it again")
    return values
