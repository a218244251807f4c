"""Training by the energy score: from a model file, by the command line; stopped, gone on with, and refused."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import macs
from macs.cli import app
from macs.models.build import ModelConfig, build
from macs.models.store import read_model, save_model
from tests.lpips import random_weights

CONFIG = (
    'name = "scored"\nbatch = 6\n[[stage]]\nloss = "score"\nimages = 24\nlr = 0.01\nlr_end = 0.001\nwarmup = 1\nema = 0.5\n'
)
SMALL = ModelConfig("hinted", (1, 8, 8), (8, 8), layers=1, groups=4, head_dim=8)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    save_model(tmp_path / "small.safetensors", build(SMALL).state_dict(), SMALL, {})
    save_model(tmp_path / "denoiser.safetensors", build(SMALL).state_dict(), SMALL, {"kind": "denoiser"})
    save_file(random_weights(), tmp_path / "lpips.safetensors")
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8))
    (tmp_path / "scored.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def invoke(folder):
    def call(*args):
        words = ("train", folder / "scored.toml", "--data", folder / "a.npy", *args)
        try:
            return CliRunner().invoke(app, [str(word) for word in words])
        finally:
            torch.set_flush_denormal(False)

    return call


def test_a_run_stops_and_goes_on_bit_for_bit(folder, invoke):
    given = ("--start", folder / "small.safetensors", "--lpips", folder / "lpips.safetensors")
    whole = invoke(*given, "--out", folder / "whole")
    assert whole.exit_code == 0, whole.output
    stopped = invoke(*given, "--out", folder / "parts", "--minutes", 0)
    assert "the same command goes on" in stopped.output
    assert invoke(*given, "--out", folder / "parts").exit_code == 0
    paths = [folder / name / "scored.safetensors" for name in ("whole", "parts")]
    (one, config, info), (other, _, _) = map(read_model, paths)
    start = read_model(folder / "small.safetensors")[0]
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], start[name]) for name in one)
    assert config == SMALL
    assert info["start"] == macs.load(folder / "small.safetensors").digest
    model = macs.load(paths[0])
    A = macs.task("inpainting", model)
    assert macs.Solver(model, macs.MacsD(), steps=2)(A(torch.rand(2, 1, 8, 8)), A).isfinite().all()
    assert "another configuration or other data" in invoke(*given[:1], paths[0], *given[2:], "--out", folder / "parts").output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "give --start and --lpips"),
        (("--start", "small.safetensors"), "give --start and --lpips"),
        (("--start", "denoiser.safetensors", "--lpips", "lpips.safetensors"), 'consistency models of the family "hinted"'),
        (("--start", "absent.safetensors", "--lpips", "lpips.safetensors"), "absent.safetensors"),
        (("--start", "small.safetensors", "--lpips", "small.safetensors"), "must hold LPIPS weights"),
        (("--task", "inpainting"), "--task and --backbone are for ControlNets"),
    ],
)
def test_what_is_missing_or_wrong_is_one_sentence(folder, invoke, args, words):
    named = [folder / word if word.endswith(".safetensors") else word for word in args]
    result = invoke(*named, "--out", folder / "run")
    assert result.exit_code == 2
    assert words in result.output
    assert not (folder / "run").exists()
