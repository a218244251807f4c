"""The samplers in plain NumPy, float64, written from the papers.

Images are rows of (B, n) arrays in [-1, 1]; measurements are rows of (B, m) arrays, as measured on [0, 1] images.
``f(x, y, t)`` is a consistency model; ``t`` is a number or a (B, 1) array. ``z`` is the unit noise of a step.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

T_MIN = 0.002


@dataclass(frozen=True)
class Measured:
    """y = A x + noise on [0, 1] images: the matrix, its (regularised) inverse, the noise and the number of measurements.

    ``sigma`` is a number or, where parts differ, one per measurement.
    """

    y: np.ndarray
    A: np.ndarray
    inverse: np.ndarray
    sigma: float | np.ndarray
    count: int

    def difference(self, x):
        """r = 2 (y - A((x + 1)/2)): the residual in [-1, 1] units."""
        return 2 * (self.y - ((x + 1) / 2) @ self.A.T)

    def residual(self, x):
        """R = ||r||^2, one per image, (B, 1)."""
        return squared(self.difference(x))

    def chi2(self, x):
        """R/(m sigma_y^2), with sigma_y = 2 sigma in [-1, 1] units."""
        return squared(self.difference(x) / (2 * self.sigma)) / self.count


def squared(x):
    """The squared Euclidean norm of each row, (B, 1)."""
    return np.einsum("bi,bi->b", x, x)[:, None]


def clip(x):
    """Cut to the range of images, [-1, 1]."""
    return np.minimum(np.maximum(x, -1), 1)


def karras(n, t_max=80.0, t_min=T_MIN, exponent=7):
    """t_i = (t_max^(1/e) + i/(n-1) (t_min^(1/e) - t_max^(1/e)))^e (Karras et al. 2022, Eq. 5)."""
    return np.power(np.linspace(t_max ** (1 / exponent), t_min ** (1 / exponent), n), exponent)


def rho(t, s, t_min=T_MIN):
    """(s^2 - t_min^2)/(t^2 - t_min^2) (MACS, Sec. II-D)."""
    return (s**2 - t_min**2) / (t**2 - t_min**2)


# Data steps: x_hat -> x_hat


def discrepancy_weight(x_hat, problem):
    """lambda = 1 - 1/sqrt(chi2) where chi2 > 1, else 0: what is left of the residual has the norm of the noise."""
    return 1 - 1 / np.sqrt(np.maximum(problem.chi2(x_hat), 1))


def discrepancy(x_hat, problem):
    """clip(x_hat + lambda A^+(y - A x_hat))."""
    return clip(x_hat + discrepancy_weight(x_hat, problem) * (problem.difference(x_hat) @ problem.inverse.T))


def untouched(x_hat, problem):
    """No data step."""
    return x_hat


# Steps: x_t -> x_s


def ddim(f, problem, x_t, t, s, z, past, data=untouched):
    """(1 - sqrt(rho)) x_hat + sqrt(rho) x_t (MACS, Eq. of Sec. II-D)."""
    x_hat = data(f(x_t, problem.y, t), problem)
    root = np.sqrt(rho(t, s))
    return (1 - root) * x_hat + root * x_t


def macs(gamma, residual="sum"):
    """Lines 3 to 8 of Algorithm 1, with the residual r = gamma ||y - A x_hat||^2 in one of its normalisations.

    "mean": times n/m; "operator": over ||A||^2; "chi2": s_eff = s sqrt(1 + gamma (1 - sqrt(rho))^2 max(chi2 - 1, 0)).
    ``gamma`` is a number or a function of t.
    """

    def step(f, problem, x_t, t, s, z, past, data=untouched):
        x_hat = data(f(x_t, problem.y, t), problem)
        eps_hat = x_t - x_hat
        ratio, strength = rho(t, s), gamma(t) if callable(gamma) else gamma
        if residual == "chi2":
            excess = np.maximum(problem.chi2(x_hat) - 1, 0)
            scale = np.sqrt(ratio) * np.sqrt(1 + strength * (1 - np.sqrt(ratio)) ** 2 * excess)
        else:
            norms = {"sum": 1, "mean": x_t.shape[1] / problem.count, "operator": 1 / np.linalg.norm(problem.A, 2) ** 2}
            r = strength * problem.residual(x_hat) * norms[residual]
            scale = np.sqrt(ratio + r * ((1 - np.sqrt(ratio)) / np.sqrt(squared(eps_hat))) ** 2)
        return x_hat + scale * eps_hat

    return step


def addim(eta, variance=None):
    """Heek, Hoogeboom and Salimans, Algorithm 3, with alpha = 1 and sigma_t^2 = t^2 - t_min^2.

    eps = (z_t - x)/sigma_t, z_var = (1 - sigma_s/sigma_t)^2 x_var, z_s = x + sqrt(sigma_s^2 + d/||eps||^2 z_var) eps, and
    x_var = eta/(2 + alpha^2/t^2) per pixel, their analytic choice; a ``variance`` is a sum over all pixels.
    """

    def step(f, problem, x_t, t, s, z, past, data=untouched):
        d = x_t.shape[1]
        x_hat = data(f(x_t, problem.y, t), problem)
        sigma_t, sigma_s = np.sqrt(t**2 - T_MIN**2), np.sqrt(s**2 - T_MIN**2)
        eps_hat = (x_t - x_hat) / sigma_t
        total = variance(t) if callable(variance) else variance
        x_var = eta / (2 + 1 / t**2) if total is None else eta * total / d
        z_var = (1 - sigma_s / sigma_t) ** 2 * x_var
        return x_hat + np.sqrt(sigma_s**2 + d / squared(eps_hat) * z_var) * eps_hat

    return step


def multistep(f, problem, x_t, t, s, z, past, data=untouched):
    """x_hat + sqrt(s^2 - t_min^2) z (Song et al. 2023, Algorithm 1)."""
    return data(f(x_t, problem.y, t), problem) + np.sqrt(s**2 - T_MIN**2) * z


def slope(f, problem, x, t, data):
    """d = (x - f(x, t))/t (Karras et al. 2022, Algorithm 1, line 4)."""
    return (x - data(f(x, problem.y, t), problem)) / t


def euler(f, problem, x_t, t, s, z, past, data=untouched):
    """x_t + (s - t) d (Karras et al. 2022, Algorithm 1, line 5)."""
    return x_t + (s - t) * slope(f, problem, x_t, t, data)


def heun(f, problem, x_t, t, s, z, past, data=untouched):
    """x_t + (s - t) (d + d')/2, with d' the slope at the end of the Euler step (Karras et al. 2022, Algorithm 1)."""
    d = slope(f, problem, x_t, t, data)
    return x_t + (s - t) * (d + slope(f, problem, x_t + (s - t) * d, s, data)) / 2


def dpm_solver_pp_2m(f, problem, x_t, t, s, z, past, data=untouched):
    """DPM-Solver++(2M) (Lu et al. 2022, Algorithm 2), with alpha = 1, sigma = t and lambda = -ln t.

    x_s = (s/t) x_t - (e^-h - 1) D, D = (1 + 1/(2r)) x_hat - 1/(2r) x_hat_before, r = h_before/h; D = x_hat in the first step.
    """
    x_hat = data(f(x_t, problem.y, t), problem)
    h, D = np.log(t / s), x_hat
    if past:
        t_before, x_before = past[-1]
        r = np.log(t_before / t) / h
        D = (1 + 1 / (2 * r)) * x_hat - 1 / (2 * r) * data(x_before, problem)
    return s / t * x_t - np.expm1(-h) * D


def dpm_solver_2(f, problem, x_t, t, s, z, past, data=untouched):
    """DPM-Solver-2 (Lu et al. 2022, Algorithm 1, r_1 = 1/2), with alpha = 1, sigma = t and lambda = -ln t.

    m is halfway in lambda; u = x_t - m (e^(h/2) - 1) eps(x_t, t); x_s = x_t - s (e^h - 1) eps(u, m), eps = (x - x_hat)/t.
    """
    h = np.log(t / s)
    m = np.exp((np.log(t) + np.log(s)) / 2)
    u = x_t - m * np.expm1(h / 2) * slope(f, problem, x_t, t, data)
    return x_t - s * np.expm1(h) * slope(f, problem, u, m, data)


# Loops


def solve(step, f, problem, levels, unit, fresh, data=untouched, limit=clip):
    """Algorithm 1 for any step, from x_T = levels[0] unit; ``fresh(k)`` is the noise of the k-th step."""
    seen = []

    def limited(x, y, t):
        seen.append((t, limit(f(x, y, t))))
        return seen[-1][1]

    x = levels[0] * unit
    for k, (t, s) in enumerate(pairwise(levels), start=1):
        x = step(limited, problem, x, t, s, fresh(k), tuple(seen), data)
    return data(limited(x, problem.y, levels[-1]), problem)


def unmeasured(v, problem):
    """v - (A^T A + lambda I)^-1 A^T A v with lambda = sigma_y^2 / 0.5, by dense algebra."""
    gram = problem.A.T @ problem.A
    damping = max(2 * problem.sigma, 0.01) ** 2 / 0.5
    return v - v @ gram @ np.linalg.inv(gram + damping * np.eye(len(gram)))


def gaussian_matrix(shape, std):
    """The matrix on images of (C, H, W) as rows: each pixel is the mean of its channel by the Gaussian of the distances."""
    c, i, j = (index.ravel() for index in np.indices(shape))
    weight = np.exp(-((i[:, None] - i) ** 2 + (j[:, None] - j) ** 2) / (2 * std**2)) * (c[:, None] == c)
    return weight / weight.sum(1, keepdims=True)


def macs_d(
    f, problem, levels, unit, fresh, eta=None, null=True, tolerance=4.0, c=2.0, polish=False, kappa=1.0, mean=0.0, coarse=None
):
    """MACS-D: after each f the discrepancy step, then fresh noise where nothing is measured.

    After the last f it is made only where chi2 is above the tolerance. The polish is f at c lambda sigma_y. The averaged
    variant adds a share of what lies between the last and the mean of what f said before, filtered by the matrix ``coarse``.
    """
    x, said = levels[0] * unit, []
    for k, (t, s) in enumerate(pairwise(levels), start=1):
        said.append(clip(f(x, problem.y, t)))
        estimate = discrepancy(said[-1], problem)
        drawn = fresh(k)
        noise = (1 - kappa) * drawn + kappa * unmeasured(drawn, problem) if null else drawn
        share = (squared(noise) / squared(drawn)) ** 0.3 if eta is None else eta
        x = estimate + share * np.sqrt(s**2 - T_MIN**2) * noise
    x_hat = clip(f(x, problem.y, levels[-1]))
    last = np.where(problem.chi2(x_hat) > tolerance, discrepancy(x_hat, problem), x_hat)
    if polish:
        left = c * discrepancy_weight(x_hat, problem) * 2 * problem.sigma
        last = clip(f(discrepancy(x_hat, problem), problem.y, np.maximum(left, T_MIN)))
    if not said:
        return last
    between = np.mean(said, 0) - last
    return last + mean * (between if coarse is None else between @ coarse.T)
