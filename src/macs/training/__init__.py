"""Training: diffusion pre-training, then consistency tuning; resumable bit for bit.

Light to import; what a name needs is imported when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from macs.training.config import load_config, parse_config
    from macs.training.loop import Run, train

__all__ = ["Run", "load_config", "parse_config", "train"]

_HOMES = {"Run": "loop", "train": "loop", "load_config": "config", "parse_config": "config"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'macs.training' has no attribute {name!r}")
    return getattr(import_module(f"macs.training.{_HOMES[name]}"), name)
