"""Checkpoints with the names and shapes of the released files, against an independent transcription of their networks."""

import diffusers
import pytest
import torch

import macs
from macs.errors import ModelError
from macs.models import convert
from macs.models.backbone import load_backbone

from . import released

#: The LSUN network at a quarter of its width and of its image side.
SMALL = {**convert.LSUN, "block_out_channels": (64, 64, 128, 128, 256, 256), "sample_size": 64}
SHAPE = (3, 64, 64)
LEVELS = (80.0, 0.5)


def narrow(name, seed=0):
    return released.synthetic(released.narrowed(released.manifest(name), 4), seed)


@pytest.fixture(scope="module")
def weights():
    return narrow("openai_bedroom256")


@pytest.fixture(scope="module")
def control_weights():
    return narrow("cosign_bedroom256", 1)


@pytest.fixture(scope="module")
def model(weights, tmp_path_factory):
    """The converted network, saved and loaded again."""
    folder = tmp_path_factory.mktemp("small")
    convert.save_unet(convert.unet_from(weights, SMALL, "small.pt"), folder)
    return macs.load(folder)


@pytest.fixture(scope="module")
def images():
    return torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(1))


def measured(physics, x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return physics(x)


def close(ours, theirs, tolerance=1e-4):
    assert theirs.std() > 0.05, "a comparison of constants proves nothing"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * theirs.abs().max().item())


@pytest.mark.parametrize("sigma", LEVELS)
def test_the_converted_backbone_is_openais(sigma, model, weights, images):
    x = 2 * images - 1 + sigma * torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
    theirs = released.consistency(lambda scaled, _, time: released.unet(weights, scaled, time), x, sigma)
    close(model(x, None, sigma), theirs)


def test_queries_keys_and_values_are_chunks(model, weights, images):
    """The order of older code, by heads, is another function."""
    x, time = images, torch.full((2,), 368.44)
    ours = model.unet(x, time).sample
    close(ours, released.unet(weights, x, time))
    assert (ours - released.unet(weights, x, time, order="heads")).abs().max() > 0.01


@pytest.fixture(scope="module")
def controlled(model, control_weights, tmp_path_factory):
    """The model with the converted ControlNet, saved and loaded again."""
    folder = tmp_path_factory.mktemp("control")
    convert.control_from(control_weights, SMALL, "inpaint.pt").save_pretrained(folder)
    return macs.ControlledModel(model, macs.ControlNet.from_pretrained(folder)).eval()


@pytest.mark.parametrize(("name", "sigma"), [("super-resolution", 80.0), ("inpainting", 4.37), ("deblurring", 0.5)])
def test_the_converted_controlnet_is_cosigns(name, sigma, model, controlled, weights, control_weights, images):
    """Hints: y repeated to the image's size, grey holes; image and hint are both multiplied by c_in."""
    physics = macs.task(name, image_shape=SHAPE)
    y = measured(physics, images)
    hint = 2 * y - (physics.mask if name == "inpainting" else 1)
    hint = hint.repeat_interleave(64 // hint.shape[-1], -1).repeat_interleave(64 // hint.shape[-2], -2)
    problem = macs.Problem(y, physics)
    torch.testing.assert_close(controlled.condition(problem), hint, rtol=0, atol=1e-5)
    x = 2 * images - 1 + sigma * torch.randn(images.shape, generator=torch.Generator().manual_seed(3))

    def network(scaled, c_in, time):
        return released.unet(weights, scaled, time, added=released.controlnet(control_weights, scaled, c_in * hint, time))

    theirs = released.consistency(network, x, sigma)
    close(controlled(x, controlled.condition(problem), sigma), theirs)
    assert (theirs - model(x, None, sigma)).abs().max() > 1e-3


def test_imagenets_network_with_classes(images, tmp_path):
    """Scale-shift norms and class embeddings, at a third of the width."""
    config = {**convert.IMAGENET, "block_out_channels": (64, 128, 192, 256), "sample_size": 32, "num_class_embeds": 10}
    with torch.device("meta"):
        network = diffusers.UNet2DModel(**config)
    shapes = {name: entry.shape for name, entry in convert.entries(config, network, {}).items()}
    weights = released.synthetic(shapes)
    convert.save_unet(convert.unet_from(weights, config, "imagenet.pt"), tmp_path)
    model, x = macs.load(tmp_path, label=7), images[..., :32, :32]
    theirs = released.consistency(
        lambda scaled, _, time: released.unet(weights, scaled, time, layers=3, label=7, scale_shift=True), x, 1.38
    )
    close(model(x, None, 1.38), theirs)
    assert not torch.allclose(macs.load(tmp_path, label=6)(x, None, 1.38), theirs, atol=1e-3)


def test_a_folder_is_a_diffusers_pipeline(model, tmp_path):
    convert.save_unet(model.unet, tmp_path)
    pipeline = diffusers.ConsistencyModelPipeline.from_pretrained(tmp_path)
    assert (pipeline.scheduler.config.sigma_min, pipeline.scheduler.config.sigma_max) == (model.t_min, model.t_max)
    image = pipeline(timesteps=[17, 0], output_type="np", generator=torch.Generator().manual_seed(0)).images
    assert image.shape == (1, 64, 64, 3)


def test_the_blur_network_is_bkses(tmp_path):
    weights = released.synthetic(released.manifest("bkse_blur"))
    convert.blur_from(weights, "GOPRO_wVAE.pth").save_pretrained(tmp_path)
    physics = macs.task("nonlinear-deblurring", image_shape=(3, 128, 128), network=tmp_path, seed=3)
    x = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(1))
    theirs = released.blur(weights, x, physics.k.expand(2, -1, -1, -1))
    close(physics.A(x), theirs.clamp(0, 1))
    close(physics.network(x, physics.k.expand(2, -1, -1, -1)), theirs)


@pytest.mark.parametrize(("file", "network"), [("openai_bedroom256", "unet"), ("cosign_bedroom256", "control")])
def test_a_wrong_tensor_is_refused_by_name(file, network):
    def made(tensors):
        return {"unet": convert.unet_from, "control": convert.control_from}[network](tensors, SMALL, "file.pt")

    weights = narrow(file)
    for name in list(weights)[:: len(weights) // 7]:
        rest = {k: v for k, v in weights.items() if k != name}
        for sentence, tensors in {
            f"file.pt lacks the tensor '{name}'": rest,
            f"the tensor '{name}' of file.pt must be of shape": {**rest, name: weights[name][..., None]},
            f"the tensor '{name}' of file.pt must hold finite": {**rest, name: weights[name] * float("nan")},
            f"has a tensor '{name}.more' that this model has not": {**weights, f"{name}.more": torch.zeros(1)},
        }.items():
            with pytest.raises(ModelError, match=sentence):
                made(tensors)


@pytest.mark.slow
def test_the_whole_files_at_256_pixels(tmp_path):
    """Files of the true size: converted, loaded, one step, equal to the transcription; the ControlNet attached by one call."""
    shape, x = (3, 256, 256), torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(1))
    for name in ("openai_bedroom256", "cosign_bedroom256"):
        torch.save(released.synthetic(released.manifest(name)), tmp_path / f"{name}.pt")
        convert.convert(tmp_path / f"{name}.pt", tmp_path / name)
    model = macs.load(tmp_path / "openai_bedroom256", control=tmp_path / "cosign_bedroom256")
    assert model.image_shape == shape
    physics = macs.task("inpainting", model, cosign_compat=True)
    y = measured(physics, x)
    condition = model.condition(macs.Problem(y, physics))
    weights = released.synthetic(released.manifest("openai_bedroom256"))
    control = released.synthetic(released.manifest("cosign_bedroom256"))

    def network(scaled, c_in, time):
        return released.unet(weights, scaled, time, added=released.controlnet(control, scaled, c_in * condition, time))

    z = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    ours = macs.Solver(model, macs.Multistep(), steps=1)(y, physics, z=z)
    with torch.no_grad():
        theirs = released.consistency(network, 80 * z, 80.0)
    assert (theirs.abs() < 1).float().mean() > 0.5
    close(ours, (theirs.clamp(-1, 1) + 1) / 2)


def test_a_backbone_by_its_folder_alone(model, tmp_path):
    """A U-Net without a pipeline around it has the public levels."""
    model.unet.save_pretrained(tmp_path)
    alone = load_backbone(tmp_path)
    assert (alone.sigma_data, alone.t_min, alone.t_max, alone.time_scale) == (0.5, 0.002, 80.0, 250.0)
