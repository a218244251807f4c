r"""The preconditioned consistency model (Sec. II-C).

.. math:: f(x, t) = c_{\rm skip}(t)\, x + c_{\rm out}(t)\, F(c_{\rm in}(t)\, x, t)

.. math::
    c_{\rm skip} = \frac{\sigma_d^2}{(t - t_{\min})^2 + \sigma_d^2}, \quad
    c_{\rm out} = \frac{(t - t_{\min})\, \sigma_d}{\sqrt{t^2 + \sigma_d^2}}, \quad
    c_{\rm in} = \frac{1}{\sqrt{t^2 + \sigma_d^2}}

so that :math:`f(x, t_{\min}) = x` exactly, for any network F (Song et al., "Consistency Models", 2023, App. C).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from macs.errors import ConfigError
from macs.levels import T_MAX, T_MIN
from macs.models.hint import hint
from macs.problem import Problem


def scalings(t: Tensor, sigma_data: float, t_min: float) -> tuple[Tensor, Tensor, Tensor]:
    """``c_skip, c_out, c_in`` at levels ``t``."""
    root = (t.square() + sigma_data**2).sqrt()
    return sigma_data**2 / ((t - t_min).square() + sigma_data**2), (t - t_min) * sigma_data / root, 1 / root


class ConsistencyModel(nn.Module):
    """A diffusers ``UNet2DModel`` as a consistency function ``f(x_t, y, t)``; this one does not look at ``y``.

    Args:
        unet: the backbone F; with ``patch = p`` it sees images folded to ``p^2`` times the channels and 1/p of the side.
        image_shape: (C, H, W).
        sigma_data: the data's standard deviation in [-1, 1] (0.5 in public models).
        t_min, t_max: the range of levels.
        patch: the fold, for small images where a full-size U-Net would waste time.
        time_scale: the backbone is told ``time_scale * ln t`` (250 in public models).

    Attributes:
        kind: what the network was trained to be: ``"consistency"``, the end of the trajectory; or ``"denoiser"``, the mean.
        digest: the SHA-256 of the file it was loaded from; empty where there is none.
    """

    kind = "consistency"
    digest = ""

    def __init__(
        self,
        unet: Any,
        image_shape: tuple[int, int, int],
        *,
        sigma_data: float = 0.5,
        t_min: float = T_MIN,
        t_max: float = T_MAX,
        patch: int = 1,
        time_scale: float = 250.0,
    ) -> None:
        super().__init__()
        if any(n % patch for n in image_shape[1:]):
            raise ConfigError(f"patch must divide the image sides {image_shape[1:]}; got {patch}")
        self.unet = unet
        self.image_shape = tuple(image_shape)
        self.sigma_data, self.t_min, self.t_max = sigma_data, t_min, t_max
        self.patch, self.time_scale = patch, time_scale

    def network_input(self, x: Tensor, condition: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """What the backbone sees of the scaled image and the condition: its input, and further arguments."""
        return x, {}

    def forward(self, x_t: Tensor, y: Any, t: Tensor | float, embedded: Tensor | float | None = None) -> Tensor:
        """``f(x_t, y, t)``; ``t`` is one level or one per image. The backbone may be told another level, ``embedded``."""
        kept, made = self.change(x_t, y, t, embedded)
        return kept + made

    def change(self, x_t: Tensor, y: Any, t: Tensor | float, embedded: Tensor | float | None) -> tuple[Tensor, Tensor]:
        """The two terms of ``f``: ``c_skip x_t``, and ``c_out F``."""
        level, told = (
            torch.as_tensor(v, dtype=torch.float64, device=x_t.device).flatten().expand(len(x_t))
            for v in (t, t if embedded is None else embedded)
        )
        c_skip, c_out, c_in = (c.to(x_t.dtype).reshape(-1, 1, 1, 1) for c in scalings(level, self.sigma_data, self.t_min))
        time = (self.time_scale * told.log()).to(x_t.dtype)
        return c_skip * x_t, c_out * self.network(x_t, y, time, c_in)

    def network(self, x_t: Tensor, condition: Any, time: Tensor, c_in: Tensor) -> Tensor:
        r""":math:`F(c_{\rm in} x_t, t)`, the backbone's own output, unfolded to an image."""
        x, more = self.network_input(c_in * x_t, condition)
        return pixel_shuffle(self.unet(self.folded(x), time, return_dict=False, **more)[0], self.patch)

    def compile_network(self) -> None:
        """Run what takes the time through ``torch.compile`` from now on."""
        self.unet.compile()

    def folded(self, x: Tensor) -> Tensor:
        """An image as the backbone sees it."""
        return pixel_unshuffle(x, self.patch).contiguous(memory_format=torch.channels_last)


class HintedModel(ConsistencyModel):
    """A consistency model that sees the measurement as two more image channels (:mod:`macs.models.hint`).

    It was also trained without the hint: ``y=None`` makes it an unconditional prior.
    """

    def condition(self, problem: Problem) -> Tensor:
        """The hint of a problem, computed once per solve."""
        return hint(problem)

    def network_input(self, x: Tensor, condition: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The image and its hint, or zeros for no hint."""
        extra = x.new_zeros(len(x), 2 * x.shape[1], *x.shape[2:]) if condition is None else condition.to(x)
        return torch.cat([x, extra], 1), {}


class LabelledModel(ConsistencyModel):
    """A consistency model of images by class, such as ImageNet's, held to one class.

    Args:
        unet: a backbone with ``num_class_embeds`` classes.
        image_shape: (C, H, W).
        label: the class of every image, from 0.
        settings: those of :class:`ConsistencyModel`.
    """

    def __init__(self, unet: Any, image_shape: tuple[int, int, int], label: int | None, **settings: Any) -> None:
        super().__init__(unet, image_shape, **settings)
        classes = unet.config.num_class_embeds
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < classes:
            raise ConfigError(f"this model knows {classes} classes of images; label must be 0 to {classes - 1}; got {label}")
        self.label = label

    def network_input(self, x: Tensor, condition: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The image, and its class."""
        return x, {"class_labels": torch.full((len(x),), self.label, device=x.device)}
