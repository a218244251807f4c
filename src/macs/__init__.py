"""MACS: restore images from degraded measurements with a consistency model, in two network evaluations.

    model  = macs.load("fashion-mnist")
    task   = macs.task("super-resolution", model)
    y      = task(x)                                    # x in [0, 1], (B, C, H, W)
    solver = macs.Solver(model, macs.MacsD(), steps=2)
    x_hat  = solver(y, task, seed=0)                    # in [0, 1]

Importing this package is cheap; what a name needs is imported when the name is first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Macs": "steps", "MacsD": "macs_d", "AveragedMacsD": "macs_d", "Multistep": "steps", "Ddim": "steps", "Euler": "steps",
    "Addim": "steps", "Heun": "steps", "DpmSolver": "steps", "Sampler": "steps", "SAMPLERS": "samplers",
    "Discrepancy": "fidelity", "BackProjection": "fidelity", "Prox": "fidelity", "discrepancy": "fidelity",
    "Cm4ir": "zeroshot", "PnpCm": "zeroshot", "Mixed": "zeroshot", "PseudoInverse": "zeroshot", "Prior": "models.prior",
    "Dps": "diffusion", "Lgd": "diffusion", "Ddrm": "diffusion", "DiffPir": "diffusion", "Deft": "diffusion",
    "Problem": "problem", "Solver": "solver", "Trace": "solver", "Noise": "noise",
    "task": "tasks", "TASKS": "tasks", "Separable": "tasks",
    "examples": "data", "load": "models.store", "ConsistencyModel": "models.consistency", "HintedModel": "models.consistency",
    "ControlNet": "models.controlnet", "ControlledModel": "models.controlnet", "HardConstraint": "cosign",
    "NonlinearBlur": "models.nonlinear_blur",
    "Tiled": "models.tiled", "examine": "doctor", "estimate_sigma_y": "noise_level",
    "MacsError": "errors", "MacsWarning": "errors",
}  # fmt: skip

_MODULES = ("data", "levels", "models", "training")

__all__ = ["__version__", *_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"macs.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'macs' has no attribute {name!r}")
    value = getattr(import_module(f"macs.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
