"""Short trainings that differ in one choice each: what the denoiser's PSNR on validation images says of it.

Every variant sees the same images, levels and noise; PSNR is of one call on validation images (the posterior mean), speed is of
training. Short runs favour what learns fast: a larger network may overtake later.
Run: python benchmarks/recipes.py --images 12800 --seed 0 [--variants "as shipped; sigma_data 0.5"] [--validation 1000]
"""

import argparse
import tempfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import torch

import macs
from macs.data import fashion_mnist
from macs.demo import measured
from macs.metrics import psnr
from macs.training.config import load_config
from macs.training.loop import Run, train

MODEL = {
    "as shipped": {},
    "sigma_data 0.5": {"sigma_data": 0.5},
    "two blocks per level": {"layers": 2},
    "channels 48, 96": {"channels": (48, 96)},
    "channels 96, 192": {"channels": (96, 192)},
    "encoder of 128 numbers": {"family": "summary"},
}
TRAINING = {
    "paper's operators only": {"nominal": 1.0},
    "never without a hint": {"drop": 0.0},
}


def variant(label, images, seed):
    """The shipped configuration's first stage, cut to some images, with one choice changed."""
    config = load_config(Path(str(files("macs.configs") / "fashion-mnist.toml")))
    stage = replace(config.stages[0], images=images, warmup=20, ema=0.99)
    model = replace(config.model, **MODEL.get(label, {}))
    return replace(config, stages=(stage,), model=model, seed=seed, **TRAINING.get(label, {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=12_800)
    parser.add_argument("--validation", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", default="; ".join([*MODEL, *TRAINING]), help="labels, separated by semicolons")
    args = parser.parse_args()
    images = fashion_mnist("train")
    x = images[55_000 : 55_000 + args.validation].float() / 255
    problems = {task: measured(x, task, args.seed) for task in macs.TASKS}
    print(f"{args.images} images each, {len(x)} validation images, seed {args.seed}, {torch.get_num_threads()} threads\n")
    print(f"| variant | parameters | time | {' | '.join(problems)} |\n|---|---|---|{'---|' * len(problems)}")
    first = None
    for label in args.variants.split("; "):
        with tempfile.TemporaryDirectory() as folder:
            run = Run(variant(label, args.images, args.seed), images[:55_000], Path(folder))
            speeds = []
            train(run, on_step=lambda progress, speeds=speeds: speeds.append(progress.images_per_second))
        first = first or speeds[-1]
        solver = macs.Solver(run.average.eval(), macs.Multistep(), steps=1)
        quality = [f"{psnr(solver(y, A, seed=args.seed), x).mean():.2f}" for y, A in problems.values()]
        size = sum(p.numel() for p in run.average.parameters()) / 1e6
        print(f"| {label} | {size:.1f} M | {first / speeds[-1]:.2f} | {' | '.join(quality)} |", flush=True)


if __name__ == "__main__":
    main()
