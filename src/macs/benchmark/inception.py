r"""The Inception network that FID and KID are defined on (the TensorFlow graph of 2015-12-05), up to its 2048 pooled features.

Weights carry torch-fidelity's names. Each batch normalisation is folded into its convolution,
:math:`w \leftarrow w\,\gamma/\sqrt{v + \epsilon}`, :math:`b = \beta - m\,\gamma/\sqrt{v + \epsilon}`, which changes nothing but
rounding, and saves time.

References:
    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016.
    Heusel et al., 2017; the differences from torchvision's network are those documented by torch-fidelity.
"""

import importlib.metadata
import importlib.util
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from macs.errors import ModelError
from macs.models.manifest import read_bytes

SIDE, FEATURES, EPSILON = 299, 2048, 1e-3
URL = "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/weights-inception-2015-12-05-6726825d.pth"

#: A convolution: output channels, kernel (height, width), stride, padding (height, width).
Conv = tuple[int, tuple[int, int], int, tuple[int, int]]


def conv(out: int, height: int = 1, width: int | None = None, stride: int = 1, same: bool = True) -> Conv:
    """A convolution that keeps the size, or (``same=False``) takes only whole windows."""
    kernel = (height, height if width is None else width)
    return out, kernel, stride, (kernel[0] // 2, kernel[1] // 2) if same else (0, 0)


STEM: dict[str, Conv] = {
    "Conv2d_1a_3x3": conv(32, 3, stride=2, same=False),
    "Conv2d_2a_3x3": conv(32, 3, same=False),
    "Conv2d_2b_3x3": conv(64, 3),
    "Conv2d_3b_1x1": conv(80),
    "Conv2d_4a_3x3": conv(192, 3, same=False),
}


def block_a(pool: int) -> dict[str, Conv]:
    """35x35: windows of 1, 5 and twice 3."""
    return {
        "branch1x1": conv(64), "branch5x5_1": conv(48), "branch5x5_2": conv(64, 5), "branch3x3dbl_1": conv(64),
        "branch3x3dbl_2": conv(96, 3), "branch3x3dbl_3": conv(96, 3), "branch_pool": conv(pool),
    }  # fmt: skip


def block_c(mid: int) -> dict[str, Conv]:
    """17x17: windows of 7 as a row and a column."""
    return {
        "branch1x1": conv(192), "branch7x7_1": conv(mid), "branch7x7_2": conv(mid, 1, 7), "branch7x7_3": conv(192, 7, 1),
        "branch7x7dbl_1": conv(mid), "branch7x7dbl_2": conv(mid, 7, 1), "branch7x7dbl_3": conv(mid, 1, 7),
        "branch7x7dbl_4": conv(mid, 7, 1), "branch7x7dbl_5": conv(192, 1, 7), "branch_pool": conv(192),
    }  # fmt: skip


def block_e() -> dict[str, Conv]:
    """8x8: windows of 3 split into a row and a column side by side."""
    return {
        "branch1x1": conv(320), "branch3x3_1": conv(384), "branch3x3_2a": conv(384, 1, 3), "branch3x3_2b": conv(384, 3, 1),
        "branch3x3dbl_1": conv(448), "branch3x3dbl_2": conv(384, 3), "branch3x3dbl_3a": conv(384, 1, 3),
        "branch3x3dbl_3b": conv(384, 3, 1), "branch_pool": conv(192),
    }  # fmt: skip


BLOCKS: dict[str, dict[str, Conv]] = {
    "Mixed_5b": block_a(32),
    "Mixed_5c": block_a(64),
    "Mixed_5d": block_a(64),
    "Mixed_6a": {
        "branch3x3": conv(384, 3, stride=2, same=False), "branch3x3dbl_1": conv(64), "branch3x3dbl_2": conv(96, 3),
        "branch3x3dbl_3": conv(96, 3, stride=2, same=False),
    },
    "Mixed_6b": block_c(128),
    "Mixed_6c": block_c(160),
    "Mixed_6d": block_c(160),
    "Mixed_6e": block_c(192),
    "Mixed_7a": {
        "branch3x3_1": conv(192), "branch3x3_2": conv(320, 3, stride=2, same=False), "branch7x7x3_1": conv(192),
        "branch7x7x3_2": conv(192, 1, 7), "branch7x7x3_3": conv(192, 7, 1), "branch7x7x3_4": conv(192, 3, stride=2, same=False),
    },
    "Mixed_7b": block_e(),
    "Mixed_7c": block_e(),
}  # fmt: skip

#: How branches are read: chains of convolutions; a tuple at the end of a chain splits it into convolutions side by side.
CHAINS: dict[str, list[list[Any]]] = {
    "A": [["branch1x1"], ["branch5x5_1", "branch5x5_2"], ["branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"]],
    "B": [["branch3x3"], ["branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"]],
    "C": [["branch1x1"], ["branch7x7_1", "branch7x7_2", "branch7x7_3"], [f"branch7x7dbl_{i}" for i in range(1, 6)]],
    "D": [["branch3x3_1", "branch3x3_2"], [f"branch7x7x3_{i}" for i in range(1, 5)]],
    "E": [
        ["branch1x1"],
        ["branch3x3_1", ("branch3x3_2a", "branch3x3_2b")],
        ["branch3x3dbl_1", "branch3x3dbl_2", ("branch3x3dbl_3a", "branch3x3dbl_3b")],
    ],
}
KINDS = dict(zip(BLOCKS, "AAABCCCCDEE", strict=True))


def average_pool(x: Tensor) -> Tensor:
    """The mean of the 3x3 neighbours that are inside the image."""
    return avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


class Block(nn.Module):
    """Branches side by side, and a pooled one; the last block of the network pools by the maximum."""

    def __init__(self, kind: str, shapes: dict[str, Conv], inputs: int, pool_by_maximum: bool = False) -> None:
        super().__init__()
        self.kind, self.pool_by_maximum, self.outputs = kind, pool_by_maximum, 0
        for chain in CHAINS[kind]:
            channels = inputs
            for link in chain:
                names = link if isinstance(link, tuple) else (link,)
                for name in names:
                    self.add_module(name, folded_conv(channels, shapes[name]))
                channels = sum(shapes[name][0] for name in names)
            self.outputs += channels
        if "branch_pool" in shapes:
            self.branch_pool = folded_conv(inputs, shapes["branch_pool"])
            self.outputs += shapes["branch_pool"][0]
        else:
            self.outputs += inputs

    def forward(self, x: Tensor) -> Tensor:
        """All branches, one after another along the channels."""
        out = [self.run(chain, x) for chain in CHAINS[self.kind]]
        if self.kind in "BD":
            return torch.cat([*out, max_pool2d(x, 3, stride=2)], 1)
        pooled = max_pool2d(x, 3, stride=1, padding=1) if self.pool_by_maximum else average_pool(x)
        return torch.cat([*out, self.branch_pool(pooled).relu()], 1)

    def run(self, chain: list[Any], x: Tensor) -> Tensor:
        """One branch."""
        for link in chain:
            if isinstance(link, tuple):
                x = torch.cat([self.get_submodule(name)(x).relu() for name in link], 1)
            else:
                x = self.get_submodule(link)(x).relu()
        return x


def folded_conv(inputs: int, shape: Conv) -> nn.Conv2d:
    """A convolution with the bias that the folded normalisation gives it."""
    out, kernel, stride, padding = shape
    return nn.Conv2d(inputs, out, kernel, stride, padding)


class Inception(nn.Module):
    """Images as uint8, (B, 1 or 3, H, W), to features, (B, 2048)."""

    def __init__(self) -> None:
        super().__init__()
        channels = 3
        for name, shape in STEM.items():
            self.add_module(name, folded_conv(channels, shape))
            channels = shape[0]
        for name, shapes in BLOCKS.items():
            block = Block(KINDS[name], shapes, channels, pool_by_maximum=name == "Mixed_7c")
            self.add_module(name, block)
            channels = block.outputs

    def forward(self, images: Tensor) -> Tensor:
        """The features of images of any size."""
        return self.pooled(prepared(images).contiguous(memory_format=torch.channels_last))

    def pooled(self, x: Tensor) -> Tensor:
        """The mean over the last 8x8 maps, of images in [-1, 1) at the network's own size."""
        for name in STEM:
            x = self.get_submodule(name)(x).relu()
            if name in ("Conv2d_2b_3x3", "Conv2d_4a_3x3"):
                x = max_pool2d(x, 3, stride=2)
        for name in BLOCKS:
            x = self.get_submodule(name)(x)
        return x.mean((2, 3))


def prepared(images: Tensor) -> Tensor:
    """Images as the network wants them: (B, 3, 299, 299), in [-1, 1)."""
    return (resized(images.float()).expand(-1, 3, -1, -1) - 128) / 128


class Pooled(nn.Module):
    """What of the network is compiled: all but the resizing."""

    def __init__(self, model: Inception) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The features of prepared images."""
        return self.model.pooled(x)


def runtime() -> str:
    """What :func:`accelerated` runs the network in."""
    if importlib.util.find_spec("openvino") is None:
        return f"torch {torch.__version__}, float32"
    return f"openvino {importlib.metadata.version('openvino')}, float32"


def accelerated(model: Inception, precision: str = "f32") -> Callable[[Tensor], Tensor]:
    """The same network in OpenVINO's runtime where that is installed; else as it is.

    In float32 the features agree to its last bits; in bfloat16 FID moves too far for a table (``benchmarks/inception.py``).
    """
    if importlib.util.find_spec("openvino") is None:
        return model
    import openvino

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = openvino.convert_model(Pooled(model), example_input=torch.zeros(2, 3, SIDE, SIDE), input=[-1, 3, SIDE, SIDE])
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = openvino.Core().compile_model(graph, "CPU", settings)
    return lambda images: torch.from_numpy(compiled(prepared(images).numpy())[0].copy())


def resized(x: Tensor) -> Tensor:
    """Bilinear interpolation to 299x299 as TensorFlow 1 does it: pixel ``i`` of the result lies at ``i * size / 299``."""
    return interpolation(x.shape[-2]).to(x) @ x @ interpolation(x.shape[-1]).to(x).mT


def interpolation(size: int) -> Tensor:
    """The matrix of that interpolation along one axis, (299, size)."""
    place = torch.arange(SIDE, dtype=torch.float64) * size / SIDE
    low = place.floor().long()
    matrix = torch.zeros(SIDE, size, dtype=torch.float64)
    rows = torch.arange(SIDE)
    matrix[rows, low] += 1 - (place - low)
    matrix[rows, (low + 1).clamp_max(size - 1)] += place - low
    return matrix


def fold(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the folded network from those of convolutions and batch normalisations."""
    out = {}
    for name in (n.removesuffix(".conv.weight") for n in tensors if n.endswith(".conv.weight")):
        gain, shift, mean, variance = (
            tensors[f"{name}.bn.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gain / (variance + EPSILON).sqrt()
        out[f"{name}.weight"] = (tensors[f"{name}.conv.weight"].double() * scale.reshape(-1, 1, 1, 1)).float()
        out[f"{name}.bias"] = (shift - mean * scale).float()
    return out


def load_inception(path: str | Path | None = None) -> Inception:
    """The network with weights from ``path`` (safetensors), else ``$MACS_INCEPTION``, else torch-fidelity's download."""
    source = path or os.environ.get("MACS_INCEPTION")
    tensors = downloaded() if source is None else from_file(Path(source))
    try:
        model = Inception()
        model.load_state_dict(fold(tensors))
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{source or URL} does not hold the Inception of FID ({reason}); give torch-fidelity's weights"
        ) from error
    return model.eval().requires_grad_(False).to(memory_format=torch.channels_last)


def from_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return parse_tensors(read_bytes(path))
    except SafetensorError as error:
        raise ModelError(f"{path} must be a safetensors file of Inception's weights ({error})") from error


def downloaded() -> dict[str, Tensor]:
    """torch-fidelity's own file, kept in torch's cache; opened without running code."""
    try:
        return torch.hub.load_state_dict_from_url(URL, progress=False, check_hash=True, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError) as error:
        raise ModelError(
            f"Inception's weights could not be downloaded ({error}); pass --inception PATH, set MACS_INCEPTION, "
            "or use --features classifier"
        ) from error
