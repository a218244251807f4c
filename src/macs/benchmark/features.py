"""Features of sets of images, cached by content: an image that was seen before, in whatever set, is not run again.

Images are rounded to 8 bits first, as they would be in a file: FID and KID are defined on files.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from macs.benchmark.classifier import released
from macs.benchmark.inception import accelerated, load_inception
from macs.errors import DataError, unknown
from macs.training.checkpoint import write_atomically

Network = Callable[[Tensor], Tensor]
#: What the two distances are called for each kind of features.
NAMES = {"inception": ("FID", "KID x 10^3"), "classifier": ("FD-FMNIST", "KD-FMNIST x 10^3")}


def to_bytes(x: Tensor) -> Tensor:
    """Images in [0, 1] as uint8."""
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)


def keys(images: Tensor) -> list[bytes]:
    """A digest of each image's bytes."""
    return [hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest() for image in images]


@dataclass
class Extractor:
    """A feature network and its cache, a folder of ``<digest of the set>.npy`` beside ``<digest>.keys``, one key per row."""

    kind: str
    cache: Path
    inception: str | None = None
    batch: int = 50
    _rows: dict[bytes, tuple[Path, int]] = field(default_factory=dict, repr=False)
    _network: Network | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in NAMES:
            raise unknown("kind of features", self.kind, NAMES)
        for path in sorted(self.folder.glob("*.keys")):
            content, matrix = path.read_bytes(), path.with_suffix(".npy")
            if matrix.is_file():
                self._rows |= {content[i : i + 16]: (matrix, i // 16) for i in range(0, len(content), 16)}

    @property
    def folder(self) -> Path:
        """Where features of this kind are kept."""
        return self.cache / self.kind

    @property
    def network(self) -> Network:
        """The network, loaded when it is first needed."""
        if self._network is None:
            if self.kind == "inception":
                self._network = accelerated(load_inception(self.inception))
            else:
                classifier = released()
                self._network = lambda images: classifier.features(images.float() / 255)
        return self._network

    def __call__(self, x: Tensor, on_images: Callable[[int], None] = lambda n: None) -> Tensor:
        """The features of images in [0, 1], (N, d); ``on_images`` hears how many more are done."""
        images = to_bytes(x)
        names = keys(images)
        new = list({name: i for i, name in reversed(list(enumerate(names))) if name not in self._rows}.values())
        on_images(len(names) - len(new))
        if new:
            self.add(images[sorted(new)], on_images)
        return self.look_up(names)

    def add(self, images: Tensor, on_images: Callable[[int], None]) -> None:
        """Run the network on images and keep what it said."""
        parts = []
        with torch.no_grad():
            for part in images.split(self.batch):
                parts.append(self.network(part).float())
                on_images(len(part))
        matrix, names = torch.cat(parts).numpy(), keys(images)
        path = self.folder / f"{hashlib.sha256(b''.join(names)).hexdigest()[:32]}.npy"
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, npy_bytes(matrix))
        write_atomically(path.with_suffix(".keys"), b"".join(names))
        self._rows |= {name: (path, i) for i, name in enumerate(names)}

    def look_up(self, names: list[bytes]) -> Tensor:
        """The rows of known images."""
        files = {self._rows[name][0] for name in names}
        matrices = {}
        for path in files:
            try:
                matrices[path] = np.load(path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise DataError(f"{path} is damaged ({error}); delete it, and its features are computed again") from error
        rows = [matrices[path][row] for path, row in (self._rows[name] for name in names)]
        return torch.from_numpy(np.stack(rows))


def npy_bytes(matrix: np.ndarray) -> bytes:
    """A matrix in NumPy's format."""
    file = BytesIO()
    np.save(file, matrix, allow_pickle=False)
    return file.getvalue()
