"""Files that know whether they are whole: their content, then its SHA-256."""

import hashlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from macs.training.checkpoint import write_atomically

SEAL = hashlib.sha256().digest_size


def write_sealed(path: Path, content: bytes) -> None:
    """Write content and its seal, atomically."""
    write_atomically(path, content + hashlib.sha256(content).digest())


def read_sealed(path: Path) -> bytes | None:
    """The content of a sealed file; None where there is none, or one that was cut or changed."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    content, seal = whole[:-SEAL], whole[-SEAL:]
    return content if hashlib.sha256(content).digest() == seal else None


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Arrays as a sealed file."""
    buffer = BytesIO()
    np.savez(buffer, **arrays)
    write_sealed(path, buffer.getvalue())


def read_npz(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays of a sealed file; None where there is none, or a damaged one."""
    content = read_sealed(path)
    if content is None:
        return None
    with np.load(BytesIO(content), allow_pickle=False) as file:
        return dict(file)
