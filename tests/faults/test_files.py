"""Restoring, degrading, comparing and examining files from the command line, sound and broken."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import macs
from macs import files, restore
from macs.cli import app
from macs.degradation import Degradation
from macs.images import decode, encode
from macs.models import store
from macs.restore import Restorer, Settings, named_sampler


@pytest.fixture(scope="module")
def model():
    return store.load("fashion-mnist")


@pytest.fixture(autouse=True)
def loaded(model, monkeypatch):
    """The bundled model, read once."""
    monkeypatch.setattr(restore, "load", lambda name, control: model)


@pytest.fixture
def run():
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def clean(tmp_path):
    """Two of the bundled images as files."""
    folder = tmp_path / "clean"
    folder.mkdir()
    for i, x in enumerate(macs.examples("fashion-mnist")[:2]):
        (folder / f"{i}.png").write_bytes(encode(x))
    return folder


@pytest.fixture
def small(run, clean, tmp_path):
    """Their reductions by two."""
    assert run("degrade", clean, "-o", tmp_path / "small", "--factor", 2).exit_code == 0
    return tmp_path / "small"


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def one_error(result, code=2):
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return result.stderr


def test_degrade_and_restore_a_folder(run, clean, small, tmp_path):
    record = json.loads((small / "0.json").read_text())
    assert record["config"]["factor"] == 2
    assert record["config"]["sigma_y"] == 0.05
    assert 5 < record["measurement_against_truth"]["psnr"] < 40
    result = run("restore", small, "-o", tmp_path / "out", "--factor", 2, "--sigma-y", 0.05)
    assert result.exit_code == 0, result.output
    assert "2 restored" in result.stdout
    for i, truth in enumerate(macs.examples("fashion-mnist")[:2]):
        x = decode((tmp_path / "out" / f"{i}.png").read_bytes(), 1).float() / 255
        seen = torch.nn.functional.interpolate(
            decode((small / f"{i}.png").read_bytes(), 1)[None].float() / 255, scale_factor=2
        )[0]
        assert (x - truth).square().mean() < 0.7 * (seen - truth).square().mean()
        about = json.loads((tmp_path / "out" / f"{i}.json").read_text())
        assert about["nfe"] == 2
        assert 0.2 < about["chi2"] < 2
        assert about["sigma_y_estimated"] is False
        assert about["config"]["seed"] == 0


def test_the_same_pixels_as_the_library(run, small, tmp_path, model):
    """A file restored by the command equals what the Solver makes of its pixels with the recorded id."""
    run("restore", small / "0.png", "-o", tmp_path / "x.png", "--factor", 2, "--sigma-y", 0.05, "--sampler", "multistep")
    y = decode((small / "0.png").read_bytes(), 1)[None].float() / 255
    name = macs.noise.content_ids(y.reshape(1, -1))[0]
    physics = macs.task("super-resolution", model, factor=2, sigma_y=0.05)
    x = macs.Solver(model, macs.Multistep(), steps=2)(y, physics, seed=0, ids=[f"{name}/0"])
    assert (tmp_path / "x.png").read_bytes() == encode(x[0])


def test_done_is_skipped_and_other_settings_are_refused(run, small, tmp_path):
    args = ("restore", small, "-o", tmp_path / "out", "--factor", 2, "--sigma-y", 0.05, "--format", "json")
    assert [r["status"] for r in lines(run(*args))] == ["done", "done"]
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    assert [r["status"] for r in lines(run(*args))] == ["skipped", "skipped"]
    other = run(*args, "--seed", 1)
    assert other.exit_code == 1
    assert {r["status"] for r in lines(other)} == {"failed"}
    assert "with other settings; use --overwrite" in other.stderr
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before
    assert [r["status"] for r in lines(run(*args, "--seed", 1, "--overwrite"))] == ["done", "done"]
    (tmp_path / "out" / "0.json").write_text("{")
    assert "is no finished result" in run(*args, "--seed", 1).stderr
    (tmp_path / "out" / "1.png").unlink()
    assert lines(run(*args, "--seed", 1))[1]["status"] == "done"


def test_broken_files_do_not_stop_the_others(run, small, tmp_path):
    whole = (small / "0.png").read_bytes()
    for name, content in {"empty.png": b"", "text.jpg": b"hello", "half.png": whole[: len(whole) // 2]}.items():
        (small / name).write_bytes(content)
    (small / "wide.png").write_bytes(encode(torch.zeros(1, 3, 40)))
    result = run("restore", small, "-o", tmp_path / "out", "--factor", 2, "--sigma-y", 0.05)
    assert result.exit_code == 1
    assert result.stderr.count("error: ") == result.stderr.count("\n") == 4
    assert "2 restored, 0 done before, 4 failed" in result.stdout
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0.json", "0.png", "1.json", "1.png"]
    quiet = run("restore", small / "1.png", "-o", tmp_path / "q", "--factor", 2, "--sigma-y", 0.05, "--format", "quiet")
    assert quiet.output == ""


def test_an_odd_file_does_not_stop_the_others(run, clean, tmp_path, monkeypatch):
    (clean / "icon.png").write_bytes(encode(torch.rand(1, 3, 3)))
    result = run("degrade", clean, "-o", tmp_path / "small", "--factor", 4)
    assert result.exit_code == 1
    assert "must have 4 pixels a side; this one has 3x3" in one_error(result, 1)
    assert sorted(p.name for p in (tmp_path / "small").glob("*.png")) == ["0.png", "1.png"]
    calls = []

    def odd(x, *_):
        calls.append(x)
        raise [RuntimeError("DefaultCPUAllocator:\n no memory"), MemoryError(), ValueError("odd")][len(calls) - 1]

    monkeypatch.setattr("macs.degrade.measured", odd)
    result = run("degrade", clean, "-o", tmp_path / "none", "--factor", 2)
    assert result.exit_code == 1
    assert result.stderr.count("nothing can be made of this image") == result.stderr.count("\n") == 3
    assert "(RuntimeError DefaultCPUAllocator: no memory)" in result.stderr


def test_a_name_that_is_no_text_is_shown(run, clean, tmp_path):
    (clean / "0.png").rename(clean / os.fsdecode(b"\xff.png"))
    (clean / os.fsdecode(b"\xfe.png")).write_bytes(b"")
    result = run("degrade", clean, "-o", tmp_path / "out", "--factor", 2)
    assert result.exit_code == 1, result.output
    assert "\\udcff.png" in result.stdout
    assert "\\udcfe.png" in result.stderr
    assert len(list((tmp_path / "out").glob("*.png"))) == 2


def test_only_what_is_factorised_has_a_largest_side(run, tmp_path, monkeypatch):
    monkeypatch.setattr("macs.degradation.MAX_SIDE", 30)
    (tmp_path / "x.png").write_bytes(encode(torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(0))))
    kernel = np.zeros((3, 3), dtype=np.uint8)
    kernel[1] = 200
    Image.fromarray(kernel).save(tmp_path / "kernel.png")
    for i, free in enumerate((["--task", "inpainting"], ["--kernel", tmp_path / "kernel.png"])):
        assert run("degrade", tmp_path / "x.png", "-o", tmp_path / f"y{i}.png", *free).exit_code == 0
        result = run("restore", tmp_path / f"y{i}.png", "-o", tmp_path / f"x{i}.png", *free, "--sigma-y", 0.05)
        assert result.exit_code == 0, result.output
    monkeypatch.setattr("macs.degradation.estimate_sigma_y", lambda *_: pytest.fail("the size is looked at first"))
    for options in (["--blur-std", 1], ["--factor", 2]):
        result = run("restore", tmp_path / "x.png", "-o", tmp_path / "no.png", *options)
        assert "may have 30 pixels a side" in one_error(result, 1)


def test_draws_give_a_mean_and_a_deviation(run, small, tmp_path):
    result = run(
        "restore", small / "0.png", "-o", tmp_path, "--factor", 2, "--sigma-y", 0.05, "--samples", 3, "--sampler", "multistep"
    )
    assert result.exit_code == 0, result.output
    first, mean, std = (decode((tmp_path / f"0.{e}").read_bytes(), 1) for e in ("png", "mean.png", "std.png"))
    assert first.shape == mean.shape == std.shape == (1, 28, 28)
    assert not torch.equal(first, mean)
    assert std.max() > 0
    assert json.loads((tmp_path / "0.json").read_text())["std"]["white"] == 0.25


def test_one_draw_after_several_leaves_no_mean_of_theirs(run, small, tmp_path):
    (tmp_path / "out").mkdir()
    mine = tmp_path / "out" / "1.mean.png"
    mine.write_bytes(b"of somebody else")
    args = ("restore", small, "-o", tmp_path / "out", "--factor", 2, "--sigma-y", 0.05)
    assert run("restore", small / "0.png", *args[2:], "--samples", 2).exit_code == 0
    assert (tmp_path / "out" / "0.std.png").exists()
    assert run(*args, "--overwrite").exit_code == 0
    assert sorted(p.name for p in (tmp_path / "out").glob("*.png")) == ["0.png", "1.mean.png", "1.png"]
    assert mine.read_bytes() == b"of somebody else"


def test_the_means_of_a_result_are_results_too(run, small, tmp_path):
    (small / "0.mean.png").write_bytes((small / "0.png").read_bytes())
    args = ("restore", small, "-o", tmp_path / "out", "--factor", 2, "--sigma-y", 0.05)
    assert "would both become" in one_error(run(*args, "--samples", 2))
    assert run(*args).exit_code == 0
    (small / "a.jpg").write_bytes((small / "0.png").read_bytes())
    (small / "a.std.png").write_bytes((small / "0.png").read_bytes())
    files.plan([small / "a.jpg"], small, sides=files.SIDES)
    with pytest.raises(macs.MacsError, match="a.std.png would be replaced"):
        files.plan([small / "a.jpg"], small, [small / "a.std.png"], files.SIDES)


def test_colour_and_size_are_said(run, tmp_path):
    pixels = np.random.default_rng(0).integers(60, 200, (15, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "in.jpg")
    result = run("restore", tmp_path / "in.jpg", "-o", tmp_path / "out", "--factor", 2, "--overlap", 4)
    assert result.exit_code == 0, result.output
    assert decode((tmp_path / "out" / "in.png").read_bytes(), None).shape == (3, 30, 40)
    for words in ("each of the 3 colour channels", "overlapping tiles of 28x28", "(estimated)", "macs models show"):
        assert words in result.stdout


def test_channels_share_their_noise(model):
    """A colour file of a grey picture stays grey."""
    y = torch.rand(1, 14, 14, generator=torch.Generator().manual_seed(0)).expand(3, -1, -1)
    x = Restorer(Degradation("super-resolution", factor=2), Settings(sigma_y=0.05), model)(y).image
    assert x.shape == (3, 28, 28)
    torch.testing.assert_close(x[0], x[1])
    torch.testing.assert_close(x[0], x[2])


def test_a_mask_and_a_kernel_from_files(run, clean, tmp_path):
    mask = np.full((28, 28), 255, dtype=np.uint8)
    mask[5:12, 5:20] = 0
    Image.fromarray(mask).save(clean / "mask.png")
    kernel = np.zeros((5, 5), dtype=np.uint8)
    np.fill_diagonal(kernel, 200)
    Image.fromarray(kernel).save(tmp_path / "kernel.png")
    for name, option in (("mask", clean / "mask.png"), ("kernel", tmp_path / "kernel.png")):
        measured, out = tmp_path / name, tmp_path / f"{name}-out"
        assert run("degrade", clean / "0.png", "-o", measured, f"--{name}", option).exit_code == 0
        result = run("restore", measured, "-o", out, f"--{name}", option, "--sigma-y", 0.05, "--format", "json")
        assert result.exit_code == 0, result.output
        assert [0.2 < r["chi2"] < 3 for r in lines(result)] == [True]
        assert lines(result)[0]["config"][name]["file"] == str(option)
    y = decode((tmp_path / "mask" / "0.png").read_bytes(), 1)
    assert (y[0][mask == 0] == 0).all()
    folder = run("degrade", clean, "-o", tmp_path / "all", "--mask", clean / "mask.png", "--format", "json")
    assert len(lines(folder)) == 2, "the mask is no input"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "say what was done to the images"),
        (["--task", "superresolution"], "did you mean 'super-resolution'?"),
        (["--task", "inpainting", "--factor", "2"], "factor belongs to super-resolution"),
        (["--blur-std", "2", "--kernel", "k.png"], "leave one of them out"),
        (["--blur-std", "-1"], "blur_std must be from 0.1 to 2048"),
        (["--blur-std", "1e-200"], "blur_std must be from 0.1 to 2048"),
        (["--mask", "none.png"], "none.png cannot be read"),
        (["--factor", "2", "--sigma-y", "lots"], "must be a number or auto"),
        (["--factor", "2", "--sigma-y", "-1"], "sigma_y must be a number of at least 0"),
        (["--factor", "2", "--sampler", "mac-d"], "did you mean 'macs-d'?"),
        (["--factor", "2", "--sampler", "macs:gama=1"], "did you mean 'gamma'?"),
        (["--factor", "2", "--sampler", "macs:gamma=x"], "gamma of macs must be a number"),
        (["--factor", "2", "--sampler", "macs-d:polish=no"], "must be true or false"),
        (["--factor", "2", "--sampler", "ddim:eta=1"], "ddim has no settings"),
    ],
    ids=str,
)
def test_what_has_no_meaning_is_one_line(run, small, tmp_path, options, sentence):
    result = run("restore", small / "0.png", "-o", tmp_path / "out", *options)
    assert sentence in one_error(result)


def test_paths_that_cannot_work_are_one_line(run, clean, small, tmp_path):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file").write_text("x")
    for args, sentence in (
        ((tmp_path / "gone.png", "-o", tmp_path / "out"), "there is no file or folder"),
        ((tmp_path / "nothing", "-o", tmp_path / "out"), "holds no image files"),
        ((small, "-o", small), "would be replaced by a result"),
        ((small, "-o", tmp_path / "one.png"), "2 images cannot become one file"),
        ((small / "0.png", small / "0.png", clean, "-o", tmp_path / "out"), "would both become"),
    ):
        assert sentence in one_error(run("restore", *args, "--factor", 2)), args
    assert "cannot be written" in one_error(
        run("restore", small / "0.png", "-o", tmp_path / "file", "--factor", 2, "--sigma-y", 0.05), 1
    )


def test_names_that_would_meet_keep_their_endings(tmp_path):
    for name in ("a/x.png", "a/x.jpg", "a/b/y.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    names = {str(t.relative_to(tmp_path / "o")) for t in files.plan([tmp_path / "a"], tmp_path / "o").values()}
    assert names == {"x.png.png", "x.jpg.png", "b/y.png"}


def test_samplers_are_written_as_text():
    assert named_sampler("macs:gamma=0.4,residual=chi2") == macs.Macs(gamma=0.4, residual="chi2")
    assert named_sampler("macs-d:polish=false,c=1.5") == macs.MacsD(polish=False, c=1.5)
    assert named_sampler("dpm-solver:variant=2") == macs.DpmSolver(variant="2")


def test_compare_draws_a_labelled_figure(run, clean, tmp_path):
    out = tmp_path / "c.png"
    result = run("compare", clean / "0.png", "-o", out, "--factor", 2, "--sampler", "macs-d@3", "--sampler", "ddim")
    assert result.exit_code == 0, result.output
    panels = json.loads(out.with_suffix(".json").read_text())["panels"]
    assert [(p["name"], p["nfe"]) for p in panels] == [("truth", None), ("measurement", None), ("macs-d@3", 3), ("ddim", 2)]
    assert panels[2]["psnr"] > panels[1]["psnr"] + 2
    picture = decode(out.read_bytes(), 1)[0].float()
    quarters = picture[:, : picture.shape[1] // 4 * 4].chunk(4, 1)
    assert all(quarter.std() > 20 for quarter in quarters), "each panel shows something"
    assert "must be named .png" in one_error(run("compare", clean / "0.png", "-o", tmp_path / "c.jpg", "--factor", 2))
    assert "write it like" in one_error(run("compare", clean / "0.png", "-o", out, "--factor", 2, "--sampler", "ddim@x"))
    assert "got auto" in one_error(run("compare", clean / "0.png", "-o", out, "--factor", 2, "--sigma-y", "auto"))


def test_compare_replaces_nothing_but_a_comparison(run, clean, tmp_path):
    photo, mask = clean / "0.png", tmp_path / "mask.png"
    Image.fromarray(np.eye(28, dtype=np.uint8) * 255).save(mask)
    held = {path: path.read_bytes() for path in (photo, mask)}
    args = ("compare", photo, "--mask", mask, "--sampler", "ddim", "-o")
    for path in held:
        assert "would be replaced by a result" in one_error(run(*args, path))
    (tmp_path / "other.json").write_text('{"config": 1}')
    assert "other.json is there and is no comparison" in one_error(run(*args, tmp_path / "other.png"))
    (tmp_path / "picture.png").write_bytes(b"mine")
    assert "picture.png is there and is no comparison" in one_error(run(*args, tmp_path / "picture.png"))
    assert {path: path.read_bytes() for path in held} == held
    odd = photo.rename(clean / os.fsdecode(b"$\xff_$.png"))
    for _ in range(2):
        assert run("compare", odd, *args[2:], tmp_path / "c.png").exit_code == 0


def test_compare_without_truth_has_chi2_only(run, small, tmp_path):
    result = run(
        "compare",
        small / "0.png",
        "-o",
        tmp_path / "c.png",
        "--factor",
        2,
        "--measured",
        "--sampler",
        "ddim",
        "--format",
        "json",
    )
    assert [(p["name"], p["psnr"]) for p in lines(result)] == [("measurement", None), ("ddim", None)]
    assert lines(result)[1]["chi2"] > 0


def test_the_doctor_says_what_is_wrong(run, small):
    good = run("doctor", small / "0.png", "--factor", 2, "--sigma-y", 0.05, "--format", "json")
    assert good.exit_code == 0, good.output
    assert {f["check"] for f in lines(good)} >= {"range", "sigma_y", "operator", "adjoint", "chi2", "residual"}
    bad = run("doctor", small / "0.png", "--factor", 2, "--sigma-y", 6.4)
    assert bad.exit_code == 1
    assert "8-bit steps" in bad.stdout
    assert "estimate" in run("doctor", small / "0.png", "--factor", 2).stdout
    assert "no PNG" in one_error(run("doctor", __file__, "--factor", 2))


def test_ctrl_c_leaves_whole_files_and_the_same_command_goes_on(small, tmp_path):
    """Interrupted while it restores: exit code 130, no half-written file, and what is there is complete."""
    for i in range(2, 30):
        (small / f"{i}.png").write_bytes(encode(torch.rand(1, 14, 14, generator=torch.Generator().manual_seed(i))))
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from macs.cli import main; main()"
    args = [
        sys.executable,
        "-c",
        code,
        "restore",
        str(small),
        "-o",
        str(tmp_path / "out"),
        "--factor",
        "2",
        "--sigma-y",
        "0.05",
    ]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert "the same command goes on from here" in stderr
    assert "Traceback" not in stderr
    made = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert not [name for name in made if "tmp" in name]
    for name in made:
        if name.endswith(".json"):
            assert decode((tmp_path / "out" / name.replace("json", "png")).read_bytes(), 1).shape == (1, 28, 28)
    assert 1 <= len([n for n in made if n.endswith(".json")]) < 30
    args = ("restore", small, "-o", tmp_path / "out", "--factor", 2, "--sigma-y", 0.05, "--format", "json")
    again = [r["status"] for r in lines(CliRunner().invoke(app, [str(a) for a in args]))]
    assert again.count("skipped") == len([n for n in made if n.endswith(".json")])
    assert again.count("skipped") + again.count("done") == 30
