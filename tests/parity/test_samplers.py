"""Every sampler on every operator against the NumPy transcription: whole solves in float32, single steps in float64."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch

import macs

from . import transcription as paper
from .cases import CASES, IMAGES, PIXELS, SHAPE, rows
from .networks import RandomNetwork

#: The paper's kind of grid, on which the measurement term is small, and one on which it is large.
GRIDS = {
    "usual": {1: [80.0], 2: [80.0, 4.36556169], 3: [80.0, 21.0, 4.36556169], 5: [80.0, 43.0, 21.0, 9.5, 4.36556169]},
    "low": {1: [0.9], 2: [3.0, 0.15], 3: [3.0, 0.6, 0.1], 5: [3.0, 0.9, 0.5, 0.1, 0.03]},
}

#: Single steps (t, s): the paper's, lower ones, a tiny one, and one down to t_min, where rho = 0.
TRANSITIONS = [(80.0, 4.36556169), (80.0, 79.5), (3.0, 0.15), (0.5, 0.03), (0.5, 0.002)]


def decay(t):
    """A level-dependent parameter."""
    return 50 * t / (1 + t)


#: Each sampler: its class, its arguments, and its transcription.
SAMPLERS = {
    "ddim": (macs.Ddim, {}, paper.ddim),
    "euler": (macs.Euler, {}, paper.euler),
    "multistep": (macs.Multistep, {}, paper.multistep),
    "heun": (macs.Heun, {}, paper.heun),
    "dpm-2m": (macs.DpmSolver, {"variant": "2M"}, paper.dpm_solver_pp_2m),
    "dpm-2": (macs.DpmSolver, {"variant": "2"}, paper.dpm_solver_2),
    "addim": (macs.Addim, {"eta": 0.1}, paper.addim(0.1)),
    "addim-number": (macs.Addim, {"eta": 0.75, "variance": 30.0}, paper.addim(0.75, 30.0)),
    "addim-function": (macs.Addim, {"eta": 0.75, "variance": decay}, paper.addim(0.75, decay)),
    "macs-sum": (macs.Macs, {"gamma": 0.8}, paper.macs(0.8)),
    "macs-function": (macs.Macs, {"gamma": decay}, paper.macs(decay)),
    "macs-mean": (macs.Macs, {"gamma": 0.8, "residual": "mean"}, paper.macs(0.8, "mean")),
    "macs-operator": (macs.Macs, {"gamma": 0.8, "residual": "operator"}, paper.macs(0.8, "operator")),
    "macs-chi2": (macs.Macs, {"gamma": 0.05, "residual": "chi2"}, paper.macs(0.05, "chi2")),
}

#: Heun's second estimate carries float32 rounding times (t - s)/(2 s), about 9 on these grids.
FLOAT32 = {"heun": 2e-5}
#: The operator's norm is an iteration in float32.
FLOAT64 = {"macs-operator": 1e-6}
#: The pseudo-inverse of an operator known only by its products is an iteration.
ITERATIVE = {"dense": 1e-4}

PAIRS = [(name, case) for name in SAMPLERS for case in CASES]

pytestmark = pytest.mark.filterwarnings("ignore::macs.errors.MacsWarning")


def make(name, **more):
    """A sampler of the package, by its name here."""
    kind, options, _ = SAMPLERS[name]
    return kind(**options, **more)


def transcribed(name, **more):
    """The whole solve of the same sampler in NumPy."""
    return partial(paper.solve, SAMPLERS[name][2], **more)


def network(case):
    """A random network for the sizes of a case."""
    return RandomNetwork(PIXELS, len(CASES[case].A), seed=3)


def start(dtype=torch.float32):
    """Unit start noise."""
    return torch.randn(IMAGES, *SHAPE, generator=torch.Generator().manual_seed(1)).to(dtype)


def fresh(noise, like):
    """The unit noise of the k-th step, as rows."""
    return lambda k: rows(noise.at(k).like(like))


def both(case, sampler, solve, levels, **options):
    """A whole solve in float32, by the package and by the transcription, on [0, 1] images: two (B, n) arrays."""
    f, names, unit = network(case), ("a", "b", "c"), start()
    measured, problem = CASES[case].pair(torch.float32)
    solver = macs.Solver(f, sampler, levels=levels, **options)
    ours = solver(problem.y, problem.physics, seed=5, z=unit, ids=names)
    theirs = solve(f.rows, measured, levels, rows(unit), fresh(macs.Noise(5, names), unit))
    return rows(ours), np.clip((theirs + 1) / 2, 0, 1)


def step_both(case, sampler, step, t, s, data=paper.untouched):
    """One step in float64 from the same point with the same past, in [-1, 1]: two (B, n) arrays."""
    f, noise = network(case), macs.Noise(9, ("a", "b", "c"))
    measured, problem = CASES[case].pair(torch.float64)
    x_t = 0.4 + t * start(torch.float64)
    before = torch.tanh(start(torch.float64).flip(0))
    ours = sampler(f, problem, x_t, t, s, noise.at(1), past=((1.7 * t, before),))
    z = fresh(noise, x_t)(1)
    return rows(ours), step(f.rows, measured, rows(x_t), t, s, z, ((1.7 * t, rows(before)),), data)


def close(arrays, atol):
    """Agreement of every pixel."""
    np.testing.assert_allclose(*arrays, rtol=0, atol=atol)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_a_solve_is_the_transcription(name, case, grid, steps):
    close(both(case, make(name), transcribed(name), GRIDS[grid][steps]), FLOAT32.get(name, 1e-5))


@pytest.mark.parametrize(("t", "s"), TRANSITIONS)
@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_a_step_is_the_transcription_in_float64(name, case, t, s):
    close(step_both(case, make(name), SAMPLERS[name][2], t, s), FLOAT64.get(name, 1e-10))


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_a_solve_with_a_data_step_is_the_transcription(name, case, steps):
    sampler, solve = make(name, data=macs.Discrepancy()), transcribed(name, data=paper.discrepancy)
    close(both(case, sampler, solve, GRIDS["low"][steps]), ITERATIVE.get(case, FLOAT32.get(name, 1e-5)))


#: 2M's past holds network outputs in the package and estimates in the transcription; the solves above compare it.
CLOSED = [(name, case) for name, case in PAIRS if case not in ITERATIVE and name != "dpm-2m"]


@pytest.mark.parametrize(("name", "case"), CLOSED)
def test_a_step_with_a_data_step_is_the_transcription_in_float64(name, case):
    sampler = make(name, data=macs.Discrepancy())
    close(step_both(case, sampler, SAMPLERS[name][2], 3.0, 0.15, paper.discrepancy), FLOAT64.get(name, 1e-10))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("levels", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "options",
    [{}, {"eta": 0.3, "null": False}, {"tolerance": 0.0}, {"tolerance": 20.0}, {"polish": True}, {"polish": True, "c": 5.0}],
    ids=str,
)
@pytest.mark.parametrize("case", CASES)
def test_macs_d_is_the_transcription(case, options, levels, grid):
    arrays = both(case, macs.MacsD(**options), partial(paper.macs_d, **options), GRIDS[grid][levels])
    close(arrays, ITERATIVE.get(case, 1e-5))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("smooth", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("options", [{"mean": 0.5}, {"mean": 0.5, "polish": True}, {"mean": 1.0}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_averaged_macs_d_is_the_transcription(case, options, smooth, levels, grid):
    coarse = paper.gaussian_matrix(SHAPE, smooth) if smooth else None
    solve = partial(paper.macs_d, **options, coarse=coarse)
    arrays = both(case, macs.AveragedMacsD(**options, smooth=smooth), solve, GRIDS[grid][levels])
    close(arrays, ITERATIVE.get(case, 1e-5))


@pytest.mark.parametrize(("side", "kappa"), [(16, 1.0), (28, 1.0), (42, 0.7548), (64, 0.5), (256, 0.5)])
@pytest.mark.parametrize("case", CASES)
def test_macs_d_spares_the_measured_part_by_the_side(case, side, kappa, monkeypatch):
    monkeypatch.setattr(RandomNetwork, "side", side, raising=False)
    arrays = both(case, macs.MacsD(), partial(paper.macs_d, kappa=kappa), GRIDS["low"][3])
    close(arrays, ITERATIVE.get(case, 1e-4 if side == 42 else 1e-5))


@pytest.mark.parametrize("case", CASES)
def test_a_gamma_for_each_step(case):
    levels, gammas = GRIDS["low"][3], [2.0, 0.1]
    step = paper.macs(dict(zip(levels, gammas, strict=False)).get)
    close(both(case, macs.Macs(gamma=gammas), partial(paper.solve, step), levels), 1e-5)


@pytest.mark.parametrize("name", SAMPLERS)
def test_without_the_clamp(name):
    arrays = both("denoising", make(name), transcribed(name, limit=lambda x: x), GRIDS["low"][3], clamp=False)
    close(arrays, FLOAT32.get(name, 1e-5))


@pytest.mark.parametrize("sampler", [macs.Macs(gamma=0.8), macs.Ddim(), macs.Multistep(), macs.Euler()], ids=repr)
def test_two_steps_are_the_public_grid_from_seeded_noise(sampler):
    step = {macs.Macs: paper.macs(0.8), macs.Ddim: paper.ddim, macs.Multistep: paper.multistep, macs.Euler: paper.euler}
    f, noise, levels = network("inpainting"), macs.Noise(11, ("u", "v", "w")), [80.0, paper.karras(40)[17]]
    measured, problem = CASES["inpainting"].pair(torch.float32)
    solver = macs.Solver(f, sampler, steps=2)
    ours, trace = solver(problem.y, problem.physics, seed=11, ids=noise.ids, trace=True)
    unit = noise.at(0).like(ours)
    theirs = paper.solve(step[type(sampler)], f.rows, measured, levels, rows(unit), fresh(noise, unit))
    close((rows(ours), (theirs + 1) / 2), 1e-5)
    np.testing.assert_allclose(solver.levels, levels, rtol=1e-12)
    assert trace.nfe[-1] == 2


@pytest.mark.parametrize("polish", [False, True])
@pytest.mark.parametrize(("count", "levels"), [(1, [80.0]), (2, [80.0, paper.karras(40)[19]])])
def test_macs_d_in_so_many_calls(count, levels, polish):
    f, steps, names, unit = network("super-resolution"), count + polish, ("u", "v", "w"), start()
    measured, problem = CASES["super-resolution"].pair(torch.float32)
    solver = macs.Solver(f, macs.MacsD(polish=polish), steps=steps)
    ours, trace = solver(problem.y, problem.physics, seed=2, z=unit, ids=names, trace=True)
    theirs = paper.macs_d(f.rows, measured, levels, rows(unit), fresh(macs.Noise(2, names), unit), polish=polish)
    close((rows(ours), (theirs + 1) / 2), 1e-5)
    assert trace.nfe[-1] == steps


def test_macs_d_in_one_call_is_the_estimate():
    f, unit = network("super-resolution"), start()
    measured, problem = CASES["super-resolution"].pair(torch.float32)
    ours, trace = macs.Solver(f, macs.MacsD(), steps=1)(problem.y, problem.physics, z=unit, trace=True)
    theirs = paper.macs_d(f.rows, measured, [80.0], rows(unit), None, polish=False)
    close((rows(ours), (theirs + 1) / 2), 1e-5)
    assert trace.nfe == [1]


@pytest.mark.parametrize("name", ["heun", "dpm-2m", "dpm-2"])
def test_the_ode_samplers_walk_karras_grid(name):
    f, levels = network("denoising"), paper.karras(8)
    solver = macs.Solver(f, make(name), steps=8)
    np.testing.assert_allclose(solver.levels, levels, rtol=1e-12)
    _, problem = CASES["denoising"].pair(torch.float32)
    _, trace = solver(problem.y, problem.physics, z=start(), trace=True)
    assert trace.nfe[-1] == {"heun": 15, "dpm-2m": 8, "dpm-2": 15}[name]


def test_the_fixture_tells_the_residuals_apart():
    """The dense matrix has n/m = 4 and 1/||A||^2 near 0.45, so the three normalisations differ."""
    f, levels, unit = network("dense"), GRIDS["low"][3], rows(start())
    measured, _ = CASES["dense"].pair(torch.float32)
    ends = [transcribed(f"macs-{kind}")(f.rows, measured, levels, unit, lambda k: 0) for kind in ("sum", "mean", "operator")]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in combinations(ends, 2))


@pytest.mark.parametrize("case", CASES)
def test_the_fixture_tells_the_samplers_tells_the_samplers_apart(case):
    """Any two transcriptions differ by far more than the tolerance on the low grid, save those that are or can be equal."""
    f, levels, unit = network(case), GRIDS["low"][3], rows(start())
    measured, _ = CASES[case].pair(torch.float32)
    z = fresh(macs.Noise(5, ("a", "b", "c")), start())
    ends = {name: transcribed(name)(f.rows, measured, levels, unit, z) for name in SAMPLERS}
    ends["macs-d"] = paper.macs_d(f.rows, measured, levels, unit, z)
    equal = {"ddim", "euler"}, {"macs-sum", "macs-mean", "macs-operator"}
    for a, b in combinations(ends, 2):
        if not any({a, b} <= group for group in equal):
            assert np.abs(ends[a] - ends[b]).max() > 1e-3, (a, b)
