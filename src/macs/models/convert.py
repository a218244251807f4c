r"""From the files that Song et al. (OpenAI), Zhao et al. (CoSIGN) and Tran et al. (BKSE) published to folders read here.

The files are pickles of tensors by name. This is the only place that opens any, and only as tensors, which run no code. Every
tensor must be there, none more, each of its shape, else the file is refused by the tensor's name.

Their attention keeps queries, keys and values in one convolution, one after the other ("chunk, then heads"): the first third
of its channels are all heads' queries. (Older code of the same family interleaves them by heads.)

References:
    https://github.com/openai/consistency_models, https://github.com/BioMed-AI-Lab-U-Michgan/cosign,
    https://github.com/VinAIResearch/blur-kernel-space-exploring
"""

import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import CMStochasticIterativeScheduler, UNet2DModel
from torch import Tensor, nn

from macs.errors import ModelError
from macs.models.controlnet import ControlNet, settings, skip_channels
from macs.models.nonlinear_blur import BlurNetwork
from macs.training.checkpoint import written_folder

Weights = dict[str, Tensor]

#: The network of the LSUN Bedroom and Cat models, 256 pixels.
LSUN: dict[str, Any] = {
    "sample_size": 256, "in_channels": 3, "out_channels": 3, "layers_per_block": 2,
    "block_out_channels": (256, 256, 512, 512, 1024, 1024), "attention_head_dim": 64,
    "down_block_types": ("ResnetDownsampleBlock2D",) * 3 + ("AttnDownBlock2D",) * 3,
    "up_block_types": ("AttnUpBlock2D",) * 3 + ("ResnetUpsampleBlock2D",) * 3,
    "downsample_type": "resnet", "upsample_type": "resnet", "resnet_time_scale_shift": "default",
}  # fmt: skip
#: The network of the ImageNet models, 64 pixels, 1,000 classes.
IMAGENET: dict[str, Any] = {
    "sample_size": 64, "in_channels": 3, "out_channels": 3, "layers_per_block": 3,
    "block_out_channels": (192, 384, 576, 768), "attention_head_dim": 64, "attn_norm_num_groups": 32,
    "down_block_types": ("ResnetDownsampleBlock2D",) + ("AttnDownBlock2D",) * 3,
    "up_block_types": ("AttnUpBlock2D",) * 3 + ("ResnetUpsampleBlock2D",),
    "downsample_type": "resnet", "upsample_type": "resnet", "resnet_time_scale_shift": "scale_shift",
    "num_class_embeds": 1000,
}  # fmt: skip
#: The released blur network: its settings, and its extractor of kernels from image pairs, which blurring does not need.
BLUR: dict[str, Any] = {"widths": (64, 128, 256, 512, 512), "front": 10, "back": 20, "latent": 512, "spread": 1.2}
EXTRACTOR = {
    "1": (64, 128, 7, 7), "4": (128, 64, 3, 3), "7": (256, 128, 3, 3), "10": (512, 256, 3, 3), "13": (1024, 512, 3, 3),
    "16": (1024, 1024, 3, 3), **{f"{i}.conv_block.{j}": (1024, 1024, 3, 3) for i in range(19, 23) for j in (1, 5)},
}  # fmt: skip

RESNET = {
    "in_layers.0": "norm1", "in_layers.2": "conv1", "emb_layers.1": "time_emb_proj", "out_layers.0": "norm2",
    "out_layers.3": "conv2", "skip_connection": "conv_shortcut",
}  # fmt: skip
ATTENTION = {"norm": "group_norm", "qkv": ("to_q", "to_k", "to_v"), "proj_out": "to_out.0"}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its shape there, and the tensors of the network that are made of it, in equal parts."""

    shape: tuple[int, ...]
    into: tuple[str, ...]


def modules(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The modules of a U-Net, (name in OpenAI's file, name in diffusers), encoder first."""
    levels, layers = len(config["block_out_channels"]), config["layers_per_block"]
    yield from (("time_embed.0", "time_embedding.linear_1"), ("time_embed.2", "time_embedding.linear_2"))
    if config.get("num_class_embeds"):
        yield "label_emb", "class_embedding"
    yield "input_blocks.0.0", "conv_in"
    at = 1
    for i, kind in enumerate(config["down_block_types"]):
        for j in range(layers):
            yield f"input_blocks.{at}.0", f"down_blocks.{i}.resnets.{j}"
            if kind.startswith("Attn"):
                yield f"input_blocks.{at}.1", f"down_blocks.{i}.attentions.{j}"
            at += 1
        if i < levels - 1:
            yield f"input_blocks.{at}.0", f"down_blocks.{i}.downsamplers.0"
            at += 1
    yield "middle_block.0", "mid_block.resnets.0"
    yield "middle_block.1", "mid_block.attentions.0"
    yield "middle_block.2", "mid_block.resnets.1"
    at = 0
    for i, kind in enumerate(config["up_block_types"]):
        for j in range(layers + 1):
            yield f"output_blocks.{at}.0", f"up_blocks.{i}.resnets.{j}"
            if kind.startswith("Attn"):
                yield f"output_blocks.{at}.1", f"up_blocks.{i}.attentions.{j}"
            if j == layers and i < levels - 1:
                yield f"output_blocks.{at}.{2 if kind.startswith('Attn') else 1}", f"up_blocks.{i}.upsamplers.0"
            at += 1
    yield from (("out.0", "conv_norm_out"), ("out.2", "conv_out"))


def layers_of(theirs: str, ours: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The layers of a module: a residual block's or an attention's, or the module itself."""
    if ".attentions." in ours:
        for name, into in ATTENTION.items():
            parts = (into,) if isinstance(into, str) else into
            yield f"{theirs}.{name}", tuple(f"{ours}.{part}" for part in parts)
    elif any(f".{kind}." in ours for kind in ("resnets", "downsamplers", "upsamplers")):
        for name, layer in RESNET.items():
            yield f"{theirs}.{name}", (f"{ours}.{layer}",)
    else:
        yield theirs, (ours,)


def entries(config: dict[str, Any], network: nn.Module, extra: dict[str, str]) -> dict[str, Entry]:
    """What a file must hold for ``network``: the modules of its U-Net that it has, and ``extra`` ones."""
    have = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    pairs = [layer for theirs, ours in modules(config) for layer in layers_of(theirs, ours)]
    pairs += [(theirs, (ours,)) for theirs, ours in extra.items()]
    out = {}
    for theirs, ours in pairs:
        for kind in ("weight", "bias"):
            into = tuple(f"{name}.{kind}" for name in ours)
            if into[0] in have:
                shape = have[into[0]]
                dense = kind == "weight" and theirs.endswith((".qkv", ".proj_out"))
                out[f"{theirs}.{kind}"] = Entry((len(into) * shape[0], *shape[1:], *((1, 1) if dense else ())), into)
    return out


def control_layers(config: dict[str, Any]) -> dict[str, str]:
    """The layers that a ControlNet has beside its copy of the encoder, by CoSIGN's names."""
    zeros = {f"zero_convs.{i}.0": f"zero_convs.{i}" for i in range(len(skip_channels(config)))}
    return {"input_hint_block.0": "hint_conv", "middle_block_out.0": "zero_middle", **zeros}


def blur_entries(network: nn.Module) -> dict[str, Entry]:
    """What the file of a blur network must hold; of its kernel extractor nothing is used."""
    out = {}
    for name, tensor in network.state_dict().items():
        part, *rest = name.split(".")
        if part == "adapter":
            path, depth = int(rest[1]), "submodule." * int(rest[1])
            outermost_down = rest[0] == "down" and path == 0
            theirs = f"adapter.model.{depth}{rest[0]}.{0 if outermost_down else 1}.{rest[2]}"
        else:
            theirs = ".".join(({"features": "feature_extractor", "trunk": "recon_trunk"}[part], *rest))
        out[theirs] = Entry(tuple(tensor.shape), (name,))
    unused = {f"kernel_extractor.model.{name}.weight": Entry(shape, ()) for name, shape in EXTRACTOR.items()}
    return {**out, **unused}


def check_file(tensors: Weights, wanted: dict[str, Entry], label: str) -> None:
    """Refuse a file that lacks a tensor, has one too many, or one of another shape or kind, by its name."""
    for name in wanted:
        if name not in tensors:
            raise ModelError(f"{label} lacks the tensor {name!r}; it is damaged or another model; get it again")
    for name, tensor in tensors.items():
        if name not in wanted:
            raise ModelError(f"{label} has a tensor {name!r} that this model has not; it is another model; get it again")
        if tuple(tensor.shape) != wanted[name].shape:
            shapes = f"{wanted[name].shape}; got {tuple(tensor.shape)}"
            raise ModelError(f"the tensor {name!r} of {label} must be of shape {shapes}; get the file again")
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"the tensor {name!r} of {label} must hold finite numbers; get the file again")


def filled(network: Any, tensors: Weights, wanted: dict[str, Entry], label: str) -> Any:
    """The network with the tensors of a file."""
    check_file(tensors, wanted, label)
    shapes = {name: t.shape for name, t in network.state_dict().items()}
    state = {}
    for theirs, entry in wanted.items():
        for name, part in zip(entry.into, tensors[theirs].float().chunk(max(len(entry.into), 1)), strict=False):
            state[name] = part.reshape(shapes[name]).clone()
    network.load_state_dict(state, assign=True)
    return network.eval().requires_grad_(False)


def unet_from(tensors: Weights, config: dict[str, Any], label: str) -> Any:
    """OpenAI's U-Net as a diffusers network."""
    with torch.device("meta"):
        network: Any = UNet2DModel(**config)
    return filled(network, tensors, entries(config, network, {}), label)


def control_from(tensors: Weights, config: dict[str, Any], label: str) -> ControlNet:
    """CoSIGN's ControlNet for the U-Net of a configuration."""
    with torch.device("meta"):
        unet: Any = UNet2DModel(**config)
        network = ControlNet(settings(unet), config["in_channels"])
    return filled(network, tensors, entries(config, network, control_layers(config)), label)


def blur_from(tensors: Weights, label: str) -> BlurNetwork:
    """The released blur network."""
    with torch.device("meta"):
        network = BlurNetwork(**BLUR)
    return filled(network, tensors, blur_entries(network), label)


def read_tensors(path: Path) -> Weights:
    """The tensors of a ``.pt`` or ``.pth`` file by name; anything else in it is refused."""
    try:
        mapped = zipfile.is_zipfile(path)  # files of PyTorch before 1.6 are none, and cannot be mapped
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)  # noqa: TID251
    except Exception as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:150]
        raise ModelError(f"{path} cannot be read as a file of tensors ({reason}); check the path, or get it again") from error
    if not isinstance(content, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()):
        raise ModelError(f"{path} must hold tensors by name and nothing else; it is no released checkpoint; get it again")
    return content


def save_unet(unet: Any, out: Path) -> None:
    """A diffusers pipeline: the network, its scheduler, and the index of both."""
    unet.save_pretrained(out / "unet")
    scheduler: Any = CMStochasticIterativeScheduler()
    scheduler.save_pretrained(out / "scheduler")
    index = {
        "_class_name": "ConsistencyModelPipeline",
        "unet": ["diffusers", "UNet2DModel"],
        "scheduler": ["diffusers", "CMStochasticIterativeScheduler"],
    }
    (out / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def save_alone(network: Any, out: Path) -> None:
    """A ControlNet or a blur network by itself."""
    network.save_pretrained(out)


#: Kinds of files: what marks one, its network, how it is saved, and how its folder is used.
Kind = tuple[str, str, Callable[[Weights, str], Any], Callable[[Any, Path], None], str]
KINDS: tuple[Kind, ...] = (
    ("zero_convs.", "a CoSIGN ControlNet", lambda t, s: control_from(t, LSUN, s), save_alone, "macs.load(MODEL, control={!r})"),
    ("recon_trunk.", "a blur network", blur_from, save_alone, 'macs.task("nonlinear-deblurring", MODEL, network={!r})'),
    ("label_emb.", "an ImageNet-64 model", lambda t, s: unet_from(t, IMAGENET, s), save_unet, "macs.load({!r}, label=...)"),
    ("input_blocks.", "an LSUN-256 model", lambda t, s: unet_from(t, LSUN, s), save_unet, "macs.load({!r})"),
)


def convert(path: Path, out: Path) -> tuple[str, str]:
    """Turn a released file into a folder of safetensors; returns what it is, and how to use it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"{out} must be a new or empty folder, so that nothing is overwritten; choose another")
    tensors = read_tensors(path)
    for mark, name, network, save, usage in KINDS:
        if any(key.startswith(mark) for key in tensors):
            made = network(tensors, str(path))
            with written_folder(out) as beside:
                save(made, beside)
            return name, usage.format(str(out))
    raise ModelError(
        f"{path} holds none of the networks known here (OpenAI's LSUN-256 and ImageNet-64 consistency models, CoSIGN's "
        f"ControlNets, BKSE's blur network); its first tensor is {next(iter(tensors), 'none')!r}"
    )
