"""Colour models of others: bad folders, names, files and data are one sentence; a ControlNet's training stops and goes on."""

import hashlib
import io
import json
import lzma
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import macs
from macs import lsun
from macs.cli import app
from macs.cli.train import export
from macs.data import training_images
from macs.errors import ConfigError, DataError, ImageError, MeasurementError, ModelError
from macs.images import fitted
from macs.lpips import Lpips
from macs.models import convert, manifest, store
from macs.models.build import ModelConfig, build
from macs.models.controlnet import ControlledModel
from macs.models.nonlinear_blur import BlurNetwork
from macs.training.checkpoint import sweep, written_folder
from macs.training.config import parse_config, plain_values
from macs.training.loop import Run, train
from macs.training.recipes import Blur, Control
from tests.laws.conftest import measure
from tests.lpips import random_weights

TINY = {"image_shape": (3, 16, 16), "channels": (8, 16), "layers": 1, "groups": 4, "head_dim": 8, "patch": 2}
STAGE = {"images": 24, "lr": 1e-3, "lr_end": 1e-4}


@pytest.fixture
def folder(tmp_path):
    """A small consistency model as a diffusers pipeline."""
    torch.manual_seed(0)
    unet = build(ModelConfig(family="plain", **{**TINY, "patch": 1})).unet
    convert.save_unet(unet, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def backbone(tmp_path):
    """A small colour model in a file of this package."""
    torch.manual_seed(0)
    config = ModelConfig(family="plain", **TINY)
    store.save_model(tmp_path / "colour.safetensors", build(config).state_dict(), config, {})
    return tmp_path / "colour.safetensors"


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)


def rewrite(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_loads(folder):
    model = macs.load(folder)
    assert (model.image_shape, model.sigma_data, model.t_min, model.t_max) == ((3, 16, 16), 0.5, 0.002, 80.0)
    assert not model.training
    rewrite(folder / "scheduler" / "scheduler_config.json", sigma_max=50.0)
    assert macs.load(str(folder)).t_max == 50.0


def test_damaged_folders_are_one_sentence(folder):
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    tensors, content = load_file(weights), weights.read_bytes()
    name = "mid_block.resnets.0.conv1.weight"
    cases = {
        f"lacks the tensor '{name}'": {k: v for k, v in tensors.items() if k != name},
        "has a tensor it should not have, 'more'": {**tensors, "more": torch.zeros(1)},
        f"finite numbers; the tensor '{name}'": {**tensors, name: tensors[name] * float("nan")},
        "holds no readable UNet2DModel": {**tensors, name: tensors[name][:1]},
    }
    for sentence, changed in cases.items():
        save_file(changed, weights, {"format": "pt"})
        with pytest.raises(ModelError, match=sentence) as caught:
            macs.load(folder)
        assert "\n" not in str(caught.value)
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="holds no readable UNet2DModel"):
        macs.load(folder)
    weights.unlink()
    with pytest.raises(ModelError, match="holds no readable UNet2DModel in safetensors form"):
        macs.load(folder)
    rewrite(folder / "unet" / "config.json", _class_name="AutoencoderKL")
    with pytest.raises(ModelError, match="must hold a diffusers UNet2DModel; its config.json names AutoencoderKL"):
        macs.load(folder)
    (folder / "unet" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="config.json is missing or damaged"):
        macs.load(folder)


def test_levels_that_are_none_are_refused(folder):
    for levels in ({"sigma_min": 90.0}, {"sigma_min": 0.002, "sigma_max": float("inf")}, {"sigma_max": 10**400}):
        rewrite(folder / "scheduler" / "scheduler_config.json", **levels)
        with pytest.raises(ModelError, match="sigma_min below sigma_max"):
            macs.load(folder)


def test_without_a_network_a_repository_is_one_sentence(monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(ModelError, match="openai/none is no folder here and could not be fetched.*no route to host") as caught:
        macs.load("openai/none")
    assert "\n" not in str(caught.value)


def test_a_repository_is_fetched_without_code(folder, monkeypatch):
    asked = {}

    def fetch(name, **options):
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert macs.load("openai/diffusers-cd_bedroom256_lpips").image_shape == (3, 16, 16)
    assert asked["name"] == "openai/diffusers-cd_bedroom256_lpips"
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in asked["allow_patterns"])


def test_images_that_do_not_fit_the_model(folder):
    """Another size, and grey for colour."""
    model = macs.load(folder)
    for shape, sentence in (((3, 32, 32), "use a physics made for this image size|y must have the shape"),
                            ((1, 16, 16), "use a physics made for this image size|y must have the shape")):  # fmt: skip
        A = macs.task("inpainting", image_shape=shape)
        with pytest.raises(MeasurementError, match=sentence):
            macs.Solver(model)(measure(A, torch.rand(1, *shape)), A)


def test_classes_must_be_named(tmp_path):
    config = {**convert.IMAGENET, "block_out_channels": (32, 64), "sample_size": 16, "num_class_embeds": 10,
              "down_block_types": ("ResnetDownsampleBlock2D", "AttnDownBlock2D"), "layers_per_block": 1,
              "up_block_types": ("AttnUpBlock2D", "ResnetUpsampleBlock2D"), "attention_head_dim": 32}  # fmt: skip
    convert.save_unet(convert.UNet2DModel(**config), tmp_path)
    for label in (None, 10, -1, True):
        with pytest.raises(ConfigError, match="knows 10 classes of images; label must be 0 to 9"):
            macs.load(tmp_path, label=label)
    model = macs.load(tmp_path, label=3)
    control = macs.ControlNet.from_unet(model.unet)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(macs.ControlledModel(model, control)(x, x, 1.0), model(x, None, 1.0))


def test_a_label_for_a_model_without_classes(folder, backbone):
    for source in (folder, backbone):
        with pytest.raises((ModelError, ConfigError), match="knows no classes; leave label out"):
            macs.load(source, label=3)


def test_files_that_are_no_checkpoints(tmp_path):
    run = lambda path, out="out": CliRunner().invoke(app, ["models", "convert", str(path), "-o", str(tmp_path / out)])
    (tmp_path / "text.pt").write_text("hello")
    torch.save({"weights": 3}, tmp_path / "number.pt")
    torch.save({"a.weight": torch.zeros(2)}, tmp_path / "other.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    torch.save({"input_blocks.0.0.weight": torch.zeros(2)}, tmp_path / "part.pt")
    for name, words in {
        "text.pt": "cannot be read as a file of tensors", "absent.pt": "cannot be read as a file of tensors",
        "number.pt": "must hold tensors by name and nothing else", "module.pt": "cannot be read as a file of tensors",
        "other.pt": "holds none of the networks known here", "part.pt": "lacks the tensor 'time_embed.0.weight'",
    }.items():  # fmt: skip
        result = run(tmp_path / name)
        assert result.exit_code == 2
        assert words in result.output
        assert result.output.count("\n") == 1
    assert "must be a new or empty folder" in run(tmp_path / "part.pt", ".").output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before PyTorch 1.6"])
def test_checkpoints_of_either_form_are_read(zipped, tmp_path):
    torch.save({"a.weight": torch.ones(2)}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    assert torch.equal(convert.read_tensors(tmp_path / "a.pt")["a.weight"], torch.ones(2))


def test_a_conversion_is_whole_or_not_there(tmp_path, monkeypatch):
    def save(network, out):
        (out / "part").write_text("half")
        if full:
            raise OSError(28, "No space left on device")

    kind = ("a.", "a test", lambda tensors, label: None, save, "use {!r}")
    monkeypatch.setattr(convert, "KINDS", (kind,))
    torch.save({"a.weight": torch.ones(2)}, tmp_path / "a.pt")
    full = True
    with pytest.raises(ConfigError, match="out cannot be written .No space left on device.; make room or choose another place"):
        convert.convert(tmp_path / "a.pt", tmp_path / "out")
    with pytest.raises(ConfigError, match="cannot be written .Not a directory"):
        convert.convert(tmp_path / "a.pt", tmp_path / "a.pt" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
    full = False
    (tmp_path / "out").mkdir()
    assert convert.convert(tmp_path / "a.pt", tmp_path / "out")[0] == "a test"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "out"]
    assert (tmp_path / "out" / "part").read_text() == "half"


def test_a_written_folder_takes_the_place_of_the_old_one(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    with pytest.raises(KeyError), written_folder(tmp_path / "out"):
        raise KeyError
    assert (tmp_path / "out" / "old").exists()
    with written_folder(tmp_path / "out") as beside:
        (beside / "new").touch()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["out", "out/new"]
    (tmp_path / ".out.tmp-1").mkdir()
    (tmp_path / ".out.tmp-1" / "half").touch()
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_arrays_and_their_rows(pixels, tmp_path):
    np.save(tmp_path / "a.npy", pixels)
    (tmp_path / "a.npy.xz").write_bytes(lzma.compress((tmp_path / "a.npy").read_bytes()))
    want = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    for name in ("a.npy", "a.npy.xz"):
        assert torch.equal(training_images(tmp_path / name, (3, 16, 16), lsun.rows("5:9")), want[5:9])
    held = len(want) // 20
    assert torch.equal(training_images(tmp_path / "a.npy", (3, 16, 16)), want[: len(want) - held])
    with pytest.raises(DataError, match="none are in rows 30:None"):
        training_images(tmp_path / "a.npy", (3, 16, 16), lsun.rows("30:"))
    with pytest.raises(DataError, match="trained on images of"):
        training_images(tmp_path / "a.npy", (3, 8, 8))
    np.save(tmp_path / "f.npy", pixels.astype(np.float32))
    (tmp_path / "b.npy").write_bytes(b"no array")
    np.save(tmp_path / "o.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "c.npy.xz").write_bytes(b"\xfd7zXZ\x00broken")
    for name, words in {"f.npy": "must hold uint8", "b.npy": "no readable NumPy array", "o.npy": "no readable NumPy array",
                        "c.npy.xz": "no readable NumPy array", "absent.npy": "no readable NumPy array"}.items():  # fmt: skip
        with pytest.raises(DataError, match=words):
            training_images(tmp_path / name, (3, 16, 16))
    for shape in ((10**15, 16, 16, 3), (2**40, 2**40, 3), (10**30, 16, 16)):
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        (tmp_path / "h.npy").write_bytes(file.getvalue() + b"12345")
        (tmp_path / "h.npy.xz").write_bytes(lzma.compress(file.getvalue() + b"12345"))
        for name in ("h.npy", "h.npy.xz"):
            with pytest.raises(DataError, match="no readable NumPy array"):
                training_images(tmp_path / name, (3, 16, 16))
    for text in ("9", "a:b", "-1:3", "1:2:3", ""):
        with pytest.raises(ConfigError, match="rows must be FIRST:END"):
            lsun.rows(text)


def test_images_are_averaged_down_and_cut():
    """The shorter side to size, then the middle."""
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 200
    wide[::2, 8:16, 0] = 100
    small = np.asarray(fitted(Image.fromarray(wide), 4))
    assert small.shape == (4, 4, 3)
    assert (small == [150, 200, 200]).all()
    assert fitted(Image.fromarray(wide).transpose(Image.Transpose.ROTATE_90), 4).size == (4, 4)
    with pytest.raises(ImageError, match="one of 60000x1 would have 3,932,160,000; cut it to its middle first"):
        fitted(Image.new("RGB", (60000, 1)), 256)


def test_lsuns_own_database(pixels, tmp_path):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "db")) as env, env.begin(write=True) as transaction:
        for i, values in enumerate(pixels):
            path = tmp_path / "i.webp"
            Image.fromarray(values).save(path, lossless=True)
            transaction.put(f"{i:04}".encode(), path.read_bytes())
    got = training_images(tmp_path / "db", (3, 16, 16), lsun.rows("2:7"))
    assert torch.equal(got, torch.from_numpy(pixels[2:7]).permute(0, 3, 1, 2))
    with pytest.raises(DataError, match="holds no image in rows 90:None"):
        training_images(tmp_path / "db", (3, 16, 16), lsun.rows("90:"))


def test_a_folder_and_a_database_are_brought_to_size_alike(tmp_path):
    """As CoSIGN's code does: the whole image averaged, then cut; pixels of a size that divides nothing tell the difference."""
    lmdb = pytest.importorskip("lmdb")
    values = np.random.default_rng(1).integers(0, 256, (37, 54, 3), dtype=np.uint8)
    (tmp_path / "folder").mkdir()
    Image.fromarray(values).save(tmp_path / "folder" / "i.png")
    with lmdb.open(str(tmp_path / "db")) as env, env.begin(write=True) as transaction:
        transaction.put(b"0", (tmp_path / "folder" / "i.png").read_bytes())
    small = np.asarray(Image.fromarray(values).resize((23, 16), Image.Resampling.BOX))[:, 3:19]
    for source in ("folder", "db"):
        got = training_images(tmp_path / source, (3, 16, 16))
        assert torch.equal(got[0], torch.from_numpy(small.copy()).permute(2, 0, 1)), source


class Lost(Exception):  # noqa: N818
    """The process ended."""


def lost_after(run, step):
    def after(at):
        if at.step == step:
            run.save()
            raise Lost

    return after


def controlled(loss="recon", **options):
    stage = {"loss": loss, **STAGE, **options}
    return parse_config({"name": "c", "batch": 4, "flip": True, "model": {"family": "controlled", **TINY}, "stage": [stage]})


@pytest.mark.parametrize("task", ["super-resolution", "inpainting", "deblurring", "nonlinear-deblurring"])
def test_a_controlnet_is_trained_and_its_backbone_is_not(task, backbone, pixels, tmp_path):
    """It stops, goes on, and ends as if it had not stopped; only the ControlNet has moved."""
    images, model = torch.from_numpy(pixels).permute(0, 3, 1, 2), macs.load(backbone)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(1)
    recipe = Control(model, task, BlurNetwork(3, (8, 8), 1, 1, 4) if task == "nonlinear-deblurring" else None)
    whole = Run(controlled(), images, tmp_path / "whole", recipe=recipe)
    train(whole)
    part = Run(controlled(), images, tmp_path / "part", recipe=recipe)
    with pytest.raises(Lost):
        train(part, on_step=lost_after(part, 3))
    part = Run(controlled(), images, tmp_path / "part", recipe=recipe)
    assert part.step == 3
    train(part)
    for (name, a), b in zip(whole.average.state_dict().items(), part.average.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert whole.model.zero_middle.weight.any()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_consistency_option_and_lpips(backbone, pixels, tmp_path):
    images, model = torch.from_numpy(pixels).permute(0, 3, 1, 2), macs.load(backbone)
    run = Run(controlled("ect"), images, tmp_path / "ect", recipe=Control(model, "inpainting"))
    train(run)
    assert run.done
    far = lambda x, reference: 10 * (x - reference).square().mean((1, 2, 3))
    first = []
    for i, (perceptual, weight) in enumerate(((None, 1.0), (far, 1.0), (far, 0.25))):
        config = controlled(lpips=weight)
        run = Run(config, images, tmp_path / f"r{i}", recipe=Control(model, "inpainting", perceptual=perceptual))
        losses = []
        train(run, on_step=lambda at, losses=losses: losses.append(at.loss))
        first.append(losses[0])
    assert first[1] > first[0]
    assert first[2] - first[0] == pytest.approx((first[1] - first[0]) / 4, rel=1e-4)


def test_a_perceptual_distance_sees_small_images_twice_as_large(backbone, pixels):
    """A chequerboard of single pixels, which the stride of its first layer would hide, is one of two pixels then."""
    images, model, seen = torch.from_numpy(pixels).permute(0, 3, 1, 2), macs.load(backbone), []

    def perceptual(x, reference):
        seen.extend((x, reference))
        return (x - reference).abs().mean((1, 2, 3))

    config, recipe = controlled(lpips=1.0), Control(model, "inpainting", perceptual=perceptual)
    batch = recipe.batch(images, 0, config)
    recipe.loss(recipe.build(config), batch, config.stages[0], 0.0, None)
    assert [tuple(side.shape[-2:]) for side in seen] == [tuple(2 * n for n in batch.x.shape[-2:])] * 2


def test_a_controlnet_begins_by_reading_its_hint_and_saying_nothing(backbone):
    model = macs.load(backbone)
    control = Control(model, "inpainting").build(controlled())
    torch.testing.assert_close(control.hint_conv.weight, model.unet.conv_in.weight, rtol=0, atol=0)
    x, hint = torch.randn(2, 2, *model.image_shape, generator=torch.Generator().manual_seed(0))
    x_t, t = 80 * x, torch.full((2,), 80.0)
    torch.testing.assert_close(ControlledModel(model, control)(x_t, hint, t), model(x_t, None, t), rtol=0, atol=0)


def test_a_controlnet_by_the_command_line(backbone, pixels, tmp_path):
    np.save(tmp_path / "a.npy", pixels)
    (tmp_path / "control.toml").write_text(
        'name = "control"\nbatch = 4\n[model]\nfamily = "controlled"\n'
        '[[stage]]\nloss = "recon"\nimages = 8\nlr = 0.001\nlr_end = 0.0001\n'
    )
    options = ["--data", tmp_path / "a.npy", "--rows", ":12", "--out", tmp_path / "run"]
    invoke = lambda *args: CliRunner().invoke(app, [str(a) for a in ("train", tmp_path / "control.toml", *args, *options)])
    try:
        result = invoke("--task", "inpainting", "--backbone", backbone)
    finally:
        torch.set_flush_denormal(False)
    assert result.exit_code == 0, result.output
    made = tmp_path / "run" / "colour-inpainting.safetensors"
    model = macs.load(backbone, control=made)
    x = torch.rand(2, 3, 16, 16)
    A = macs.task("inpainting", model)
    assert macs.Solver(model)(measure(A, x), A).shape == x.shape
    options[-1] = tmp_path / "next"
    try:
        result = invoke("--task", "deblurring", "--backbone", backbone, "--start", made, "--minutes", 0)
    finally:
        torch.set_flush_denormal(False)
    assert result.exit_code == 0, result.output
    started = load_file(tmp_path / "next" / "colour-deblurring.safetensors")
    for name, tensor in load_file(made).items():
        assert torch.equal(started[name], tensor), name
    with pytest.raises(ModelError, match="is a ControlNet and no model by itself"):
        macs.load(made)
    with pytest.raises(ModelError, match="must hold a ControlNet"):
        macs.load(backbone, control=backbone)
    for args, words in {
        (): "give --task and --backbone",
        ("--task", "inpaint", "--backbone", backbone): "unknown task 'inpaint'",
        ("--task", "inpainting", "--backbone", "fashion-mnist"): "a ControlNet steers a model that sees no measurement",
        ("--task", "deblurring", "--backbone", backbone, "--start", backbone): "must hold a ControlNet",
    }.items():
        result = invoke(*args)
        assert result.exit_code == 2
        assert words in result.output


def test_a_controlnet_for_a_folder_is_exported_as_one(folder, pixels, tmp_path):
    """And again over the first export, which nothing half-made ever replaces."""
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    run = Run(controlled(), images, tmp_path / "run", recipe=Control(macs.load(folder), "inpainting", name=str(folder)))
    for _ in range(2):
        made = export(run)
        assert macs.load(folder, control=made).image_shape == (3, 16, 16)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["c"]


def test_a_controlnets_run_is_bound_to_its_networks(backbone, tmp_path):
    """Other weights of the blur, of LPIPS or of what it begins with are another run."""
    model, weights = macs.load(backbone), random_weights()
    save_file(weights, tmp_path / "a.safetensors")
    save_file({**weights, "lin0.weight": 2 * weights["lin0.weight"]}, tmp_path / "b.safetensors")
    torch.manual_seed(1)
    blurs = [BlurNetwork(3, (8, 8), 1, 1, 4) for _ in range(2)]
    distances = [None, *(Lpips(tmp_path / f"{name}.safetensors") for name in "ab")]
    recipes = [Control(model, "nonlinear-deblurring", blur, distance) for blur in blurs for distance in distances]
    recipes.insert(0, Control(model, "nonlinear-deblurring", blurs[0], start=macs.ControlNet.from_unet(model.unet, 12)))
    assert len({recipe.fingerprint() for recipe in recipes}) == 7
    again = Control(macs.load(backbone), "nonlinear-deblurring", blurs[1], Lpips(tmp_path / "b.safetensors"))
    assert again.fingerprint() == recipes[-1].fingerprint()


def test_another_backbones_controlnet_is_refused(backbone, tmp_path):
    model = macs.load(backbone)
    config = ModelConfig(family="controlled", **TINY)
    control = macs.ControlNet.from_unet(model.unet, 12, head=True)
    store.save_model(tmp_path / "c.safetensors", control.state_dict(), config, {"fingerprint": "0" * 16})
    with pytest.raises(ModelError, match="trained with other weights of this backbone"):
        macs.load(backbone, control=tmp_path / "c.safetensors")
    with pytest.raises(ModelError, match="trained with other weights of this backbone"):
        Control(model, "deblurring", start=store.load_control(tmp_path / "c.safetensors"))
    with pytest.raises(ConfigError, match="task and control both name a ControlNet"):
        macs.load(backbone, "inpainting", control=tmp_path / "c.safetensors")


def test_a_bundled_controlnet_is_named_by_its_task(backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "WEIGHTS", tmp_path / "weights")
    (tmp_path / "card.md").write_text("# Tiny\n")
    control = macs.ControlNet.from_unet(macs.load(backbone).unet, 12, head=True)
    torch.nn.init.ones_(control.zero_middle.weight)
    info = {"fingerprint": control.config["backbone"]}
    store.save_model(tmp_path / "c.safetensors", control.state_dict(), ModelConfig(family="controlled", **TINY), info)
    store.register("colour", backbone, tmp_path / "card.md", {})
    store.register("colour-inpainting", tmp_path / "c.safetensors", tmp_path / "card.md", {})
    model, x = macs.load("colour", "inpainting"), torch.rand(1, 3, 16, 16)
    assert not torch.allclose(model(x, x, 1.0), macs.load("colour")(x, None, 1.0), atol=1e-3)
    with pytest.raises(ConfigError, match="unknown model 'colour-deblurring'.*did you mean 'colour-inpainting'"):
        macs.load("colour", task="deblurring")


def test_a_blur_network_is_taught_the_shake(tmp_path):
    config = parse_config({
        "name": "blur", "batch": 4, "stage": [{"loss": "blur", **STAGE, "images": 160, "warmup": 1}],
        "model": {"family": "blur", "image_shape": (3, 32, 32), "channels": (16, 16), "layers": 1, "head_dim": 16},
    })  # fmt: skip
    images = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = images.repeat_interleave(8, -1).repeat_interleave(8, -2)
    losses = []
    run = Run(config, images, tmp_path / "run", recipe=Blur())
    train(run, on_step=lambda at: losses.append(at.loss))
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    store.save_model(tmp_path / "b.safetensors", run.average.state_dict(), config.model, {})
    A = macs.task("nonlinear-deblurring", image_shape=(3, 32, 32), network=tmp_path / "b.safetensors")
    assert A.A(torch.rand(2, 3, 32, 32)).shape == (2, 3, 32, 32)
    with pytest.raises(ModelError, match="must hold a blur network"):
        store.load_blur(save_other(tmp_path))


def save_other(tmp_path):
    config = ModelConfig(family="plain", **TINY)
    store.save_model(tmp_path / "o.safetensors", build(config).state_dict(), config, {})
    return tmp_path / "o.safetensors"


def test_a_loss_must_belong_to_its_family():
    with pytest.raises(ConfigError, match="unknown loss 'recon'; known are cd, ect, edm"):
        parse_config({"name": "x", "stage": [{"loss": "recon", **STAGE}]})
    with pytest.raises(ConfigError, match="'flip' must be true or false; got 1"):
        parse_config({"name": "x", "flip": 1, "stage": [{"loss": "edm", **STAGE}]})


def test_runs_begun_before_the_flips_and_the_weight_of_lpips_go_on(tmp_path):
    """The digest of a run that sets neither is over the fields there were before; its batches are the same numbers."""
    config = parse_config({"name": "x", "batch": 3, "stage": [{"loss": "edm", **STAGE}],
                           "model": {**TINY, "family": "hinted", "image_shape": [1, 16, 16]}})  # fmt: skip
    images = torch.zeros(4, 1, 16, 16, dtype=torch.uint8)
    values = {k: v for k, v in asdict(config).items() if k != "flip"}
    digest = hashlib.sha256(json.dumps({**values, "stages": []}, sort_keys=True).encode())
    digest.update(str(tuple(images.shape)).encode())
    digest.update(images.numpy().tobytes())
    assert Run(config, images, tmp_path).fingerprint() == digest.hexdigest()
    assert "lpips" not in plain_values(config)["stages"][0]
    weighed = parse_config({"name": "x", "stage": [{"loss": "edm", "lpips": 0.5, **STAGE}]})
    assert plain_values(weighed)["stages"][0]["lpips"] == 0.5


def test_lpips_weights_are_checked(tmp_path):
    weights, g = random_weights(), torch.Generator().manual_seed(0)
    save_file(weights, tmp_path / "w.safetensors")
    lpips, x = Lpips(tmp_path / "w.safetensors"), 2 * torch.rand(2, 3, 64, 64, generator=g) - 1
    assert not lpips(x, x).any()
    assert (lpips(x, x.flip(-1)) > lpips(x, 0.95 * x)).all()
    save_file({k: v for k, v in weights.items() if k != "lin3.weight"}, tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match="has no 'lin3.weight' of shape"):
        Lpips(tmp_path / "w.safetensors")


def test_shape_and_digest_of_a_model_without_its_network(folder, backbone):
    """A folder's digest is that of every file in it."""
    assert store.image_shape(folder) == store.image_shape(backbone) == (3, 16, 16)
    before = store.model_digest(folder)
    assert store.model_digest(folder) == before
    rewrite(folder / "scheduler" / "scheduler_config.json", sigma_max=50.0)
    assert store.model_digest(folder) != before
    for size in (None, [64, 64, 64], [64], [0, 64], "64"):
        rewrite(folder / "unet" / "config.json", sample_size=size)
        with pytest.raises(ModelError, match="images into images of a known size"):
            store.image_shape(folder)
    (folder / "empty").mkdir()
    with pytest.raises(ModelError, match="holds no network in safetensors form"):
        store.model_digest(folder / "empty")
