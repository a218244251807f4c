r"""Look at a measurement, its operator and a solution, and say in words what is wrong.

Each check is one function. Those of the values read measurements of image form, (B, C, h, w); those of the operator any
deepinv physics; those of a solution its residual, which for a right operator and noise level is white and has
:math:`\chi^2 \approx 1`.
"""

from dataclasses import dataclass

import torch
from deepinv.physics import Inpainting, LinearPhysics, Physics
from torch import Tensor

from macs.errors import MeasurementError
from macs.noise_level import estimate_sigma_y
from macs.problem import Measurement, Problem, parts, sq_norm, to_sampler

OK, DOUBT, WRONG = "ok", "doubt", "wrong"


@dataclass(frozen=True)
class Finding:
    """What one check found: ``ok``, ``doubt`` or ``wrong``, and a sentence."""

    check: str
    verdict: str
    says: str


def examine(y: Measurement, physics: Physics, x: Tensor, sigma_y: float | None = None) -> list[Finding]:
    """All checks of a measurement, its operator and a solution.

    Args:
        y: the measurement of a batch, as for ``macs.Solver``.
        physics: the operator that is thought to have made it.
        x: a solution, images in [0, 1] (B, C, H, W), such as ``solver(y, physics)``.
        sigma_y: the noise in [-1, 1] units, where the physics' noise model does not say.
    """
    problem = Problem(y, physics, sigma_y)
    found = [repeatable(physics, x), adjoint(physics, x), misfit(problem, x)]
    if all(part.ndim == 4 and not part.is_complex() for part in parts(y)):
        found = [value_range(y), black_and_white(y), noise_units(problem), *found, whiteness(problem, x)]
    return found


def value_range(y: Measurement) -> Finding:
    """Whether the numbers are those of images in [0, 1]; noise may carry them a little past."""
    low, high = (float(f(torch.cat([p.flatten() for p in parts(y)]))) for f in (torch.amin, torch.amax))
    where = f"the numbers run from {low:.3g} to {high:.3g}"
    if low == high:
        return Finding("range", WRONG, f"{where}: the measurement is of one value and says nothing")
    if high > 2:
        return Finding("range", WRONG, f"{where}: these look like 8-bit values; divide by 255")
    if low < -0.5 and high < 1.5:
        return Finding(
            "range", WRONG, f"{where}: these look like images in [-1, 1]; the physics works on [0, 1], take (y + 1)/2"
        )
    if high < 0.1:
        return Finding("range", DOUBT, f"{where}: nearly black; was it divided by 255 twice, or does the operator dim so much?")
    return Finding("range", OK, f"{where}, as for images in [0, 1]")


def black_and_white(y: Measurement) -> Finding:
    """How many values sit exactly at 0 or 1, where a file cut the noise."""
    values = torch.cat([p.flatten() for p in parts(y)])
    share = float(((values == 0) | (values == 1)).float().mean())
    if share > 0.05:
        return Finding(
            "saturation", DOUBT,
            f"{100 * share:.0f} % of the values are exactly 0 or 1 (holes, or cut noise); cut noise makes chi2 too small",
        )  # fmt: skip
    return Finding("saturation", OK, f"{100 * share:.1f} % of the values are exactly 0 or 1")


def noise_units(problem: Problem) -> Finding:
    """The given noise level beside one estimated from the first measurement, and which unit would explain the difference."""
    if problem.sigma_y is None:
        return Finding("sigma_y", DOUBT, "the noise is not Gaussian and no sigma_y was given; data steps and chi2 need one")
    given, y = float(problem.sigma_y[0]), parts(problem.y)[0][0]
    if given > 1:
        return Finding(
            "sigma_y", WRONG, f"{given:g} is more than half of [-1, 1]; if it is in 8-bit steps, give {given / 127.5:.3g}"
        )  # fmt: skip
    mask = problem.physics.mask[0, 0] if isinstance(problem.physics, Inpainting) else None
    try:
        seen = estimate_sigma_y(y, mask)
    except MeasurementError:
        return Finding(
            "sigma_y", DOUBT, f"{given:g}; too little of the measurement is free of black, white and holes to check it"
        )
    if given > 1.5 * seen:
        return Finding(
            "sigma_y", WRONG,
            f"{given:g} was given, but the measurement shows at most {seen:.3g}; the solution would ignore detail",
        )  # fmt: skip
    if given < seen / 1.5:
        return Finding(
            "sigma_y", DOUBT,
            f"{given:g} was given, the measurement shows up to {seen:.3g}: it has fine texture, or the value is too small; "
            f"a value for images in [0, 1] must be doubled",
        )  # fmt: skip
    return Finding("sigma_y", OK, f"{given:g}, and the measurement shows {seen:.3g} (on images in [-1, 1])")


def repeatable(physics: Physics, x: Tensor) -> Finding:
    """Whether the operator gives the same answer twice."""
    first, second = parts(physics.A(x)), parts(physics.A(x))
    gap = max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))
    if gap > 0:
        return Finding(
            "operator", WRONG,
            f"two calls of A on one image differ by {gap:.2g}: it draws anew each time; fix its parameters",
        )  # fmt: skip
    return Finding("operator", OK, "A is deterministic: two calls on the same image agree bit for bit")


def adjoint(physics: Physics, x: Tensor) -> Finding:
    r"""Whether :math:`\langle A u, v\rangle = \langle u, A^\top v\rangle` on random u and v."""
    if not isinstance(physics, LinearPhysics):
        return Finding("adjoint", OK, "the operator is nonlinear, it has none; data steps use derivatives")
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(x.shape, generator=generator).to(x)
    Au = physics.A(u)
    v = [torch.randn(p.shape, generator=generator).to(p) for p in parts(Au)]
    back = physics.A_adjoint(v[0] if isinstance(Au, Tensor) else type(Au)(v))
    left = sum((a * b.conj()).sum() for a, b in zip(parts(Au), v, strict=True))
    right = (u * back.conj()).sum()
    size = sum(sq_norm(p).sum() for p in parts(Au)) ** 0.5 * sum(sq_norm(p).sum() for p in v) ** 0.5
    error = float(abs(left - right) / max(float(size), 1e-30))
    if error > 1e-3:
        return Finding(
            "adjoint", WRONG, f"<Au, v> and <u, A'v> differ by {error:.1g} of their size: A_adjoint is not A's adjoint"
        )
    return Finding("adjoint", OK, f"<Au, v> and <u, A'v> agree to {error:.0e}")


def misfit(problem: Problem, x: Tensor) -> Finding:
    r""":math:`\chi^2` of the solution, in words."""
    chi2 = float(problem.chi2(to_sampler(x)).mean())
    if not 0 <= chi2 < float("inf"):
        return Finding("chi2", DOUBT, "unknown: it needs a noise level above 0")
    if chi2 > 2:
        why = "the operator is not the one that measured, sigma_y is too small, or the model does not know such images"
        return Finding(
            "chi2", WRONG if chi2 > 4 else DOUBT, f"{chi2:.2f}: the solution does not explain the measurement; {why}"
        )
    if chi2 < 0.5:
        return Finding(
            "chi2", DOUBT, f"{chi2:.2f}: the solution is nearer than the noise allows; sigma_y is too large, or was cut"
        )
    return Finding("chi2", OK, f"{chi2:.2f}: the solution explains the measurement as far as the noise allows")


def whiteness(problem: Problem, x: Tensor) -> Finding:
    """The correlation of neighbours in the residual: none if only noise is left."""
    products, energy, n = 0.0, 0.0, 0
    for r in parts(problem.difference(to_sampler(x))):
        for a, b in ((r[..., 1:], r[..., :-1]), (r[..., 1:, :], r[..., :-1, :])):
            used = (a != 0) & (b != 0)
            products += float((a * b)[used].sum())
            energy += float(((a.square() + b.square()) / 2)[used].sum())
            n += int(used.sum())
    correlation, chance = products / max(energy, 1e-30), 4 / max(n, 1) ** 0.5
    if abs(correlation) > max(0.2, chance):
        return Finding(
            "residual", DOUBT,
            f"neighbours are correlated by {correlation:.2f}: structure is left; the operator may be off (blur, shift, border)",
        )  # fmt: skip
    return Finding("residual", OK, f"neighbours are correlated by {correlation:.2f}, as in white noise")
