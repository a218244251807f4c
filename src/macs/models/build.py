"""From a small configuration to a network, so that a model file can carry its own."""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from diffusers import UNet2DModel

from macs.errors import unknown
from macs.levels import T_MAX, T_MIN
from macs.models.consistency import ConsistencyModel, HintedModel
from macs.models.controlnet import ControlNet, settings
from macs.models.encoder import SummaryModel
from macs.models.nonlinear_blur import BlurNetwork
from macs.models.transform import HTransform


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a network trained here; it travels inside the model file."""

    family: str = "hinted"
    image_shape: tuple[int, int, int] = (1, 28, 28)
    channels: tuple[int, ...] = (64, 128)
    layers: int = 2
    patch: int = 2
    groups: int = 16
    head_dim: int = 32
    sigma_data: float = 0.7
    t_min: float = T_MIN
    t_max: float = T_MAX
    time_scale: float = 4.0

    @classmethod
    def of(cls, values: dict[str, Any]) -> "ModelConfig":
        """From plain values; an unknown key is an error."""
        known = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise unknown("model setting", key, known)
        lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        if lists.get("family", "hinted") not in (*FAMILIES, *PARTS):
            raise unknown("model family", lists["family"], (*FAMILIES, *PARTS))
        return cls(**lists)


#: The families of networks, each with the number of input channels it needs per image channel, and beside them.
FAMILIES: dict[str, tuple[type[ConsistencyModel], int, int]] = {
    "plain": (ConsistencyModel, 1, 0),
    "hinted": (HintedModel, 3, 0),
    "summary": (SummaryModel, 1, 2),
    "deft": (HTransform, 4, 0),
}
#: Networks that are kept in files of the same form and are no models by themselves, with what to call them.
PARTS = {"controlled": "ControlNet", "blur": "blur network"}


def build(config: ModelConfig) -> Any:
    """The network of a configuration, with fresh weights: a consistency model, or one of ``PARTS``.

    A ControlNet has the configuration of its backbone, a head and a smooth hint. A blur network reads ``channels`` as the
    widths of its adapter, ``layers`` as the number of residual blocks before it (twice as many follow), ``head_dim`` as the
    channels of its kernel.
    """
    if config.family == "controlled":
        hint_channels = config.image_shape[0] * config.patch**2
        backbone = settings(build(replace(config, family="plain")).unet)
        return ControlNet(backbone, hint_channels, scale_hint=False, head=True, smooth_hint=True)
    if config.family == "blur":
        return BlurNetwork(config.image_shape[0], config.channels, config.layers, 2 * config.layers, config.head_dim)
    family, inputs, others = FAMILIES[config.family]
    channels, height, width = config.image_shape
    fold = config.patch**2
    unet = UNet2DModel(
        sample_size=(height // config.patch, width // config.patch),
        in_channels=(inputs * channels + others) * fold,
        out_channels=channels * fold,
        layers_per_block=config.layers,
        block_out_channels=config.channels,
        down_block_types=("DownBlock2D",) * len(config.channels),
        up_block_types=("UpBlock2D",) * len(config.channels),
        attention_head_dim=config.head_dim,
        norm_num_groups=config.groups,
        resnet_time_scale_shift="scale_shift",
        class_embed_type="identity" if issubclass(family, SummaryModel) else None,
    )
    return family(
        unet,
        config.image_shape,
        sigma_data=config.sigma_data,
        t_min=config.t_min,
        t_max=config.t_max,
        patch=config.patch,
        time_scale=config.time_scale,
    )
