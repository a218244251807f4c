"""Checkpoints that survive a power cut: written beside, flushed, then renamed over the old one.

A checkpoint is one safetensors file: weights, their average, the optimiser's moments, and a JSON record in its header.
``kill -9`` at any moment leaves either the old file or the new one, never half of one; orphans of an interrupted write are
swept.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from macs.errors import ConfigError, ModelError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` in one indivisible step that has reached the disk when it returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of ``path`` once it is whole; whatever fails, nothing half-made is there."""
    path = path.absolute()
    beside, old = (path.with_name(f".{path.name}.{name}-{os.getpid()}") for name in ("tmp", "tmp-old"))
    try:
        beside.mkdir(parents=True)
        yield beside
        if path.exists():
            os.replace(path, old)
        os.replace(beside, path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:150]
        raise ConfigError(f"{path} cannot be written ({reason}); make room or choose another place") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against a second run; the system gives it back when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process is at work in {folder}; wait for it, or use another folder") from error
        yield


def sweep(folder: Path) -> None:
    """Remove what interrupted writes left behind."""
    for orphan in folder.glob(".*.tmp-*"):
        if orphan.is_dir():
            shutil.rmtree(orphan, ignore_errors=True)
        else:
            orphan.unlink(missing_ok=True)


def save_checkpoint(path: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Write tensors and a JSON record, atomically."""
    flat = {name: t.detach().contiguous() for name, t in tensors.items()}
    write_atomically(path, save(flat, metadata={"record": json.dumps(record)}))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the record of a checkpoint."""
    try:
        with safe_open(path, "pt") as file:
            record = json.loads((file.metadata() or {})["record"])
            return {name: file.get_tensor(name).clone() for name in file.keys()}, record  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise ModelError(
            f"{path} is no checkpoint of this package ({error}); delete it, or train into another folder"
        ) from error
