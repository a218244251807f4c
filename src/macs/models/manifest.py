"""The models that come with the package, and whether their bytes are still those that were released; light to import."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from macs.errors import ModelError, unknown

#: Where bundled models live: ``<name>.safetensors`` and ``<name>.md`` for each, and ``manifest.json``.
WEIGHTS = Path(__file__).parent.parent / "weights"
#: What the manifest says of each model.
FIELDS: dict[str, type] = {"file": str, "sha256": str, "bytes": int, "card": str, "quality": dict, "license": str}


def digest(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def tensors_digest(tensors: Mapping[str, Any]) -> str:
    """What tells the weights of one network from those of another, whatever file they came in: 16 hexadecimal digits."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().cpu().numpy().tobytes())
    return total.hexdigest()[:16]


def catalogue() -> dict[str, dict[str, Any]]:
    """The bundled models by name, as in the manifest; none where nothing is bundled."""
    path = WEIGHTS / "manifest.json"
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_bytes())
        sound = all(isinstance(e[k], kind) for e in entries.values() for k, kind in FIELDS.items())
        sound = sound and all(Path(e["file"]).name == e["file"] for e in entries.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} is damaged ({type(error).__name__}: {error}); install the package again") from error
    if not sound:
        raise ModelError(f"{path} is damaged (a field is of the wrong kind); install the package again")
    return entries


def entry(name: str) -> dict[str, Any]:
    """What the manifest says of a model."""
    known = catalogue()
    if not known:
        raise ModelError(
            f"no model is bundled with this installation, so none is named {name!r}; pass the path of a .safetensors file"
        )
    if name not in known:
        raise unknown("model", name, known)
    return known[name]


def read_bytes(path: Path) -> bytes:
    """A file's content."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise ModelError(f"{path} cannot be read ({reason}); check the path, or get the file again") from error


def check_digest(content: bytes, expected: str, path: Path) -> None:
    """Refuse bytes that are not those that were released."""
    actual = digest(content)
    if actual != expected:
        raise ModelError(
            f"{path} is damaged or was changed, its SHA-256 begins with {actual[:12]} and not {expected[:12]}; get it again"
        )


def released_bytes(name: str) -> bytes:
    """The content of a bundled model, checked."""
    about = entry(name)
    path = WEIGHTS / about["file"]
    content = read_bytes(path)
    check_digest(content, about["sha256"], path)
    return content


def verify(name: str) -> None:
    """Check that a bundled model is there and has not changed."""
    released_bytes(name)
