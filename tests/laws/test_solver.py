"""The loop and the Reconstructor: counted calls, seeds, batches, traces, and errors in words."""

import math
import warnings

import deepinv as dinv
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import macs
from macs.errors import ConfigError, MacsWarning, MeasurementError, ModelError
from tests.laws.conftest import LINEAR, SHAPE, Net, Squashed, measure, stacked

pytestmark = pytest.mark.filterwarnings("ignore::macs.errors.MacsWarning")

TWICE = ("Heun", "variant='2'")


def calls_of(sampler, steps):
    """NFE by the book: one per step, but two for Heun and the single-step DPM-Solver, whose last step is one."""
    return 2 * steps - 1 if any(k in repr(sampler) for k in TWICE) else steps


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 8])
def test_every_sampler_on_every_operator(sampler, physics, x, net, steps):
    """In range, finite, repeatable, and of the counted cost."""
    y = measure(physics, x)
    solver = macs.Solver(net, sampler, steps=steps)
    out, trace = solver(y, physics, seed=0, trace=True)
    assert out.shape == x.shape
    assert out.dtype == torch.float32
    assert 0 <= out.min() <= out.max() <= 1
    assert trace.nfe[-1] == calls_of(sampler, steps)
    assert torch.equal(solver(y, physics, seed=0), out)
    assert all(torch.isfinite(row).all() for row in (*trace.residual, *trace.chi2, *trace.lam))
    assert len(trace.residual) == len(trace.chi2) == len(trace.s_eff) == len(trace.nfe)


def test_one_step_is_the_model(x, net):
    """N = 1 without a data step is f(T z, T), for every sampler that has none."""
    A = LINEAR["inpainting"]()
    z = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(0))
    want = (net(80 * z, None, 80.0).clamp(-1, 1) + 1) / 2
    for sampler in (macs.Macs(), macs.Ddim(), macs.Euler(), macs.Multistep(), macs.Addim(), macs.Heun(), macs.DpmSolver()):
        torch.testing.assert_close(macs.Solver(net, sampler, steps=1)(measure(A, x), A, z=z), want)


def test_seeds(x, net):
    """Seed 0 is a seed; seeds differ; ids name the streams; the global state stays."""
    A = LINEAR["inpainting"]()
    y = measure(A, x)
    solver = macs.Solver(net, macs.Multistep())
    state = torch.get_rng_state()
    zero = solver(y, A, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(123)
    assert torch.equal(solver(y, A, seed=0), zero)
    torch.set_rng_state(state)
    assert not torch.equal(solver(y, A, seed=1), zero)
    assert torch.equal(solver(y, A, seed=0, ids="abcde"), solver(y, A, seed=0, ids="abcde"))
    assert not torch.equal(solver(y, A, seed=0, ids="abcdf")[4], solver(y, A, seed=0, ids="abcde")[4])


def test_copies_of_a_measurement_get_noise_of_their_own(x, net):
    A = LINEAR["inpainting"]()
    y = measure(A, x)[:1].repeat(3, 1, 1, 1)
    out = macs.Solver(net, macs.Multistep())(y, A)
    assert not torch.equal(out[0], out[1])
    assert not torch.equal(out[1], out[2])


@pytest.mark.parametrize("name", ["super-resolution", "inpainting", "deblurring", "matrix"])
def test_micro_batches_are_bit_exact(sampler, x, net, name):
    """In padded micro-batches an image has the same bits whatever its batch, its neighbours or their order."""
    A = LINEAR[name]()
    x = torch.cat([x, 1 - x])
    y = measure(A, x)
    solver = macs.Solver(net, sampler, steps=3, micro_batch=4)
    together, trace = solver(y, A, trace=True)
    order = torch.tensor([3, 1, 9, 0, 7, 2, 8, 5, 4, 6])
    assert torch.equal(solver(y[order], A), together[order])
    assert torch.equal(solver(y[2:5], A), together[2:5])
    assert torch.equal(torch.cat([solver(y[i : i + 1], A) for i in range(10)]), together)
    assert trace.residual[0].shape == (10,)
    assert trace.nfe[-1] == calls_of(sampler, 3)
    torch.testing.assert_close(macs.Solver(net, sampler, steps=3)(y, A), together, atol=1e-4, rtol=0)


def test_micro_batches_refuse_a_physics_per_image(x, net):
    masks = (torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1)) > 0.4).float()
    A = dinv.physics.Inpainting(img_size=SHAPE, mask=masks, noise_model=dinv.physics.GaussianNoise(0.025))
    assert torch.isfinite(macs.Solver(net, macs.MacsD())(A(x), A)).all()
    with pytest.raises(ConfigError, match="physics shared by all images; its 'mask'"):
        macs.Solver(net, macs.MacsD(), micro_batch=2)(A(x), A)


def test_inside_deepinv_test(x, net):
    A = LINEAR["super-resolution"]()
    loader = DataLoader(TensorDataset(x, measure(A, x)), batch_size=2)
    solver = macs.Solver(net, macs.MacsD())
    assert isinstance(solver, dinv.models.Reconstructor)
    result = dinv.test(solver, loader, A, metrics=dinv.metric.PSNR(), verbose=False, show_progress_bar=False)
    mean = next(v for k, v in result.items() if "PSNR" in k and "no" not in k.lower() and "std" not in k)
    assert mean > 0


def test_trace_and_callback_tell_the_same_story(x, net):
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    seen = []
    solver = macs.Solver(net, macs.Macs(gamma=3.0), levels=(80, 1.0, 0.05))
    out, trace = solver(y, A, trace=True, callback=seen.append)
    problem = macs.Problem(y, A)
    assert trace.levels == [80, 1.0, 0.05]
    assert [s.t for s in seen] == [80, 1.0, 0.05]
    assert [s.nfe for s in seen] == trace.nfe == [1, 2, 3]
    for step, residual, chi2 in zip(seen, trace.residual, trace.chi2, strict=True):
        torch.testing.assert_close(problem.residual(step.x_hat), residual)
        torch.testing.assert_close(problem.chi2(step.x_hat), chi2)
    torch.testing.assert_close((seen[-1].x_s + 1) / 2, out)
    assert (trace.inflation[1] > 0.001).all()
    assert torch.isnan(trace.s_eff[-1]).all()
    assert torch.equal(trace["lambda"][0], torch.zeros(5))
    torch.testing.assert_close(problem.residual(2 * out - 1), trace.final_residual, rtol=1e-4, atol=1e-4)


def test_the_polish_is_told_by_the_residual(x, net):
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    _, trace = macs.Solver(net, macs.MacsD(polish=True, c=1.5), steps=2)(y, A, trace=True)
    assert trace.levels[0] == 80
    torch.testing.assert_close(trace.levels[1], 1.5 * trace.lam[0] * 0.05)
    torch.testing.assert_close(trace.s_eff[0], trace.levels[1])
    assert (trace.lam[0] > 0).all()
    torch.testing.assert_close(trace.lam[0], 1 - trace.chi2[0].rsqrt())


def test_a_length_is_told_only_of_a_step_that_was_made(x, net):
    """MACS-D's last call within its tolerance and CM4IR's of a noisy problem are followed by no data step."""
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    solvers = {
        macs.Solver(net, macs.MacsD(polish=True), steps=3): [True, True, False],
        macs.Solver(net, macs.MacsD(tolerance=math.inf), steps=3): [True, True, False],
        macs.Solver(net, macs.MacsD(tolerance=0), steps=3): [True, True, True],
        macs.Cm4ir(net, 3): [True, True, False],
    }
    for solver, made in solvers.items():
        _, trace = solver(y, A, trace=True)
        assert [bool((lam > 0).all()) for lam in trace.lam] == made
        assert [bool((lam == 0).all()) for lam in trace.lam] == [not step for step in made]
    sigma_y = torch.tensor([0.0, 0.05, 0.0, 0.05, 0.05])
    _, trace = macs.Cm4ir(net, 3)(y, A, sigma_y=sigma_y, trace=True)
    assert trace.lam[-1].tolist() == [1, 0, 1, 0, 0]


def test_condition_is_computed_once(x):
    class Conditioned(Net):
        made = 0

        def condition(self, problem):
            type(self).made += 1
            return problem.physics.A_adjoint(problem.y)

        def __call__(self, x_t, y, t):
            assert y.shape == x_t.shape
            return super().__call__(x_t, y, t) + 0.1 * y

    A = LINEAR["super-resolution"]()
    macs.Solver(Conditioned(), macs.Multistep(), steps=4)(measure(A, x), A)
    assert Conditioned.made == 1


def test_a_plain_function_gets_the_measurement_as_given(x):
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    got = []

    def f(x_t, y, t):
        got.append((y, t.ndim))
        return 0 * x_t

    macs.Solver(f, macs.MacsD(polish=True), steps=2)(y, A)
    assert got[0][0] is y
    assert [ndim for _, ndim in got] == [0, 4]


def test_bf16_networks(x):
    from diffusers import UNet2DModel

    unet = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2, attention_head_dim=4,
    )  # fmt: skip
    model = macs.ConsistencyModel(unet.eval(), SHAPE)
    A = LINEAR["deblurring"]()
    y = measure(A, x)
    full = macs.Solver(model, macs.MacsD())(y, A)
    half, trace = macs.Solver(model, macs.MacsD(), dtype=torch.bfloat16)(y, A, trace=True)
    assert half.dtype == torch.float32
    assert trace.residual[0].dtype == torch.float32
    assert 0 < (half - full).abs().max() < 0.1


def test_image_size_of_a_nonlinear_physics(x):
    A = Squashed()
    y = measure(A, x)
    net = Net()
    f = lambda *args: net(*args)
    with pytest.raises(ConfigError, match="image size is unknown for a nonlinear physics; pass img_size"):
        macs.Solver(f)(y, A)
    assert macs.Solver(f)(y, A, img_size=SHAPE).shape == x.shape


def test_stacked_measurements(x, net):
    A = stacked()
    y = measure(A, x)
    problem = macs.Problem(y, A)
    assert problem.m.tolist() == [16 + 48] * 5
    out, trace = macs.Solver(net, macs.MacsD(), micro_batch=2)(y, A, trace=True)
    assert out.shape == x.shape
    assert trace.chi2[0].shape == (5,)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda n: macs.Solver(n, steps=0), ConfigError, "steps must be a whole number of at least 1; got 0"),
        (lambda n: macs.Solver(n, steps=1.5), ConfigError, "steps must be a whole number"),
        (lambda n: macs.Solver(n, steps=True), ConfigError, "steps must be a whole number"),
        (lambda n: macs.Solver(n, levels=(1, 2)), ConfigError, "levels must decrease"),
        (lambda n: macs.Solver(n, levels=(80, 1e-4)), ConfigError, "below the model's t_min = 0.002"),
        (lambda n: macs.Solver(n, "macs"), ConfigError, "sampler must be a sampler such as"),
        (lambda n: macs.Solver(n, micro_batch=0), ConfigError, "micro_batch must be a whole number"),
    ],
)
def test_bad_solvers_are_refused_in_words(make, error, words, net):
    with pytest.raises(error, match=words):
        make(net)


def test_bad_measurements_are_refused_in_words(x, net):
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    solver = macs.Solver(net, macs.MacsD())
    with pytest.raises(MeasurementError, match=r"y must have the shape.*\(1, 4, 4\); got \(1, 8, 8\)"):
        solver(x, A)
    nan = y.clone()
    nan[3, 0, 1, 1] = float("nan")
    with pytest.raises(MeasurementError, match="y must be finite; image 3 holds NaN"):
        solver(nan, A)
    with pytest.raises(MeasurementError, match="batch"):
        solver(y[0, 0, 0], A)
    with pytest.raises(MeasurementError, match="one tensor per operator; got 1 for 2"):
        solver(y, stacked())
    with pytest.raises(ConfigError, match="ids must name each image; got 2 for 5"):
        solver(y, A, ids=("a", "b"))
    with pytest.raises(ConfigError, match="sigma_y must be one number of at least 0"):
        solver(y, A, sigma_y=-0.1)
    with pytest.raises(ConfigError, match="sigma_y must be one number of at least 0, or one per image"):
        solver(y, A, sigma_y=torch.ones(3))
    with pytest.raises(ConfigError, match="z must hold unit noise for 5 images"):
        solver(y, A, z=torch.zeros(2, *SHAPE))
    with pytest.raises(MeasurementError, match="the physics refused images of shape"):
        macs.Solver(lambda x, y, t: x)(y, A, img_size=(1, 9, 9))


def test_bad_networks_are_refused_in_words(x):
    A = LINEAR["super-resolution"]()
    y = measure(A, x)

    def explodes(x_t, y, t):
        out = 0 * x_t
        if t < 80:
            out[2, 0, 0, 0] = float("nan")
        return out

    with pytest.raises(ModelError, match="NaN or infinity at call 2, image 2"):
        macs.Solver(explodes, macs.Multistep())(y, A)
    with pytest.raises(ModelError, match="must return images like its input"):
        macs.Solver(lambda x, y, t: x[:, :, :4], macs.Multistep())(y, A)


def test_the_warning_reaches_the_user(x):
    """A network that restores well, on the usual grid: the paper's term does nothing, and says so."""
    A = LINEAR["super-resolution"]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MacsWarning)
        macs.Solver(lambda *_: 2 * x - 1, macs.Macs(gamma=0.15))(measure(A, x), A)
    assert any(issubclass(w.category, MacsWarning) for w in caught)
