"""All solvers on one problem: a model trained for it, one that knows only images, and a denoiser."""

from macs.benchmark.networks import Names
from macs.benchmark.paper import TABLE_II
from macs.benchmark.suite import MEASUREMENT, Made, Suite, table
from macs.diffusion import Ddrm, Deft, DiffPir, Dps, Lgd
from macs.errors import ConfigError
from macs.fidelity import BackProjection
from macs.macs_d import MacsD
from macs.solver import Solver
from macs.steps import Multistep
from macs.zeroshot import Cm4ir, PnpCm, PseudoInverse

SAMPLERS = table(TABLE_II.gamma)
CONDITIONAL: Suite = {
    label: SAMPLERS[label]
    for label in (
        "one step", "Multistep", "MACS", "MACS-D", "Multistep, 4 calls", "MACS, 4 calls", "MACS-D, 4 calls",
    )
}  # fmt: skip
#: Without its measurement a model starts from the pseudo-inverse, at levels that leave standing what it shows.
START = {"levels": (2.0, 1.0, 0.5, 0.25), "init": PseudoInverse()}
ZERO_SHOT: Suite = {
    "zero-shot DDNM": Made(Solver, ("prior",), {"sampler": Multistep(data=BackProjection()), "steps": 4}),
    "zero-shot MACS-D": Made(Solver, ("prior",), {"sampler": MacsD(), **START}),
    "PnP-CM": Made(PnpCm, ("model",)),
    "CM4IR": Made(Cm4ir, ("model",)),
}
DIFFUSION: Suite = {
    "DDRM": Made(Ddrm, ("denoiser",), {"steps": 20}),
    "DDRM, published noise": Made(Ddrm, ("denoiser",), {"steps": 20, "gain": 2**0.5}),
    "DiffPIR": Made(DiffPir, ("denoiser",), {"steps": 100}),
    "LGD-MC": Made(Lgd, ("denoiser",), {"steps": 100}),
    "DPS, 100 calls": Made(Dps, ("denoiser",), {"steps": 100}),
    "DPS": Made(Dps, ("denoiser",), {"steps": 1000}, parts=10),
}
CORRECTED: Suite = {"DEFT": Made(Deft, ("denoiser", "deft"), {"steps": 20})}

#: By what had to be trained for the tasks.
KINDS: dict[str, Suite] = {
    "no network": MEASUREMENT, "yes": CONDITIONAL, "no, zero-shot": ZERO_SHOT, "no, diffusion": DIFFUSION,
    "a small network": CORRECTED,
}  # fmt: skip
SOLVERS: Suite = {label: entry for suite in KINDS.values() for label, entry in suite.items()}
TRAINED: dict[str, str] = {label: kind for kind, suite in KINDS.items() for label in suite}
#: The rows that are in no other suite.
OTHERS = (*ZERO_SHOT, *DIFFUSION, *CORRECTED)

#: The name under which DEFT's network is looked for where no file is given.
DEFT = "fashion-mnist-deft"


def available(suite: Suite, names: Names) -> tuple[Suite, str | None]:
    """The rows whose networks are there, and a sentence on those that are left out."""
    kept = {label: entry for label, entry in suite.items() if names.deft is not None or "deft" not in entry.uses}
    if len(kept) == len(suite):
        return suite, None
    left = ", ".join(label for label in suite if label not in kept)
    said = f"{left} is left out, its network is not bundled; train one with examples/train_deft.py and give --deft PATH"
    if not kept:
        raise ConfigError(said)
    return kept, said
