"""Features of sets of images, cached by content: an image that was seen before, in whatever set, is not run again.

Images are rounded to 8 bits first, as they would be in a file: FID and KID are defined on files.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from macs.benchmark.classifier import Classifier, released
from macs.benchmark.inception import Inception, accelerated, load_inception
from macs.benchmark.sealed import read_sealed, write_sealed
from macs.models.manifest import tensors_digest

Network = Callable[[Tensor], Tensor]
#: What the two distances are called for each kind of features.
NAMES = {"inception": ("FID", "KID x 10^3"), "classifier": ("FD-FMNIST", "KD-FMNIST x 10^3")}


def to_bytes(x: Tensor) -> Tensor:
    """Images in [0, 1] as uint8."""
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)


def keys(images: Tensor) -> list[bytes]:
    """A digest of each image's bytes."""
    return [hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest() for image in images]


#: How many images' features are computed before they are written: what a kill can lose.
KEPT = 1000


@dataclass
class Extractor:
    """A feature network and its cache: a folder of ``<digest of the set>.npy`` beside ``<digest>.keys``, one key per row.

    The folder is named by the network's weights too, so that features of two networks are never mixed.
    """

    kind: str
    cache: Path
    inception: str | Path | None = None
    batch: int = 50

    @cached_property
    def model(self) -> Inception | Classifier:
        """The network as it was loaded."""
        return load_inception(self.inception) if self.kind == "inception" else released()

    @cached_property
    def digest(self) -> str:
        """What the network's weights are."""
        return tensors_digest(self.model.state_dict())

    @cached_property
    def network(self) -> Network:
        """The network as it is run on images, uint8."""
        model = self.model
        if isinstance(model, Classifier):
            return lambda images: model.features(images.float() / 255)
        return accelerated(model)

    @property
    def folder(self) -> Path:
        """Where the features of this network are kept."""
        return self.cache / f"{self.kind}-{self.digest}"

    @cached_property
    def places(self) -> dict[bytes, tuple[Path, int]]:
        """The file and row of each known image."""
        out: dict[bytes, tuple[Path, int]] = {}
        for path in sorted(self.folder.glob("*.keys")):
            content, matrix = read_sealed(path), path.with_suffix(".npy")
            if content is not None and matrix.is_file():
                out |= {content[i : i + 16]: (matrix, i // 16) for i in range(0, len(content), 16)}
        return out

    def __call__(self, x: Tensor, on_images: Callable[[int], None] = lambda n: None) -> Tensor:
        """The features of images in [0, 1], (N, d); ``on_images`` hears how many more are done."""
        images = to_bytes(x)
        names = keys(images)
        matrices = self.matrices(names)
        new = list({name: i for i, name in reversed(list(enumerate(names))) if name not in self.places}.values())
        on_images(len(names) - len(new))
        for part in images[sorted(new)].split(KEPT) if new else ():
            path, matrix = self.add(part, on_images)
            matrices[path] = matrix
        return torch.from_numpy(np.stack([matrices[path][row] for path, row in (self.places[name] for name in names)]))

    def add(self, images: Tensor, on_images: Callable[[int], None]) -> tuple[Path, np.ndarray]:
        """Run the network on images and keep what it said; the file, and what is in it."""
        parts = []
        with torch.no_grad():
            for part in images.split(self.batch):
                parts.append(self.network(part).float())
                on_images(len(part))
        matrix, names = torch.cat(parts).numpy(), keys(images)
        path = self.folder / f"{hashlib.sha256(b''.join(names)).hexdigest()[:32]}.npy"
        write_sealed(path, npy_bytes(matrix))
        write_sealed(path.with_suffix(".keys"), b"".join(names))
        self.places.update({name: (path, i) for i, name in enumerate(names)})
        return path, matrix

    def matrices(self, names: list[bytes]) -> dict[Path, np.ndarray]:
        """The files that hold these images, where they are known; a damaged one is deleted, and its images are new again."""
        out = {}
        for path in {self.places[name][0] for name in names if name in self.places}:
            content = read_sealed(path)
            if content is None:
                path.unlink(missing_ok=True)
                self.places = {name: place for name, place in self.places.items() if place[0] != path}
            else:
                out[path] = np.load(BytesIO(content), allow_pickle=False)
        return out


def npy_bytes(matrix: np.ndarray) -> bytes:
    """A matrix in NumPy's format."""
    file = BytesIO()
    np.save(file, matrix, allow_pickle=False)
    return file.getvalue()
