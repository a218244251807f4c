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
from macs.training import Run, parse_config, train
from macs.training.loop import Progress
from macs.training.recipes import Consistency

CONFIG = {
    "name": "fashion-mnist-deft",
    "batch": 128,
    "drop": 0.0,
    "model": {"family": "deft", "channels": [32, 64], "layers": 1, "sigma_data": 0.7},
    "stage": [{"loss": "edm", "images": 200_000, "lr": 1e-3, "lr_end": 1e-4, "ema": 0.999}],
}


class Correction(Consistency):
    """The training of a correction, which goes on only with the denoiser it began with."""

    def __init__(self, digest: str) -> None:
        self.digest = digest

    def fingerprint(self) -> bytes:
        """The denoiser."""
        return self.digest.encode()


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
    config, denoiser = parse_config(CONFIG), macs.load(args.denoiser)
    images = training_images(args.data, config.model.image_shape)
    run = Run(config, images, args.out, recipe=Correction(denoiser.digest))
    run.model.attach(prior_of(denoiser, "denoiser", "DEFT"))
    train(run, minutes=args.minutes, on_step=say)
    info = {
        "kind": "denoiser",
        "denoiser": args.denoiser,
        "denoiser_sha256": denoiser.digest,
        "images": run.total_images,
    }
    print(save_model(args.out / "deft.safetensors", run.average.state_dict(), config.model, info))


if __name__ == "__main__":
    main()
