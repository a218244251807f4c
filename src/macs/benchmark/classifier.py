"""A small Fashion-MNIST classifier whose features give a distance between sets of images where Inception is not at hand.

The distance on its 64 features is called FD-FMNIST and never FID. ``benchmarks/classifier.py`` is how it was trained.
"""

from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor, nn

from macs.models.manifest import check_digest, read_bytes

WEIGHTS = Path(__file__).with_name("classifier.safetensors")
SHA256 = "659cbfe50f278174230dff9d9ba482a58a3ecaf1aefd0c6eee51d4b1486ddb3c"


class Classifier(nn.Module):
    """Six convolutions, the mean over the image, 64 features, ten classes; it sees images in [0, 1], (B, 1, 28, 28)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = (1, width, width, 2 * width, 2 * width, 4 * width, 4 * width)
        layers: list[nn.Module] = []
        for i in range(6):
            stride = 2 if i in (1, 3) else 1
            layers += [nn.Conv2d(widths[i], widths[i + 1], 3, stride, 1), nn.BatchNorm2d(widths[i + 1]), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.neck = nn.Linear(4 * width, 64)
        self.head = nn.Linear(64, 10)

    def features(self, x: Tensor) -> Tensor:
        """What the class is decided on, (B, 64)."""
        return self.neck(self.body(2 * x - 1).mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        """The logits, (B, 10)."""
        return self.head(self.features(x).relu())


def released() -> Classifier:
    """The bundled classifier, its bytes checked."""
    content = read_bytes(WEIGHTS)
    check_digest(content, SHA256, WEIGHTS)
    model = Classifier()
    model.load_state_dict({name: t.float() if t.is_floating_point() else t for name, t in load(content).items()})
    return model.eval().requires_grad_(False).to(memory_format=torch.channels_last)
