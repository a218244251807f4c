"""Whether the spread of several restorations of one measurement says how wrong they are, on Fashion-MNIST test images.

Of K draws for an image, the deviation over the draws is compared with the error of their mean. Draws from the posterior have

    E |mean - x|^2 = (1 + 1/K) E variance,

so the ratio of the roots, "spread / error", is 1; below 1 the draws are too much alike, and a map of their deviation promises
too much. "PSNR of the mean" is that of the K draws' average, "of a draw" that of the first.
Run: python benchmarks/calibration.py --images 500 --draws 8 --seed 0 [--models "fashion-mnist; fashion-mnist-score"]
"""

import argparse
import warnings

import torch

import macs
from macs.data import fashion_mnist
from macs.demo import measured
from macs.errors import MacsWarning
from macs.metrics import psnr

SAMPLERS = {"one step": (macs.Multistep(), 1), "Multistep": (macs.Multistep(), 2), "MACS-D": (macs.MacsD(), 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--models", default="fashion-mnist; fashion-mnist-score", help="names or files, separated by semicolons"
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore", MacsWarning)
    x = fashion_mnist("test")[: args.images].float() / 255
    print(f"{len(x)} test images, {args.draws} draws, seed {args.seed}\n")
    print("| model | task | sampler | spread / error | PSNR of a draw | of the mean |\n|---|---|---|---|---|---|")
    for name in args.models.split("; "):
        model = macs.load(name)
        for task in macs.TASKS:
            y, physics = measured(x, task, args.seed)
            for label, (sampler, steps) in SAMPLERS.items():
                solver = macs.Solver(model, sampler, steps=steps)
                draws = torch.stack([solver(y, physics, seed=args.seed + k, ids=range(len(x))) for k in range(args.draws)])
                mean, variance = draws.mean(0), draws.var(0).mean()
                ratio = ((1 + 1 / args.draws) * variance / (mean - x).square().mean()).sqrt()
                quality = f"{psnr(draws[0], x).mean():.2f} | {psnr(mean, x).mean():.2f}"
                print(f"| {name} | {task} | {label} | {ratio:.2f} | {quality} |", flush=True)


if __name__ == "__main__":
    main()
