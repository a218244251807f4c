"""Tomography with a network that was trained for super-resolution, inpainting and deblurring, and knows nothing of projections.

The bundled model, without its measurement, is a prior on Fashion-MNIST images. CM4IR starts from a regularised inverse of the
Radon transform and alternates the network with back-projections.
Run: python examples/tomography.py [--angles 12] [--out tomography.png]
"""

import argparse

import torch
from deepinv.physics import GaussianNoise, Tomography
from torchvision.utils import save_image

import macs
from macs.metrics import psnr


def main() -> None:
    """Measure the bundled examples by a few noisy projections and restore them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--angles", type=int, default=12)
    parser.add_argument("--sigma-y", type=float, default=0.05, help="noise, on images in [-1, 1]")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--out", default=None, help="a picture: truth, inverse, restored")
    args = parser.parse_args()
    torch.manual_seed(0)
    model, x = macs.load("fashion-mnist"), macs.examples("fashion-mnist")[: args.images]
    angles = torch.linspace(0, 180, args.angles + 1)[:-1]
    physics = Tomography(angles, 28, circle=False, normalize=True, noise_model=GaussianNoise(args.sigma_y / 2))
    y = physics(x)
    problem = macs.Problem(y, physics)
    inverse = ((macs.PseudoInverse(zeta=1.0)(problem) + 1) / 2).clamp(0, 1)
    solvers = {
        "CM4IR": macs.Cm4ir(model, zeta=1.0),
        "PnP-CM": macs.PnpCm(model),
        "Multistep + BackProjection": macs.Solver(
            macs.Prior(model),
            macs.Multistep(data=macs.BackProjection(zeta=1.0)),
            levels=(1.0, 0.6, 0.35, 0.2),
            init=macs.PseudoInverse(zeta=1.0),
        ),
    }
    pictures = [x, inverse]
    print(f"{args.angles} angles, y of {tuple(y.shape[1:])}\n{'regularised inverse':27} PSNR {psnr(inverse, x).mean():.2f} dB")
    for name, solver in solvers.items():
        restored, trace = solver(y, physics, seed=0, trace=True)
        print(f"{name:27} PSNR {psnr(restored, x).mean():.2f} dB, {trace.nfe[-1]} network calls")
        pictures.append(restored)
    if args.out:
        save_image(torch.cat(pictures), args.out, nrow=len(x), padding=1)


if __name__ == "__main__":
    main()
