"""The memory that a 256-pixel restoration takes: the LSUN backbone with a ControlNet, one image, random weights.

    python benchmarks/memory.py           # float32
    python benchmarks/memory.py --bf16    # the network under bfloat16 autocast

Prints the largest resident size of the process, which is all there is on a machine without a GPU.
"""

import argparse
import resource
import sys
import time

import torch
from diffusers import UNet2DModel

import macs
from macs.models.convert import LSUN


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--bf16", action="store_true", help="run the network in bfloat16")
    arguments.add_argument("--steps", type=int, default=1, help="network calls; memory does not depend on them")
    options = arguments.parse_args()
    model = macs.ConsistencyModel(UNet2DModel(**LSUN), (3, 256, 256))
    model = macs.ControlledModel(model, macs.ControlNet.from_unet(model.unet)).eval().requires_grad_(False)
    loaded = resident()
    task = macs.task("inpainting", model, cosign_compat=True)
    y = task.A(torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(0)))
    start = time.perf_counter()
    solver = macs.Solver(model, macs.Multistep(), steps=options.steps, dtype=torch.bfloat16 if options.bf16 else None)
    image = solver(y, task)
    seconds = time.perf_counter() - start
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    print(
        f"{parameters:.0f} million parameters, {'bf16' if options.bf16 else 'fp32'}: {loaded:.2f} GiB with the model made, "
        f"{resident():.2f} GiB at most; {seconds:.0f} s for {options.steps} call(s) on {torch.get_num_threads()} thread(s); "
        f"image {tuple(image.shape)}"
    )


def resident():
    """The largest resident size so far, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20


if __name__ == "__main__":
    main()
