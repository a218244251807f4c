"""One seeded stream of noise per image.

The noise of an image is a function of (run seed, image id, draw number) and of nothing else, so an image is
restored to the same pixels whatever its batch, its place in it, or the number of workers. Noise is drawn on the CPU in
float32 and then moved, so every device sees the same numbers. No global generator is read or advanced.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ImageId = str | int
#: The draw that is the noise of measurements; no solver is ever given it, as it would know what is wrong with ``y``.
MEASUREMENT = 99


def stream_seed(seed: int, image: ImageId, draw: int) -> int:
    """The first 8 bytes of SHA-256 over (run seed, image id, draw number), without the sign bit."""
    digest = hashlib.sha256(f"{seed}/{image}/{draw}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def content_ids(y: Any) -> tuple[str, ...]:
    """An id for each measurement from its own numbers; the k-th copy of the same measurement gets the suffix ``#k``."""
    parts = [p.detach().cpu().contiguous() for p in (y if not isinstance(y, Tensor) else [y])]
    seen: Counter[str] = Counter()
    ids = []
    for i in range(len(parts[0])):
        digest = hashlib.sha256()
        for part in parts:
            digest.update((torch.view_as_real(part[i]) if part.is_complex() else part[i].float()).numpy().tobytes())
        name = digest.hexdigest()[:16]
        ids.append(f"{name}#{seen[name]}")
        seen[name] += 1
    return tuple(ids)


@dataclass(frozen=True)
class Noise:
    """The streams of a batch: ``noise.at(k)`` points at a solver's draw ``k`` (0 is the start), ``noise.like(x)`` is it."""

    seed: int
    ids: Sequence[ImageId]
    draw: int = 0

    def at(self, draw: int) -> "Noise":
        """The same streams at another draw; the number of the measurement's own is passed over."""
        return Noise(self.seed, self.ids, draw + (draw >= MEASUREMENT))

    @property
    def of_measurement(self) -> "Noise":
        """The noise of the images' measurements, where they are made here."""
        return Noise(self.seed, self.ids, MEASUREMENT)

    def like(self, x: Tensor) -> Tensor:
        """Unit Gaussian noise of the shape, device and type of ``x``: one stream per image."""
        rows = [
            torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(stream_seed(self.seed, image, self.draw)))
            for image in self.ids
        ]
        return torch.stack(rows).to(device=x.device, dtype=x.dtype)
