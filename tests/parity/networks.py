"""A random network with a hidden layer, written twice: for NumPy rows and for torch images."""

import numpy as np
import torch


class RandomNetwork:
    """f = 1.2 tanh(W_2 tanh(W_1 c_in x + W_y y + w_t ln t)), c_in = 1/sqrt(t^2 + 1/4).

    It looks at x, y and t, and leaves [-1, 1], so that the clamp acts.
    """

    def __init__(self, n, m, hidden=24, seed=0):
        rng = np.random.default_rng(seed)
        self.W_1 = rng.normal(size=(n, hidden)) / np.sqrt(n)
        self.W_y = rng.normal(size=(m, hidden)) / np.sqrt(m)
        self.w_t = rng.normal(size=hidden) / 4
        self.W_2 = 2 * rng.normal(size=(hidden, n)) / np.sqrt(hidden)

    def rows(self, x, y, t):
        """For (B, n) and (B, m) arrays; ``t`` is a number or (B, 1)."""
        hidden = np.tanh(x / np.sqrt(t**2 + 0.25) @ self.W_1 + y @ self.W_y + np.log(t) * self.w_t)
        return 1.2 * np.tanh(hidden @ self.W_2)

    def __call__(self, x_t, y, t):
        """For (B, C, H, W) images and measurements of any shape; ``t`` is a number, a 0-d tensor or (B, 1, 1, 1)."""
        W_1, W_y, w_t, W_2 = (torch.as_tensor(w, dtype=x_t.dtype) for w in (self.W_1, self.W_y, self.w_t, self.W_2))
        level = torch.as_tensor(t, dtype=x_t.dtype).reshape(-1, 1)
        scaled = x_t.flatten(1) / (level.square() + 0.25).sqrt()
        hidden = torch.tanh(scaled @ W_1 + y.flatten(1) @ W_y + level.log() * w_t)
        return (1.2 * torch.tanh(hidden @ W_2)).reshape(x_t.shape)
