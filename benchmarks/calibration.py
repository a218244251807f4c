"""Whether the spread of several restorations of one measurement says how wrong they are, on Fashion-MNIST test images.

Of K draws for an image, the deviation over the draws is compared with the error of their mean. Draws from the posterior have

    E |mean - x|^2 = (1 + 1/K) E variance,

so the ratio of the roots, "spread / error", is 1; below 1 the draws are too much alike, and a map of their deviation promises
too much. It is given over all pixels with a 95 % bootstrap interval over images, and in three groups of pixels, from the half
with the least deviation to the tenth with the most: a map that can be read pixel by pixel has 1 in each. Pixels are put into
groups by the first half of the draws and judged by the second, or else chance would make the least too small.
"chi2" is the misfit to the measurement in units of the noise, mean over images and draws; posterior draws have 1.
"PSNR of the mean" is that of the K draws' average, "of a draw" that of the first.
Run: python benchmarks/calibration.py --images 500 --draws 8 --seed 0 [--models "fashion-mnist; fashion-mnist-score"]
"""

import argparse
import warnings

import torch

import macs
from macs.benchmark.intervals import counts
from macs.data import fashion_mnist
from macs.demo import measured
from macs.errors import MacsWarning
from macs.metrics import psnr
from macs.problem import Problem, to_sampler

SAMPLERS = {"one step": (macs.Multistep(), 1), "Multistep": (macs.Multistep(), 2), "MACS-D": (macs.MacsD(), 2)}
#: Groups of pixels by their deviation, as shares of all pixels.
GROUPS = ((0.0, 0.5), (0.5, 0.9), (0.9, 1.0))
HEAD = "| model | task | sampler | spread / error | least half | middle | most tenth | chi2 | PSNR of a draw | of the mean |"


def overall(spread, error, seed):
    """The ratio over all pixels with its interval, from squares, (N, pixels)."""
    ratio = (spread.sum() / error.sum()).sqrt().item()
    times = counts(len(spread), seed).double()
    again = (times @ spread.double().sum(1) / (times @ error.double().sum(1))).sqrt()
    low, high = torch.quantile(again, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return f"{ratio:.2f} ({low:.2f} to {high:.2f})"


def squares(draws, x):
    """The variance over draws, as it should be for the error of their mean, and the squares of that error, (N, pixels)."""
    spread = (1 + 1 / len(draws)) * draws.var(0)
    return spread.flatten(1), (draws.mean(0) - x).square().flatten(1)


def by_deviation(draws, x):
    """The ratio in each group of pixels."""
    half = len(draws) // 2
    order = draws[:half].var(0).flatten().argsort()
    spread, error = (part.flatten() for part in squares(draws[half:], x))
    parts = [order[round(a * len(order)) : round(b * len(order))] for a, b in GROUPS]
    return [f"{(spread[part].sum() / error[part].sum()).sqrt().item():.2f}" for part in parts]


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
    print(f"{len(x)} test images, {args.draws} draws, seed {args.seed}\n\n{HEAD}\n|{'---|' * HEAD.count(' | ')}---|")
    for name in args.models.split("; "):
        model = macs.load(name)
        for task in macs.TASKS:
            y, physics = measured(x, task, args.seed)
            problem = Problem(y, physics)
            for label, (sampler, steps) in SAMPLERS.items():
                solver = macs.Solver(model, sampler, steps=steps)
                draws = torch.stack([solver(y, physics, seed=args.seed + k, ids=range(len(x))) for k in range(args.draws)])
                misfit = torch.stack([problem.chi2(to_sampler(draw)).mean() for draw in draws]).mean()
                cells = [name, task, label, overall(*squares(draws, x), args.seed), *by_deviation(draws, x), f"{misfit:.2f}"]
                cells += [f"{psnr(draws[0], x).mean():.2f}", f"{psnr(draws.mean(0), x).mean():.2f}"]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
