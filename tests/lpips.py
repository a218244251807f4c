"""LPIPS weights of the right names and shapes with random numbers, for tests."""

import torch

from macs.lpips import LAYERS


def random_weights(seed=0):
    g = torch.Generator().manual_seed(seed)
    weights = {f"conv{i}.weight": 0.05 * torch.randn(o, b, k, k, generator=g) for i, (o, b, k, *_) in enumerate(LAYERS)}
    weights |= {f"conv{i}.bias": torch.zeros(layer[0]) for i, layer in enumerate(LAYERS)}
    return weights | {f"lin{i}.weight": torch.rand(1, layer[0], 1, 1, generator=g) for i, layer in enumerate(LAYERS)}
