"""Bytes to pixels: the only place where files of unknown origin are decoded.

Five formats, a limit on bytes and on pixels that is checked before any pixel is decoded, the first frame only. Whatever a
decoder does with a damaged file, a caller sees an :class:`macs.errors.ImageError`.
"""

import io
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from macs.errors import ConfigError, DataError, ImageError, MacsWarning

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
#: The files of a folder that are read as images.
SUFFIXES = (".png", ".jpg", ".jpeg", ".mpo", ".webp", ".bmp", ".tif", ".tiff")
MAX_BYTES = 64 * 2**20
MAX_PIXELS = 2**26
#: Pillow's mode for a number of channels; None is grey where there is no colour, else RGB.
MODES = {1: "L", 3: "RGB", None: None}
#: Pillow's modes that hold no colour.
GREY = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N")


def opened(data: bytes, channels: int | None = 3, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """A decoded image of 8 bits per sample, upright as its EXIF says, grey or RGB; strict."""
    if channels not in MODES:
        raise ConfigError(f"channels must be 1 (grey), 3 (RGB) or None (as in the file); got {channels}")
    if len(data) > MAX_BYTES:
        raise ImageError(f"an image file may have {MAX_BYTES:,} bytes; this one has {len(data):,}; reduce it first")
    try:
        return pixels(data, MODES[channels], max_pixels)
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError(f"this is no {', '.join(FORMATS)} image, it does not begin like one; save it again as PNG") from error
    except Exception as error:
        reason = " ".join(f"{error}".split())[:200] or type(error).__name__
        raise ImageError(f"this is no readable {', '.join(FORMATS)} image ({reason}); save it again as PNG") from error


def pixels(data: bytes, mode: str | None, max_pixels: int) -> Image.Image:
    """The decoding itself, of a file that may raise anything."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        width, height = image.size
        if not 0 < width * height <= max_pixels:
            raise ImageError(f"an image may have {max_pixels:,} pixels; this one has {width}x{height}; reduce it first")
        image.load()
        upright = ImageOps.exif_transpose(image)
    mode = mode or ("L" if is_grey(upright) else "RGB")
    if upright.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(upright).astype(np.uint16) >> 8).astype(np.uint8)).convert(mode)
    if upright.mode in ("I", "F"):
        raise ImageError(
            f"an image must have 8 or 16 bits per sample; this one has 32 (mode {upright.mode}); save it again as PNG"
        )
    return upright.convert(mode)


def is_grey(image: Image.Image) -> bool:
    """Whether an image holds no colour: by its mode, or because red, green and blue are equal everywhere."""
    if image.mode in GREY or image.mode.startswith(("I", "F")):
        return image.mode in GREY
    red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)
    return bool(np.array_equal(red, green) and np.array_equal(green, blue))


def to_tensor(image: Image.Image) -> Tensor:
    """Pixels as uint8, (C, H, W)."""
    values = torch.from_numpy(np.array(image))
    return values[None] if values.ndim == 2 else values.permute(2, 0, 1).contiguous()


def decode(data: bytes, channels: int | None = 3, max_pixels: int = MAX_PIXELS) -> Tensor:
    """The image in a file's bytes as uint8, (C, H, W); 16-bit samples keep their upper half, transparency is dropped."""
    return to_tensor(opened(data, channels, max_pixels))


def encode(x: Tensor) -> bytes:
    """An image (C, H, W) in [0, 1], grey or RGB, as the bytes of a PNG of 8 bits per sample."""
    values = (x.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(values[0].numpy() if len(values) == 1 else values.permute(1, 2, 0).numpy()).save(file, "PNG")
    return file.getvalue()


def fitted(image: Image.Image, size: int) -> Image.Image:
    """The image with its shorter side averaged down (or repeated up) to ``size``, then its central square, as in CoSIGN."""
    scale = size / min(image.size)
    width, height = (round(scale * n) for n in image.size)
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"an image brought to {size} pixels may have {MAX_PIXELS:,}; one of {image.width}x{image.height} would have "
            f"{width * height:,}; cut it to its middle first"
        )
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Image.Resampling.BOX).crop((left, top, left + size, top + size))


def read_bytes(path: Path) -> bytes:
    """The content of an image file; one that is too large, or no file, is not even read."""
    try:
        if not path.is_file():
            raise ImageError(f"{path} cannot be read (it is no file)")
        if path.stat().st_size > MAX_BYTES:
            raise ImageError(f"an image file may have {MAX_BYTES:,} bytes; {path} has {path.stat().st_size:,}; reduce it first")
        return path.read_bytes()
    except OSError as error:
        raise ImageError(f"{path} cannot be read ({error.strerror})") from error


def read_file(path: Path, channels: int = 3) -> Image.Image:
    """The image in a file."""
    return opened(read_bytes(path), channels)


def files_below(folder: Path) -> list[Path]:
    """The files below a folder that are named like images, in the order of their names."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())


def read_folder(folder: Path, size: int, channels: int) -> Tensor:
    """The image files below a folder, in the order of their names, as uint8, (N, C, size, size).

    Each is averaged to ``size`` and cut to its central square. Files that cannot be read are left out; a warning counts them.
    """
    files = files_below(folder)
    images, bad = [], []
    for path in files:
        try:
            images.append(to_tensor(fitted(read_file(path, channels), size)))
        except ImageError:
            bad.append(path)
    if not images:
        raise DataError(f"{folder} holds no readable image; of {len(files)} image files {len(bad)} are damaged")
    if bad:
        warnings.warn(
            f"{len(bad)} of {len(files)} files in {folder} are unreadable and left out, first {bad[0]}", MacsWarning, 2
        )
    return torch.stack(images)
