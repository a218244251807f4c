"""The colour benchmark: each task has its ControlNet and its measurements; what cannot be run is one sentence."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import macs
from macs.benchmark.dataset import DATASETS
from macs.benchmark.folder import read_rows
from macs.benchmark.measure import Measured
from macs.benchmark.paper import TABLE_I, TABLE_III
from macs.benchmark.sealed import read_npz
from macs.benchmark.tables import latex, table
from macs.cli import app
from macs.demo import noisy
from macs.metrics import psnr
from macs.models import convert, manifest, store
from macs.models.build import ModelConfig, build
from macs.models.nonlinear_blur import BlurNetwork
from tests.laws.test_controlnet import woken
from tests.lpips import random_weights

TINY = {"image_shape": (3, 16, 16), "channels": (8, 16), "layers": 1, "groups": 4, "head_dim": 8}
TASKS = tuple(DATASETS["lsun-bedroom"].tasks)
ROWS = slice(6, 18)


def plain(patch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(ModelConfig(family="plain", **TINY, patch=patch)).eval()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A backbone and a ControlNet for each task in files of this package, a blur network, LPIPS weights and twenty images."""
    folder = tmp_path_factory.mktemp("models")
    model = plain(2)
    store.save_model(folder / "colour.safetensors", model.state_dict(), ModelConfig(family="plain", **TINY, patch=2), {})
    unet = macs.load(folder / "colour.safetensors").unet
    for i, task in enumerate(TASKS):
        control = woken(macs.ControlNet.from_unet(unet, 12, head=True), seed=i)
        info = {"fingerprint": control.config["backbone"]}
        config = ModelConfig(family="controlled", **TINY, patch=2)
        store.save_model(folder / f"{task}.safetensors", control.state_dict(), config, info)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        BlurNetwork(3, (8, 8), 1, 1, 4).save_pretrained(folder / "blur")
    save_file(random_weights(), folder / "lpips.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3), dtype=np.uint8)
    np.save(folder / "rooms.npy", pixels.repeat(4, 1).repeat(4, 2))
    return folder


@contextmanager
def cheap_features():
    """Cheap features in Inception's place, and chunks of five images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("macs.benchmark.features.load_inception", lambda path: torch.nn.Identity())
        patch.setattr("macs.benchmark.features.accelerated", lambda model: lambda x: x.float().mean((2, 3)) + x[:, :, 0, 0])
        patch.setattr("macs.benchmark.bench.AT_ONCE", 5 * 768)
        patch.delenv("MACS_LPIPS", raising=False)
        yield


@pytest.fixture(autouse=True)
def features():
    with cheap_features():
        yield


def bench(files, out, *options, data="rooms.npy", rows="6:18", model="colour.safetensors"):
    paths = ["--data", files / data] if data else []
    args = [
        "bench",
        "lsun-bedroom",
        "--model",
        files / model if model else "none",
        "--rows",
        rows,
        "--out",
        out,
        *paths,
        *options,
    ]
    return CliRunner().invoke(app, [str(a) for a in args])


def controls(files, *tasks):
    return "; ".join(f"{task}={files / task}.safetensors" for task in tasks)


def cached(out, task, label):
    """The restored images of a row."""
    parts = sorted(next((out / "cache" / "restored").glob(f"*--{task}--{label}--*")).glob("*.npz"))
    return torch.cat([torch.from_numpy(read_npz(p)["x"]) for p in parts])


def truth(files):
    return torch.from_numpy(np.load(files / "rooms.npy")[ROWS]).permute(0, 3, 1, 2).float() / 255


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """All tasks, some samplers, by the command line."""
    out = tmp_path_factory.mktemp("bench") / "out"
    labels = "measurement; Multistep; MACS; MACS-D"
    with cheap_features():
        result = bench(
            files, out, "--samplers", labels, "--control", controls(files, *TASKS), "--blur", files / "blur",
            "--lpips", files / "lpips.safetensors",
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    return out


def test_every_task_has_its_rows(finished):
    rows = read_rows(finished / "rows.jsonl")
    assert [(row["task"], row["sampler"], row["nfe"]) for row in rows] == [
        (task, label, nfe)
        for task in TASKS
        for label, nfe in {"measurement": 0, "MACS-D": 2, "Multistep": 2, "MACS": 2}.items()
    ]
    assert all(row["images"] == 12 and row["features"] == "inception" and "lpips" in row for row in rows)
    gammas = [row["settings"].split("gamma=")[1][:3] for row in rows if row["sampler"] == "MACS"]
    assert gammas == ["0.8", "0.8", "0.4", "0.5"], "the paper's, task by task"


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_what_the_package_computes(task, files, finished):
    """The images of each task's ControlNet on its measurements, once more without the benchmark, all at once."""
    x = truth(files)
    options = {"network": files / "blur", "images": 12} if task == "nonlinear-deblurring" else {}
    physics = macs.task(task, image_shape=(3, 16, 16), **options)
    y = noisy(x, physics, 0)
    model = macs.load(files / "colour.safetensors", control=files / f"{task}.safetensors")
    for label, sampler in (("Multistep", macs.Multistep()), ("MACS-D", macs.MacsD())):
        want = macs.Solver(model, sampler, steps=2)(y, physics, ids=range(12))
        torch.testing.assert_close(cached(finished, task, label), want, atol=2e-4, rtol=0)
    row = next(r for r in read_rows(finished / "rows.jsonl") if (r["task"], r["sampler"]) == (task, "measurement"))
    assert row["psnr"] == pytest.approx(psnr(cached(finished, task, "measurement"), x).mean().item(), rel=1e-6)
    if task.endswith("deblurring"):
        torch.testing.assert_close(cached(finished, task, "measurement"), y.clamp(0, 1), atol=1e-5, rtol=0)


def test_each_image_has_its_own_kernel(files):
    """The same image, blurred differently in each place; parts of any size are parts of the whole."""
    x = truth(files)[:1].expand(6, -1, -1, -1)
    physics = macs.task("nonlinear-deblurring", image_shape=(3, 16, 16), network=files / "blur", images=6)
    measured = Measured(x, physics, 0)
    whole, _ = measured.part(0, 6)
    parts = torch.cat([measured.part(0, 4)[0], measured.part(4, 6)[0]])
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=0)
    blurred = physics.A(x)
    assert all((blurred[0] - other).abs().max() > 1e-3 for other in blurred[1:])


def test_the_report(finished):
    text = (finished / "report.md").read_text()
    assert "LSUN Bedroom at 16 pixels" in text
    assert "*paper:" not in text, "the paper's images are of 256 pixels"
    assert "FID is then far above" in text
    assert "a blur kernel of its own" in text
    assert "| sampler | against | PSNR | SSIM | FID | KID x 10^3 | LPIPS |" in text
    line = next(line for line in text.splitlines() if line.startswith("| MACS-D | measurement |"))
    assert "| |" not in line, "every metric"
    for number, columns in (("I", 3), ("III", 1)):
        tex = next(finished.glob(f"table-{number}-*.tex")).read_text()
        assert tex.count("multicolumn") == columns
        assert "textit" not in tex
    picture = np.asarray(Image.open(next(finished.glob("comparison-*.png"))).convert("RGB")).astype(int)
    assert (picture.max(-1) - picture.min(-1) > 40).mean() > 0.1, "it is in colour"


def test_the_papers_numbers_stand_beside_its_setting(finished):
    rows = [row | {"images": 300} for row in read_rows(finished / "rows.jsonl") if row["task"] != "nonlinear-deblurring"]
    tex = latex(rows, TABLE_I, True)
    assert r"\textit{26.03}" in tex
    assert r"Linear Deblurring" in tex
    line = next(line for line in tex.splitlines() if "Multistep, paper" in line)
    assert line.count("&") == 1 + 3 * 5
    heads, body = table([row for row in rows if row["task"] == "inpainting"], [TABLE_I, TABLE_III])
    assert body[-1] == ["*paper: MACS*", "", "2", "22.11", "0.830", "39.44", "4.54", "", "", ""]
    assert {len(line) for line in body} == {len(heads)}


def test_a_folder_and_its_controlnet(files, tmp_path):
    """What the released 256-pixel models are: diffusers folders, CoSIGN's hole with noise in it."""
    unet = plain(1).unet
    convert.save_unet(unet, tmp_path / "model")
    woken(macs.ControlNet.from_unet(macs.load(tmp_path / "model").unet)).save_pretrained(tmp_path / "control")
    out = tmp_path / "out"
    args = ("--control", f"inpainting={tmp_path / 'control'}", "--samplers", "MACS-D", "--cosign-compat")
    result = bench(files, out, *args, model=tmp_path / "model")
    assert result.exit_code == 0, result.output
    assert [row["task"] for row in read_rows(out / "rows.jsonl")] == ["inpainting"], "the tasks that have a ControlNet"
    model = macs.load(tmp_path / "model", control=tmp_path / "control")
    physics = macs.task("inpainting", model, cosign_compat=True)
    y = noisy(truth(files), physics, 0)
    assert y[:, :, 5:11, 5:11].std().item() == pytest.approx(0.025, rel=0.2), "noise in the hole"
    want = macs.Solver(model)(y, physics, ids=range(12))
    torch.testing.assert_close(cached(out, "inpainting", "MACS-D"), want, atol=2e-4, rtol=0)
    result = bench(files, out, *args[:-1], model=tmp_path / "model")
    assert "holds rows of cosign_compat True, not False; give what its run was given" in result.output
    (tmp_path / "control" / "config.json").write_text((tmp_path / "control" / "config.json").read_text() + "\n")
    assert "another file for the network" in bench(files, out, *args, model=tmp_path / "model").output


def test_bundled_controlnets_are_found_by_their_names(files, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "WEIGHTS", tmp_path / "weights")
    (tmp_path / "card.md").write_text("# Tiny\n")
    store.register("bedroom64", files / "colour.safetensors", tmp_path / "card.md", {})
    store.register("bedroom64-inpainting", files / "inpainting.safetensors", tmp_path / "card.md", {})
    args = [
        "bench",
        "lsun-bedroom",
        "--data",
        files / "rooms.npy",
        "--images",
        10,
        "--samplers",
        "one step",
        "--out",
        tmp_path / "o",
    ]
    result = CliRunner().invoke(app, [str(a) for a in (*args, "--tasks", "inpainting")])
    assert result.exit_code == 0, result.output
    assert [row["model"] for row in read_rows(tmp_path / "o" / "rows.jsonl")] == ["bedroom64"]
    result = CliRunner().invoke(app, [str(a) for a in (*args, "--tasks", "deblurring")])
    assert "there is no ControlNet of it for deblurring; give --control deblurring=PATH" in result.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"data": None}, "lsun-bedroom needs images; give --data"),
        ({"args": ("--features", "classifier")}, "features of lsun-bedroom must be inception; got classifier"),
        ({"args": ("--suite", "tables")}, "unknown suite of LSUN Bedroom 'tables'"),
        ({"args": ("--control", "inpainting")}, "--control must be TASK=PATH, separated by semicolons; got 'inpainting'"),
        ({"args": ("--control", "inpaint=x")}, "unknown task 'inpaint'"),
        ({"args": ("--control", "inpainting=x.safetensors")}, "x.safetensors cannot be read"),
        ({"args": ("--tasks", "inpainting")}, "alone does not, and there is no ControlNet of it for inpainting"),
        ({"args": ("--tasks", "nonlinear-deblurring")}, "needs a blur network; pass network=... (macs bench: --blur)"),
        ({"rows": "15:18"}, "images must be at least 10, a distance needs a set; got 3"),
        ({"rows": "30:"}, "none are in rows 30:None"),
        ({"data": "blur"}, "holds no readable image"),
        ({"model": None}, "unknown model 'none'"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(options, sentence, files, tmp_path):
    args = options.pop("args", ())
    result = bench(files, tmp_path / "out", *args, **options)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out" / "rows.jsonl").exists()


def test_models_of_two_sizes(files, tmp_path):
    config = ModelConfig(family="plain", **{**TINY, "image_shape": (3, 8, 8)}, patch=2)
    store.save_model(tmp_path / "small.safetensors", build(config).state_dict(), config, {})
    result = bench(files, tmp_path / "out", model=f"{files / 'colour.safetensors'}; {tmp_path / 'small.safetensors'}")
    assert "models of a run must take images of one shape; got [(3, 8, 8), (3, 16, 16)]" in result.output
