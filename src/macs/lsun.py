"""Images of LSUN and their like: LSUN's own lmdb, or an array of pixels.

An image of LSUN is brought to size as CoSIGN (and the code it comes from) does it: averaged down until its shorter side fits,
then cut to the central square.

References:
    Yu et al., "LSUN: Construction of a Large-scale Image Dataset using Deep Learning with Humans in the Loop", 2015.
"""

import lzma
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from macs.errors import ConfigError, DataError, ImageError
from macs.images import fitted, opened, to_tensor

ARRAYS = (".npy", ".npy.xz")


def is_array(path: Path) -> bool:
    """Whether a file is named like an array."""
    return path.name.endswith(ARRAYS)


def is_lmdb(path: Path) -> bool:
    """Whether a folder is a database of LSUN."""
    return (path / "data.mdb").is_file()


def rows(text: str) -> slice:
    """Rows as ``first:end`` says, counted from 0, the end left out; either may be left out, ``:9700``."""
    first, colon, end = text.partition(":")
    if not colon or any(part and not part.isdecimal() for part in (first, end)):
        raise ConfigError(f"rows must be FIRST:END, counted from 0, such as 0:9700 or :9700; got {text!r}")
    return slice(int(first) if first else 0, int(end) if end else None)


def read_lmdb(folder: Path, size: int, take: slice) -> Tensor:
    """Images of an LSUN database, in its own order, as uint8, (N, 3, size, size)."""
    try:
        import lmdb
    except ImportError as error:
        raise DataError("reading LSUN's lmdb needs the package lmdb; pip install -e '.[lsun]'") from error
    images = []
    try:
        with lmdb.open(str(folder), readonly=True, lock=False) as env, env.begin() as transaction:
            values = transaction.cursor().iternext(keys=False, values=True)
            images = [to_tensor(fitted(opened(data), size)) for data in islice(values, take.start, take.stop)]
    except (lmdb.Error, ImageError) as error:
        raise DataError(f"{folder} is no readable LSUN database ({error}); export it again") from error
    if not images:
        raise DataError(f"{folder} holds no image in rows {take.start}:{take.stop}; ask for others")
    return torch.stack(images)


def read_array(path: Path) -> Tensor:
    """A NumPy array of uint8, (N, H, W, C) or (N, H, W), compressed by xz or not, as (N, C, H, W)."""
    try:
        with lzma.open(path) if path.suffix == ".xz" else open(path, "rb") as file:
            values = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError, OverflowError, lzma.LZMAError) as error:
        raise DataError(f"{path} is no readable NumPy array ({error}); save it again with numpy.save") from error
    if values.dtype != np.uint8 or values.ndim not in (3, 4) or (values.ndim == 4 and values.shape[-1] not in (1, 3)):
        raise DataError(f"{path} must hold uint8 of (N, H, W, C), C 1 or 3; it holds {values.dtype} of {values.shape}")
    pixels = torch.from_numpy(values if values.ndim == 4 else values[..., None])
    return pixels.permute(0, 3, 1, 2).contiguous()
