"""LPIPS against torchmetrics' network, both with the same random weights."""

import torch
from safetensors.torch import save_file
from torchmetrics.functional.image.lpips import _LPIPS

from macs.lpips import Lpips


def test_the_distance_is_torchmetrics(tmp_path):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = _LPIPS(pretrained=False, net="alex", pnet_rand=True).eval()
    convolutions = [m for m in theirs.net.modules() if isinstance(m, torch.nn.Conv2d)]
    weights = {f"conv{i}.{kind}": getattr(m, kind).detach() for i, m in enumerate(convolutions) for kind in ("weight", "bias")}
    for i in range(5):
        lin = getattr(theirs, f"lin{i}").model[-1].weight
        with torch.no_grad():
            lin.abs_()
        weights[f"lin{i}.weight"] = lin.detach()
    save_file({k: v.contiguous() for k, v in weights.items()}, tmp_path / "w.safetensors")
    g = torch.Generator().manual_seed(1)
    x, y = (2 * torch.rand(3, 3, 64, 64, generator=g) - 1 for _ in range(2))
    with torch.no_grad():
        want = theirs(x, y).flatten()
    assert want.std() > 0
    torch.testing.assert_close(Lpips(tmp_path / "w.safetensors")(x, y), want, rtol=1e-4, atol=1e-6)
