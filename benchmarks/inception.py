"""Inception in PyTorch against OpenVINO: seconds per image as a ratio, and how far features, FID and KID move.

The set is the first test images of Fashion-MNIST against the same images with a little noise, so that both distances are real.
Run: python benchmarks/inception.py --images 200 [--inception PATH]
"""

import argparse
import time

import torch

from macs.benchmark.features import to_bytes
from macs.benchmark.inception import accelerated, load_inception
from macs.data import fashion_mnist
from macs.distances import Reference, frechet, kernel


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--inception", default=None)
    args = parser.parse_args()
    model = load_inception(args.inception)
    networks = {"PyTorch": model, "OpenVINO": accelerated(model)}
    x = fashion_mnist("test")[: args.images].float() / 255
    noisy = x + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    seconds, found = dict.fromkeys(networks, 0.0), {}
    with torch.no_grad():
        for label, network in networks.items():
            network(to_bytes(x[:50]))
            parts = {}
            for name, images in {"true": x, "noisy": noisy}.items():
                start = time.perf_counter()
                parts[name] = torch.cat([network(part) for part in to_bytes(images).split(50)])
                seconds[label] += time.perf_counter() - start
            found[label] = parts
    theirs, ours = found["PyTorch"], found["OpenVINO"]
    print(f"{args.images} images, {torch.get_num_threads()} threads")
    print(f"time of PyTorch / time of OpenVINO: {seconds['PyTorch'] / seconds['OpenVINO']:.2f}")
    worst = max((theirs[name] - ours[name]).abs().max().item() for name in theirs)
    print(f"largest difference of a feature: {worst:.2g} (largest feature {theirs['true'].abs().max():.2g})")
    for title, distance in {"FID": frechet, "KID x 10^3": kernel}.items():
        scale = 1000 if title.startswith("KID") else 1
        values = [scale * distance(f["noisy"], Reference(f["true"])).value for f in (theirs, ours)]
        print(f"{title}: {values[0]:.6f} and {values[1]:.6f}, difference {abs(values[0] - values[1]):.2g}")


if __name__ == "__main__":
    main()
