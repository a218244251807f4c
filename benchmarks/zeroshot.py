"""PSNR and SSIM of the zero-shot solvers on Fashion-MNIST test images: the table in docs/solvers.md.

Run: python benchmarks/zeroshot.py --images 100 --seed 0 [--model fashion-mnist]
"""

import argparse

import macs
from macs.data import fashion_mnist
from macs.demo import enlarged, measured
from macs.metrics import psnr, ssim
from macs.problem import Problem, to_image

LEVELS = (2.0, 1.0, 0.5, 0.25)


def solvers(model):
    """Every row: a label and its solver."""
    prior, start = macs.Prior(model), macs.PseudoInverse()
    return {
        "DDNM's step: Multistep, BackProjection": macs.Solver(prior, macs.Multistep(data=macs.BackProjection()), steps=4),
        "MACS-D from the start": macs.Solver(prior, macs.MacsD(), levels=LEVELS, init=start),
        "Multistep, Discrepancy, from the start": macs.Solver(
            prior, macs.Multistep(data=macs.Discrepancy()), levels=LEVELS, init=start
        ),
        "PnpCm": macs.PnpCm(model),
        "Cm4ir, levels (0.7, 0.3)": macs.Cm4ir(model, levels=(0.7, 0.3)),
        "Cm4ir": macs.Cm4ir(model),
        "trained for the tasks: MACS-D": macs.Solver(model, macs.MacsD(), steps=2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="fashion-mnist")
    args = parser.parse_args()
    x = fashion_mnist("test")[: args.images].float() / 255
    problems = {name: measured(x, name, args.seed) for name in macs.TASKS}

    def show(label, calls, images):
        cells = (f"{psnr(out, x).mean():.2f} / {ssim(out, x).mean():.3f}" for out in images)
        print(f"| {label} | {calls} | {' | '.join(cells)} |", flush=True)

    print(f"model {args.model}, {len(x)} test images, seed {args.seed}\n")
    print(f"| solver | calls | {' | '.join(problems)} |\n|---|---|{'---|' * len(problems)}")
    show("measurement, enlarged", 0, [enlarged(y, x.shape[-1]) for y, _ in problems.values()])
    show("start", 0, [to_image(macs.PseudoInverse()(Problem(y, physics))) for y, physics in problems.values()])
    for label, solver in solvers(macs.load(args.model)).items():
        found = [solver(y, physics, seed=args.seed, ids=range(len(x)), trace=True) for y, physics in problems.values()]
        show(label, found[0][1].nfe[-1], [out for out, _ in found])


if __name__ == "__main__":
    main()
