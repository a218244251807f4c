"""What the solver costs on top of its network calls: (seconds of a solve - seconds in the network) / seconds in the network.

28x28 images, batch 64, a U-Net of 4 million parameters, two steps. Both times are taken in the same solve, so a busy machine
slows them alike; the median over rounds is printed. Run: python benchmarks/overhead.py
"""

import statistics
import time
import warnings

import torch

import macs
from macs.errors import MacsWarning
from macs.models.build import ModelConfig, build
from macs.samplers import SAMPLERS

ROUNDS = 7
STEPS = 2


class Timed:
    """A model that adds up the seconds spent in it."""

    def __init__(self, model):
        self.model, self.image_shape, self.seconds, self.calls = model, model.image_shape, 0.0, 0

    def condition(self, problem):
        return self.model.condition(problem)

    def __call__(self, x_t, y, t):
        start = time.perf_counter()
        out = self.model(x_t, y, t)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return out


def overhead(solver, y, task):
    """The share of one solve that is not network, and the calls it made."""
    model = solver.model
    model.seconds, model.calls = 0.0, 0
    start = time.perf_counter()
    solver(y, task)
    return (time.perf_counter() - start) / model.seconds - 1, model.calls


def main():
    warnings.simplefilter("ignore", MacsWarning)
    torch.manual_seed(0)
    model = Timed(build(ModelConfig(channels=(64, 128), layers=2)).eval().to(memory_format=torch.channels_last))
    size = sum(p.numel() for p in model.model.parameters()) / 1e6
    x = torch.rand(64, 1, 28, 28)
    print(f"{size:.1f} M parameters, {torch.get_num_threads()} threads, {STEPS} steps, median of {ROUNDS} rounds")
    print(f"{'sampler':12} {'task':17} {'NFE':>3} {'overhead':>9}")
    worst = 0.0
    for task_name in macs.TASKS:
        task = macs.task(task_name, model)
        y = task(x)
        for name, kind in SAMPLERS.items():
            solver = macs.Solver(model, kind(), steps=STEPS)
            rounds = [overhead(solver, y, task) for _ in range(ROUNDS)]
            share = statistics.median(share for share, _ in rounds)
            worst = max(worst, share)
            print(f"{name:12} {task_name:17} {rounds[0][1]:>3} {share:>8.1%}")
    print(f"worst {worst:.1%}")


if __name__ == "__main__":
    main()
