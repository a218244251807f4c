"""A run that is killed anywhere goes on as if it had not been, bit for bit."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

from macs.errors import ConfigError, ModelError
from macs.training.batches import draw
from macs.training.checkpoint import load_checkpoint, locked, save_checkpoint, write_atomically
from macs.training.config import load_config, parse_config
from macs.training.loop import Run, learning_rate, train
from macs.training.loss import earlier_level
from macs.training.workers import Workers

TINY = """
name = "tiny"
batch = 6
[model]
image_shape = [1, 8, 8]
channels = [8, 8]
layers = 1
groups = 4
head_dim = 8
[[stage]]
loss = "edm"
images = 60
lr = 1e-3
lr_end = 1e-4
[[stage]]
loss = "ect"
images = 60
lr = 1e-3
lr_end = 1e-4
doublings_to = 3
[[stage]]
loss = "cd"
images = 30
lr = 1e-3
lr_end = 1e-4
doublings_to = 2
"""

KILLS = 12

WORKER = """
import sys
from pathlib import Path
import torch
from accelerate.state import AcceleratorState
from macs.training.config import load_config
from macs.training.loop import Run, train
from tests.faults.test_training import images
torch.set_num_threads(1)
folder = Path(sys.argv[1])
run = Run(load_config(folder / "tiny.toml"), images(), folder / "run")
with open(folder / "steps", "w", buffering=1) as steps:
    train(run, save_every=0.0, on_step=lambda at: print(at.step, file=steps))
"""


STAGE = {"loss": "edm", "images": 10, "lr": 1e-3, "lr_end": 1e-4}


def images():
    return torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    return load_config(tmp_path / "tiny.toml")


def worker(folder):
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stderr=subprocess.PIPE)


@pytest.mark.slow
def test_killed_runs_go_on_bit_for_bit(tmp_path, config):
    """kill -9 a step or two after each start, until the run is done; then all tensors equal those of a quiet run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    quiet, times = Run(config, images(), tmp_path / "quiet"), []
    train(quiet, save_every=0.0, on_step=lambda at: times.append(time.monotonic()))
    step = (times[-1] - times[0]) / (len(times) - 1)
    torch.set_num_threads(threads)
    rng, kills, places = random.Random(0), 0, set()
    path, steps = tmp_path / "run" / "checkpoint.safetensors", tmp_path / "steps"
    for left in reversed(range(KILLS + 1)):
        steps.write_text("")
        process, wanted = worker(tmp_path), rng.randint(1, 2)
        while left and process.poll() is None and len(steps.read_text().split()) < wanted:
            time.sleep(0.001)
        if left:
            time.sleep(rng.uniform(0, step))
            process.kill()
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr.read().decode()
        kills += 1
        if path.exists():
            record = load_checkpoint(path)[1]
            places.add((record["stage"], record["step"]))
    assert process.returncode == 0, process.stderr.read().decode()
    assert kills >= 3
    assert len(places) >= 2, "the kills hit the training at several places"
    want, _ = load_checkpoint(tmp_path / "quiet" / "checkpoint.safetensors")
    got, record = load_checkpoint(path)
    assert record["stage"] == len(config.stages)
    assert want.keys() == got.keys()
    for name in want:
        assert torch.equal(want[name], got[name]), name
    assert not list((tmp_path / "run").glob(".*.tmp-*"))


def test_stopping_and_going_on_is_bit_for_bit(tmp_path, config):
    """The same, without violence: stop after every few steps, in the middle of stages and at their ends."""
    quiet = Run(config, images(), tmp_path / "quiet")
    train(quiet)
    for _ in range(30):
        run = Run(config, images(), tmp_path / "run")
        if run.done:
            break
        stops = iter(range(3))

        def stop(progress, stops=stops):
            if next(stops, None) is None:
                raise KeyboardInterrupt

        try:
            train(run, on_step=stop, save_every=0.0)
        except KeyboardInterrupt:
            continue
    assert run.done
    want, got = quiet.average.state_dict(), run.average.state_dict()
    assert all(torch.equal(want[k], got[k]) for k in want)


def test_a_batch_is_a_function_of_seed_and_step():
    options = {"size": 9, "nominal": 0.5, "drop": 0.2, "t_min": 0.002, "t_max": 80.0}
    a, b = (draw(images(), 3, seed=0, **options) for _ in range(2))
    for field in ("x", "condition", "t", "z"):
        assert torch.equal(getattr(a, field), getattr(b, field))
    other = draw(images(), 4, seed=0, **options)
    assert not torch.equal(a.z, other.z)
    assert a.condition.shape == (9, 2, 8, 8)
    assert bool((a.t >= 0.002).all() and (a.t <= 80).all())


def test_another_configuration_or_other_data_is_refused(tmp_path, config):
    from dataclasses import replace

    run = Run(config, images(), tmp_path / "run")
    run.save()
    for changed, data in ((replace(config, seed=1), images()), (config, images().flip(0))):
        with pytest.raises(ConfigError, match="another configuration or other data"):
            Run(changed, data, tmp_path / "run")
    longer = replace(config, stages=(*config.stages, config.stages[-1]))
    assert Run(longer, images(), tmp_path / "run").step == 0


def test_two_runs_do_not_share_a_folder(tmp_path, config):
    run = Run(config, images(), tmp_path / "run")
    with locked(tmp_path / "run"), pytest.raises(ConfigError, match="another process is at work in"):
        train(run)
    train(run)
    assert run.done


def test_a_second_run_leaves_the_files_of_the_first_alone(tmp_path, config):
    """What the first is writing is no orphan while it holds the folder; afterwards it is."""
    half = tmp_path / "run" / ".checkpoint.safetensors.tmp-1"
    with locked(tmp_path / "run"):
        half.touch()
        with pytest.raises(ConfigError, match="at work"):
            train(Run(config, images(), tmp_path / "run"))
        assert half.exists()
    train(Run(config, images(), tmp_path / "run"), minutes=0)
    assert not half.exists()


def test_the_front_door():
    """The names are there, and cost nothing until they are used."""
    from macs import training

    assert (training.Run, training.train, training.load_config) == (Run, train, load_config)
    assert all(hasattr(training, name) for name in training.__all__)
    assert not hasattr(training, "Walk")
    code = "import sys, macs.training; assert not {'torch', 'diffusers', 'accelerate'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_damaged_checkpoint_is_said(tmp_path, config):
    path = tmp_path / "run" / "checkpoint.safetensors"
    write_atomically(path, b"not a checkpoint")
    with pytest.raises(ModelError, match="is no checkpoint of this package"):
        Run(config, images(), tmp_path / "run")


def test_writes_leave_nothing_behind(tmp_path, monkeypatch):
    """A write that fails half way keeps the old file and removes its own."""
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"a": torch.ones(3)}, {"step": 1})

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(path, {"a": torch.zeros(3)}, {"step": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]
    assert torch.equal(load_checkpoint(path)[0]["a"], torch.ones(3))


def test_pairs_of_levels_come_closer():
    t = torch.tensor([0.01, 0.1, 1.0, 10.0, 80.0])
    assert torch.equal(earlier_level(t[:2], 1), torch.zeros(2))
    gaps = torch.stack([1 - earlier_level(t, k) / t for k in range(1, 9)])
    assert (gaps.diff(dim=0) <= 0).all()
    torch.testing.assert_close(gaps[-1, -1], torch.tensor(2.0**-9), rtol=1e-3, atol=0)


def test_learning_rate(config):
    stage = config.stages[0]
    rates = [learning_rate(stage, i, 1000) for i in range(1001)]
    assert rates[0] < rates[150] < rates[199]
    assert rates[-1] == pytest.approx(stage.lr_end)
    assert max(rates) <= stage.lr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sed": 1}, "unknown training setting 'sed'.*did you mean 'seed'"),
        ({"stage": []}, "at least one \\[\\[stage\\]\\]"),
        ({"stage": [{"loss": "ekt", "images": 1, "lr": 1, "lr_end": 1}]}, "unknown loss 'ekt'.*did you mean 'ect'"),
        ({"stage": [{"loss": "ect", "images": 1, "lr": 1}]}, "stage setting 'lr_end' must be given"),
        ({"model": {"width": 3}}, "unknown model setting 'width'"),
        ({"batch": "x"}, "training setting 'batch' must be a whole number; got 'x'"),
        ({"drop": -0.5}, "training setting 'drop' must be a number of at least 0; got -0.5"),
        ({"batch": 0}, "training setting 'batch' must be a whole number of at least 1; got 0"),
        ({"stage": [{**STAGE, "warmup": 0}]}, "stage setting 'warmup' must be a whole number of at least 1; got 0"),
        ({"stage": [{**STAGE, "images": 0}]}, "stage setting 'images' must be a whole number of at least 1; got 0"),
        ({"model": 3}, "\\[model\\] must hold settings by name; got 3"),
        ({"model": {"layers": "two"}}, "model setting 'layers' must be a whole number; got 'two'"),
        ({"model": {"patch": 0}}, "model setting 'patch' must be a whole number of at least 1; got 0"),
        ({"model": {"sigma_data": 0}}, "model setting 'sigma_data' must be a number of at least 1e-06; got 0"),
        ({"model": {"channels": 8}}, "model setting 'channels' must be a list of whole numbers; got 8"),
        ({"model": {"channels": [64, 0]}}, "model setting 'channels' must be a whole number of at least 1; got 0"),
        ({"model": {"channels": [50, 100]}}, "no network can be built from the settings in \\[model\\].*divisible"),
        ({"model": {"image_shape": [1, 28]}}, "image_shape of \\[channels, height, width\\].*got \\[1, 28\\]"),
        ({"model": {"image_shape": [1, 30, 28]}}, "sides of 'image_shape' must be multiples of 4 for this network"),
        ({"model": {"t_min": 90.0}}, "t_min below t_max; got .* 90.0 and 80.0"),
        ({"stage": [{"loss": "ect", "images": 1.5, "lr": 1, "lr_end": 1}]}, "'images' must be a whole number; got 1.5"),
    ],
)
def test_bad_configurations_are_refused_in_words(change, words):
    good = {"name": "t", "stage": [STAGE]}
    with pytest.raises(ConfigError, match=words):
        parse_config({**good, **change})


def test_a_finished_run_can_be_extended(config, tmp_path):
    """More stages may be appended; what is done may not be changed."""
    run = Run(config, images(), tmp_path / "run")
    train(run)
    assert run.done
    more = dataclasses.replace(config, stages=(*config.stages, config.stages[-1]))
    longer = Run(more, images(), tmp_path / "run")
    assert (longer.stage, longer.step, longer.done) == (len(config.stages), 0, False)
    other = dataclasses.replace(config.stages[0], lr=0.5)
    with pytest.raises(ConfigError, match="another configuration"):
        Run(dataclasses.replace(more, stages=(other, *more.stages[1:])), images(), tmp_path / "run")


def test_validation_restores_held_out_images(config, tmp_path):
    heard = []
    run = Run(config, images(), tmp_path / "run", validation=images()[:9])
    train(run, validate_every=1e9, on_validation=heard.append)
    assert [set(v.psnr) for v in heard] == [{"super-resolution", "inpainting", "deblurring"}] * len(config.stages), (
        "one at the end of each stage"
    )
    assert heard[0].picture.shape == (7 * 8, 8 * 8)
    assert all(3 < value < 60 for v in heard for value in v.psnr.values())


def test_bfloat16_trains(config, tmp_path):
    """Weights and their average stay in single precision, and come out near those of single precision."""
    ends = []
    for bf16 in (False, True):
        run = Run(config, images(), tmp_path / str(bf16), workers=Workers.found(bf16))
        train(run)
        ends.append(torch.cat([p.flatten() for p in run.average.parameters()]))
        AcceleratorState._reset_state(True)
    assert ends[1].dtype == torch.float32
    assert not torch.equal(ends[0], ends[1])
    assert torch.allclose(ends[0], ends[1], atol=0.05)


def test_two_processes_train_as_one(config, tmp_path):
    """Launched over gloo: each takes half of every batch, and the weights are those of one process."""
    (tmp_path / "worker.py").write_text(WORKER + 'print("processes", run.workers.count)\n')
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launch, str(tmp_path / "worker.py"), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("processes 2") == 2
    together = Run(config, images(), tmp_path / "run")
    assert together.done
    alone = Run(config, images(), tmp_path / "alone")
    train(alone)
    for name, tensor in alone.average.state_dict().items():
        assert torch.allclose(tensor, together.average.state_dict()[name], atol=1e-4), name


def test_a_batch_that_cannot_be_shared(config, tmp_path):
    class Seven:
        num_processes = 7

    with pytest.raises(ConfigError, match="must be a multiple of the 7 processes; got 6"):
        Run(config, images(), tmp_path / "run", workers=Workers(Seven()))
