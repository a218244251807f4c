r"""The paper's CoSIGN family: a frozen consistency model, steered by a ControlNet that sees the measurement as an image.

A ControlNet (Zhang et al. 2023) is a second encoder: a copy of the U-Net's down path and middle block, which also reads the
*hint*. What it says is added to the U-Net's skip connections and middle through convolutions that begin at zero, so that
untrained it changes nothing. This one is CoSIGN's (Zhao et al. 2024): the hint has the image's size and enters through one 3x3
convolution, also zero at first, and is multiplied by :math:`c_{\rm in}(t)` like the image,

.. math:: f(x, y, t) = c_{\rm skip}\, x + c_{\rm out}\, F\big(c_{\rm in} x, t;\; C(c_{\rm in} x, c_{\rm in} h(y), t)\big).

References:
    Zhang et al., "Adding Conditional Control to Text-to-Image Diffusion Models", 2023.
    Zhao et al., "CoSIGN: Few-Step Guidance of ConSIstency Model to Solve General INverse Problems", 2024.
"""

import hashlib
from typing import Any

import torch
from deepinv.physics import Inpainting
from diffusers import ConfigMixin, ModelMixin, UNet2DModel
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, pixel_shuffle

from macs.errors import ConfigError, ModelError
from macs.models.consistency import ConsistencyModel
from macs.problem import Problem, to_sampler

#: Settings of a U-Net that change nothing in its encoder; two that differ only in these can share a ControlNet.
NOT_ENCODER = ("sample_size", "out_channels", "up_block_types", "upsample_type", "dropout", "num_train_timesteps")
#: The parts of a U-Net that a ControlNet copies.
COPIED = ("conv_in", "time_proj", "time_embedding", "class_embedding", "down_blocks", "mid_block")


def settings(unet: Any) -> dict[str, Any]:
    """A U-Net's configuration in the form that JSON keeps."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in unet.config.items() if not k.startswith("_")}


def fingerprint(unet: Any) -> str:
    """A digest of a U-Net's first and last weights, by which a ControlNet knows the one it was trained with."""
    digest = hashlib.sha256()
    for part in (unet.conv_in, unet.conv_out):
        digest.update(part.weight.detach().to("cpu", torch.float16).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def skip_channels(unet: dict[str, Any]) -> list[int]:
    """The channels of each skip connection, from the first."""
    out = [unet["block_out_channels"][0]]
    for i, channels in enumerate(unet["block_out_channels"]):
        last = i == len(unet["block_out_channels"]) - 1
        out += [channels] * (unet["layers_per_block"] + (not last))
    return out


def zero(conv: nn.Conv2d) -> nn.Conv2d:
    """A convolution that begins at zero."""
    for p in conv.parameters():
        nn.init.zeros_(p)
    return conv


def embedding(net: Any, time: Tensor, labels: Tensor | None) -> Tensor:
    """What the residual blocks are told of the level, and of the class where there are classes."""
    emb = net.time_embedding(net.time_proj(time).to(net.dtype))
    return emb if net.class_embedding is None else emb + net.class_embedding(labels).to(net.dtype)


def encode(net: Any, h: Tensor, emb: Tensor) -> tuple[list[Tensor], Tensor]:
    """The skip connections and the middle of a U-Net or a ControlNet, after its first convolution."""
    skips = [h]
    for block in net.down_blocks:
        h, more = block(hidden_states=h, temb=emb)
        skips += more
    return skips, h if net.mid_block is None else net.mid_block(h, emb)


def decode(unet: Any, skips: list[Tensor], h: Tensor, emb: Tensor) -> Tensor:
    """The up path of a U-Net, up to what its last convolution reads."""
    for block in unet.up_blocks:
        n = len(block.resnets)
        h, skips = block(h, tuple(skips[-n:]), emb), skips[:-n]
    return unet.conv_act(unet.conv_norm_out(h))


class ControlNet(ModelMixin, ConfigMixin):
    r"""A ControlNet for diffusers' ``UNet2DModel``, with ``from_unet``, ``save_pretrained`` and ``from_pretrained``.

    Args:
        unet: the configuration of the U-Net it belongs to.
        hint_channels: the channels of the hint as the network sees it.
        scale_hint: multiply the hint by :math:`c_{\rm in}`, as CoSIGN does.
        backbone: the digest of the U-Net it was trained with; empty where that is unknown.
        head: add to the U-Net's output too, by a convolution beside its last one that also begins at zero and reads what the
            last one reads and this network's own first level. The last convolution of a small U-Net may have hardly any gain
            for a colour that is rare in its data, and what is added before it cannot bring that colour back. CoSIGN has none.
        smooth_hint: give the hint no edges of its own (:func:`control_hint`); CoSIGN's has those of repetition and of holes.
    """

    @register_to_config
    def __init__(
        self,
        unet: dict[str, Any],
        hint_channels: int = 3,
        scale_hint: bool = True,
        backbone: str = "",
        head: bool = False,
        smooth_hint: bool = False,
    ) -> None:
        super().__init__()
        whole: Any = UNet2DModel(**unet)
        for name in COPIED:
            setattr(self, name, getattr(whole, name))
        channels = skip_channels(unet)
        self.hint_conv = zero(nn.Conv2d(hint_channels, channels[0], 3, padding=1))
        self.zero_convs = nn.ModuleList(zero(nn.Conv2d(c, c, 1)) for c in channels)
        self.zero_middle = zero(nn.Conv2d(channels[-1], channels[-1], 1))
        self.zero_head = zero(nn.Conv2d(2 * channels[0], unet["out_channels"], 3, padding=1)) if head else None

    @classmethod
    def from_unet(
        cls, unet: Any, hint_channels: int = 3, scale_hint: bool = True, head: bool = False, smooth_hint: bool = False
    ) -> "ControlNet":
        """A ControlNet with the encoder of ``unet``, that changes nothing yet."""
        if any("Skip" in kind for kind in unet.config.down_block_types):
            raise ConfigError(f"a ControlNet needs plain down blocks; this U-Net has {unet.config.down_block_types}")
        control = cls(settings(unet), hint_channels, scale_hint, fingerprint(unet), head, smooth_hint)
        own = control.state_dict().keys()
        control.load_state_dict({k: v for k, v in unet.state_dict().items() if k in own}, strict=False)
        return control.to(unet.device)

    def forward(
        self, x: Tensor, hint: Tensor, time: Tensor, labels: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """What to add to each skip connection and to the middle, and the end of the first level, which the head reads."""
        emb = embedding(self, time, labels)
        skips, middle = encode(self, self.conv_in(x) + self.hint_conv(hint), emb)
        first = skips[self.config["unet"]["layers_per_block"]]
        return [conv(h) for conv, h in zip(self.zero_convs, skips, strict=True)], self.zero_middle(middle), first


def control_hint(problem: Problem, image_shape: tuple[int, ...], smooth: bool = False) -> Tensor:
    r"""The measurement as an image in [-1, 1], (B, C, H, W): what CoSIGN's networks see.

    For a linear operator it is :math:`r_0 = 2y - A(1)`, which is y in [-1, 1] and grey where nothing was measured; for a
    nonlinear one y in [-1, 1] itself. Where it is smaller than the image (super-resolution) it is enlarged by repetition.

    A ``smooth`` hint has no edges of its own: a small measurement is enlarged by the linear estimate
    :math:`(A^\top A + \lambda I)^{-1} A^\top r_0` of :mod:`macs.models.hint`, and holes are :func:`filled`.
    """
    if not isinstance(problem.y, Tensor) or problem.y.ndim != 4 or problem.y.shape[1] != image_shape[0]:
        raise ModelError(
            f"this model sees measurements that are images of {image_shape[0]} channels; "
            f"{type(problem.physics).__name__} makes none; use a model of another family"
        )
    if any(n % k for n, k in zip(image_shape[1:], problem.y.shape[2:], strict=True)):
        raise ModelError(
            f"a measurement must have the image's size {tuple(image_shape[1:])} or a whole part of it; "
            f"got {tuple(problem.y.shape[2:])}; measure images of the model's size"
        )
    if not problem.linear:
        return to_sampler(problem.y)
    if smooth and problem.y.shape[2:] != torch.Size(image_shape[1:]):
        return problem.ridge(problem.difference(problem.y.new_zeros(len(problem.y), *image_shape)))
    blank = torch.zeros(1, *image_shape, dtype=problem.y.dtype, device=problem.y.device)
    r_0 = 2 * (problem.y - problem.physics.A((blank + 1) / 2))
    if smooth and isinstance(problem.physics, Inpainting):
        return filled(r_0, (problem.physics.mask != 0).to(r_0).expand_as(r_0))
    return interpolate(r_0, size=image_shape[1:], mode="nearest")


#: How often each scale of :func:`filled` is averaged; holes are a few pixels wide where they are first seen.
SWEEPS = 10


def filled(x: Tensor, known: Tensor) -> Tensor:
    """Images whose holes, where ``known`` is 0 and not 1, go over smoothly into what is around them.

    Nearly harmonic, from coarse to fine: halve images and masks until nothing is missing; on the way back keep what is known,
    and average the rest with its neighbours a few times.
    """
    if known.all() or max(x.shape[-2:]) == 1:
        return x
    share = avg_pool2d(known, 2, ceil_mode=True)
    mean = avg_pool2d(known * x, 2, ceil_mode=True) / torch.where(share > 0, share, 1)
    coarse = filled(mean, (share > 0).to(x))
    out = interpolate(coarse, size=x.shape[-2:], mode="bilinear")
    for _ in range(SWEEPS):
        out = avg_pool2d(torch.where(known > 0, x, out), 3, stride=1, padding=1, count_include_pad=False)
    return torch.where(known > 0, x, out)


class ControlledModel(ConsistencyModel):
    """A consistency model with a ControlNet attached: ``ControlledModel(model, control)``; both are used as they are.

    ``y=None`` leaves the ControlNet out: the model alone, an unconditional prior.
    """

    def __init__(self, model: ConsistencyModel, control: ControlNet) -> None:
        c, h, w = model.image_shape
        super().__init__(
            model.unet, (c, h, w), sigma_data=model.sigma_data, t_min=model.t_min, t_max=model.t_max,
            patch=model.patch, time_scale=model.time_scale,
        )  # fmt: skip
        check_belongs(control, model)
        self.control: Any = control
        # The method alone: the model itself would register its backbone a second time.
        self.network_input = model.network_input  # type: ignore[method-assign]

    def condition(self, problem: Problem, image_shape: tuple[int, ...] | None = None) -> Tensor:
        """The hint of a problem, computed once per solve, for images of ``image_shape``, the model's own by default."""
        return control_hint(problem, image_shape or self.image_shape, self.control.config["smooth_hint"])

    def compile_network(self) -> None:
        """The ControlNet and the backbone's blocks: the backbone is not called as a whole."""
        unet: Any = self.unet
        for part in (self.control, *unet.down_blocks, unet.mid_block, *unet.up_blocks):
            if part is not None:
                part.compile()

    def network(self, x_t: Tensor, condition: Tensor | None, time: Tensor, c_in: Tensor) -> Tensor:
        """The backbone with the ControlNet's word added to its skip connections, its middle and, by a head, its output."""
        if condition is None:
            return super().network(x_t, None, time, c_in)
        image, more = self.network_input(c_in * x_t, None)
        x, labels = self.folded(image), more.get("class_labels")
        hint = self.folded((c_in * condition if self.control.config["scale_hint"] else condition).to(x_t.dtype))
        emb = embedding(self.unet, time, labels)
        skips, middle = encode(self.unet, self.unet.conv_in(x), emb)
        added, added_middle, first = self.control(x, hint, time, labels)
        skips = [h + a for h, a in zip(skips, added, strict=True)]
        last = decode(self.unet, skips, middle + added_middle, emb)
        out = self.unet.conv_out(last)
        if self.control.zero_head is not None:
            out = out + self.control.zero_head(torch.cat([last, first], dim=1))
        return pixel_shuffle(out, self.patch)


def check_belongs(control: ControlNet, model: ConsistencyModel) -> None:
    """Refuse a ControlNet that was made for another backbone."""
    theirs, ours = control.config["unet"], settings(model.unet)
    for key in sorted({*theirs, *ours} - {*NOT_ENCODER}):
        if theirs.get(key) != ours.get(key):
            raise ModelError(
                f"this ControlNet belongs to another backbone: its {key} is {theirs.get(key)}, the model's {ours.get(key)}; "
                "attach it to the model it was trained with"
            )
    if control.config["backbone"] and control.config["backbone"] != fingerprint(model.unet):
        raise ModelError(
            f"this ControlNet was trained with other weights of this backbone ({control.config['backbone']}, "
            f"these are {fingerprint(model.unet)}); attach it to the model it was trained with"
        )
    hint = model.image_shape[0] * model.patch**2
    if control.config["hint_channels"] != hint:
        raise ModelError(f"this ControlNet reads hints of {control.config['hint_channels']} channels; this model's have {hint}")
