"""A ControlNet changes nothing until it is trained, belongs to its backbone, and works under every sampler."""

import pytest
import torch
from diffusers import UNet2DModel

import macs
from macs.errors import ConfigError, ModelError
from macs.models.build import ModelConfig, build
from macs.models.controlnet import control_hint, filled
from macs.problem import Problem
from tests.laws.conftest import LINEAR, SHAPE, Squashed, measure

TINY = ModelConfig(family="plain", image_shape=SHAPE, channels=(8, 16), layers=1, groups=4, head_dim=8)


def plain(patch=2, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(ModelConfig.of({**TINY.__dict__, "patch": patch})).eval().requires_grad_(False)


def with_attention():
    """A public-style backbone: attention, down-sampling inside residual blocks, two layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        unet = UNet2DModel(
            sample_size=8, in_channels=1, out_channels=1, layers_per_block=2, block_out_channels=(8, 16), norm_num_groups=4,
            down_block_types=("ResnetDownsampleBlock2D", "AttnDownBlock2D"), downsample_type="resnet",
            up_block_types=("AttnUpBlock2D", "ResnetUpsampleBlock2D"), upsample_type="resnet", attention_head_dim=8,
        )  # fmt: skip
    return macs.ConsistencyModel(unet.eval(), SHAPE).requires_grad_(False)


def woken(control, seed=1):
    """The same ControlNet with numbers in all that begins at zero."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in (control.hint_conv, control.zero_middle, *control.zero_convs, control.zero_head):
            for p in () if part is None else part.parameters():
                p.copy_(0.3 * torch.randn(p.shape, generator=g))
    return control.eval()


def attached(model, *, awake=True, scale_hint=False, head=False):
    control = macs.ControlNet.from_unet(model.unet, model.image_shape[0] * model.patch**2, scale_hint, head)
    return macs.ControlledModel(model, woken(control) if awake else control).eval().requires_grad_(False)


BACKBONES = {"folded": plain, "flat": lambda: plain(patch=1), "attention": with_attention}


@pytest.mark.parametrize("head", [False, True], ids=["bare", "head"])
@pytest.mark.parametrize("make", BACKBONES.values(), ids=BACKBONES)
def test_untrained_it_changes_nothing(make, head, x):
    """Bit for bit, at any level and for any hint; and it does once trained."""
    model = make()
    hint = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(2))
    for t in (80.0, 4.37, 0.1):
        assert torch.equal(attached(model, awake=False, head=head)(t * x, hint, t), model(t * x, None, t))
        awake = attached(model, head=head)
        assert not torch.allclose(awake(t * x, hint, t), model(t * x, None, t), atol=1e-3)
        assert not torch.allclose(awake(t * x, hint, t), awake(t * x, -hint, t), atol=1e-4)
        assert torch.equal(awake(t * x, None, t), model(t * x, None, t))


def test_what_is_compiled_is_what_is_called(monkeypatch, x):
    """Every part with weights that a call goes through, but for the few layers at the ends of the backbone."""
    model, compiled, called = attached(plain(), head=True), [], []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(self))
    model.compile_network()
    for part in model.modules():
        part.register_forward_hook(lambda self, *_: called.append(self))
    model(x, x, 1.0)
    assert compiled
    assert all(part in called for part in compiled)
    inside = {id(m) for part in compiled for m in part.modules()}
    left = [m for m in called if id(m) not in inside and any(True for _ in m.parameters(recurse=False))]
    assert len(left) <= 6, left


def test_only_a_head_goes_past_the_last_convolution(x):
    """A backbone whose last convolution is deaf says nothing of any hint; a head of the ControlNet still does."""
    model = plain()
    with torch.no_grad():
        model.unet.conv_out.weight.zero_()
    bare, head = attached(model), attached(model, head=True)
    assert torch.equal(bare(x, x, 1.0), bare(x, -x, 1.0))
    assert not torch.allclose(head(x, x, 1.0), head(x, -x, 1.0), atol=1e-2)


def test_the_copy_is_a_copy():
    """Encoder and middle are equal to the backbone's and not the same tensors; training one leaves the other alone."""
    model = plain()
    control = macs.ControlNet.from_unet(model.unet, 4, head=True)
    theirs = dict(model.unet.named_parameters())
    shared = [name for name, _ in control.named_parameters() if name in theirs]
    assert {name.split(".")[0] for name in shared} == {"conv_in", "time_embedding", "down_blocks", "mid_block"}
    for name, p in control.named_parameters():
        assert p.requires_grad
        if name in theirs:
            assert torch.equal(p, theirs[name])
            assert p.data_ptr() != theirs[name].data_ptr()
        else:
            assert not p.any(), name


@pytest.mark.parametrize("head", [False, True], ids=["bare", "head"])
def test_saved_and_loaded(head, x, tmp_path):
    model = plain()
    control = woken(macs.ControlNet.from_unet(model.unet, 4, scale_hint=False, head=head))
    control.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "diffusion_pytorch_model.safetensors"]
    again = macs.ControlNet.from_pretrained(tmp_path)
    hint = torch.ones_like(x)
    ours, theirs = (macs.ControlledModel(model, c).eval()(x, hint, 1.0) for c in (control, again))
    assert torch.equal(ours, theirs)


def test_the_hint_is_scaled_where_it_says_so(x):
    """With scale_hint a hint of 1/c_in is what a hint of 1 is without."""
    model = plain()
    c_in = 1 / (4.0**2 + model.sigma_data**2) ** 0.5
    scaled, bare = attached(model, scale_hint=True), attached(model, scale_hint=False)
    torch.testing.assert_close(scaled(x, torch.ones_like(x) / c_in, 4.0), bare(x, torch.ones_like(x), 4.0))


@pytest.mark.filterwarnings("ignore::macs.errors.MacsWarning")
@pytest.mark.parametrize("name", ["super-resolution", "inpainting", "nonlinear"])
def test_every_sampler_takes_it(name, sampler, x):
    A = Squashed() if name == "nonlinear" else LINEAR[name]()
    y = measure(A, x)
    solver = macs.Solver(attached(plain()), sampler, steps=2)
    out = solver(y, A)
    assert out.shape == x.shape
    assert torch.equal(solver(y, A), out)
    other = macs.Solver(plain(), sampler, steps=2)(y, A)
    assert not torch.allclose(out, other, atol=1e-3)


def test_hints(x):
    """y in [-1, 1], grey in the hole, repeated where it is smaller than the image."""
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    want = (2 * y - 1).repeat_interleave(2, -1).repeat_interleave(2, -2)
    torch.testing.assert_close(control_hint(Problem(y, A), SHAPE), want, atol=1e-5, rtol=0)
    hole = LINEAR["inpainting"]()
    got = control_hint(Problem(measure(hole, x), hole), SHAPE)
    assert not got[hole.mask.expand_as(got) == 0].any()
    bent = Squashed()
    y = measure(bent, x)
    assert torch.equal(control_hint(Problem(y, bent), SHAPE), 2 * y - 1)
    vector = LINEAR["matrix"]()
    with pytest.raises(ModelError, match="sees measurements that are images of 1 channels"):
        control_hint(Problem(measure(vector, x), vector), SHAPE)


def test_a_smooth_hint_is_the_linear_estimate(x):
    """Where the measurement is smaller than the image, against dense matrices; elsewhere a hint is a hint."""
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    problem = Problem(y, A)
    dense = torch.stack([A.A(e.reshape(1, *SHAPE).double()).flatten() for e in torch.eye(64)], 1)
    damped = dense.mT @ dense + problem.damping[0].double() * torch.eye(64)
    r_0 = (2 * (y - A.A(torch.full((1, *SHAPE), 0.5)))).flatten(1).double()
    want = torch.linalg.solve(damped, dense.mT @ r_0.mT).mT.reshape(x.shape).float()
    torch.testing.assert_close(control_hint(problem, SHAPE, smooth=True), want, atol=1e-4, rtol=0)
    model = plain()
    for smooth in (False, True):
        control = macs.ControlNet.from_unet(model.unet, 4, smooth_hint=smooth)
        assert torch.equal(macs.ControlledModel(model, control).condition(problem), control_hint(problem, SHAPE, smooth))
    blur = LINEAR["deblurring"]()
    same = Problem(measure(blur, x), blur)
    assert torch.equal(control_hint(same, SHAPE, smooth=True), control_hint(same, SHAPE))


def test_a_smooth_hint_goes_over_holes(x):
    """What is known stays, a ramp is continued to a few per cent, no image depends on another, and odd sizes have no seams."""
    hole = LINEAR["inpainting"]()
    y = measure(hole, x)
    got = control_hint(Problem(y, hole), SHAPE, smooth=True)
    known = hole.mask.expand_as(got) != 0
    assert torch.equal(got[known], control_hint(Problem(y, hole), SHAPE)[known])
    assert torch.equal(control_hint(Problem(y[2:3], hole), SHAPE, smooth=True), got[2:3])
    ramp = torch.linspace(-1, 1, 63).expand(2, 3, 37, 63)
    known = torch.ones_like(ramp)
    known[0, :, 10:26, 20:44] = 0
    out = filled(known * ramp, known)
    assert torch.equal(out[1], ramp[1])
    torch.testing.assert_close(out, ramp, atol=0.05, rtol=0)
    assert not filled(torch.zeros(1, 1, 5, 5), torch.zeros(1, 1, 5, 5)).any()


def test_cosigns_hole():
    """129 pixels of 256, from 64 to 192, full of noise that is no measurement."""
    A = macs.task("inpainting", image_shape=(3, 256, 256), cosign_compat=True)
    hole = A.mask[0, 0] == 0
    assert hole.sum() == 129**2
    assert hole[64:193, 64:193].all()
    y = measure(A, torch.full((1, 3, 256, 256), 0.7))
    assert y[0, 0][hole].std().item() == pytest.approx(0.025, rel=0.05)
    problem = Problem(y, A)
    assert problem.m.item() == 3 * (256**2 - 129**2)
    assert problem.chi2(torch.full((1, 3, 256, 256), 0.4)).item() == pytest.approx(1, abs=0.02)
    with pytest.raises(ConfigError, match="cosign_compat fixes the hole"):
        macs.task("inpainting", image_shape=(3, 256, 256), cosign_compat=True, hole=9)


def test_it_belongs_to_its_backbone():
    control = macs.ControlNet.from_unet(plain().unet, 4)
    with pytest.raises(ModelError, match="trained with other weights of this backbone"):
        macs.ControlledModel(plain(seed=1), control)
    with pytest.raises(ModelError, match="belongs to another backbone: its .* is .*, the model's"):
        macs.ControlledModel(with_attention(), control)
    with pytest.raises(ModelError, match="reads hints of 1 channels; this model's have 4"):
        macs.ControlledModel(plain(), macs.ControlNet.from_unet(plain().unet, 1))


@pytest.mark.parametrize("kappa", [None, 0.5])
def test_the_hard_constraint_is_ddnm_plus(kappa, x):
    """One step and the finish, against the formulas written out with dense matrices."""
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    problem, model, noise = Problem(y, A), plain(), macs.Noise(0, range(5))
    dense = torch.stack([A.A(e.reshape(1, *SHAPE).double()).flatten() for e in torch.eye(64)], 1)
    inverse = torch.linalg.pinv(dense)
    y_sampler = (2 * y - 1).flatten(1).double()
    for t, s in ((80.0, 4.37), (1.0, 0.03), (1.0, 0.002)):
        x_hat = model(t * x, None, t).clamp(-1, 1)
        lam = kappa if kappa is not None else 1.0 if s >= 0.05 else s / 0.05
        g = max((s**2 - ((kappa or 1) * 0.05) ** 2), 0) ** 0.5
        flat = x_hat.flatten(1).double()
        moved = (flat + lam * (y_sampler - flat @ dense.mT) @ inverse.mT).clamp(-1, 1).reshape(x.shape).float()
        sampler = macs.HardConstraint(kappa)
        f = lambda x_t, y, t: model(x_t, None, t).clamp(-1, 1)
        f.t_min = 0.002
        want = moved + max(max(g, 0.002) ** 2 - 0.002**2, 0) ** 0.5 * noise.like(x)
        torch.testing.assert_close(sampler(f, problem, t * x, t, s, noise), want, atol=2e-4, rtol=0)
        if s == 0.002:
            torch.testing.assert_close(sampler.finish(f, problem, t * x, t, 1), moved, atol=2e-4, rtol=0)


def test_the_hard_constraint_refuses_what_it_cannot_do(x):
    A = Squashed()
    with pytest.raises(ConfigError, match="a pseudo-inverse needs a linear physics"):
        macs.Solver(plain(), macs.HardConstraint())(measure(A, x), A)
    with pytest.raises(ConfigError, match="kappa must be between 0 and 1"):
        macs.HardConstraint(2.0)
    with pytest.raises(ConfigError, match="is itself a data step"):
        macs.HardConstraint(data=macs.Discrepancy())
