"""Damaged and hostile image files: only an ImageError escapes, and soon."""

import io
import random
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from macs.errors import ConfigError, DataError, ImageError, MacsWarning
from macs.images import FORMATS, MAX_BYTES, decode, encode, read_bytes, read_folder

MUTATIONS = 400


def picture(mode="RGB", size=(40, 30)):
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).convert(mode)


def as_bytes(image, format="PNG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def mutated(content, seed):
    rng = random.Random(seed)
    content = bytearray(content)
    if seed % 3 == 0:
        return bytes(content[: rng.randrange(len(content))])
    reach = min(len(content), 120) if seed % 3 == 1 else len(content)
    for _ in range(rng.randint(1, 6)):
        content[rng.randrange(reach)] = rng.randrange(256)
    return bytes(content)


def png_of(width, height, rows=b""):
    """A PNG that says it is of this size."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"exif": True}], ids=["plain", "exif"])
@pytest.mark.parametrize("format", FORMATS)
def test_only_an_image_error_escapes(format, options):
    if options:
        exif = Image.Exif()
        exif[0x0112] = 6
        options = {"exif": exif}
    content = as_bytes(picture(), format, **options if format != "BMP" else {})
    sentences, worst = set(), 0.0
    for seed in range(MUTATIONS):
        start = time.perf_counter()
        try:
            image = decode(mutated(content, seed), channels=1 + 2 * (seed % 2))
        except ImageError as error:
            sentences.add(str(error))
        else:
            assert image.dtype == torch.uint8
            assert image.ndim == 3
        worst = max(worst, time.perf_counter() - start)
    assert sentences
    assert not any("\n" in sentence for sentence in sentences)
    assert worst < 5


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_sound_is_read(format):
    lossless = {"lossless": True} if format == "WEBP" else {}
    image = decode(as_bytes(picture(), format, **lossless))
    assert image.shape == (3, 30, 40)
    if format != "JPEG":
        assert torch.equal(image, torch.from_numpy(np.array(picture())).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_pixel_becomes_8_bits(mode, channels):
    grey = picture("L")
    image = Image.fromarray(np.array(grey).astype(np.uint16) * 257) if mode == "I;16" else picture(mode)
    read = decode(as_bytes(image, "TIFF" if mode == "CMYK" else "PNG"), channels)
    assert read.shape == (channels, 30, 40)
    if mode in ("L", "I;16"):
        assert torch.equal(read, torch.from_numpy(np.array(grey)).expand(channels, -1, -1))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_file_keeps_its_colour_where_no_channels_are_asked(mode):
    image = Image.fromarray(np.full((3, 4), 40_000, dtype=np.uint16)) if mode == "I;16" else picture(mode)
    assert len(decode(as_bytes(image), channels=None)) == (1 if mode in ("1", "L", "LA", "I;16") else 3)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_a_colour_file_without_colour_is_grey(mode):
    grey = picture("L")
    read = decode(as_bytes(grey.convert(mode)), channels=None)
    assert torch.equal(read, torch.from_numpy(np.array(grey))[None])
    tinted = np.array(grey.convert("RGB"))
    tinted[3, 5, 2] ^= 1
    assert len(decode(as_bytes(Image.fromarray(tinted)), channels=None)) == 3


def test_the_first_frame_of_a_phone_picture():
    """MPO: two JPEG pictures in one file."""
    file = io.BytesIO()
    picture().save(file, "MPO", save_all=True, append_images=[Image.new("RGB", (40, 30))])
    assert torch.equal(decode(file.getvalue()), decode(as_bytes(picture(), "JPEG")))


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_deflate", "packbits"])
def test_tiff_of_8_and_16_bits(compression):
    assert torch.equal(decode(as_bytes(picture(), "TIFF", compression=compression)), decode(as_bytes(picture(), "PNG")))
    deep = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 54)
    read = decode(as_bytes(deep, "TIFF", compression=compression), channels=None)
    assert torch.equal(read[0], torch.from_numpy((np.asarray(deep) >> 8).astype(np.uint8)))


def test_what_is_written_is_read_back():
    for channels in (1, 3):
        x = torch.randint(0, 256, (channels, 5, 7), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        assert torch.equal(decode(encode(x.float() / 255), channels=None), x)
    assert decode(encode(torch.tensor([[[-1.0, 2.0]]])), 1).flatten().tolist() == [0, 255]


def test_a_smaller_limit_of_pixels():
    with pytest.raises(ImageError, match="may have 1,000 pixels; this one has 40x30"):
        decode(as_bytes(picture()), max_pixels=1000)


def test_no_device_and_no_folder_is_read(tmp_path):
    for path in (Path("/dev/zero"), tmp_path, tmp_path / "none"):
        with pytest.raises(ImageError, match="no file"):
            read_bytes(path)


def test_exif_turns_the_image():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(as_bytes(picture(), "PNG", exif=exif)).shape == (3, 40, 30)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0" * 100, b"GIF89a" + b"\0" * 50, b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n",
        png_of(2**31 - 1, 2**31 - 1), png_of(9000, 9000), png_of(2**14, 2**13), png_of(8000, 8000), png_of(0, 5), png_of(5, 5),
    ],
    ids=lambda b: f"{b[:8]!r}-{len(b)}",
)  # fmt: skip
def test_what_is_no_image_is_refused_at_once(content):
    start = time.perf_counter()
    with pytest.raises(ImageError):
        decode(content)
    assert time.perf_counter() - start < 5


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_too_many_pixels_are_refused_before_any_is_decoded(monkeypatch):
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", lambda _: pytest.fail("decoded"))
    for content in (png_of(9000, 9000), png_of(2**26 + 1, 1)):
        with pytest.raises(ImageError, match="may have 67,108,864 pixels"):
            decode(content)


def test_other_formats_bytes_and_samples_are_refused():
    with pytest.raises(ImageError, match="does not begin like one"):
        decode(as_bytes(picture("P"), "GIF"))
    with pytest.raises(ImageError, match="bytes"):
        decode(b"\0" * (MAX_BYTES + 1))
    with pytest.raises(ImageError, match="32"):
        decode(as_bytes(picture("F"), "TIFF"))
    with pytest.raises(ConfigError, match="channels"):
        decode(as_bytes(picture()), channels=2)


def test_a_folder_is_read_in_order_and_the_unreadable_is_counted(tmp_path):
    (tmp_path / "b").mkdir()
    for name, value in (("b/1.PNG", 10), ("a.jpeg", 200), ("c.png", 90)):
        Image.new("L", (50, 30), value).save(tmp_path / name)
    (tmp_path / "d.png").write_bytes(b"nothing")
    (tmp_path / "notes.txt").write_bytes(b"nothing")
    (tmp_path / "e.png").mkdir()
    with pytest.warns(MacsWarning, match="1 of 4 files"):
        images = read_folder(tmp_path, 8, 1)
    assert images.shape == (3, 1, 8, 8)
    assert images.dtype == torch.uint8
    assert images[:, 0, 0, 0].tolist() == [200, 10, 90]


def test_a_folder_without_images_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no readable image"):
        read_folder(tmp_path, 8, 1)


def test_the_square_is_central_and_averaged(tmp_path):
    values = np.zeros((4, 8), dtype=np.uint8)
    values[:, 2:4], values[:, 4:6] = [[100, 200]] * 4, 40
    Image.fromarray(values).save(tmp_path / "a.png")
    assert read_folder(tmp_path, 2, 1)[0, 0].tolist() == [[150, 40], [150, 40]]
