"""The forward operators as dense float64 matrices acting on images flattened as (C, H, W)."""

import numpy as np


def cubic(x):
    """Keys' cubic convolution kernel, a = -1/2 (R. Keys, 1981, Eq. 15)."""
    a, x = -0.5, np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def imresize_matrix(n, factor):
    """Rows of MATLAB's ``imresize(x, 1/factor, "bicubic")`` on ``n`` samples, counted from 1 as MATLAB does.

    Output j sits at u = j/scale + (1 - 1/scale)/2; the kernel is widened to scale h(scale x) (antialiasing), the taps start at
    floor(u - width/2), the weights of a row sum to 1, and indices past a border come from [1..n, n..1], periodically.
    """
    scale, width = 1 / factor, 4 * factor
    mirror = np.concatenate([np.arange(n), np.arange(n)[::-1]])
    M = np.zeros((n // factor, n))
    for j in range(1, n // factor + 1):
        u = j / scale + 0.5 * (1 - 1 / scale)
        taps = np.floor(u - width / 2) + np.arange(width + 2)
        weights = scale * cubic(scale * (u - taps))
        np.add.at(M[j - 1], mirror[(taps.astype(int) - 1) % (2 * n)], weights / weights.sum())
    return M


def gaussian_kernel(n, std):
    """exp(-k^2/(2 std^2)), normalised, for |k| <= ceil(4 std), or n - 1 where reflection allows no more."""
    reach = min(int(np.ceil(4 * std)), n - 1)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * std**2))
    return weights / weights.sum()


def blur_matrix(n, std):
    """Convolution with the Gaussian kernel after reflection that does not repeat the border; column i is its answer to e_i."""
    kernel = gaussian_kernel(n, std)
    reach = len(kernel) // 2
    return np.stack([np.convolve(np.pad(e, reach, mode="reflect"), kernel, "valid") for e in np.eye(n)], axis=1)


def separable(rows, columns, channels):
    """The matrix of x -> M_r x M_c^T on each of ``channels`` channels: I (x) M_r (x) M_c."""
    return np.kron(np.eye(channels), np.kron(rows, columns))


def super_resolution_matrix(shape, factor):
    """Antialiased bicubic reduction of (C, H, W) images."""
    channels, height, width = shape
    return separable(imresize_matrix(height, factor), imresize_matrix(width, factor), channels)


def deblurring_matrix(shape, std):
    """Gaussian blur of (C, H, W) images."""
    channels, height, width = shape
    return separable(blur_matrix(height, std), blur_matrix(width, std), channels)


def hole_mask(shape, hole):
    """1 where a pixel is observed, 0 in a central square hole, for (C, H, W) images."""
    rows, columns = (np.abs(np.arange(n) - (n - 1) / 2) < hole / 2 for n in shape[1:])
    return np.broadcast_to(~np.outer(rows, columns), shape).astype(float)


def inpainting_matrix(shape, hole):
    """Multiplication by the mask; a hidden pixel is a measurement that is always 0."""
    return np.diag(hole_mask(shape, hole).ravel())


def damped_inverse(A, delta):
    """(A^T A + delta^2 ||A||^2 I)^-1 A^T: Tikhonov's pseudo-inverse, which keeps singular values above delta ||A||."""
    floor = (delta * np.linalg.norm(A, 2)) ** 2
    return np.linalg.solve(A.T @ A + floor * np.eye(A.shape[1]), A.T)
