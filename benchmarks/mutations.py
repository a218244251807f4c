"""Mutated image files through the decoder: nothing but an ImageError may escape, and soon. Prints counts and the worst time.

python benchmarks/mutations.py --inputs 20000 --seed 0
"""

import argparse
import io
import random
import time
import warnings
from collections import Counter

import numpy as np
from PIL import Image

from macs.errors import ImageError
from macs.images import decode


def seeds():
    """Sound files of every format and kind of pixel that is read."""
    rng = np.random.default_rng(0)
    colour = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    deep = Image.fromarray(rng.integers(0, 65536, (30, 40), dtype=np.uint16))
    turned = Image.Exif()
    turned[0x0112] = 6
    kinds = [
        ("PNG", colour, {"exif": turned}), ("PNG", colour.convert("P"), {}), ("PNG", colour.convert("LA"), {}),
        ("PNG", deep, {}), ("PNG", colour.convert("1"), {}), ("PNG", colour.convert("RGBA"), {"compress_level": 0}),
        ("JPEG", colour, {"exif": turned}), ("JPEG", colour.convert("L"), {}), ("JPEG", colour.convert("CMYK"), {}),
        ("JPEG", colour, {"progressive": True}), ("MPO", colour, {"save_all": True, "append_images": [colour]}),
        ("WEBP", colour, {"lossless": True}), ("WEBP", colour.convert("RGBA"), {"exif": turned}),
        ("BMP", colour, {}), ("BMP", colour.convert("P"), {}), ("BMP", colour.convert("1"), {}),
        ("TIFF", colour, {}), ("TIFF", deep, {}), ("TIFF", colour, {"compression": "tiff_lzw"}),
        ("TIFF", colour, {"compression": "tiff_deflate"}), ("TIFF", colour.convert("CMYK"), {"compression": "packbits"}),
    ]  # fmt: skip
    for format, image, options in kinds:
        file = io.BytesIO()
        image.save(file, format, **options)
        yield f"{format} {image.mode}", file.getvalue()


def mutated(content, rng):
    """A file cut short, with bytes changed, a piece repeated, removed or replaced by extreme values."""
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not content:
            break
        at, n = rng.randrange(len(content)), rng.choice((1, 2, 4, 8, 64))
        at = rng.randrange(min(len(content), 150)) if rng.random() < 0.6 else at
        kind = rng.randrange(6)
        if kind == 0:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[at : at + n] = rng.randbytes(n)
        elif kind == 2:
            content[at : at + n] = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) * n
        elif kind == 3:
            del content[at : at + n]
        elif kind == 4:
            content[at:at] = content[at : at + n]
        else:
            del content[max(at, 1) :]
    return bytes(content)


def main():
    """Run the campaign."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    warnings.simplefilter("ignore")
    rng = random.Random(args.seed)  # noqa: S311
    files, counts, times = list(seeds()), Counter(), []
    for i in range(args.inputs):
        name, content = files[i % len(files)]
        data = mutated(content, rng)
        start = time.process_time()
        try:
            decode(data, channels=(1, 3, None)[i % 3])
            counts["read"] += 1
        except ImageError as error:
            counts["refused" if "\n" not in str(error) else "more than one line"] += 1
        except Exception as error:
            counts["escaped"] += 1
            print("ESCAPED", name, type(error).__name__, error)
        times.append((time.process_time() - start, name, len(data)))
    worst = max(times)
    print(f"{args.inputs} inputs: {dict(counts)}; worst {1000 * worst[0]:.1f} ms ({worst[1]}, {worst[2]} bytes)")


if __name__ == "__main__":
    main()
