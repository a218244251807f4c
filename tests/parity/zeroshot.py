"""CM4IR and PnP-CM in plain NumPy, float64, as their authors publish them: images and measurements are rows in [-1, 1] units.

``f(x, t, told)`` is the network: ``t`` sets its preconditioning, ``told`` is the level that its embedding sees.
"""

import numpy as np


def levels(n, start, growth):
    """sqrt(1 - alpha): alpha of DDPM's linear schedule after start + 2 steps, then (1 + growth) times, at most 0.9999."""
    alphas = [np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))[start + 1]]
    while len(alphas) < n:
        alphas.append(min(alphas[-1] * (1 + growth), 0.9999))
    return np.clip(np.sqrt(1 - np.array(alphas)), 0.002, 80)


def inverse(A, damping):
    """(A^T A + damping I)^-1 A^T, or the pseudo-inverse."""
    return np.linalg.pinv(A) if damping == 0 else np.linalg.solve(A.T @ A + damping * np.eye(A.shape[1]), A.T)


def median_fill(images, mask):
    """Missing pixels of (B, C, H, W) images from the lower median of their known neighbours, ring after ring."""
    out = np.array(images)
    known = np.broadcast_to(mask != 0, out.shape).copy()
    H, W = out.shape[-2:]
    while not known.all():
        before, seen = out.copy(), known.copy()
        for index in zip(*np.nonzero(~seen), strict=True):
            b, c, i, j = index
            window = np.s_[b, c, max(i - 1, 0) : min(i + 2, H), max(j - 1, 0) : min(j + 2, W)]
            values = np.sort(before[window][seen[window]])
            if len(values):
                out[index] = values[(len(values) - 1) // 2]
                known[index] = True
    return out


def cm4ir(f, y, A, inv, x, sigmas, noise, *, eta=0.1, mu=1.0, deltas=None, embedding=True, noisy=True):
    """The published loop from a first image ``x``; ``noise[k]`` is the k-th draw."""
    deltas = np.zeros(len(sigmas)) if deltas is None else deltas
    x = x + sigmas[0] * noise[0]
    for k, sigma in enumerate(sigmas):
        told = (1 + deltas[k]) * sigma
        x0 = np.clip(f(x, sigma if embedding else told, told), -1, 1)
        z_minus = (x0 - x) / sigma
        last = k == len(sigmas) - 1
        if noisy and last:
            return x0
        x = x0 - mu * (x0 @ A.T - y) @ inv.T
        if not last:
            x = x + sigmas[k + 1] * (eta * noise[k + 1] + np.sqrt(1 - eta**2) * z_minus)
    return x


def pnp_cm(f, y, A, x, sigmas, noise, *, rhos, mu, delta):
    """The published loop for a linear operator, from a first image ``x``."""
    n = A.shape[1]
    penalty = np.log1p(np.exp(np.linspace(*rhos, len(sigmas))))
    x_m, u, u_m = x, np.zeros_like(x), np.zeros_like(x)
    for k, sigma in enumerate(sigmas):
        x_old, u_old = x, u
        z = np.linalg.solve(A.T @ A + penalty[k] * np.eye(n), (y @ A + penalty[k] * (x_m - u_m)).T).T
        x = np.clip(f(z + u_m + sigma * noise[k], (1 + delta) * sigma, (1 + delta) * sigma), -1, 1)
        u = u_m + z - x
        x_m = x + mu / (k + 1) * (x - x_old)
        u_m = u + mu / (k + 1) * (u - u_old)
    return x
