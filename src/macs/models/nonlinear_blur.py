r"""Nonlinear deblurring: a blur that a network has learnt, :math:`y = B(x, k)`, with a latent kernel k.

The network is that of Tran et al.: features of the sharp image at a quarter of its size, an adapter (a small U-Net) whose
bottleneck is joined with the kernel, and a trunk that paints the difference between blurred and sharp,

    B(x, k) = x + trunk(adapter(features(x), k)).

The kernel is drawn once, when the physics is made, and belongs to it: measurement and residual see the same blur. (Public code
draws another at every call, which turns the residual into noise; see DPS, issue 7.)

References:
    Tran et al., "Explore Image Deblurring via Encoded Blur Kernel Space", 2021.
    Chung et al., "Diffusion Posterior Sampling for General Noisy Inverse Problems", 2023 (the inverse problem).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from deepinv.physics import Physics
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, relu

from macs.errors import ConfigError, MeasurementError
from macs.noise import Noise


class Residual(nn.Module):
    """Two convolutions around a rectifier, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The formula above."""
        return x + self.conv2(relu(self.conv1(x)))


def features(channels: int, width: int, blocks: int) -> nn.Sequential:
    """Images to features at a quarter of the side."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.LeakyReLU(0.1)]
    for _ in range(2):
        layers += [nn.Conv2d(width, width, 3, 2, 1), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers, *(Residual(width) for _ in range(blocks)))


def trunk(channels: int, width: int, blocks: int) -> nn.Sequential:
    """Features at a quarter of the side back to images."""
    layers: list[nn.Module] = [Residual(width) for _ in range(blocks)]
    for _ in range(2):
        layers += [nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.LeakyReLU(0.1)]
    layers += [nn.Conv2d(width, width, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(width, channels, 3, padding=1)]
    return nn.Sequential(*layers)


class Adapter(nn.Module):
    """A U-Net on features; each step down halves the side, the kernel joins at the bottom, and a tanh ends it."""

    def __init__(self, widths: Sequence[int], latent: int) -> None:
        super().__init__()
        pairs = [(widths[0], widths[0]), *pairwise(widths)]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1, bias=False) for a, b in pairs)
        last = len(widths) - 1
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b + (latent if i == last else b), a, 4, 2, 1, bias=i == 0) for i, (a, b) in enumerate(pairs)
        )

    def forward(self, h: Tensor, k: Tensor) -> Tensor:
        """The adapted features."""
        levels = [self.down[0](h)]
        for down in self.down[1:]:
            levels.append(down(leaky_relu(levels[-1], 0.2)))
        out = k
        for i, (level, up) in enumerate(zip(reversed(levels), reversed(self.up), strict=True)):
            out = up(relu(torch.cat([level, out] if i == 0 else [out, level], 1)))
        return torch.tanh(out)


class BlurNetwork(ModelMixin, ConfigMixin):
    """The learnt blur :math:`B(x, k)` on images in [0, 1].

    Args:
        channels: those of the images.
        widths: those of the adapter, from the top down; the first is the width of all the rest.
        front, back: the residual blocks before and after the adapter.
        latent: the channels of the kernel, which is (latent, H/u, W/u) with ``u = 4 * 2^len(widths)``.
        spread: the standard deviation of a kernel drawn at random.
    """

    @register_to_config
    def __init__(
        self,
        channels: int = 3,
        widths: Sequence[int] = (64, 128, 256, 512, 512),
        front: int = 10,
        back: int = 20,
        latent: int = 512,
        spread: float = 1.0,
    ) -> None:
        super().__init__()
        self.features = features(channels, widths[0], front)
        self.adapter = Adapter(widths, latent)
        self.trunk = trunk(channels, widths[0], back)

    @property
    def unit(self) -> int:
        """The image sides must be multiples of this."""
        return 4 * 2 ** len(self.config["widths"])

    def kernel_shape(self, image_shape: Sequence[int]) -> tuple[int, int, int]:
        """The shape of a kernel for images of (C, H, W)."""
        channels, height, width = image_shape
        if channels != self.config["channels"] or height % self.unit or width % self.unit:
            raise ConfigError(
                f"this blur network needs images of {self.config['channels']} channels and sides that are multiples of "
                f"{self.unit}; got {tuple(image_shape)}; use a network made for this size"
            )
        return self.config["latent"], height // self.unit, width // self.unit

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        """:math:`B(x, k)`, not yet cut to the image range."""
        return x + self.trunk(self.adapter(self.features(x), k))


def draw_kernels(network: BlurNetwork, image_shape: Sequence[int], seed: int, images: int) -> Tensor:
    """Kernels for so many images, each from a stream of its own."""
    blank = torch.zeros(images, *network.kernel_shape(image_shape))
    return network.config["spread"] * Noise(seed, [f"kernel {i}" for i in range(images)]).like(blank)


class NonlinearBlur(Physics):
    """A learnt blur as a deepinv physics on images in [0, 1]; differentiable.

    Args:
        network: the blur network, used as it is.
        k: the latent kernels: one for all images, (1, ...), or one for each, (B, ...). As with other deepinv physics
            ``physics(x, k=...)`` and ``physics.update(k=...)`` put others in their place.
        noise_model: a deepinv noise model.
    """

    def __init__(self, network: BlurNetwork, k: Tensor, **settings: Any) -> None:
        super().__init__(**settings)
        self.network = network.eval().requires_grad_(False)
        self.register_buffer("k", k)

    def A(self, x: Tensor, k: Tensor | None = None, **_: Any) -> Tensor:
        """The blurred images, cut to [0, 1]."""
        self.update_parameters(k=k)
        shape = self.network.kernel_shape(x.shape[1:])
        if len(self.k) not in (1, len(x)) or tuple(self.k.shape[1:]) != shape:
            raise MeasurementError(
                f"this blur has {len(self.k)} kernels of {tuple(self.k.shape[1:])}; {len(x)} images of {tuple(x.shape[1:])} "
                f"need 1 or {len(x)} of {shape}; blur and restore the same images with the same physics"
            )
        kernels = self.k.expand(len(x), *shape).to(self.network.dtype)
        return self.network(x.to(self.network.dtype), kernels).clamp(0, 1).to(x.dtype)
