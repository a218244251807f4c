"""How much faster a model trains and restores compiled, and in bfloat16: ratios to the float32 network run eagerly.

A training step is forward, backward and AdamW on a batch of 128; a restoration is MACS-D in two calls on a batch of 128. The
variants take turns, so a busy machine slows them alike; the median over rounds is printed.
Run: python benchmarks/throughput.py [--model fashion-mnist] [--rounds 5]
"""

import argparse
import copy
import statistics
import time
import warnings

import torch

import macs
from macs.data import fashion_mnist
from macs.errors import MacsWarning
from macs.training.batches import draw
from macs.training.loss import edm_loss

VARIANTS = {"float32": (False, False), "float32, compiled": (True, False), "bfloat16": (False, True)}
BATCH = 128


def training_step(model, batch, bf16):
    """One step of the denoising stage, as a function."""
    network = model.train().requires_grad_(True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = edm_loss(network, batch.x, batch.condition, batch.t, batch.z).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def restoration(model, y, physics, bf16):
    """One call of the solver, as a function."""
    solver = macs.Solver(model.eval().requires_grad_(False), macs.MacsD(), steps=2, dtype=torch.bfloat16 if bf16 else None)
    return lambda: solver(y, physics, seed=0)


def seconds(run):
    """The time of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def show(title, runs, rounds):
    """Images per second of each variant, as ratios to the first."""
    for run in runs.values():
        run()
    times = [{label: seconds(run) for label, run in runs.items()} for _ in range(rounds)]
    for label in runs:
        ratio = statistics.median(t["float32"] / t[label] for t in times)
        rate = BATCH / statistics.median(t[label] for t in times)
        print(f"| {title} | {label} | {ratio:.2f} | {rate:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="fashion-mnist")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore", MacsWarning)
    images = fashion_mnist("train")[:1000]
    batch = draw(images, 0, seed=0, size=BATCH, nominal=0.7, drop=0.1, t_min=0.002, t_max=80.0)
    physics = macs.task("super-resolution", macs.load(args.model))
    y = physics(images[:BATCH].float() / 255)

    def networks():
        for label, (compiled, bf16) in VARIANTS.items():
            model = copy.deepcopy(macs.load(args.model)).float().to(memory_format=torch.channels_last)
            if compiled:
                model.unet.compile()
            yield label, model, bf16

    print(f"model {args.model}, batch {BATCH}, {torch.get_num_threads()} threads, median of {args.rounds} rounds\n")
    print("| what | network | ratio to float32 | images/s in this run |\n|---|---|---|---|")
    show("train", {label: training_step(model, batch, bf16) for label, model, bf16 in networks()}, args.rounds)
    show("restore", {label: restoration(model, y, physics, bf16) for label, model, bf16 in networks()}, args.rounds)


if __name__ == "__main__":
    main()
