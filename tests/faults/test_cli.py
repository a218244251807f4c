"""The command line: quick help, errors on one line, a training that can be interrupted and goes on."""

import resource
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import macs
from macs.cli import app
from macs.cli.train import adapted, config_path, export, followed, keep_memory, progress_bar
from macs.data import training_images
from macs.errors import ConfigError
from macs.models import manifest, store
from macs.models.build import ModelConfig, build
from macs.training.config import load_config
from macs.training.loop import Progress, Run
from macs.training.loop import train as train_run

COMMANDS = ("train", "restore", "degrade", "compare", "doctor", "app", "demo")
TOML = """
name = "tiny"
batch = 6
[model]
image_shape = [1, 8, 8]
channels = [8]
layers = 1
groups = 4
head_dim = 8
[[stage]]
loss = "edm"
images = 12
lr = 1e-3
lr_end = 1e-4
[[stage]]
loss = "ect"
images = 24
lr = 1e-3
lr_end = 1e-4
"""


@pytest.fixture(autouse=True)
def denormals():
    """The command's setting ends with the test."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def run():
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """One small bundled model."""
    monkeypatch.setattr(manifest, "WEIGHTS", tmp_path / "weights")
    config = ModelConfig(image_shape=(1, 8, 8), channels=(8,), layers=1, groups=4, head_dim=8)
    store.save_model(tmp_path / "m.safetensors", build(config).state_dict(), config, {})
    (tmp_path / "card.md").write_text("# Tiny\n")
    store.register("tiny", tmp_path / "m.safetensors", tmp_path / "card.md", {"psnr": 12.3})
    return tmp_path / "weights"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    return path


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(9):
        Image.new("L", (16, 12), 20 * i).save(folder / f"{i}.png")
    return folder


def one_error(result):
    """The error of a command that failed as it should."""
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return result.stderr


@pytest.mark.parametrize("args", [[], ["models"], ["models", "list"], *([c] for c in COMMANDS)], ids=str)
def test_help_is_quick_and_light(args):
    code = (
        "import sys; from macs.cli import main; sys.argv[1:] = [*sys.argv[1:], '--help']\n"
        "try: main()\n"
        "finally: print('HEAVY', sorted({'torch', 'deepinv', 'diffusers', 'numpy', 'PIL'} & set(sys.modules)))"
    )
    times = []
    for _ in range(3 if args in ([], ["restore"]) else 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert "HEAVY []" in done.stdout
    assert "Example:\n" in done.stdout or args == ["models"]
    assert min(times) < 0.5, "seconds of processor time, which a busy machine does not stretch"


def test_listing_and_verifying_need_no_torch(bundled):
    code = (
        "import sys; from pathlib import Path; from macs.models import manifest; manifest.WEIGHTS = Path(sys.argv.pop(1))\n"
        "from macs.cli import main\n"
        "try: main()\n"
        "finally: print('HEAVY', sorted({'torch', 'deepinv', 'diffusers'} & set(sys.modules)))"
    )
    for args in (["models", "list"], ["models", "verify"], ["models", "show", "tiny"]):
        done = subprocess.run([sys.executable, "-c", code, str(bundled), *args], capture_output=True, text=True, check=True)
        assert "HEAVY []" in done.stdout
        assert "tiny" in done.stdout


def test_models(run, bundled):
    sha = manifest.catalogue()["tiny"]["sha256"]
    listed = run("models", "list").stdout
    assert "tiny" in listed
    assert sha[:12] in listed
    assert "psnr 12.3" in listed
    shown = run("models", "show", "tiny").stdout
    assert sha in shown
    assert str(bundled / "tiny.md") in shown
    assert "12.3" in shown
    assert run("models", "verify").stdout == "ok  tiny\n"


def test_long_names_are_listed_whole(run, bundled):
    name = "a-name-of-a-model-that-leaves-little-of-a-line"
    store.register(name, bundled / "tiny.safetensors", bundled / "tiny.md", {"psnr": 12.3, "on": "many words " * 9})
    assert name in run("models", "list").stdout


def test_a_changed_model_fails_verification(run, bundled):
    path = bundled / "tiny.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00\x01")
    assert "is damaged or was changed" in one_error(run("models", "verify"))
    assert "is damaged or was changed" in one_error(run("models", "verify", "tiny"))


def test_unknown_names_are_one_line(run, bundled, tmp_path, monkeypatch):
    monkeypatch.setattr("macs.cli.train.CONFIGS", tmp_path)
    (tmp_path / "fashion-mnist.toml").write_text(TOML)
    assert "did you mean 'tiny'?" in one_error(run("models", "show", "tinny"))
    assert "did you mean 'tiny'?" in one_error(run("models", "verify", "tinny"))
    assert "did you mean 'fashion-mnist'?" in one_error(run("train", "fashion-mnits"))
    assert "there is no configuration" in one_error(run("train", tmp_path / "none.toml"))
    assert config_path("fashion-mnist") == tmp_path / "fashion-mnist.toml"


def test_the_page_without_gradio_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "macs.page", raising=False)
    assert "pip install -e '.[app]'" in one_error(run("app"))


def test_a_controlnet_of_no_task_is_one_line(run):
    pytest.importorskip("gradio")
    assert "must be TASK=PATH" in one_error(run("app", "--control", "nothing"))


def test_a_file_that_the_system_refuses_is_one_line(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("macs.demo.rows", lambda seed: [])
    monkeypatch.setattr("macs.demo.picture", lambda table: b"")
    assert "Not a directory" in one_error(run("demo", "--out", tmp_path / "file" / "demo"))
    (tmp_path / "demo" / "comparison.png").mkdir(parents=True)
    assert "cannot be read or written (Is a directory)" in one_error(run("demo", "--out", tmp_path / "demo"))
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["comparison.png"]


def test_the_demonstration_says_how_to_call_the_program(run, tmp_path, monkeypatch):
    monkeypatch.setattr("macs.demo.rows", lambda seed: [])
    monkeypatch.setattr("macs.demo.picture", lambda table: b"")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert "next: .venv/bin/macs models show" in run("demo").stdout
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert "next: macs models show" in run("demo").stdout


def test_debug_shows_where(run, bundled):
    assert isinstance(run("--debug", "models", "show", "tinny").exception, ConfigError)


def test_entry_point_exits_with_2_and_no_traceback():
    code = "from macs.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "train", "none.toml"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: there is no configuration none.toml")
    assert done.stderr.count("\n") == 1


@pytest.mark.filterwarnings("default")
def test_train_from_a_folder(run, config, photos, tmp_path):
    (photos / "bad.png").write_bytes(b"nothing")
    out = tmp_path / "run"
    result = run("train", config, "--out", out, "--data", photos, "--images", 18)
    assert result.exit_code == 0, result.output
    assert "finished after 18 images" in result.stdout
    assert "warning: 1 of 10 files" in result.stderr
    assert "stage 1/2 edm" in result.stderr
    model, info = macs.load(out / "tiny.safetensors"), store.read_model(out / "tiny.safetensors")[2]
    assert model.image_shape == (1, 8, 8)
    assert info["images"] == 18
    assert info["finished"] is True


def test_train_stops_in_time_and_refuses_other_data(run, config, photos, tmp_path):
    out = tmp_path / "run"
    stopped = run("train", config, "--out", out, "--data", photos, "--minutes", 0)
    assert stopped.exit_code == 0, stopped.output
    assert "stopped after 0 images" in stopped.stdout
    assert "the same command goes on from here" in stopped.stdout
    Image.new("L", (16, 12), 3).save(photos / "x.png")
    assert "other data" in one_error(run("train", config, "--out", out, "--data", photos))


def test_what_was_trained_to_denoise_is_exported_as_a_denoiser(config, photos, tmp_path):
    """A run that is stopped in its first stage, at its end, and in the second."""
    run = Run(load_config(config), training_images(photos, (1, 8, 8)), tmp_path / "run")
    kinds = []
    for _ in range(4):
        kinds.append(macs.load(export(run)).kind)
        calls = iter([False])
        train_run(run, asked_to_stop=lambda calls=calls: next(calls, True))
    train_run(run)
    kinds.append(macs.load(export(run)).kind)
    assert kinds == ["denoiser"] * 3 + ["consistency"] * 2
    assert macs.load(tmp_path / "run" / "tiny-edm.safetensors").kind == "denoiser"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--size", 9], "size must be a multiple of 2"),
        (["--data", "none"], "cannot be read"),
        ([], "this model is trained on images of (1, 8, 8)"),
        (["--size", 28, "--rows", ":5000"], "5,000 images are held out of those asked for, so there must be more; got 5,000"),
    ],
    ids=str,
)
def test_data_that_does_not_fit_is_one_line(run, config, tmp_path, monkeypatch, options, sentence):
    monkeypatch.setattr("macs.data.fashion_mnist", lambda split, root=None: torch.zeros(5001, 1, 28, 28, dtype=torch.uint8))
    assert sentence in one_error(run("train", config, "--out", tmp_path / "run", *options))


def test_a_budget_is_shared_among_the_stages(config):
    plan = load_config(config)
    assert [s.images for s in adapted(plan, 300, None).stages] == [100, 200]
    assert [s.images for s in adapted(plan, 1, None).stages] == [1, 1]
    assert adapted(plan, None, 32).model.image_shape == (1, 32, 32)


def test_the_bar_shows_stage_loss_and_speed(config, photos, tmp_path, capsys):
    with progress_bar(Run(load_config(config), training_images(photos, (1, 8, 8)), tmp_path)) as (show, say):
        say("validation PSNR 20.00 dB")
        show(Progress(stage=1, step=2, steps=4, images=24, loss=0.25, images_per_second=120.0))
    shown = capsys.readouterr().err
    assert all(text in shown for text in ("stage 2/2 ect", "67%", "loss 0.2500", "120 images/s"))


def test_keeping_memory_is_harmless_anywhere(monkeypatch):
    keep_memory()
    monkeypatch.setattr("os.confstr", lambda name: None)
    keep_memory()
    monkeypatch.delattr("os.confstr")
    keep_memory()


def test_ctrl_c_at_the_end_of_a_stage_ends_the_stage(config, photos, tmp_path, monkeypatch):
    """Between the last step of a stage and its end there is nothing to save that could go on as if nothing had happened."""

    @contextmanager
    def pressed_at_the_end(run):
        yield lambda at: signal.raise_signal(signal.SIGINT) if (at.stage, at.step) == (0, at.steps) else None, print

    monkeypatch.setattr("macs.cli.train.progress_lines", pressed_at_the_end)
    run = Run(load_config(config), training_images(photos, (1, 8, 8)), tmp_path / "run")
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background it is ignored
    try:
        assert followed(run, float("inf"))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, outside)
    assert (run.stage, run.step) == (1, 0)


def test_an_interrupted_training_goes_on_bit_for_bit(config, photos, tmp_path):
    """Ctrl-C ends with 130 after a whole step; then the run ends with the weights of one that nobody stopped."""
    config.write_text(TOML.replace("images = 24", "images = 240"))
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from macs.cli import main; main()"
    args = [sys.executable, "-c", code, "train", str(config), "--data", str(photos), "--out", str(tmp_path / "run")]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stderr.readline()  # the first step is done
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert "stopped after" in stdout
    assert "Traceback" not in stderr
    assert macs.load(tmp_path / "run" / "tiny.safetensors").image_shape == (1, 8, 8)

    torch.set_flush_denormal(True)
    images = training_images(photos, (1, 8, 8))
    runs = [Run(load_config(config), images, tmp_path / folder) for folder in ("run", "other")]
    assert runs[1].total_images == 0 < runs[0].total_images < 252
    for each in runs:
        train_run(each)
    ends = [each.average.state_dict() for each in runs]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
