"""Every sampler by its name on the command line."""

from macs.macs_d import AveragedMacsD, MacsD
from macs.steps import Addim, Ddim, DpmSolver, Euler, Heun, Macs, Multistep, Sampler

SAMPLERS: dict[str, type[Sampler]] = {
    "macs": Macs,
    "macs-d": MacsD,
    "macs-d-averaged": AveragedMacsD,
    "multistep": Multistep,
    "ddim": Ddim,
    "euler": Euler,
    "addim": Addim,
    "heun": Heun,
    "dpm-solver": DpmSolver,
}
