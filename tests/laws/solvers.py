"""The solvers that are no samplers, on networks that are known: a small random one, and a Gaussian's posterior mean."""

import macs
from tests.laws.conftest import SHAPE, Net
from tests.laws.gaussian import prior


class Mean:
    """The posterior mean of N(0, 1/4) pixels; a denoiser."""

    image_shape = SHAPE
    t_min, t_max = 0.002, 80.0
    kind = "denoiser"

    def __init__(self):
        self.gaussian = prior(64)

    def __call__(self, x, y, t):
        return self.gaussian.mean(x, y, t)


#: Each solver and the network calls that it must make.
SOLVERS = {
    "cm4ir": (lambda **k: macs.Cm4ir(Net(), **k), 4),
    "cm4ir-regularised": (lambda **k: macs.Cm4ir(Net(), 3, zeta=1.0, delta=(0.1, 0.0, 0.2), injection="level", **k), 3),
    "pnp-cm": (lambda **k: macs.PnpCm(Net(), 3, **k), 3),
    "ddnm": (lambda **k: macs.Solver(macs.Prior(Net()), macs.Multistep(data=macs.BackProjection()), steps=3, **k), 3),
    "prox": (lambda **k: macs.Solver(macs.Prior(Net()), macs.Mixed(data=macs.Prox(20.0)), levels=(2.0, 0.5), **k), 2),
    "macs-d from A^+": (lambda **k: macs.Solver(macs.Prior(Net()), levels=(2.0, 0.5), init=macs.PseudoInverse(), **k), 2),
    "dps": (lambda **k: macs.Dps(Mean(), 12, weight=50.0, **k), 12),
    "dps-annealed": (lambda **k: macs.Dps(Mean(), 12, weight=1.0, guidance="annealed", **k), 12),
    "lgd": (lambda **k: macs.Lgd(Mean(), 12, samples=4, **k), 12),
    "ddrm": (lambda **k: macs.Ddrm(Mean(), 8, **k), 8),
    "diffpir": (lambda **k: macs.DiffPir(Mean(), 10, **k), 10),
}

#: What cannot be asked of a solver.
REFUSED = {
    "nonlinear": ("cm4ir", "cm4ir-regularised", "ddnm", "prox", "macs-d from A^+", "ddrm", "diffpir"),
    "stacked": ("dps", "dps-annealed", "ddrm", "diffpir"),
    "matrix": ("ddrm",),
}
