"""What a run trains: a consistency model, a ControlNet on a frozen one, or a blur network; the loop is the same for all.

A recipe makes the network, the batch of a step and its loss, all of them functions of (configuration, seed, step), so that a
run of any kind can stop anywhere and go on as if it had not.

References:
    Zhao et al., "CoSIGN: Few-Step Guidance of ConSIstency Model to Solve General INverse Problems", 2024 (ControlNets are
    trained by plain reconstruction at random levels).
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from deepinv.physics import Inpainting, Physics
from torch import Generator, Tensor, nn
from torch.nn.functional import interpolate

from macs.demo import measured
from macs.errors import ConfigError, unknown
from macs.lpips import Lpips
from macs.macs_d import returned, spared
from macs.metrics import psnr
from macs.models.build import build
from macs.models.consistency import ConsistencyModel, HintedModel
from macs.models.controlnet import ControlledModel, ControlNet, control_hint, fingerprint
from macs.models.manifest import tensors_digest
from macs.models.nonlinear_blur import BlurNetwork, NonlinearBlur
from macs.noise import stream_seed
from macs.problem import Problem, per_image, sq_norm, to_image
from macs.tasks import ALL_TASKS, SIGMA_Y
from macs.training.batches import OPERATORS, Batch, draw, draw_images, each_task, levels, picked, uniform
from macs.training.config import Stage, TrainConfig
from macs.training.loss import cd_loss, ect_loss, edm_loss, shown
from macs.training.score import energy_score, perceived
from macs.training.shake import camera_shake
from macs.training.validation import Validation, picture, restored, sampled

Perceptual = Callable[[Tensor, Tensor], Tensor]

#: The range of the level at which a second answer is scored; few calls end in it.
SECOND = (0.8, 20.0)


class Recipe(Protocol):
    """What the loop asks of a kind of training."""

    def build(self, config: TrainConfig) -> Any:
        """The network to train, with its first weights."""
        ...

    def compile(self, network: Any) -> None:
        """Compile what takes the time."""
        ...

    def batch(self, images: Tensor, step: int, config: TrainConfig) -> Any:
        """The batch of a step, from images in uint8."""
        ...

    def loss(self, network: Any, batch: Any, stage: Stage, progress: float, teacher: Any) -> Tensor:
        """The loss of a batch at this point of a stage; ``teacher`` is the network of the last stage of denoising, if any."""
        ...

    def validate(self, network: Any, images: Tensor, loss: str) -> Validation:
        """How the network does on held-out images, in uint8, at a stage of this loss."""
        ...

    def fingerprint(self) -> bytes:
        """What must not change between a stop and the next start, besides the configuration and the images."""
        ...


class Consistency:
    """A consistency model, from scratch: denoising, then consistency tuning."""

    def build(self, config: TrainConfig) -> ConsistencyModel:
        """The model of the configuration."""
        return build(config.model)

    def compile(self, network: ConsistencyModel) -> None:
        """Compile the backbone."""
        network.compile_network()

    def batch(self, images: Tensor, step: int, config: TrainConfig) -> Any:
        """Images and, for models that see measurements, their conditions."""
        common: dict[str, Any] = {
            "seed": config.seed, "size": config.batch, "flip": config.flip,
            "t_min": config.model.t_min, "t_max": config.model.t_max,
        }  # fmt: skip
        if config.model.family == "plain":
            return draw_images(images, step, **common)
        return draw(images, step, nominal=config.nominal, drop=config.drop, **common)

    def loss(self, network: ConsistencyModel, batch: Any, stage: Stage, progress: float, teacher: Any) -> Tensor:
        """The stage's objective."""
        if stage.loss == "edm":
            return edm_loss(network, batch.x, batch.condition, batch.t, batch.z).mean()
        if stage.loss == "cd":
            k = doublings(stage, progress)
            return cd_loss(network, teacher, batch.x, batch.condition, batch.t, batch.z, k, stage.huber).mean()
        return tuned(network, batch, stage, progress)

    def validate(self, network: ConsistencyModel, images: Tensor, loss: str) -> Validation:
        """Restorations for every task, or samples of a model that sees no measurement."""
        if not hasattr(network, "condition"):
            return sampled(network)
        x = images.float() / 255
        return restored(network, x, {name: measured(x, name, seed=0) for name in OPERATORS}, loss)

    def fingerprint(self) -> bytes:
        """The configuration says it all."""
        return b""


class ScoredBatch(NamedTuple):
    """Images and their conditions; what two answers are drawn with: starts, a second level, and noise for it, (B, 2, ...).

    Then, of every second image: a noisy version, the condition that is told with it, and its level.
    """

    x: Tensor
    condition: Tensor
    starts: Tensor
    noises: Tensor
    level: Tensor
    x_t: Tensor
    told: Tensor
    t: Tensor


@dataclass(frozen=True)
class Scored(Consistency):
    """A finished model made to draw from the posterior in one call, and in two, by the energy score of its own answers.

    The second call sees what the first one made, with noise as in :class:`macs.Multistep` for one half of the images and as in
    :class:`macs.MacsD` for the other. On noisy true images the network is held to what it was, at low levels, where no call
    ends, and without a measurement at all of them: it stays a prior.

    Args:
        start: the model to begin with.
        lpips: the network of the perceptual distance.
    """

    start: HintedModel
    lpips: Lpips

    def __post_init__(self) -> None:
        if not isinstance(self.start, HintedModel) or self.start.kind != "consistency":
            raise ConfigError('loss = "score" is for consistency models of the family "hinted"; give one of them to --start')

    def build(self, config: TrainConfig) -> ConsistencyModel:
        """The model to start from."""
        return copy.deepcopy(self.start).requires_grad_(True)

    def compile(self, network: ConsistencyModel) -> None:
        """Compile both backbones."""
        network.compile_network()
        self.start.compile_network()

    def batch(self, images: Tensor, step: int, config: TrainConfig) -> ScoredBatch:
        """Thirds of the images under each task."""
        g = Generator().manual_seed(stream_seed(config.seed, "score", step))
        x = picked(images, config.batch, g)
        problems = each_task(x, g, config.nominal)
        condition = torch.cat([self.start.condition(problem) for problem in problems])
        starts, noises = torch.randn(2, len(x), 2, *x.shape[1:], generator=g)
        silent = torch.cat([silenced(n, p) for n, p in zip(noises.tensor_split(len(problems)), problems, strict=True)])
        noises[::2] = silent[::2]
        low, high = map(math.log, SECOND)
        level = torch.exp(low + (high - low) * torch.rand(len(x), generator=g))
        t = levels(len(x[::2]), g, config.model.t_min, config.model.t_max)
        x_t = x[::2] + per_image(t, x) * torch.randn(x[::2].shape, generator=g)
        told = condition[::2] * per_image((t < SECOND[0]) & (torch.rand(len(t), generator=g) >= config.drop), x)
        return ScoredBatch(x, condition, starts, noises, level, x_t, told, t)

    def loss(self, network: ConsistencyModel, batch: ScoredBatch, stage: Stage, progress: float, teacher: Any) -> Tensor:
        """The score of one call and of two, and the distance to what the network was."""
        condition, level = (torch.cat([part, part]) for part in (batch.condition, batch.level))
        first = shown(network(network.t_max * in_turn(batch.starts), condition, network.t_max))
        second = shown(network(first.detach() + per_image(level, first) * in_turn(batch.noises), condition, level))
        with torch.no_grad():
            truth = perceived(batch.x, self.lpips, stage.lpips)
            before = self.start.to(batch.x_t.device)(batch.x_t, batch.told, batch.t).clamp(-1, 1)
        total = pseudo_huber(shown(network(batch.x_t, batch.told, batch.t)), before, stage.huber).mean()
        for answers in (first, second):
            one, other = (perceived(answer, self.lpips, stage.lpips) for answer in answers.chunk(2))
            total = total + energy_score(one, other, truth).mean()
        return total

    def fingerprint(self) -> bytes:
        """What it begins with, and the perceptual distance."""
        return f"{tensors_digest(self.start.state_dict())} {tensors_digest(self.lpips.weights)}".encode()


def in_turn(pairs: Tensor) -> Tensor:
    """All first ones, then all second ones, (2B, ...), of pairs (B, 2, ...)."""
    return pairs.movedim(1, 0).flatten(0, 1)


def silenced(noises: Tensor, problem: Problem) -> Tensor:
    """Pairs of unit noise as MACS-D returns it, without what was measured, (B, 2, ...)."""
    kept = [spared(noise, problem, noise.shape[-1]) for noise in noises.unbind(1)]
    return torch.stack([returned(k, n) * k for k, n in zip(kept, noises.unbind(1), strict=True)], 1)


def tuned(model: ConsistencyModel, batch: Batch, stage: Stage, progress: float) -> Tensor:
    """The consistency loss at this point of a stage, the pairs of levels getting closer as it goes."""
    k = doublings(stage, progress)
    return ect_loss(model, batch.x, batch.condition, batch.t, batch.z, k, stage.huber).mean()


def doublings(stage: Stage, progress: float) -> int:
    """How close the pairs of levels are at this point of a stage."""
    return stage.doublings_from + math.floor(progress * (stage.doublings_to - stage.doublings_from + 1))


def karras_levels(n: int, g: Generator, t_min: float, t_max: float) -> Tensor:
    """Levels evenly spread on Karras' scale, :math:`t^{1/7}`, two in five at ``t_max``, where every restoration begins."""
    low, high = t_min ** (1 / 7), t_max ** (1 / 7)
    t = (low + (high - low) * torch.rand(n, generator=g)) ** 7
    return torch.where(torch.rand(n, generator=g) < 0.4, t_max, t).clamp(2 * t_min, t_max)


def pseudo_huber(x: Tensor, target: Tensor, c: float) -> Tensor:
    r""":math:`\sqrt{\|x - x'\|^2/n + c^2} - c` of each image, (B,)."""
    return (sq_norm(x - target) / x[0].numel() + c**2).sqrt() - c


def doubled(x: Tensor) -> Tensor:
    """Small images at twice their size, for AlexNet, whose first layer steps by four pixels and hardly sees a chequerboard.

    Song et al., "Consistency Models", 2023, enlarge images below 256 pixels to 224 for the same network.
    """
    return x if x.shape[-1] >= 128 else interpolate(x, scale_factor=2, mode="bilinear")


@dataclass(frozen=True)
class Control:
    """A ControlNet for one task on a frozen backbone.

    ``loss = "recon"`` draws the result towards the clean image (pseudo-Huber, plus LPIPS where its network is given), and
    ``loss = "ect"`` is the consistency loss of the controlled model.

    Args:
        backbone: the model that is steered; its weights stay as they are.
        task: the name of the inverse problem.
        blur: the blur network, for nonlinear deblurring.
        perceptual: a distance of images in [-1, 1], (B,), added to the reconstruction loss.
        name: what the backbone is loaded by.
        start: what to begin with, a ControlNet of the same backbone for another task.
    """

    backbone: ConsistencyModel
    task: str
    blur: BlurNetwork | None = None
    perceptual: Perceptual | None = None
    name: str = ""
    start: ControlNet | None = None

    def __post_init__(self) -> None:
        if self.task not in ALL_TASKS:
            raise unknown("task", self.task, ALL_TASKS)
        if hasattr(self.backbone, "condition"):
            raise ConfigError(
                f"a ControlNet steers a model that sees no measurement; {self.name or 'this backbone'} sees one; "
                'train a backbone with family = "plain" first'
            )
        if (self.task == "nonlinear-deblurring") != (self.blur is not None):
            raise ConfigError("a blur network is needed for nonlinear-deblurring, and for no other task; see --blur")
        if self.start is not None:
            ControlledModel(self.backbone, self.start)

    def build(self, config: TrainConfig) -> ControlNet:
        """The ControlNet to start from, or one that changes nothing yet, made to learn in few steps.

        Its hint is not scaled down at high levels, and enters as the image does, not through a convolution of zeros: the copied
        encoder says something of it from the first step, which the zeros at its ends keep from the backbone.
        """
        if self.start is not None:
            return copy.deepcopy(self.start).requires_grad_(True)
        hint_channels = self.backbone.image_shape[0] * self.backbone.patch**2
        control = ControlNet.from_unet(self.backbone.unet, hint_channels, scale_hint=False, head=True, smooth_hint=True)
        control.hint_conv.weight.data.copy_(control.conv_in.weight)
        return control.requires_grad_(True)

    def compile(self, network: Any) -> None:
        """Compile the ControlNet and the backbone's blocks."""
        ControlledModel(self.backbone, network).compile_network()

    def batch(self, images: Tensor, step: int, config: TrainConfig) -> Batch:
        """Images, and their measurements as hints."""
        g = Generator().manual_seed(stream_seed(config.seed, "control", step))
        size, t_min, t_max = config.batch, config.model.t_min, config.model.t_max
        x = draw_images(images, step, seed=config.seed, size=size, flip=config.flip, t_min=t_min, t_max=t_max).x
        t = karras_levels(size, g, t_min, t_max)
        return Batch(x, self.hint(x, g, config.nominal), t, torch.randn(x.shape, generator=g))

    def hint(self, x: Tensor, g: Generator, nominal: float) -> Tensor:
        """The hint of images under the task's operator, with probability ``nominal`` the paper's, else one near it."""
        physics = self.operator(x, g, uniform(g, 0, 1) < nominal)
        clean = physics.A(to_image(x))
        y = clean + SIGMA_Y / 2 * torch.randn(clean.shape, generator=g)
        if isinstance(physics, Inpainting):
            y = y * physics.mask
        return control_hint(Problem(y, physics, SIGMA_Y), self.backbone.image_shape, smooth=True)

    def operator(self, x: Tensor, g: Generator, nominal: bool) -> Physics:
        """The task's physics for a batch."""
        channels, height, width = x.shape[1:]
        if self.blur is None:
            return OPERATORS[self.task]((channels, height, width), g, nominal)
        shape = self.blur.kernel_shape((channels, height, width))
        return NonlinearBlur(self.blur, self.blur.config["spread"] * torch.randn(len(x), *shape, generator=g))

    def loss(self, network: Any, batch: Batch, stage: Stage, progress: float, teacher: Any) -> Tensor:
        """The stage's objective for the backbone with this ControlNet."""
        model = ControlledModel(self.backbone, network)
        if stage.loss == "ect":
            return tuned(model, batch, stage, progress)
        x_hat = model(batch.x + per_image(batch.t, batch.x) * batch.z, batch.condition, batch.t)
        loss = pseudo_huber(x_hat, batch.x, stage.huber)
        if self.perceptual is not None:
            loss = loss + stage.lpips * self.perceptual(doubled(x_hat), doubled(batch.x))
        return loss.mean()

    def validate(self, network: Any, images: Tensor, loss: str) -> Validation:
        """Restorations for the task."""
        x = images.float() / 255
        g = Generator().manual_seed(0)
        physics = self.operator(x, g, nominal=True)
        y = physics.A(x)
        y = y + SIGMA_Y / 2 * torch.randn(y.shape, generator=g)
        y = y * physics.mask if isinstance(physics, Inpainting) else y
        return restored(ControlledModel(self.backbone, network), x, {self.task: (y, physics)}, loss)

    def fingerprint(self) -> bytes:
        """The task, the backbone, the blur network, the perceptual distance and what it begins with."""
        blur = "" if self.blur is None else tensors_digest(self.blur.state_dict())
        distance = "" if self.perceptual is None else tensors_digest(getattr(self.perceptual, "weights", {}))
        start = "" if self.start is None else f" {tensors_digest(self.start.state_dict())}"
        return f"{self.task} {fingerprint(self.backbone.unet)} {blur} {distance}{start}".encode()


class Blur:
    """A blur network, taught a synthetic camera shake (:mod:`macs.training.shake`); its latent kernel is the shake's own."""

    def build(self, config: TrainConfig) -> nn.Module:
        """The network of the configuration."""
        return build(config.model)

    def compile(self, network: Any) -> None:
        """Compile the network."""
        network.compile()

    def batch(self, images: Tensor, step: int, config: TrainConfig) -> tuple[Tensor, Tensor, Tensor]:
        """Sharp images in [0, 1], kernels, and what the camera saw."""
        x = draw_images(images, step, seed=config.seed, size=config.batch, flip=config.flip).x
        g = Generator().manual_seed(stream_seed(config.seed, "shake", step))
        x, k = to_image(x), torch.randn(len(x), config.model.head_dim, 2, 2, generator=g)
        return x, k, camera_shake(x, k)

    def loss(self, network: Any, batch: tuple[Tensor, Tensor, Tensor], stage: Stage, progress: float, teacher: Any) -> Tensor:
        """The distance to what the camera saw."""
        x, k, y = batch
        return pseudo_huber(network(x, k), y, stage.huber).mean()

    def validate(self, network: Any, images: Tensor, loss: str) -> Validation:
        """Sharp images, what the camera saw, and what the network makes of them."""
        x = images.float() / 255
        k = torch.randn(len(x), *network.kernel_shape(tuple(x.shape[1:])), generator=Generator().manual_seed(0))
        y = camera_shake(x, k)
        with torch.no_grad():
            out = network(x, k).clamp(0, 1)
        return Validation({"blur": psnr(out, y).mean().item()}, picture([x, y, out]))

    def fingerprint(self) -> bytes:
        """The configuration says it all."""
        return b""
