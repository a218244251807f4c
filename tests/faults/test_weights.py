"""Damaged model files: with a digest none is loaded, without one every failure is a sentence."""

import json
import random
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as tensor_bytes

import macs
from macs.errors import ConfigError, ModelError
from macs.models import manifest, store
from macs.models.build import FAMILIES, ModelConfig, build

TINY = ModelConfig(image_shape=(1, 8, 8), channels=(8,), layers=1, groups=4, head_dim=8)
MUTATIONS = 3000


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model's file, with its digest beside it."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "tiny.safetensors"
    store.save_model(path, build(TINY).state_dict(), TINY, {"made": "for a test"})
    return path


@pytest.fixture
def bundled(saved, tmp_path, monkeypatch):
    """The same model under the name of "tiny", in a folder of weights of its own."""
    monkeypatch.setattr(manifest, "WEIGHTS", tmp_path / "weights")
    (tmp_path / "card.md").write_text("# Tiny\n")
    store.register("tiny", saved, tmp_path / "card.md", {"psnr": 12.3})
    return tmp_path / "weights"


def header_end(content):
    return 8 + int.from_bytes(content[:8], "little")


def mutated(content, seed):
    """One damage: a cut, bytes lost or put in, or bytes changed in the header, in the numbers, or anywhere."""
    rng = random.Random(seed)
    content, end = bytearray(content), header_end(content)
    kind = ("cut", "shift", "header", "header", "header", "header", "header", "length", "numbers", "anywhere")[seed % 10]
    if kind == "cut":
        return bytes(content[: rng.randrange(len(content))])
    if kind == "shift":
        at = rng.randrange(len(content))
        return bytes(content[:at] + rng.choice([b"", rng.randbytes(12)]) + content[at + rng.randint(1, 9) :])
    ranges = {"header": (8, end), "length": (0, 8), "numbers": (end, len(content)), "anywhere": (0, len(content))}
    for _ in range(rng.randint(2, 8) if kind == "anywhere" else 1):
        content[rng.randrange(*ranges[kind])] ^= rng.randint(1, 255)
    return bytes(content)


def as_model(content, path):
    """Load the content from a file without a digest."""
    path.write_bytes(content)
    return store.load(path)


def rewritten(path, tensors=None, **record):
    """The file's content with other tensors, or other entries of its record."""
    content = path.read_bytes()
    old = json.loads(json.loads(content[8 : header_end(content)])["__metadata__"]["model"])
    return tensor_bytes(parse_tensors(content) if tensors is None else tensors, {"model": json.dumps({**old, **record})})


def test_saved_and_loaded(saved):
    torch.manual_seed(0)
    model, original = store.load(saved), build(TINY)
    assert not model.training
    assert type(model) is type(original)
    for (name, value), (_, expected) in zip(model.named_parameters(), original.named_parameters(), strict=True):
        assert (value.dtype, value.requires_grad, value.is_meta) == (torch.float32, False, False), name
        assert torch.equal(value, expected.half().float()), name
    x = torch.ones(2, 1, 8, 8)
    assert torch.allclose(model(x, None, 1.0), original(x, None, 1.0), atol=0.01)
    assert store.read_model(saved)[1:] == (TINY, {"made": "for a test"})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_saved_and_loaded(family, tmp_path):
    config = replace(TINY, family=family)
    model = build(config).eval()
    store.save_model(tmp_path / "m.safetensors", model.half().float().state_dict(), config, {})
    x, loaded = torch.ones(2, 1, 8, 8), store.load(tmp_path / "m.safetensors")
    if family == "deft":
        model, loaded = (m.attach(lambda x_t, y, t: 0.5 * x_t) for m in (model, loaded))
    assert torch.allclose(loaded(x, None, 1.0), model(x, None, 1.0), atol=1e-5)


def test_a_file_says_what_kind_of_network_it_holds(tmp_path):
    path, state = tmp_path / "m.safetensors", build(TINY).state_dict()
    store.save_model(path, state, TINY, {})
    assert store.load(path).kind == "consistency"
    store.save_model(path, state, TINY, {"kind": "denoiser"})
    assert store.load(path).kind == "denoiser"
    for kind in ("teapot", 3, ["denoiser"]):
        store.save_model(path, state, TINY, {"kind": kind})
        with pytest.raises(ModelError, match="must be of the kind 'consistency' or 'denoiser'; got"):
            store.load(path)


def test_the_same_model_is_the_same_bytes(saved, tmp_path):
    torch.manual_seed(0)
    again = store.save_model(tmp_path / "again.safetensors", build(TINY).state_dict(), TINY, {"made": "for a test"})
    assert again == manifest.digest(saved.read_bytes())


def test_bundled(bundled):
    assert manifest.catalogue()["tiny"]["bytes"] == (bundled / "tiny.safetensors").stat().st_size
    store.verify("tiny")
    assert macs.load("tiny").image_shape == (1, 8, 8)
    with pytest.raises(ConfigError, match="unknown model 'tny'.*did you mean 'tiny'"):
        macs.load("tny")


def test_with_its_digest_no_damaged_file_is_loaded(bundled, monkeypatch):
    path = bundled / "tiny.safetensors"
    content = path.read_bytes()
    monkeypatch.setattr(store, "parse_tensors", lambda _: pytest.fail("parsed before its digest was checked"))
    for seed in range(MUTATIONS):
        path.write_bytes(mutated(content, seed))
        with pytest.raises(ModelError, match="is damaged or was changed"):
            store.load("tiny")


def test_a_sidecar_is_a_digest_too(saved, tmp_path):
    path = tmp_path / "m.safetensors"
    store.sidecar(path).write_bytes(store.sidecar(saved).read_bytes())
    assert as_model(saved.read_bytes(), path).image_shape == (1, 8, 8)
    for seed in range(2, 200, 5):
        with pytest.raises(ModelError, match="is damaged or was changed"):
            as_model(mutated(saved.read_bytes(), seed), path)
    for nonsense in (b"", b"\xff\xfe", b"0" * 64):
        store.sidecar(path).write_bytes(nonsense)
        with pytest.raises(ModelError, match="is damaged or was changed"):
            as_model(saved.read_bytes(), path)


def test_without_a_digest_a_damaged_file_is_refused_or_whole(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "build", lru_cache(None)(build))  # most damages leave the configuration as it was
    content, shapes = saved.read_bytes(), {k: v.shape for k, v in build(TINY).state_dict().items()}
    loaded, sentences = 0, set()
    for seed in range(MUTATIONS):
        try:
            model = as_model(mutated(content, seed), tmp_path / "m.safetensors")
        except ModelError as error:
            sentences.add(str(error))
            continue
        loaded += 1
        state = model.state_dict()
        assert all(torch.isfinite(v).all() for v in state.values()), seed
        if model.image_shape == TINY.image_shape:
            assert {k: v.shape for k, v in state.items()} == shapes, seed
    assert 0 < loaded < MUTATIONS / 2
    assert all("\n" not in sentence and len(sentence) < 1000 for sentence in sentences)


def test_tensors_that_are_not_the_networks_are_named(saved, tmp_path):
    tensors, path = parse_tensors(saved.read_bytes()), tmp_path / "m.safetensors"
    name = "unet.conv_in.weight"
    rest = {k: v for k, v in tensors.items() if k != name}
    cases = {
        f"lacks the tensor '{name}'": rest,
        "has a tensor 'unet.more' that": {**tensors, "unet.more": torch.zeros(2).half()},
        rf"the tensor '{name}' of .* must be of shape \(8, 12, 3, 3\); got \(8, 12, 9\)": {
            **rest,
            name: tensors[name].flatten(2),
        },
        f"finite numbers; the tensor '{name}'": {**rest, name: torch.full_like(tensors[name], torch.nan)},
        f"half or single precision; '{name}'": {**rest, name: tensors[name].to(torch.int16)},
    }
    for sentence, changed in cases.items():
        with pytest.raises(ModelError, match=sentence):
            as_model(rewritten(saved, changed), path)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 10**9}, {"channels": [10**9]}, {"channels": [8, 0]}, {"channels": []}, {"channels": 8}, {"channels": [8.0]},
        {"family": "hintd"}, {"family": {}}, {"family": 3}, {"image_shape": [1, 8]}, {"image_shape": [1, 7, 7]}, {"patch": 0},
        {"patch": True}, {"groups": 5}, {"sigma_data": float("nan")}, {"t_min": -1.0}, {"t_min": 100.0}, {"t_max": "80"},
        {"head_dim": 2**40}, {"colour": 1}, {"time_scale": 1e300}, {"channels": [4096] * 8, "layers": 16},
    ],
    ids=str,
)  # fmt: skip
def test_an_impossible_configuration_is_refused(saved, tmp_path, change):
    config = json.loads(json.dumps({**TINY.__dict__, **change}))
    with pytest.raises(ModelError):
        as_model(rewritten(saved, config=config), tmp_path / "m.safetensors")


def test_a_record_that_is_none_is_refused(saved, tmp_path):
    tensors, path = parse_tensors(saved.read_bytes()), tmp_path / "m.safetensors"
    for metadata in (
        None,
        {},
        {"record": "{}"},
        {"model": "{"},
        {"model": "[" * 10**5},
        {"model": "[]"},
        {"model": '{"config": 3}'},
    ):
        with pytest.raises(ModelError):
            as_model(tensor_bytes(tensors, metadata), path)
    for config in (None, [], "hinted", 3):
        with pytest.raises(ModelError, match="configuration by keys"):
            as_model(rewritten(saved, config=config), path)


def test_what_cannot_be_stored_is_not(tmp_path):
    state = build(TINY).state_dict()
    path = tmp_path / "m.safetensors"
    name = "unet.conv_in.bias"
    with pytest.raises(ModelError, match=f"finite numbers; the tensor '{name}'"):
        store.save_model(path, {**state, name: torch.full((8,), 1e6)}, TINY, {})
    with pytest.raises(ModelError, match=f"lacks the tensor '{name}'"):
        store.save_model(path, {k: v for k, v in state.items() if k != name}, TINY, {})
    with pytest.raises(ConfigError, match="safetensors"):
        store.save_model(tmp_path / "m.pt", state, TINY, {})
    assert list(tmp_path.iterdir()) == []


def test_paths_that_are_none(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "WEIGHTS", tmp_path)
    for path in (tmp_path / "none.safetensors", "a\0b.safetensors", tmp_path):
        with pytest.raises(ModelError):
            store.load(path)
    with pytest.raises(ModelError, match="no model is bundled"):
        store.load("fashion-mnist")


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"3", b'{"tiny": 3}', b'{"tiny": {}}', b"\xff", b"[" * 10**5, b'{"tiny": {"file": "../x"}}'],
    ids=lambda b: str(b[:12]),
)
def test_a_damaged_manifest_is_a_sentence(bundled, damage):
    (bundled / "manifest.json").write_bytes(damage)
    with pytest.raises(ModelError, match="manifest.json is damaged"):
        store.load("tiny")


def test_a_manifest_cannot_point_elsewhere(bundled):
    entries = json.loads((bundled / "manifest.json").read_text())
    entries["tiny"]["file"] = "../weights/tiny.safetensors"
    (bundled / "manifest.json").write_text(json.dumps(entries))
    with pytest.raises(ModelError, match="manifest.json is damaged"):
        store.load("tiny")


def test_only_models_that_load_are_registered(saved, bundled, tmp_path):
    before = manifest.catalogue()
    (tmp_path / "bad.safetensors").write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(ModelError):
        store.register("bad", tmp_path / "bad.safetensors", tmp_path / "card.md", {})
    with pytest.raises(ConfigError, match="name must be"):
        store.register("../bad", saved, tmp_path / "card.md", {})
    assert manifest.catalogue() == before
