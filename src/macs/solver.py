"""What all solvers share, a deepinv ``Reconstructor`` with seeds and a trace; and the loop, Algorithm 1 for any step."""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from deepinv.models import Reconstructor
from deepinv.physics import Physics
from torch import Tensor

from macs import levels as grids
from macs.errors import ConfigError, MacsWarning, MeasurementError, ModelError
from macs.levels import T_MAX, T_MIN, Levels
from macs.macs_d import MacsD
from macs.noise import ImageId, Noise, content_ids
from macs.problem import Measurement, Problem, parts, sq_norm, to_image
from macs.steps import DataStep, Sampler, side_of


class Counted:
    """The model as a step sees it: conditioned once, its output checked, clamped, counted and remembered in ``past``."""

    def __init__(self, model: Callable[..., Tensor], problem: Problem, clamp: bool, dtype: torch.dtype | None) -> None:
        self.model, self.clamp, self.dtype, self.nfe = model, clamp, dtype, 0
        self.condition = model.condition(problem) if hasattr(model, "condition") else problem.y
        self.t_min, self.side = float(getattr(model, "t_min", T_MIN)), side_of(model)
        self.past: list[tuple[float | Tensor, Tensor]] = []

    def __call__(self, x_t: Tensor, y: object, t: float | Tensor, **options: Any) -> Tensor:
        """``f(x_t, y, t)``; ``y`` is there to be read, the model gets its condition."""
        x_hat = self.checked(x_t, t, **options)
        self.past.append((t, x_hat))
        return x_hat

    def checked(self, x_t: Tensor, t: float | Tensor, **options: Any) -> Tensor:
        """A call that is counted and not remembered, for solvers that make a thousand of them."""
        self.nfe += 1
        level = t if isinstance(t, Tensor) else torch.tensor(t, dtype=torch.float64, device=x_t.device)
        with torch.autocast(x_t.device.type, self.dtype, enabled=self.dtype is not None):
            x_hat = self.model(x_t, self.condition, level, **options)
        if x_hat.shape != x_t.shape:
            raise ModelError(f"the model must return images like its input, {tuple(x_t.shape)}; got {tuple(x_hat.shape)}")
        finite = torch.isfinite(x_hat).flatten(1).all(1)
        if not finite.all():
            raise ModelError(
                f"the model returned NaN or infinity at call {self.nfe}, image {int((~finite).nonzero()[0])}; "
                "check its weights, or run it in float32"
            )
        x_hat = x_hat.to(x_t.dtype)
        return x_hat.clamp(-1, 1) if self.clamp else x_hat


@dataclass(frozen=True)
class Step:
    """What a callback sees after a step, images in [-1, 1]; ``x_hat`` is the network's own output, ``s`` None at the end."""

    index: int
    t: float
    s: float | None
    x_t: Tensor
    x_hat: Tensor
    x_s: Tensor
    nfe: int


@dataclass
class Trace:
    """What happened: one row per step and, after the last step, one per network call that finished the image.

    Each row of a tensor field has one number per image. ``residual`` and ``chi2`` are those of the network's own output;
    ``lam`` is the length of the data step that followed (0 without one, where that output was returned as it is); ``s_eff``
    is the noise carried on, the root mean square of ``x_s`` minus the estimate; ``inflation`` its excess over DDIM's, both NaN
    where nothing was carried on. ``nfe`` counts calls so far. ``final_residual`` and ``final_chi2`` belong to the image that
    was returned. ``trace["lambda"]`` is ``trace.lam``.
    """

    levels: list[float | Tensor] = field(default_factory=list)
    residual: list[Tensor] = field(default_factory=list)
    chi2: list[Tensor] = field(default_factory=list)
    lam: list[Tensor] = field(default_factory=list)
    s_eff: list[Tensor] = field(default_factory=list)
    inflation: list[Tensor] = field(default_factory=list)
    nfe: list[int] = field(default_factory=list)
    final_residual: Tensor | None = None
    final_chi2: Tensor | None = None

    def __getitem__(self, name: str) -> Any:
        """A field by name."""
        return getattr(self, "lam" if name == "lambda" else name)

    def add(self, problem: Problem, data: DataStep | None, t: float | Tensor, x_hat: Tensor, nfe: int) -> Tensor:
        """A row for a network output; returns the estimate after the data step."""
        r = problem.difference(x_hat)
        nothing = torch.zeros(len(x_hat), device=x_hat.device)
        self.levels.append(t.flatten() if isinstance(t, Tensor) else t)
        self.residual.append(torch.stack([sq_norm(q) for q in parts(r)]).sum(0))
        self.chi2.append(problem.chi2_of(r))
        self.lam.append(nothing if data is None else data.weight(x_hat, problem))
        self.s_eff.append(nothing * math.nan)
        self.inflation.append(nothing * math.nan)
        self.nfe.append(nfe)
        return x_hat if data is None else data(x_hat, problem)

    def end(self, problem: Problem, x_0: Tensor) -> None:
        """The residual of the image that is returned."""
        self.final_residual, self.final_chi2 = problem.residual(x_0), problem.chi2(x_0)


def solve(
    sampler: Sampler,
    f: Counted,
    problem: Problem,
    levels: Levels,
    x_T: Tensor,
    noise: Noise,
    *,
    calls: int = 1,
    callback: Callable[[Step], None] | None = None,
    trace: Trace | None = None,
) -> Tensor:
    """Algorithm 1 for any sampler: walk down the levels, then let the sampler finish with the ``calls`` that are left."""
    x_t = x_T
    for i, (t, s) in enumerate(pairwise(levels)):
        first = len(f.past)
        x_s = sampler(f, problem, x_t, t, s, noise.at(i + 1), tuple(f.past))
        x_hat = f.past[first][1]
        if trace is not None:
            estimate = trace.add(problem, sampler.data, t, x_hat, len(f.past))
            radius = sq_norm(x_s - estimate).sqrt()
            plain = math.sqrt(grids.rho(t, s, f.t_min)) * sq_norm(x_t - estimate).sqrt()
            trace.s_eff[-1], trace.inflation[-1] = radius / x_t[0].numel() ** 0.5, radius / plain - 1
        if callback is not None:
            callback(Step(i, t, s, x_t, x_hat, x_s, len(f.past)))
        x_t = x_s
    first = len(f.past)
    x_hat = sampler.finish(f, problem, x_t, levels[-1], calls)
    x_0 = sampler.answer(x_hat, tuple(f.past[:first]))
    if trace is not None:
        for k, (level, output) in enumerate(f.past[first:]):
            if k > 0:
                trace.s_eff[-1] = torch.as_tensor(level).flatten().expand(len(output))
            trace.add(problem, sampler.data, level, output, first + k + 1)
        untouched = (x_hat == f.past[-1][1]).flatten(1).all(1)
        trace.lam[-1] = torch.where(untouched, 0, trace.lam[-1])
        trace.end(problem, x_0)
    if callback is not None:
        callback(Step(len(levels) - 1, levels[-1], None, x_t, f.past[first][1], x_0, len(f.past)))
    return x_0


class Restorer(Reconstructor):
    """What every solver shares: checks, seeds, batches and the trace. A subclass says how one batch is restored.

    Args:
        model: any callable ``f(x_t, y, t) -> x_hat`` on images in [-1, 1]; ``t`` is a 0-d tensor, or (B, 1, 1, 1) where
            images differ in level. Optional attributes: ``t_min`` (0.002), ``t_max`` (80), ``image_shape`` (C, H, W), and
            ``side``, where it works on tiles of that side. If it has ``condition(problem)``, its result, computed once per
            solve, takes the place of ``y``; else ``y`` is as given.
        clamp: cut each network output to [-1, 1], as public consistency code does.
        dtype: run the network under autocast in this type, e.g. ``torch.bfloat16``; physics and norms stay in float32.
        micro_batch: run in batches of exactly this many images, the last one padded. An image's pixels are then bit for bit
            the same whatever batch it came in. Needs a physics whose parameters are shared by all images.
    """

    def __init__(
        self,
        model: Callable[..., Tensor],
        *,
        clamp: bool = True,
        dtype: torch.dtype | None = None,
        micro_batch: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.t_min, self.t_max = float(getattr(model, "t_min", T_MIN)), float(getattr(model, "t_max", T_MAX))
        check_count("micro_batch", 1 if micro_batch is None else micro_batch)
        self.clamp, self.dtype, self.micro_batch = clamp, dtype, micro_batch

    def restore(
        self,
        f: Counted,
        problem: Problem,
        unit: Tensor,
        noise: Noise,
        trace: Trace | None,
        callback: Callable[[Step], None] | None,
    ) -> Tensor:
        """One batch, to images in [-1, 1]; ``unit`` is the start noise, draw 0, and ``noise`` the streams it came from."""
        raise NotImplementedError

    def tell(
        self,
        f: Counted,
        problem: Problem,
        t: float,
        x_t: Tensor,
        x_hat: Tensor,
        trace: Trace | None,
        callback: Callable[[Step], None] | None,
    ) -> None:
        """A row of the trace and a callback for a network call of a solver that is no walk down the levels."""
        if trace is not None:
            trace.add(problem, None, t, x_hat, f.nfe)
        if callback is not None:
            callback(Step(f.nfe - 1, t, None, x_t, x_hat, x_hat, f.nfe))

    @torch.no_grad()
    def forward(
        self,
        y: Measurement,
        physics: Physics,
        seed: int = 0,
        *,
        z: Tensor | None = None,
        ids: Sequence[ImageId] | None = None,
        sigma_y: float | Tensor | None = None,
        img_size: tuple[int, ...] | None = None,
        trace: bool = False,
        callback: Callable[[Step], None] | None = None,
    ) -> Any:
        """Restore ``y`` to images in [0, 1]; with ``trace=True`` return ``(images, trace)``.

        Args:
            y: what ``physics(x)`` returned, (B, ...) or a ``TensorList``.
            physics: a deepinv physics on images in [0, 1].
            seed: the run's seed; 0 is a seed.
            z: unit start noise (B, C, H, W) in place of the seeded one.
            ids: a name per image; it and the seed fix the image's noise. By default its measurement's own content names it.
            sigma_y: the measurement noise in [-1, 1] units, where the physics' noise model does not say.
            img_size: (C, H, W), where neither the model nor the physics' adjoint tells.
            trace: also return a :class:`Trace`.
            callback: called with a :class:`Step` after each step.
        """
        problem = Problem(y, physics, sigma_y)
        names = content_ids(y) if ids is None else tuple(ids)
        if len(names) != len(problem):
            raise ConfigError(f"ids must name each image; got {len(names)} for {len(problem)} images")
        blank = self.blank(problem, img_size, z)
        check_shape(problem, blank)
        images, traces = [], []
        for take, keep in self.batches(problem):
            part = problem if take is None else problem.take(take)
            noise = Noise(seed, names if take is None else [names[i] for i in take])
            unit = noise.like(blank[take] if take else blank) if z is None else z.to(blank)[take or slice(None)]
            f = Counted(self.model, part, self.clamp, self.dtype)
            record = Trace() if trace else None
            images.append(self.restore(f, part, unit, noise, record, callback)[:keep])
            traces.append((record, keep))
        x = to_image(torch.cat(images))
        return (x, joined(traces)) if trace else x

    def batches(self, problem: Problem) -> list[tuple[list[int] | None, int]]:
        """The whole batch as it is, or batches of one fixed size as ``(images, how many of them to keep)``."""
        n, size = len(problem), self.micro_batch
        if size is None:
            return [(None, n)]
        owned = [name for name, b in problem.physics.named_buffers() if b.ndim > 1 and len(b) == n > 1]
        if owned:
            raise ConfigError(f"micro_batch needs a physics shared by all images; its {owned[0]!r} has one entry per image")
        return [([min(j, n - 1) for j in range(i, i + size)], min(size, n - i)) for i in range(0, n, size)]

    def blank(self, problem: Problem, img_size: tuple[int, ...] | None, z: Tensor | None) -> Tensor:
        """Zeros of the images' shape and device."""
        n, device = len(problem), parts(problem.y)[0].device
        shape = img_size or getattr(self.model, "image_shape", None)
        if z is not None:
            if z.ndim < 2 or len(z) != n or (shape is not None and tuple(z.shape[1:]) != tuple(shape)):
                raise ConfigError(f"z must hold unit noise for {n} images of shape {shape}; got {tuple(z.shape)}")
            return torch.zeros_like(z, device=device)
        if shape is not None:
            return torch.zeros(n, *shape, device=device)
        if problem.linear:
            return torch.zeros_like(problem.physics.A_adjoint(problem.y))
        raise ConfigError("the image size is unknown for a nonlinear physics; pass img_size=(C, H, W) or set model.image_shape")


class Solver(Restorer):
    """Restore images from measurements with a consistency model and any sampler: ``x = solver(y, physics, seed=0)``.

    Args:
        model: any callable ``f(x_t, y, t) -> x_hat`` on images in [-1, 1], see :class:`Restorer`.
        sampler: a sampler such as ``Macs(gamma=0.15)``; ``MacsD()`` by default.
        steps: the number of levels, which is the number of network calls for every sampler of one call per step.
        levels: the levels themselves, from high to low; they take the place of ``steps``.
        init: where to start, a function of the problem such as ``PseudoInverse()``: the start is ``init(problem) + t_N z``.
            By default it is ``t_N z``.
        options: ``clamp``, ``dtype`` and ``micro_batch`` of :class:`Restorer`.
    """

    def __init__(
        self,
        model: Callable[..., Tensor],
        sampler: Sampler | None = None,
        steps: int = 2,
        levels: Iterable[float] | None = None,
        *,
        init: Callable[[Problem], Tensor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.sampler = MacsD() if sampler is None else sampler
        if not isinstance(self.sampler, Sampler):
            raise ConfigError(f"sampler must be a sampler such as macs.MacsD(); got {sampler!r}")
        check_count("steps", steps)
        usual = self.sampler.levels(steps, self.t_max, self.t_min, side_of(model)) if levels is None else levels
        self.levels = grids.check(usual, self.t_min)
        self.calls = max(steps - len(self.levels) + 1, 1) if levels is None else 2
        self.init = init
        if getattr(model, "kind", None) == "denoiser" and len(self.levels) > 1 and not self.sampler.ode:
            warnings.warn(
                f"this model is a denoiser, whose mean images {type(self.sampler).__name__} takes for finished ones; "
                "use Dps, Ddrm or the sampler Heun, or load a consistency model",
                MacsWarning,
                stacklevel=2,
            )

    def restore(
        self,
        f: Counted,
        problem: Problem,
        unit: Tensor,
        noise: Noise,
        trace: Trace | None,
        callback: Callable[[Step], None] | None,
    ) -> Tensor:
        """Algorithm 1."""
        x_T = self.levels[0] * unit
        x_T = x_T if self.init is None else self.init(problem) + x_T
        return solve(self.sampler, f, problem, self.levels, x_T, noise, calls=self.calls, callback=callback, trace=trace)


def check_count(name: str, value: Any) -> None:
    """Refuse what is no whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1; got {value!r}; leave it out for the default")


def joined(traces: Sequence[tuple[Trace | None, int]]) -> Trace:
    """The traces of several batches side by side, without their padding."""
    rows = [(t, k) for t, k in traces if t is not None]
    out = Trace(levels=rows[0][0].levels, nfe=rows[0][0].nfe)
    for name in ("residual", "chi2", "lam", "s_eff", "inflation"):
        columns = [[row[:k] for row in t[name]] for t, k in rows]
        getattr(out, name).extend(torch.cat(row) for row in zip(*columns, strict=True))
    if out.levels and isinstance(out.levels[-1], Tensor):
        out.levels[-1] = torch.cat([torch.as_tensor(t.levels[-1])[:k] for t, k in rows])
    for name in ("final_residual", "final_chi2"):
        setattr(out, name, torch.cat([t[name][:k] for t, k in rows]))
    return out


def check_shape(problem: Problem, blank: Tensor) -> None:
    """Refuse a measurement that the operator could not have made from images of this shape."""
    try:
        made = parts(problem.physics.A(blank))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise MeasurementError(
            f"the physics refused images of shape {tuple(blank.shape)} ({str(error).splitlines()[0]}); "
            "use a physics made for this image size, or pass img_size"
        ) from error
    for have, want in zip(parts(problem.y), made, strict=True):
        if have.shape[1:] != want.shape[1:]:
            raise MeasurementError(
                f"y must have the shape that the physics makes from {tuple(blank.shape[1:])} images, "
                f"{tuple(want.shape[1:])}; got {tuple(have.shape[1:])}; solve with the physics that measured"
            )
