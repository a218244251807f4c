"""Accelerated MRI of real images: a third of the columns of k-space, by a prior that was never trained for it.

In deepinv ``MRI`` is on complex images; a physics for real ones, which returns only the measured columns, is a few lines.
Run: python examples/accelerated_mri.py [--columns 9] [--out mri.png]
"""

import argparse

import torch
from deepinv.physics import MRI, GaussianNoise, LinearPhysics
from torch import Tensor
from torchvision.utils import save_image

import macs
from macs.metrics import psnr


def sampled_columns(count: int, size: int = 28, centre: int = 4) -> list[int]:
    """``centre`` columns around the zero frequency, the rest evenly spread over the others."""
    middle = list(range(size // 2 - centre // 2, size // 2 + centre // 2))
    others = [c for c in range(size) if c not in middle]
    step = len(others) / max(count - centre, 1)
    return sorted(middle + [others[int(step * (k + 0.5))] for k in range(count - centre)])


def real_mri(columns: list[int], sigma_y: float) -> LinearPhysics:
    """The Fourier coefficients of a real image in some columns, (B, 2, 28, columns)."""
    full = MRI(img_size=(2, 28, 28))

    def forward(x: Tensor, **_: object) -> Tensor:
        return full.A(torch.cat([x, torch.zeros_like(x)], 1))[..., columns]

    def adjoint(y: Tensor, **_: object) -> Tensor:
        k_space = y.new_zeros(len(y), 2, 28, 28)
        k_space[..., columns] = y
        return full.A_adjoint(k_space)[:, :1]

    return LinearPhysics(A=forward, A_adjoint=adjoint, img_size=(1, 28, 28), noise_model=GaussianNoise(sigma_y / 2))


def main() -> None:
    """Measure the bundled examples in k-space and restore them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=9)
    parser.add_argument("--sigma-y", type=float, default=0.05, help="noise, on images in [-1, 1]")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--out", default=None, help="a picture: truth, zero-filled, restored")
    args = parser.parse_args()
    torch.manual_seed(0)
    model, x = macs.load("fashion-mnist"), macs.examples("fashion-mnist")[: args.images]
    physics = real_mri(sampled_columns(args.columns), args.sigma_y)
    y = physics(x)
    zero_filled = physics.A_adjoint(y).clamp(0, 1)
    solvers = {
        "CM4IR": macs.Cm4ir(model),
        "CM4IR, regularised": macs.Cm4ir(model, zeta=1.0),
        "PnP-CM": macs.PnpCm(model),
    }
    pictures = [x, zero_filled]
    print(f"{args.columns} of 28 columns\n{'zero-filled':25} PSNR {psnr(zero_filled, x).mean():.2f} dB")
    for name, solver in solvers.items():
        restored, trace = solver(y, physics, seed=0, trace=True)
        print(f"{name:25} PSNR {psnr(restored, x).mean():.2f} dB, {trace.nfe[-1]} network calls")
        pictures.append(restored)
    if args.out:
        save_image(torch.cat(pictures), args.out, nrow=len(x), padding=1)


if __name__ == "__main__":
    main()
