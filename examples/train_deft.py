"""Train DEFT's small network for a denoiser, for all tasks at once; stop it and go on at any time.

Run: python examples/train_deft.py --denoiser fashion-mnist-edm --out runs/deft [--minutes 10]
"""

import argparse
import math
from pathlib import Path

import macs
from macs.data import training_images
from macs.models.prior import prior_of
from macs.models.store import save_model
from macs.training.config import parse_config
from macs.training.loop import Progress, Run, train

CONFIG = {
    "name": "fashion-mnist-deft",
    "batch": 128,
    "drop": 0.0,
    "model": {"family": "deft", "channels": [32, 64], "layers": 1, "sigma_data": 0.7},
    "stage": [{"loss": "edm", "images": 300_000, "lr": 1e-3, "lr_end": 1e-4, "ema": 0.999}],
}


def say(progress: Progress) -> None:
    """A line every hundred steps."""
    if progress.step % 100 == 0:
        print(
            f"step {progress.step} of {progress.steps}, loss {progress.loss:.4f}, {progress.images_per_second:.0f} images/s",
            flush=True,
        )


def main() -> None:
    """Train into a folder, and save the network there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--denoiser", required=True, help="a model of kind 'denoiser': a name or a file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--minutes", type=float, default=math.inf)
    args = parser.parse_args()
    config = parse_config(CONFIG)
    args.out.mkdir(parents=True, exist_ok=True)
    run = Run(config, training_images(args.data, config.model.image_shape), args.out)
    run.model.attach(prior_of(macs.load(args.denoiser), "denoiser", "DEFT"))
    train(run, minutes=args.minutes, on_step=say)
    info = {"kind": "denoiser", "denoiser": args.denoiser, "images": run.total_images}
    print(save_model(args.out / "deft.safetensors", run.average.state_dict(), config.model, info))


if __name__ == "__main__":
    main()
