"""Bytes to pixels: the only place where files of unknown origin are decoded.

Five formats, a limit on bytes and on pixels that is checked before any pixel is decoded, the first frame only. Whatever a
decoder does with a damaged file, a caller sees an :class:`macs.errors.ImageError`.
"""

import io
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from macs.errors import ConfigError, DataError, ImageError, MacsWarning

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
#: The files of a folder that are read as images.
SUFFIXES = (".png", ".jpg", ".jpeg")
MAX_BYTES = 64 * 2**20
MAX_PIXELS = 2**26
#: Pillow's mode for a number of channels.
MODES = {1: "L", 3: "RGB"}


def opened(data: bytes, channels: int = 3) -> Image.Image:
    """A decoded image of 8 bits per sample, upright as its EXIF says, grey or RGB; strict."""
    if channels not in MODES:
        raise ConfigError(f"channels must be 1 (grey) or 3 (RGB); got {channels}")
    if len(data) > MAX_BYTES:
        raise ImageError(f"an image file may have {MAX_BYTES:,} bytes; this one has {len(data):,}; reduce it first")
    try:
        return pixels(data, MODES[channels])
    except ImageError:
        raise
    except Exception as error:
        reason = " ".join(f"{error}".split())[:200] or type(error).__name__
        raise ImageError(f"this is no readable {', '.join(FORMATS)} image ({reason}); save it again as PNG") from error


def pixels(data: bytes, mode: str) -> Image.Image:
    """The decoding itself, of a file that may raise anything."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        width, height = image.size
        if not 0 < width * height <= MAX_PIXELS:
            raise ImageError(f"an image may have {MAX_PIXELS:,} pixels; this one has {width}x{height}; reduce it first")
        image.load()
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(upright).astype(np.uint16) >> 8).astype(np.uint8)).convert(mode)
    if upright.mode in ("I", "F"):
        raise ImageError(
            f"an image must have 8 or 16 bits per sample; this one has 32 (mode {upright.mode}); save it again as PNG"
        )
    return upright.convert(mode)


def to_tensor(image: Image.Image) -> Tensor:
    """Pixels as uint8, (C, H, W)."""
    values = torch.from_numpy(np.array(image))
    return values[None] if values.ndim == 2 else values.permute(2, 0, 1).contiguous()


def decode(data: bytes, channels: int = 3) -> Tensor:
    """The image in a file's bytes as uint8, (C, H, W); 16-bit samples keep their upper half, transparency is dropped."""
    return to_tensor(opened(data, channels))


def squared(image: Image.Image, size: int) -> Image.Image:
    """The central square, averaged down (or repeated up) to ``size`` pixels a side."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Image.Resampling.BOX, (left, top, left + side, top + side))


def read_file(path: Path, channels: int = 3) -> Image.Image:
    """The image in a file; one that is too large is not even read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ImageError(f"an image file may have {MAX_BYTES:,} bytes; {path} has {path.stat().st_size:,}; reduce it first")
        data = path.read_bytes()
    except OSError as error:
        raise ImageError(f"{path} cannot be read ({error.strerror})") from error
    return opened(data, channels)


def read_folder(folder: Path, size: int, channels: int) -> Tensor:
    """The PNG and JPEG files below a folder, in the order of their names, as uint8, (N, C, size, size).

    Each is cut to its central square and averaged to ``size``. Files that cannot be read are left out; a warning counts them.
    """
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    images, bad = [], []
    for path in files:
        try:
            images.append(to_tensor(squared(read_file(path, channels), size)))
        except ImageError:
            bad.append(path)
    if not images:
        raise DataError(f"{folder} holds no readable image; of {len(files)} PNG and JPEG files {len(bad)} are damaged")
    if bad:
        warnings.warn(
            f"{len(bad)} of {len(files)} files in {folder} are unreadable and left out, first {bad[0]}", MacsWarning, 2
        )
    return torch.stack(images)
