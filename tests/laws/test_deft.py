"""DEFT: a correction that is learned while its denoiser stays as it is."""

import runpy
from pathlib import Path

import pytest
import torch

import macs
from macs.errors import ConfigError, ModelError
from macs.levels import karras
from macs.models.build import ModelConfig, build
from macs.models.store import save_model
from macs.training.config import parse_config
from macs.training.loop import Run, train
from tests.laws.conftest import LINEAR, SHAPE, measure
from tests.laws.solvers import Mean

SMALL = {
    "family": "deft",
    "image_shape": [1, 8, 8],
    "channels": [8],
    "layers": 1,
    "groups": 4,
    "head_dim": 4,
    "sigma_data": 0.5,
}


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(ModelConfig.of(SMALL)).eval()


def test_what_it_adds(x):
    """D_y = D + c_out h: D itself at t_min, and everywhere if h is zero."""
    net = network().attach(Mean())
    x_t = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(0))
    maps = net.condition(macs.Problem(measure(LINEAR["inpainting"](), x), LINEAR["inpainting"]()))
    assert maps.shape == (5, 2, 8, 8)
    torch.testing.assert_close(net(x_t, maps, 0.002), Mean()(x_t, None, 0.002))
    assert (net(x_t, maps, 2.0) - Mean()(x_t, None, 2.0)).abs().max() > 1e-3
    assert (net(x_t, maps, 2.0) - net(x_t, None, 2.0)).abs().max() > 1e-5
    torch.nn.init.zeros_(net.unet.conv_out.weight)
    torch.nn.init.zeros_(net.unet.conv_out.bias)
    torch.testing.assert_close(net(x_t, maps, 2.0), Mean()(x_t, None, 2.0))


def test_a_correction_of_nothing_is_the_denoisers_own_ode(x):
    net, A = network(), LINEAR["super-resolution"]()
    torch.nn.init.zeros_(net.unet.conv_out.weight)
    torch.nn.init.zeros_(net.unet.conv_out.bias)
    y = measure(A, x)
    found, trace = macs.Deft(Mean(), net, 9)(y, A, trace=True)
    grid = karras(10, 80.0, 0.002)[:-1]
    torch.testing.assert_close(found, macs.Solver(Mean(), macs.Euler(), levels=grid)(y, A))
    assert trace.nfe[-1] == 9
    assert net.denoiser == ()


def test_seeds_and_batches(x):
    A, solver = LINEAR["inpainting"](), macs.Deft(Mean(), network(), 5)
    y, state = measure(A, x), torch.get_rng_state()
    out = solver(y, A)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(solver(y, A), out)
    assert not torch.equal(solver(y, A, seed=1), out)
    torch.testing.assert_close(solver(y[2:4], A), out[2:4], atol=1e-4, rtol=0)


def test_training_changes_the_correction_alone(tmp_path):
    """The ordinary loop trains it; the denoiser's weights are no part of the run, nor of the file."""
    config = parse_config({
        "name": "deft", "batch": 6, "model": SMALL, "stage": [{"loss": "edm", "images": 18, "lr": 1e-3, "lr_end": 1e-3}]
    })  # fmt: skip
    images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    base = macs.ConsistencyModel(build(ModelConfig.of({**SMALL, "family": "plain"})).unet, SHAPE, patch=2).eval()
    before = {k: v.clone() for k, v in base.state_dict().items()}
    run = Run(config, images, tmp_path)
    start = {k: v.clone() for k, v in run.model.state_dict().items()}
    run.model.attach(base)
    train(run)
    assert run.done
    assert all(torch.equal(v, base.state_dict()[k]) for k, v in before.items())
    assert any(not torch.equal(v, run.model.state_dict()[k]) for k, v in start.items())
    assert not any("denoiser" in k for k in run.model.state_dict())
    save_model(tmp_path / "deft.safetensors", run.average.state_dict(), config.model, {"kind": "denoiser"})
    loaded = macs.load(tmp_path / "deft.safetensors")
    assert loaded.kind == "denoiser"
    A = LINEAR["super-resolution"]()
    y = A.A(torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0)))
    assert torch.isfinite(macs.Deft(Mean(), loaded, 4)(y, A)).all()


def test_it_belongs_to_its_denoiser(tmp_path):
    """By the digest of the denoiser's file; one that comes from no file is believed."""
    config = ModelConfig.of({**SMALL, "family": "plain"})
    digests = []
    for name in "ab":
        state = {k: v if name == "a" else 0.5 * v for k, v in build(config).state_dict().items()}
        digests.append(save_model(tmp_path / f"{name}.safetensors", state, config, {"kind": "denoiser"}))
    info = {"kind": "denoiser", "denoiser_sha256": digests[0]}
    save_model(tmp_path / "deft.safetensors", network().state_dict(), ModelConfig.of(SMALL), info)
    net, first, second = (macs.load(tmp_path / f"{name}.safetensors") for name in ("deft", "a", "b"))
    assert first.digest == digests[0]
    macs.Deft(first, net)
    macs.Deft(Mean(), net)
    for other in (second, macs.Prior(second)):
        with pytest.raises(ModelError, match=f"another denoiser, .* {digests[0][:12]} and not {digests[1][:12]}; use that one"):
            macs.Deft(other, net)
    macs.Deft(second, network())


def test_the_example_binds_what_it_trains(tmp_path, monkeypatch, capsys):
    """Its file names the denoiser, and its run goes on with no other."""
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "train_deft.py"))
    images = torch.zeros(6, 1, 28, 28, dtype=torch.uint8)
    monkeypatch.setitem(example["main"].__globals__, "training_images", lambda source, shape: images)
    config = ModelConfig(family="plain", channels=(8,), layers=1, groups=4, head_dim=4)
    for name in "ab":
        save_model(tmp_path / f"{name}.safetensors", build(config).state_dict(), config, {"kind": "denoiser"})

    def run(name):
        options = ["--denoiser", tmp_path / f"{name}.safetensors", "--out", tmp_path / "run", "--minutes", 0]
        monkeypatch.setattr("sys.argv", ["train_deft.py", *map(str, options)])
        example["main"]()

    run("a")
    macs.Deft(macs.load(tmp_path / "a.safetensors"), macs.load(tmp_path / "run" / "deft.safetensors"))
    with pytest.raises(ModelError, match="another denoiser"):
        macs.Deft(macs.load(tmp_path / "b.safetensors"), macs.load(tmp_path / "run" / "deft.safetensors"))
    with pytest.raises(ConfigError, match="was made with another configuration or other data"):
        run("b")


def test_alone_it_refuses(x):
    with pytest.raises(ModelError, match=r"corrects a denoiser; attach one: macs.Deft\(denoiser, network\)"):
        network()(torch.zeros(1, *SHAPE), None, 1.0)
