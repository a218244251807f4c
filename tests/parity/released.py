"""The forward passes of OpenAI's U-Net, CoSIGN's ControlNet and BKSE's blur, on tensors by the names of the released files.

Plain functions on a dictionary, written from the networks' descriptions and independent of the package and of diffusers.
"""

import json
import math
from pathlib import Path

import torch
from torch.nn.functional import avg_pool2d, conv2d, conv_transpose2d, pixel_shuffle

MANIFESTS = Path(__file__).parents[1] / "manifests"


def manifest(name):
    """Names and shapes of the tensors of a released file."""
    return {k: tuple(v) for k, v in json.loads((MANIFESTS / f"{name}.json").read_text()).items()}


def narrowed(shapes, factor, image=3):
    """The same network with its channels divided by ``factor``; image channels and taps stay."""
    keep = {"input_blocks.0.0.weight", "input_hint_block.0.weight"}

    def narrow(name, shape):
        out = list(shape)
        for axis in (0, 1):
            if axis < len(out) and out[axis] > image and not (axis == 1 and name in keep):
                out[axis] //= factor
        return tuple(out)

    return {name: narrow(name, shape) for name, shape in shapes.items()}


def synthetic(shapes, seed=0):
    """Random tensors of moderate gain; norms near one, so that signals neither die nor explode."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=g)
        if len(shape) == 1:
            is_scale = name.endswith("weight")
            out[name] = 1 + 0.1 * values if is_scale else 0.1 * values
        else:
            out[name] = values / math.sqrt(math.prod(shape[1:]))
    return out


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def conv(w, name, x, stride=1):
    weight = w[f"{name}.weight"]
    return conv2d(x, weight, w.get(f"{name}.bias"), stride=stride, padding=weight.shape[-1] // 2)


def group_norm(w, name, x):
    """32 groups."""
    b, c, h, v = x.shape
    groups = x.reshape(b, 32, -1)
    mean, var = groups.mean(-1, keepdim=True), groups.var(-1, unbiased=False, keepdim=True)
    flat = ((groups - mean) / torch.sqrt(var + 1e-5)).reshape(b, c, h, v)
    return flat * w[f"{name}.weight"][:, None, None] + w[f"{name}.bias"][:, None, None]


def silu(x):
    return x * torch.sigmoid(x)


def resized(x, how):
    if how == "down":
        return avg_pool2d(x, 2)
    return x.repeat_interleave(2, -1).repeat_interleave(2, -2) if how == "up" else x


def residual_block(w, name, x, emb, how=None, scale_shift=False):
    h = conv(w, f"{name}.in_layers.2", resized(silu(group_norm(w, f"{name}.in_layers.0", x)), how))
    told = linear(w, f"{name}.emb_layers.1", silu(emb))[:, :, None, None]
    if scale_shift:
        scale, shift = told.split(told.shape[1] // 2, 1)
        h = group_norm(w, f"{name}.out_layers.0", h) * (1 + scale) + shift
    else:
        h = group_norm(w, f"{name}.out_layers.0", h + told)
    h = conv(w, f"{name}.out_layers.3", silu(h))
    x = resized(x, how)
    return (conv(w, f"{name}.skip_connection", x) if f"{name}.skip_connection.weight" in w else x) + h


def attention(w, name, x, order="chunk"):
    """Heads of 64; ``order`` says how queries, keys and values lie: thirds of the channels, or thirds of each head."""
    b, c, h, v = x.shape
    qkv = conv(w, f"{name}.qkv", group_norm(w, f"{name}.norm", x)).reshape(b, 3 * c, h * v)
    heads = c // 64
    if order == "chunk":
        q, k, u = qkv.reshape(b, 3, heads, 64, h * v).unbind(1)
    else:
        q, k, u = qkv.reshape(b, heads, 3, 64, h * v).unbind(2)
    weight = torch.softmax(torch.einsum("bhdi,bhdj->bhij", q, k) / 8, -1)
    out = torch.einsum("bhij,bhdj->bhdi", weight, u).reshape(b, c, h, v)
    return x + conv(w, f"{name}.proj_out", out)


def time_embedding(w, time, label=None):
    half = w["time_embed.0.weight"].shape[1] // 2
    angle = time[:, None] * torch.exp(-math.log(10000) * torch.arange(half) / half)
    emb = linear(w, "time_embed.2", silu(linear(w, "time_embed.0", torch.cat([angle.cos(), angle.sin()], 1))))
    return emb if label is None else emb + w["label_emb.weight"][label]


def block(w, name, x, emb, how=None, **options):
    """All that stands under one number of the input or output blocks: residual blocks and attentions, one after another."""
    for j in range(3):
        part = f"{name}.{j}"
        if f"{part}.qkv.weight" in w:
            x = attention(w, part, x, options.get("order", "chunk"))
        elif f"{part}.in_layers.0.weight" in w:
            last = how is not None and (how == "down" or j > 0)
            x = residual_block(w, part, x, emb, how if last else None, options.get("scale_shift", False))
    return x


def encoder(w, h, emb, layers, **options):
    """All skip connections and the middle; every (layers + 1)-th block halves the side."""
    skips = [h]
    blocks = 1 + max(int(k.split(".")[1]) for k in w if k.startswith("input_blocks."))
    for i in range(1, blocks):
        h = block(w, f"input_blocks.{i}", h, emb, "down" if i % (layers + 1) == 0 else None, **options)
        skips.append(h)
    h = residual_block(w, "middle_block.0", h, emb, None, options.get("scale_shift", False))
    h = attention(w, "middle_block.1", h, options.get("order", "chunk"))
    return skips, residual_block(w, "middle_block.2", h, emb, None, options.get("scale_shift", False))


def unet(w, x, time, layers=2, added=None, label=None, **options):
    """OpenAI's U-Net; ``added`` is what a ControlNet adds to each skip connection and, last, to the middle."""
    emb = time_embedding(w, time, label)
    skips, h = encoder(w, conv(w, "input_blocks.0.0", x), emb, layers, **options)
    if added is not None:
        skips, h = [s + a for s, a in zip(skips, added, strict=False)], h + added[-1]
    blocks = len(skips)
    for i in range(blocks):
        up = i % (layers + 1) == layers and i < blocks - 1
        h = block(w, f"output_blocks.{i}", torch.cat([h, skips.pop()], 1), emb, "up" if up else None, **options)
    return conv(w, "out.2", silu(group_norm(w, "out.0", h)))


def controlnet(w, x, hint, time, layers=2):
    """CoSIGN's ControlNet: one tensor per skip connection, and the middle's."""
    emb = time_embedding(w, time)
    skips, h = encoder(w, conv(w, "input_blocks.0.0", x) + conv(w, "input_hint_block.0", hint), emb, layers)
    return [conv(w, f"zero_convs.{i}.0", s) for i, s in enumerate(skips)] + [conv(w, "middle_block_out.0", h)]


def consistency(F_of, x, sigma):
    """f = c_skip x + c_out F(c_in x, 250 ln sigma), sigma_data 0.5, sigma_min 0.002."""
    root = math.sqrt(sigma**2 + 0.25)
    c_skip, c_out = 0.25 / ((sigma - 0.002) ** 2 + 0.25), (sigma - 0.002) * 0.5 / root
    time = torch.full((len(x),), 1000 * 0.25 * math.log(sigma + 1e-44))
    return c_skip * x + c_out * F_of(x / root, 1 / root, time)


def leaky(x, slope):
    return torch.where(x > 0, x, slope * x)


def trunk_block(w, name, x):
    return x + conv(w, f"{name}.conv2", conv(w, f"{name}.conv1", x).relu())


def adapter(w, prefix, x, k, top=True):
    """The nested U-Net: down, the inner one (or the kernel at the bottom), up, joined with its own input."""
    inner = f"{prefix}.submodule"
    first = x if top else leaky(x, 0.2)
    h = conv2d(first, w[f"{prefix}.down.{0 if top else 1}.weight"], stride=2, padding=1)
    bottom = f"{inner}.down.1.weight" not in w
    h = torch.cat([h, k], 1) if bottom else adapter(w, inner, h, k, top=False)
    up = conv_transpose2d(h.relu(), w[f"{prefix}.up.1.weight"], w.get(f"{prefix}.up.1.bias"), stride=2, padding=1)
    return up.tanh() if top else torch.cat([up, first], 1)


def blur(w, x, k):
    """BKSE's blur on images in [0, 1], before the cut to that range."""
    h = leaky(conv(w, "feature_extractor.0", x), 0.1)
    for i in (2, 4):
        h = leaky(conv(w, f"feature_extractor.{i}", h, stride=2), 0.1)
    for i in range(6, 16):
        h = trunk_block(w, f"feature_extractor.{i}", h)
    h = adapter(w, "adapter.model", h, k)
    for i in range(20):
        h = trunk_block(w, f"recon_trunk.{i}", h)
    for i in (20, 23):
        h = leaky(pixel_shuffle(conv(w, f"recon_trunk.{i}", h), 2), 0.1)
    return x + conv(w, "recon_trunk.28", leaky(conv(w, "recon_trunk.26", h), 0.1))
