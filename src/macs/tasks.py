r"""The paper's inverse problems, by name, as deepinv physics.

Super-resolution and Gaussian blur act on rows and columns alike, :math:`y = M_r\, x\, M_c^\top`, so the singular value
decomposition of two small matrices is that of the whole operator: adjoint, pseudo-inverse and proximal step are exact and
cost a few matrix products. For a blur the pseudo-inverse is regularised, since singular values reach down to nothing.
"""

import math
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from deepinv.physics import Blur, DecomposablePhysics, GaussianNoise, Inpainting, Physics
from torch import Tensor

from macs.errors import ConfigError, unknown

#: The noise of the paper's measurements, on images in [-1, 1].
SIGMA_Y = 0.05


class Separable(DecomposablePhysics):
    r""":math:`A(x) = M_r\, x\, M_c^\top` for each channel, with exact singular value decomposition.

    Args:
        rows: :math:`M_r`, (h, H). The matrix is used in float64 to factorise, and in the image's type to apply.
        columns: :math:`M_c`, (w, W); ``rows`` where not given.
        regularization: :math:`\delta` in :math:`A^+ = V\, \mathrm{diag}(s/(s^2 + \delta^2 s_{\max}^2))\, U^\top`; 0 is the
            exact pseudo-inverse.
    """

    def __init__(self, rows: Tensor, columns: Tensor | None = None, regularization: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        columns = rows if columns is None else columns
        self.regularization = regularization
        spectrum = []
        for name, M in (("rows", rows.double()), ("columns", columns.double())):
            U, S, Vh = torch.linalg.svd(M, full_matrices=True)
            self.register_buffer(f"{name}_U", U)
            self.register_buffer(f"{name}_V", Vh.mT.contiguous())
            spectrum.append(torch.cat([S, S.new_zeros(Vh.shape[0] - len(S))]))
        self.register_buffer("rows_matrix", rows.double())
        self.register_buffer("columns_matrix", columns.double())
        self.register_buffer("mask", torch.outer(*spectrum)[None, None])

    def A(self, x: Tensor, **kwargs: Any) -> Tensor:
        """:math:`M_r x M_c^T`, the product itself."""
        return self.rows_matrix.to(x.dtype) @ x @ self.columns_matrix.to(x.dtype).mT

    def A_adjoint(self, y: Tensor, **kwargs: Any) -> Tensor:
        """:math:`M_r^T y M_c`."""
        return self.rows_matrix.to(y.dtype).mT @ y @ self.columns_matrix.to(y.dtype)

    def A_adjoint_A(self, x: Tensor, **kwargs: Any) -> Tensor:
        """:math:`A^T A x`."""
        return self.A_adjoint(self.A(x))

    def A_A_adjoint(self, y: Tensor, **kwargs: Any) -> Tensor:
        """:math:`A A^T y`."""
        return self.A(self.A_adjoint(y))

    def V(self, x: Tensor, **kwargs: Any) -> Tensor:
        """From the spectrum to the image."""
        return self.rows_V.to(x.dtype) @ x @ self.columns_V.to(x.dtype).mT

    def V_adjoint(self, x: Tensor) -> Tensor:
        """From the image to the spectrum."""
        return self.rows_V.to(x.dtype).mT @ x @ self.columns_V.to(x.dtype)

    def U(self, x: Tensor) -> Tensor:
        """From the spectrum to the measurement; what no measurement sees is dropped."""
        h, w = len(self.rows_U), len(self.columns_U)
        return self.rows_U.to(x.dtype) @ x[..., :h, :w] @ self.columns_U.to(x.dtype).mT

    def U_adjoint(self, x: Tensor, **kwargs: Any) -> Tensor:
        """From the measurement to the spectrum."""
        z = self.rows_U.to(x.dtype).mT @ x @ self.columns_U.to(x.dtype)
        H, W = self.mask.shape[-2:]
        return torch.nn.functional.pad(z, (0, W - z.shape[-1], 0, H - z.shape[-2]))

    def prox_l2(self, z: Any, y: Tensor, gamma: Any, **kwargs: Any) -> Tensor:
        r""":math:`z + V\, \mathrm{diag}(s/(s^2 + 1/\gamma))\, U^\top (y - A z)`, a form that a large gamma does not upset."""
        damping = 1 / torch.as_tensor(gamma, dtype=y.dtype, device=y.device).reshape(-1, 1, 1, 1)
        known = isinstance(z, Tensor)
        s = self.mask.to(y.dtype)
        step = self.V(s / (s.square() + damping) * self.U_adjoint(y - self.A(z) if known else y))
        return z + step if known else step

    def A_dagger(self, y: Tensor, mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """:math:`A^+ y`, with singular values below ``regularization`` of the largest damped."""
        s = self.mask if mask is None else mask
        floor = (self.regularization * s.max()) ** 2
        inverse = torch.where(s > 1e-10 * s.max(), s / (s.square() + floor), 0)
        return self.V(inverse.to(y.dtype) * self.U_adjoint(y))


def cubic(x: Tensor) -> Tensor:
    """Keys' cubic convolution kernel with a = -1/2 (Keys 1981), MATLAB's bicubic."""
    x = x.abs()
    near = 1.5 * x**3 - 2.5 * x**2 + 1
    far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return torch.where(x <= 1, near, torch.where(x < 2, far, 0))


def bicubic_matrix(n: int, factor: int) -> Tensor:
    """Antialiased bicubic reduction of ``n`` samples by ``factor``, symmetric at the borders (MATLAB's ``imresize``)."""
    centre = (torch.arange(n // factor, dtype=torch.float64) + 0.5) * factor - 0.5
    reach = 2 * factor + 1
    taps = centre.floor()[:, None].long() + torch.arange(-reach, reach + 1)
    weight = cubic((taps - centre[:, None]) / factor)
    mirrored = taps % (2 * n)
    mirrored = torch.where(mirrored < n, mirrored, 2 * n - 1 - mirrored)
    return torch.zeros(len(centre), n, dtype=torch.float64).scatter_add_(1, mirrored, weight / weight.sum(1, keepdim=True))


def gaussian_matrix(n: int, std: float) -> Tensor:
    """Gaussian blur of ``n`` samples, 2 ceil(4 std) + 1 taps or as many as reflection at the borders allows."""
    reach = min(math.ceil(4 * std), n - 1)
    offset = torch.arange(-reach, reach + 1)
    weight = torch.exp(-offset.double().square() / (2 * std**2))
    taps = (torch.arange(n)[:, None] + offset).abs()
    mirrored = torch.where(taps < n, taps, 2 * (n - 1) - taps)
    rows = (weight / weight.sum()).expand(n, -1)
    return torch.zeros(n, n, dtype=torch.float64).scatter_add_(1, mirrored, rows)


def default_factor(side: int) -> int:
    """The paper's reduction: by 2 on images of up to 32 pixels, by 4 on larger ones."""
    return 2 if side <= 32 else 4


def default_std(side: int) -> float:
    """The paper's blur: of standard deviation 3 at 28 pixels, 5 at 256, 5/4 at 64."""
    return 3.0 if side <= 32 else 5.0 * side / 256


def super_resolution(shape: tuple[int, int, int], sigma_y: float, factor: int | None = None) -> Separable:
    """Bicubic reduction, by 2 on images of up to 32 pixels and by 4 on larger ones."""
    factor = default_factor(shape[-1]) if factor is None else factor
    if factor < 1 or any(n % factor for n in shape[-2:]):
        raise ConfigError(f"factor must divide the image sides {shape[-2:]}; got {factor}; try 2 or 4")
    rows, columns = (bicubic_matrix(n, factor) for n in shape[-2:])
    return Separable(rows, columns, img_size=shape, noise_model=noise(sigma_y))


class NoisyHole(Inpainting):
    """Inpainting whose hole, in which nothing is measured, is full of noise, as CoSIGN's measurements are."""

    def noise(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Noise on every pixel."""
        return self.noise_model(x, **kwargs)


def inpainting(
    shape: tuple[int, int, int],
    sigma_y: float,
    hole: int | None = None,
    mask: Tensor | None = None,
    cosign_compat: bool = False,
) -> Inpainting:
    """A central square hole, of half the shorter side, or the zeros of a ``mask`` (H, W).

    A hole has no noise and is no measurement. With ``cosign_compat`` it is what CoSIGN's released ControlNet was trained on: a
    hole one pixel larger, from a quarter of the side to three quarters with both ends (64 to 192 of 256 pixels), and noise in
    the hole too.
    """
    if cosign_compat:
        if hole is not None or mask is not None:
            raise ConfigError(
                f"cosign_compat fixes the hole; leave hole and mask out; got {hole if mask is None else 'a mask'}"
            )
        mask = torch.ones(shape)
        mask[:, shape[-2] // 4 : 3 * shape[-2] // 4 + 1, shape[-1] // 4 : 3 * shape[-1] // 4 + 1] = 0
        return NoisyHole(img_size=shape, mask=mask, noise_model=noise(sigma_y))
    if mask is not None:
        return Inpainting(img_size=shape, mask=checked_mask(mask, shape), noise_model=noise(sigma_y))
    hole = min(shape[-2:]) // 2 if hole is None else hole
    if not 0 <= hole <= min(shape[-2:]):
        raise ConfigError(f"hole must be between 0 and the image side {min(shape[-2:])}; got {hole}")
    mask = torch.ones(shape)
    top, left = (shape[-2] - hole) // 2, (shape[-1] - hole) // 2
    mask[:, top : top + hole, left : left + hole] = 0
    return Inpainting(img_size=shape, mask=mask, noise_model=noise(sigma_y))


def checked_mask(mask: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """A mask of ones and zeros in the shape of the image."""
    if tuple(mask.shape[-2:]) != tuple(shape[-2:]):
        sizes = f"{shape[-2]}x{shape[-1]}; got {mask.shape[-2]}x{mask.shape[-1]}"
        raise ConfigError(f"a mask must have the height and width of the image, {sizes}; resize it")
    kept = (mask != 0).float()
    if not kept.any():
        raise ConfigError(
            "a mask must keep some pixel; this one keeps none; it is 0 where the image is unknown, not where it is known"
        )
    return kept.expand(shape).clone()


def checked_kernel(kernel: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """A blur kernel (h, w) of odd sides and sum 1, not larger than reflection at the borders allows, as (1, 1, h, w)."""
    h, w = kernel.shape[-2:]
    if h % 2 == 0 or w % 2 == 0 or h // 2 >= shape[-2] or w // 2 >= shape[-1]:
        raise ConfigError(f"a kernel must have odd sides that are less than twice the image's; got {h}x{w}; cut or pad it")
    if not (bool((kernel >= 0).all()) and kernel.sum() > 0):
        raise ConfigError("a kernel must hold weights of at least 0, not all 0; it says how one point of light is spread")
    return (kernel / kernel.sum()).float().reshape(1, 1, h, w)


def deblurring(
    shape: tuple[int, int, int],
    sigma_y: float,
    std: float | None = None,
    regularization: float | None = None,
    kernel: Tensor | None = None,
) -> Separable | Blur:
    """Gaussian blur of standard deviation 3 at 28 pixels, 5 at 256, or any ``kernel`` (h, w); reflected at the borders."""
    if kernel is not None:
        return Blur(filter=checked_kernel(kernel, shape), padding="reflect", noise_model=noise(sigma_y))
    if std is None:
        std = default_std(shape[-1])
    if not std > 0:
        raise ConfigError(f"std must be positive; got {std}; it is the blur's standard deviation in pixels")
    regularization = max(sigma_y, 1e-3) if regularization is None else regularization
    rows, columns = (gaussian_matrix(n, std) for n in shape[-2:])
    return Separable(rows, columns, regularization, img_size=shape, noise_model=noise(sigma_y))


def noise(sigma_y: float) -> GaussianNoise:
    """Gaussian noise of standard deviation ``sigma_y`` on images in [-1, 1], half of that in deepinv's [0, 1]."""
    if not sigma_y >= 0:
        raise ConfigError(f"sigma_y must be at least 0; got {sigma_y}; the paper uses 0.05, on images in [-1, 1]")
    return GaussianNoise(sigma_y / 2)


def nonlinear_deblurring(
    shape: tuple[int, int, int], sigma_y: float, network: Any = None, seed: int = 0, images: int = 1
) -> Physics:
    """A learnt blur whose kernel is drawn from ``seed`` now and kept: one for all images, or one for each of ``images``.

    ``network`` is the blur network, its folder or its file; for colour images of 64 pixels one is bundled.
    """
    from macs.models.nonlinear_blur import BlurNetwork, NonlinearBlur, draw_kernels
    from macs.models.store import load_blur

    if images < 1:
        raise ConfigError(f"images must be at least 1; got {images}; 1 is one kernel for all images")
    if network is None and tuple(shape) != (3, 64, 64):
        raise ConfigError(
            f"nonlinear-deblurring of {tuple(shape)} images needs a blur network; pass network=... (macs bench: --blur), the "
            "folder that macs models convert makes of GOPRO_wVAE.pth for one (sides that are multiples of 128)"
        )
    blur = network if isinstance(network, BlurNetwork) else load_blur("blur64" if network is None else network)
    return NonlinearBlur(blur, draw_kernels(blur, shape, seed, images), noise_model=noise(sigma_y))


#: The linear tasks, which every model reads.
TASKS: dict[str, Callable[..., Any]] = {
    "super-resolution": super_resolution,
    "inpainting": inpainting,
    "deblurring": deblurring,
}
#: Those and the nonlinear one, which needs a blur network, and a model trained for it.
ALL_TASKS: dict[str, Callable[..., Any]] = {**TASKS, "nonlinear-deblurring": nonlinear_deblurring}


def task(
    name: str, model: Any = None, *, image_shape: tuple[int, int, int] | None = None, sigma_y: float = SIGMA_Y, **options: Any
) -> Any:
    """An inverse problem of the paper by name, as a deepinv physics for a model's image size.

    Args:
        name: ``"super-resolution"``, ``"inpainting"``, ``"deblurring"`` or ``"nonlinear-deblurring"``.
        model: anything with an ``image_shape`` (C, H, W); its size picks the paper's parameters.
        image_shape: (C, H, W), where there is no model.
        sigma_y: the noise on images in [-1, 1] (0.05 in the paper).
        options: ``factor`` of the super-resolution; side of the ``hole``, or a ``mask`` (H, W) that is 0 where the image is
            unknown; ``std`` of the blur in pixels, or its ``kernel`` (h, w); ``network`` and ``seed`` of the nonlinear one;
            each task's function in :mod:`macs.tasks` says more.
    """
    if name not in ALL_TASKS:
        raise unknown("task", name, ALL_TASKS)
    shape = image_shape or getattr(model, "image_shape", None)
    if shape is None:
        raise ConfigError("a task must know the image size; pass a model that has image_shape, or image_shape=(C, H, W)")
    known = list(signature(ALL_TASKS[name]).parameters)[2:]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    return ALL_TASKS[name](tuple(shape), sigma_y=sigma_y, **options)
