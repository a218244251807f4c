"""Train the small classifier whose features the benchmark uses without Inception; prints its accuracy and its SHA-256.

Run: python benchmarks/classifier.py --out classifier.safetensors   (a few minutes on two cores)
"""

import argparse
import hashlib
from pathlib import Path

import torch
from safetensors.torch import save

from macs.benchmark.classifier import Classifier
from macs.data import VALIDATION, fashion_mnist, fashion_mnist_labels
from macs.training.checkpoint import write_atomically


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
    images, labels = fashion_mnist("train")[:-VALIDATION], fashion_mnist_labels("train")[:-VALIDATION]
    model = Classifier().to(memory_format=torch.channels_last)
    steps = args.epochs * (len(images) // 256)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        rows = torch.randint(len(images), (256,))
        x, target = images[rows].float() / 255, labels[rows]
        flip = torch.rand(len(x)) < 0.5
        x[flip] = x[flip].flip(-1)
        loss = torch.nn.functional.cross_entropy(model(x), target, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}/{steps}  loss {loss.item():.3f}", flush=True)
    model.eval()
    with torch.no_grad():
        test = torch.cat([model(part.float() / 255).argmax(1) for part in fashion_mnist("test").split(500)])
    print(f"test accuracy {(test == fashion_mnist_labels('test')).float().mean().item():.4f}")
    state = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in model.state_dict().items()}
    content = save(state)
    write_atomically(args.out, content)
    print(f"sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
