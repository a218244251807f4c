"""Inception in PyTorch against OpenVINO, in float32 and bfloat16: times as ratios, and how far features, FID and KID move.

The distances are those of the first test images of Fashion-MNIST to what MACS-D makes of their blurred versions.
Run: pip install openvino; python benchmarks/inception.py --images 200 [--inception PATH]
"""

import argparse
import time

import torch

import macs
from macs.benchmark.features import to_bytes
from macs.benchmark.inception import accelerated, load_inception
from macs.data import fashion_mnist
from macs.demo import measured
from macs.distances import Reference, frechet, kernel


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--inception", default=None)
    args = parser.parse_args()
    inception = load_inception(args.inception)
    networks = {"PyTorch": inception, "OpenVINO": accelerated(inception), "OpenVINO, bfloat16": accelerated(inception, "bf16")}
    x = fashion_mnist("test")[: args.images].float() / 255
    model = macs.load("fashion-mnist")
    y, physics = measured(x, "deblurring", 0)
    sets = {"true": x, "restored": macs.Solver(model, macs.MacsD(), steps=2)(y, physics, seed=0)}
    print(f"{args.images} images, {torch.get_num_threads()} threads, seed 0")
    seconds, found = {}, {}
    with torch.no_grad():
        for label, network in networks.items():
            network(to_bytes(x[:50]))
            start = time.perf_counter()
            found[label] = {
                name: torch.cat([network(part) for part in to_bytes(images).split(50)]) for name, images in sets.items()
            }
            seconds[label] = time.perf_counter() - start
    features = found["PyTorch"]
    for label, others in found.items():
        worst = max((features[name] - others[name]).abs().max().item() for name in sets)
        reference = Reference(others["true"])
        fid, kid = frechet(others["restored"], reference).value, 1000 * kernel(others["restored"], reference).value
        ratio = seconds["PyTorch"] / seconds[label]
        print(f"{label}: {ratio:.2f} times as fast, features within {worst:.2g}, FID {fid:.4f}, KID x 10^3 {kid:.4f}")


if __name__ == "__main__":
    main()
