"""Datasets by name, found on this machine or downloaded on request; never at import."""

import gzip
import os
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from macs.errors import DataError
from macs.images import read_folder
from macs.lsun import is_array, is_lmdb, read_array, read_lmdb

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FILES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
LABELS = {"train": "train-labels-idx1-ubyte", "test": "t10k-labels-idx1-ubyte"}
SIZES = {"train": 60_000, "test": 10_000}
#: The last images of the training split, which no training here sees: what is tuned is tuned on them.
VALIDATION = 5_000


def fashion_mnist(split: str = "train", root: str | Path | None = None) -> Tensor:
    """Fashion-MNIST images (Xiao et al. 2017, MIT licence) as uint8, (N, 1, 28, 28).

    Looked for in ``root``, ``$MACS_DATA``, and the place of Debian's package ``dataset-fashion-mnist``; else
    torchvision downloads it into ``$MACS_DATA`` or ``~/.cache/macs``.
    """
    path = found(FILES, split, root)
    if path is not None:
        return read_idx(path, SIZES[split])
    return downloaded(split)[0]


def fashion_mnist_labels(split: str = "train", root: str | Path | None = None) -> Tensor:
    """The classes of :func:`fashion_mnist`'s images, (N,), from 0 to 9."""
    path = found(LABELS, split, root)
    if path is None:
        return downloaded(split)[1]
    raw = idx_bytes(path)
    if len(raw) != 8 + SIZES[split]:
        raise DataError(f"{path} must hold {SIZES[split]} labels; it has {len(raw)} bytes; install it again")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=8).astype(np.int64))


def found(files: dict[str, str], split: str, root: str | Path | None) -> Path | None:
    """Where a file of Fashion-MNIST is on this machine, or None; a ``root`` that was named must have it."""
    if split not in files:
        raise DataError(f"split must be 'train' or 'test'; got {split!r}")
    own = os.environ.get("MACS_DATA")
    places = [Path(p) for p in (root, own, own and Path(own) / "FashionMNIST" / "raw", DEBIAN) if p]
    for place in places:
        for name in (files[split], files[split] + ".gz"):
            if (place / name).is_file():
                return place / name
    if root is not None:
        raise DataError(f"no {files[split]}[.gz] in {root}; give the folder that holds the four Fashion-MNIST files")
    return None


def downloaded(split: str) -> tuple[Tensor, Tensor]:
    """The same images and their classes by torchvision's own download."""
    from torchvision.datasets import FashionMNIST

    own = os.environ.get("MACS_DATA")
    folder = Path(own) if own else Path.home() / ".cache" / "macs"
    try:
        data = FashionMNIST(str(folder), train=split == "train", download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"Fashion-MNIST is not on this machine and could not be downloaded ({error}); "
            "install Debian's dataset-fashion-mnist, or set MACS_DATA to the folder of its files"
        ) from error
    return data.data[:, None], data.targets


def idx_bytes(path: Path) -> bytes:
    """The content of an IDX file, gzipped or not."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path} cannot be read ({error}); install it again") from error


def read_idx(path: Path, images: int) -> Tensor:
    """The images of an IDX file of 28x28 bytes each, gzipped or not."""
    raw = idx_bytes(path)
    if len(raw) != 16 + images * 784:
        raise DataError(f"{path} must hold {images} images of 28x28; it has {len(raw)} bytes; install it again")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28).copy())


def read_any_idx(path: Path) -> Tensor:
    """The images of an IDX file of 28x28 bytes each, as many as its header says."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            head = file.read(16)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); give a folder of images, or an IDX file") from error
    if len(head) < 16 or head[:4] != b"\0\0\x08\x03":
        raise DataError(
            f"{path} must be an IDX file of images; it does not begin like one; give a folder of images, or an IDX file"
        )
    return read_idx(path, int.from_bytes(head[4:8], "big"))


def training_images(source: Path | None, shape: tuple[int, int, int], take: slice = slice(0, None)) -> Tensor:
    """What a model of images of ``shape`` (C, H, W) is trained on, as uint8, (N, C, H, W).

    Args:
        source: a folder of image files or an LSUN database, brought to ``shape``; a NumPy array, as
            :func:`macs.lsun.read_array` reads it; an IDX file; a folder with Fashion-MNIST's own files; or
            None for Fashion-MNIST where it is found. The last images are left out, for validation.
        shape: the model's.
        take: which of them to use, where some are kept for tests.
    """
    return split_images(source, shape, take)[0]


def split_images(source: Path | None, shape: tuple[int, int, int], take: slice = slice(0, None)) -> tuple[Tensor, Tensor]:
    """Images to train on, and those left out for validation: 5,000 of Fashion-MNIST, else a twentieth, at most 64."""
    if source is None or any((source / name).is_file() for name in (FILES["train"], FILES["train"] + ".gz")):
        images, held = fitting(fashion_mnist("train", source), shape, take, source), VALIDATION
    else:
        images = read_images(source, shape, take)
        held = min(64, len(images) // 20)
    if len(images) <= held:
        raise DataError(
            f"{held:,} images are held out of those asked for, so there must be more; got {len(images):,}; "
            "ask for more rows, or for all"
        )
    return images[: len(images) - held], images[len(images) - held :]


def read_images(source: Path, shape: tuple[int, int, int], take: slice = slice(0, None)) -> Tensor:
    """Images of a folder, an LSUN database, an array or an IDX file as uint8, (N, C, H, W), in the ``shape`` of a model."""
    if is_lmdb(source):
        return fitting(read_lmdb(source, shape[-1], take), shape, slice(0, None), source)
    if source.is_dir():
        return fitting(read_folder(source, shape[-1], shape[0]), shape, take, source)
    return fitting(read_array(source) if is_array(source) else read_any_idx(source), shape, take, source)


def fitting(images: Tensor, shape: tuple[int, int, int], take: slice, source: Path | None) -> Tensor:
    """The rows that are asked for, or a sentence on why there are none of this shape."""
    if tuple(images.shape[1:]) != tuple(shape):
        raise DataError(
            f"this model is trained on images of {shape}; these are {tuple(images.shape[1:])}; give a folder of images"
        )
    if not len(images[take]):
        raise DataError(f"{source} has {len(images)} images; none are in rows {take.start}:{take.stop}; ask for others")
    return images[take]


def examples(name: str) -> Tensor:
    """The test images that come with the package, in [0, 1], (N, C, H, W)."""
    from macs.images import decode

    folder = Path(__file__).parent / "examples" / name
    files = sorted(folder.glob("*.png"))
    if not files:
        raise DataError(f"no example images are bundled under {name!r}")
    return torch.stack([decode(file.read_bytes(), channels=1) for file in files]).float() / 255
