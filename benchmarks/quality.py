"""PSNR, SSIM and median chi2 of the samplers on Fashion-MNIST test images: the table in a model's card.

All samplers of a task share the measurements and the start noise of each image. Plus-minus is 1.96 standard errors over images.
Run: python benchmarks/quality.py --images 1000 --seed 0 [--model fashion-mnist] [--samplers "one step; MACS-D"]
"""

import argparse
import warnings

import torch

import macs
from macs.data import fashion_mnist
from macs.demo import measured
from macs.errors import MacsWarning
from macs.metrics import psnr, ssim

SAMPLERS = {
    "one step": (macs.Multistep(), 1),
    "DDIM": (macs.Ddim(), 2),
    "MACS, gamma 0.15": (macs.Macs(gamma=0.15), 2),
    "Multistep": (macs.Multistep(), 2),
    "MACS-D": (macs.MacsD(), 2),
    "MACS-D, 3 calls": (macs.MacsD(), 3),
}


def spread(values):
    """Mean and 1.96 standard errors."""
    return f"{values.mean():.3f} ± {1.96 * values.std() / len(values) ** 0.5:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="fashion-mnist")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--samplers", default="; ".join(SAMPLERS), help="labels, separated by semicolons")
    args = parser.parse_args()
    warnings.simplefilter("ignore", MacsWarning)
    model = macs.load(args.model)
    x = fashion_mnist("test")[: args.images].float() / 255
    print(f"model {args.model}, {len(x)} test images, seed {args.seed}\n")
    print("| task | sampler | NFE | PSNR | SSIM | median chi2 |\n|---|---|---|---|---|---|")
    for task in macs.TASKS:
        y, physics = measured(x, task, args.seed)
        for label in args.samplers.split("; "):
            sampler, steps = SAMPLERS[label]
            solver = macs.Solver(model, sampler, steps=steps)
            parts, chi2, nfe = [], [], 0
            for i in range(0, len(x), args.batch):
                names = range(i, min(i + args.batch, len(x)))
                out, trace = solver(y[i : i + args.batch], physics, seed=args.seed, ids=names, trace=True)
                parts.append(out)
                chi2.append(trace.final_chi2)
                nfe = trace.nfe[-1]
            restored = torch.cat(parts)
            quality = spread(psnr(restored, x)), spread(ssim(restored, x)), f"{torch.cat(chi2).median():.2f}"
            print(f"| {task} | {label} | {nfe} | {' | '.join(quality)} |", flush=True)


if __name__ == "__main__":
    main()
