"""Which network restores files: a ControlNet where there is one, a note where the model is blind, a folder of diffusers."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import macs
from macs.cli import app
from macs.degradation import Degradation
from macs.images import decode, encode
from macs.models import convert, manifest, store
from macs.models.build import ModelConfig, build
from macs.models.tiled import Tiled
from macs.noise import content_ids
from macs.restore import BLIND, BLIND_ALONE, Restorer, Settings
from tests.laws.test_controlnet import woken

TINY = {"image_shape": (3, 16, 16), "channels": (8, 16), "layers": 1, "groups": 4, "head_dim": 8}


@pytest.fixture
def run():
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


def saved(folder, **settings):
    """A colour model that is blind and a ControlNet of it, as m.safetensors and control.safetensors in a folder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = ModelConfig(family="plain", **{**TINY, **settings})
        store.save_model(folder / "m.safetensors", build(config).state_dict(), config, {})
    control = woken(macs.ControlNet.from_unet(macs.load(folder / "m.safetensors").unet, 12, head=True))
    config, info = replace(config, family="controlled"), {"fingerprint": control.config["backbone"]}
    store.save_model(folder / "control.safetensors", control.state_dict(), config, info)


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """A bundled colour model that is blind, and its bundled ControlNet for inpainting."""
    monkeypatch.setattr(manifest, "WEIGHTS", tmp_path / "weights")
    (tmp_path / "card.md").write_text("# Tiny\n")
    saved(tmp_path)
    store.register("tiny", tmp_path / "m.safetensors", tmp_path / "card.md", {})
    store.register("tiny-inpainting", tmp_path / "control.safetensors", tmp_path / "card.md", {})
    return tmp_path


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(encode(torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1))
    return path


def as_restored(photo, model, name, options):
    """The PNG that the library makes of a file."""
    y = decode(photo.read_bytes(), 3)[None].float() / 255
    physics = macs.task(name, model, sigma_y=0.05, **options)
    return encode(macs.Solver(model)(y, physics, seed=0, ids=[f"{content_ids(y.reshape(1, -1))[0]}/0"])[0])


def test_the_bundled_controlnet_of_the_task_is_used(run, bundled, photo, tmp_path):
    out = tmp_path / "x.png"
    result = run("restore", photo, "-o", out, "--model", "tiny", "--task", "inpainting", "--sigma-y", 0.05)
    assert result.exit_code == 0, result.output
    assert out.read_bytes() == as_restored(photo, macs.load("tiny", "inpainting"), "inpainting", {})
    assert out.read_bytes() != as_restored(photo, macs.load("tiny"), "inpainting", {})
    record = json.loads(out.with_suffix(".json").read_text())
    assert record["config"]["control"] == "tiny-inpainting"
    assert record["config"]["control_sha256"] == manifest.catalogue()["tiny-inpainting"]["sha256"]
    assert record["notes"] == []
    assert BLIND not in result.stdout


def test_a_controlnet_is_given(run, bundled, photo, tmp_path):
    out, control = tmp_path / "x.png", bundled / "control.safetensors"
    args = ("-o", out, "--model", "tiny", "--blur-std", 1, "--control", control, "--sigma-y", 0.05)
    assert run("restore", photo, *args).exit_code == 0
    assert out.read_bytes() == as_restored(photo, macs.load("tiny", control=control), "deblurring", {"std": 1.0})
    assert json.loads(out.with_suffix(".json").read_text())["config"]["control"] == str(control)
    result = run("restore", photo, *args, "--control", tmp_path / "none.safetensors")
    assert result.exit_code == 2
    assert "none.safetensors cannot be read" in result.stderr


def test_a_blind_model_is_said_to_be_one(run, bundled, photo, tmp_path):
    args = (photo, "--model", "tiny", "--blur-std", 1, "--sigma-y", 0.05)
    result = run("restore", *args, "-o", tmp_path / "x.png")
    assert f"note: {BLIND}\n" in result.stdout
    assert json.loads((tmp_path / "x.json").read_text())["notes"] == [BLIND]
    result = run("restore", *args, "-o", tmp_path / "y.png", "--sampler", "multistep")
    assert BLIND_ALONE in result.stdout
    result = run("compare", *args, "-o", tmp_path / "c.png", "--sampler", "macs-d", "--sampler", "multistep")
    assert result.stdout.count("note: this model") == 2
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["panels"][2]["notes"] == [BLIND]
    assert record["model_sha256"] == manifest.catalogue()["tiny"]["sha256"]
    assert f"doubt  model       {BLIND}\n" in run("doctor", *args).stdout
    seeing = run("doctor", *args, "--control", bundled / "control.safetensors").stdout
    assert BLIND not in seeing


def test_a_controlnet_in_tiles_sees_the_whole_measurement(bundled):
    settings = Settings("tiny", sigma_y=0.05)
    restorer = Restorer(Degradation("inpainting"), settings)
    y = torch.rand(3, 24, 32, generator=torch.Generator().manual_seed(1))
    restored = restorer(y)
    assert restored.record["tiles"] == 6
    alone = Restorer(Degradation("inpainting"), settings, macs.load("tiny"))(y)
    assert (restored.image - alone.image).abs().max() > 1e-3
    own = y[None, :, :16, :16]
    tiles, physics = Tiled(restorer.model, (3, 16, 16)), macs.task("inpainting", restorer.model)
    problem = macs.Problem(own, physics)
    condition = restorer.model.condition(problem)
    torch.testing.assert_close(tiles.condition(problem), condition)
    torch.testing.assert_close(tiles(own, condition, 3.0), restorer.model(own, condition, 3.0))


def test_a_diffusers_folder_restores(run, photo, tmp_path):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convert.save_unet(build(ModelConfig(family="plain", **TINY, patch=1)).unet, tmp_path / "model")
    result = run("restore", photo, "-o", tmp_path / "x.png", "--model", tmp_path / "model", "--blur-std", 1)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["config"]["model_sha256"] == store.model_digest(tmp_path / "model")
