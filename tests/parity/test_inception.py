"""Our folded Inception against torch-fidelity's, with random weights, on images of three sizes."""

import pytest
import torch
from torch import Generator
from torch_fidelity import feature_extractor_inceptionv3 as theirs

from macs.benchmark.inception import Inception, accelerated, fold, load_inception
from macs.errors import ModelError


@pytest.fixture(scope="module")
def pair():
    """Their network with random weights and statistics, and ours with the same."""

    class Random(theirs.FeatureExtractorInceptionV3):
        def load_state_dict(self, state_dict, *args, **kwargs):
            return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theirs, "load_state_dict_from_url", lambda *a, **k: {})
        reference = Random("inception", ["2048"])
    g = Generator().manual_seed(0)
    for name, tensor in reference.state_dict().items():
        if name.endswith(("running_var", "bn.weight")):
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=g))
        elif name.endswith(("running_mean", "bn.bias")):
            tensor.copy_(0.1 * torch.randn(tensor.shape, generator=g))
        elif name.endswith("conv.weight"):
            tensor.copy_(torch.randn(tensor.shape, generator=g) * (2 / tensor[0].numel()) ** 0.5)
    tensors = {k: v for k, v in reference.state_dict().items() if not k.startswith("fc.")}
    ours = Inception()
    ours.load_state_dict(fold(tensors))
    return reference, ours.eval(), tensors


@pytest.mark.parametrize("size", [28, 64, 299])
def test_features_are_those_of_torch_fidelity(pair, size):
    reference, ours, _ = pair
    images = torch.randint(0, 256, (2, 3, size, size), generator=Generator().manual_seed(size), dtype=torch.uint8)
    with torch.no_grad():
        expected, got = reference(images)[0], ours(images)
    assert got.shape == (2, 2048)
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize(("size", "count"), [(28, 3), (64, 1)])
def test_the_accelerated_network_is_the_same(pair, size, count):
    pytest.importorskip("openvino")
    _, ours, _ = pair
    images = torch.randint(0, 256, (count, 1, size, size), generator=Generator().manual_seed(size), dtype=torch.uint8)
    with torch.no_grad():
        expected, got = ours(images), accelerated(ours)(images)
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def test_grey_images_are_three_equal_channels(pair):
    _, ours, _ = pair
    images = torch.randint(0, 256, (1, 1, 28, 28), generator=Generator().manual_seed(0), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.allclose(ours(images), ours(images.expand(-1, 3, -1, -1)), rtol=1e-5)


def test_a_file_of_something_else(tmp_path, pair):
    from safetensors.torch import save_file

    _, _, tensors = pair
    path = tmp_path / "weights.safetensors"
    save_file({k: v for k, v in tensors.items() if not k.startswith("Mixed_7c.branch1x1")}, path)
    with pytest.raises(ModelError, match="does not hold the Inception of FID"):
        load_inception(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="must be a safetensors file"):
        load_inception(path)
    with pytest.raises(ModelError, match="cannot be read"):
        load_inception(tmp_path / "missing.safetensors")
