"""The page: choose an image, degrade it, restore it with several samplers, see how sure the result is.

It needs no network but the loopback: no analytics, no remote font, no shared link. Uploads are bounded in bytes and pixels and
decoded by :mod:`macs.images`; one visitor's work runs at a time, the others wait in a queue that is bounded too.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from macs.compare import step_settings
from macs.degradation import Degradation
from macs.degrade import Measuring, enlarged, measured, quality, whole
from macs.errors import ConfigError, MacsError
from macs.images import encode, opened, to_tensor
from macs.models.manifest import digest
from macs.models.store import load
from macs.restore import STD_WHITE, Restored, Restorer, Settings

MAX_BYTES = 8 * 2**20
MAX_PIXELS = 2**24
#: Larger images are averaged down to this side, which a small model restores in seconds.
MAX_SIDE = 112
#: Visitors that may wait; the next is told to come back.
QUEUE = 100
#: The least side of a picture on the page.
SHOWN = 336
EXAMPLES = Path(__file__).parent / "examples" / "fashion-mnist"
TASKS = ("super-resolution", "inpainting", "deblurring")
SAMPLERS = ("macs-d", "macs-d@3", "multistep", "ddim", "macs", "heun@20")
#: A folder of this process for the masks that visitors draw and the files that they download.
SCRATCH = tempfile.TemporaryDirectory(prefix="macs-page-")


def example_names() -> list[str]:
    """The bundled images."""
    return [path.stem for path in sorted(EXAMPLES.glob("*.png"))]


def chosen(example: str | None, upload: bytes | None) -> tuple[Tensor, str]:
    """The clean image (C, H, W) in [0, 1] that a visitor chose, and what was done to it."""
    if upload is None:
        if example not in example_names():
            raise ConfigError(f"there is no bundled image {example!r}; choose one from the list, or upload one")
        return to_tensor(opened((EXAMPLES / f"{example}.png").read_bytes(), None)).float() / 255, ""
    if len(upload) > MAX_BYTES:
        raise ConfigError(f"an upload may have {MAX_BYTES:,} bytes; this one has {len(upload):,}; reduce it first")
    image = opened(upload, None, MAX_PIXELS)
    ratio = MAX_SIDE / max(image.size)
    if ratio >= 1:
        return to_tensor(image).float() / 255, ""
    size = (max(round(image.width * ratio), 1), max(round(image.height * ratio), 1))
    note = f"{image.width}x{image.height} pixels were averaged down to {size[0]}x{size[1]}"
    return to_tensor(image.resize(size, Image.Resampling.BOX)).float() / 255, note


def shown(x: Tensor) -> Any:
    """An image (C, H, W) as an array for the page, its pixels repeated until it is large enough to see."""
    times = max(1, SHOWN // max(x.shape[1:]))
    big = x.clamp(0, 1).expand(3, -1, -1).repeat_interleave(times, 1).repeat_interleave(times, 2)
    return (big.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()


def drawn_mask(drawing: Any, size: tuple[int, int]) -> Tensor | None:
    """1 where nothing was drawn and 0 where most of a pixel was covered, (H, W); None for an empty drawing."""
    layers = (drawing or {}).get("layers") or []
    if not layers or not any(layer[..., 3].any() for layer in layers):
        return None
    covered = torch.stack([torch.from_numpy(layer[..., 3].copy()).float() for layer in layers]).amax(0)
    return (interpolate((covered > 0).float()[None, None], size=size, mode="area")[0, 0] < 0.5).float()


def hole_mask(size: tuple[int, int], percent: float) -> Tensor:
    """0 in a central rectangle of so many per cent of each side, else 1, (H, W)."""
    mask = torch.ones(size)
    h, w = (round(n * percent / 100) for n in size)
    top, left = (size[0] - h) // 2, (size[1] - w) // 2
    mask[top : top + h, left : left + w] = 0
    return mask


def degradation(task: str, factor: int, std: float, hole: float, drawing: Any, x: Tensor) -> Degradation:
    """What the controls say."""
    if task == "super-resolution":
        return Degradation(task, factor=int(factor))
    if task == "deblurring":
        return Degradation(task, blur_std=float(std))
    size = (x.shape[1], x.shape[2])
    mask = drawn_mask(drawing, size)
    return Degradation(task, mask=kept("mask", encode((hole_mask(size, hole) if mask is None else mask)[None])))


def kept(kind: str, content: bytes, ending: str = "png") -> Path:
    """A file of this process with this content; the same content is the same file."""
    path = Path(SCRATCH.name) / f"{kind}-{digest(content)[:16]}.{ending}"
    if not path.exists():
        path.write_bytes(content)
    return path


class Page:
    """What the page's controls call; each call depends on its arguments alone."""

    def __init__(self, model: str = "fashion-mnist") -> None:
        self.name, self.model = model, load(model)

    def problem(self, example: Any, upload: Any, drawing: Any, *controls: Any) -> tuple[Tensor, Tensor, Degradation, str]:
        """The clean image, its measurement, the degradation and a note."""
        task, factor, std, hole, sigma_y, seed = controls
        x, note = chosen(example, upload)
        told = degradation(task, factor, std, hole, drawing, x)
        x = whole(x, told.scale)
        if min(x.shape[1:]) < self.model.image_shape[-1]:
            side = self.model.image_shape[-1]
            raise ConfigError(f"an image must have at least {side}x{side} pixels; this one has {x.shape[2]}x{x.shape[1]}")
        return x, measured(x, told, Measuring(float(sigma_y), int(seed))), told, note

    def restored(self, told: Degradation, y: Tensor, samplers: list[str], settings: Settings) -> dict[str, Restored]:
        """What each sampler makes of a measurement."""
        if not samplers:
            raise ConfigError("choose at least one sampler")
        return {text: Restorer(told, step_settings(text, settings), self.model)(y) for text in samplers}


def curve(results: dict[str, Restored]) -> Any:
    """chi2 of the network's output at each call, and of the returned image, for every sampler."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), dpi=110, layout="constrained")
    axis = figure.subplots()
    for name, result in results.items():
        trace = result.trace
        final = [] if trace.final_chi2 is None else [trace.final_chi2.mean()]
        axis.plot([*trace.nfe, trace.nfe[-1] + 0.5], [float(c.mean()) for c in (*trace.chi2, *final)], "o-", label=name, ms=3)
    axis.axhline(1, color="grey", lw=0.8, ls=":")
    axis.set(xlabel="network call (the last point is the result)", ylabel="chi2", yscale="log")
    axis.legend(fontsize=8)
    return figure


def summary(x: Tensor, y: Tensor, results: dict[str, Restored]) -> list[dict[str, Any]]:
    """The numbers of the measurement and of each sampler."""
    seen = quality(enlarged(y, (x.shape[1], x.shape[2])), x)
    rows: list[dict[str, Any]] = [{"name": "measurement", "nfe": None, "chi2": None, "seconds": None, **seen}]
    for name, result in results.items():
        numbers = {key: result.record[key] for key in ("nfe", "chi2", "seconds")}
        rows.append({"name": name, **numbers, **quality(result.image, x)})
    return rows


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The numbers as text, a row each."""
    forms = {"name": "", "nfe": "d", "psnr": ".2f", "ssim": ".3f", "chi2": ".2f", "seconds": ".2f"}
    return [["" if row[key] is None else f"{row[key]:{form}}" for key, form in forms.items()] for row in rows]


def build(model: str = "fashion-mnist") -> Any:
    """The page, ready to launch."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import gradio as gr
    except ImportError as error:
        raise ConfigError("the page needs gradio; install it with: pip install 'macs-imaging[app]'") from error
    page = Page(model)

    def guarded(work: Any) -> Any:
        """Errors of this package become messages on the page."""
        try:
            return work()
        except MacsError as error:
            raise gr.Error(" ".join(str(error).split()), duration=None, print_exception=False) from error

    def show_choice(example: str, upload: bytes | None) -> Any:
        x, note = guarded(lambda: chosen(example, upload))
        picture = shown(x)
        return {"background": picture, "layers": [], "composite": picture}, note

    def show_measurement(*controls: Any) -> Any:
        _, y, told, _ = guarded(lambda: page.problem(*controls))
        return shown(y), f"{told.words()}; {y.shape[2]}x{y.shape[1]} pixels"

    def show_controls(task: str) -> Any:
        return [gr.update(visible=task == owner) for owner in ("super-resolution", "deblurring", "inpainting")]

    def run(samplers: list[str], steps: int, draws: int, *controls: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
        x, y, told, note = guarded(lambda: page.problem(*controls))
        *_, sigma_y, seed = controls
        settings = Settings(page.name, steps=int(steps), seed=int(seed), samples=int(draws), sigma_y=float(sigma_y))
        results: dict[str, Restored] = {}
        for i, name in enumerate(samplers):
            progress((i, len(samplers)), desc=name)
            results |= guarded(lambda name=name: page.restored(told, y, [name], settings))
        if not results:
            guarded(lambda: page.restored(told, y, [], settings))
        rows = summary(x, y, results)
        first = results[samplers[0]]
        seen, best = shown(enlarged(y, (x.shape[1], x.shape[2]))), shown(first.image)
        spread = None if first.std is None else shown(first.std.mean(0, keepdim=True) / STD_WHITE)
        notes = [note, *first.record["notes"]]
        record = {**told.record(), **settings.record(), "sampler": samplers, "rows": rows}
        return (
            [(shown(x), "truth"), (seen, "measurement"), *((shown(r.image), name) for name, r in results.items())],
            (seen, best), table(rows), curve(results), gr.update(value=spread, visible=spread is not None),
            str(kept("restored", encode(first.image))), str(kept("record", json.dumps(record, indent=2).encode(), "json")),
            "\n".join(f"- {text}" for text in notes if text),
        )  # fmt: skip

    with gr.Blocks(title="macs", analytics_enabled=False, delete_cache=(3600, 3600)) as blocks:
        gr.Markdown(
            "# Restore an image from a degraded measurement\nChoose, degrade, restore; compare samplers; see what is sure."
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                example = gr.Dropdown(example_names(), value=example_names()[0], label="Bundled image", elem_id="example")
                upload = gr.File(
                    type="binary", label="or your own (PNG, JPEG, WEBP, BMP, TIFF; 8 MB)", elem_id="upload", height=110
                )
                task = gr.Radio(TASKS, value="super-resolution", label="Degradation", elem_id="task")
                factor = gr.Slider(2, 4, value=2, step=2, label="Reduced by", elem_id="factor")
                std = gr.Slider(
                    0.5, 4, value=3, step=0.1, label="Blur, standard deviation in pixels", visible=False, elem_id="std"
                )
                hole = gr.Slider(10, 80, value=50, step=5, label="Central hole, % of the side", visible=False, elem_id="hole")
                sigma_y = gr.Slider(0.01, 0.2, value=0.05, step=0.01, label="Noise on [-1, 1]", elem_id="noise")
                seed = gr.Number(0, precision=0, label="Seed", elem_id="seed")
            with gr.Column(scale=1, min_width=300):
                drawing = gr.ImageEditor(
                    label="Image; for inpainting, draw what is missing", type="numpy", sources=(), transforms=(), layers=False,
                    brush=gr.Brush(default_size=40, colors=["#e4572e"], color_mode="fixed"), height=430, elem_id="drawing",
                )  # fmt: skip
                choice_note = gr.Markdown(elem_id="choice-note")
            with gr.Column(scale=1, min_width=300):
                seen = gr.Image(
                    label="Measurement", interactive=False, height=430, elem_id="measurement", buttons=["fullscreen"]
                )
                seen_note = gr.Markdown(elem_id="measurement-note")
        with gr.Row():
            samplers = gr.CheckboxGroup(SAMPLERS, value=["macs-d", "multistep"], label="Samplers", elem_id="samplers")
            steps = gr.Slider(1, 4, value=2, step=1, label="Network calls (where @ does not say)", elem_id="steps")
            draws = gr.Slider(1, 16, value=1, step=1, label="Draws, for the uncertainty map", elem_id="draws")
            button = gr.Button("Restore", variant="primary", elem_id="restore")
        gallery = gr.Gallery(label="Side by side", columns=4, height=380, object_fit="contain", elem_id="gallery")
        with gr.Row():
            slider = gr.ImageSlider(label="Before and after (first sampler)", height=430, elem_id="before-after")
            numbers = gr.Dataframe(
                headers=["", "calls", "PSNR", "SSIM", "chi2", "seconds"], label="Numbers", interactive=False, elem_id="numbers"
            )  # fmt: skip
        with gr.Row():
            residual = gr.Plot(label="Misfit per network call; 1 is the noise", elem_id="curve")
            spread = gr.Image(
                label=f"Deviation of the draws, white from {STD_WHITE}", interactive=False, visible=False, elem_id="spread"
            )  # fmt: skip
        with gr.Row():
            picture = gr.DownloadButton("Download PNG", elem_id="download-png")
            record = gr.DownloadButton("Download JSON", elem_id="download-json")
        notes = gr.Markdown("What was not measured is invented: plausible, not true.", elem_id="notes")

        controls = [example, upload, drawing, task, factor, std, hole, sigma_y, seed]
        quick: dict[str, Any] = {"show_progress": "hidden", "queue": True, "api_visibility": "private"}
        for event in (blocks.load, example.change, upload.upload, upload.clear):
            chose = event(show_choice, [example, upload], [drawing, choice_note], **quick)
            chose.then(show_measurement, controls, [seen, seen_note], **quick)
        task.change(show_controls, task, [factor, std, hole], **quick).then(
            show_measurement, controls, [seen, seen_note], **quick
        )
        for control in (factor, std, hole, sigma_y):
            control.release(show_measurement, controls, [seen, seen_note], **quick)
        for control in (seed, drawing):
            control.change(show_measurement, controls, [seen, seen_note], trigger_mode="always_last", **quick)
        button.click(
            run, [samplers, steps, draws, *controls], [gallery, slider, numbers, residual, spread, picture, record, notes],
            api_name="restore", concurrency_limit=1,
        )  # fmt: skip
    return blocks.queue(max_size=QUEUE, default_concurrency_limit=1)


def serve(blocks: Any, host: str = "127.0.0.1", port: int = 7860, wait: bool = True) -> str:
    """Serve the page and return its address; ``wait=False`` returns at once."""
    import gradio as gr

    try:
        _, address, _ = blocks.launch(
            server_name=host, server_port=port, share=False, quiet=True, show_error=True, max_file_size=MAX_BYTES,
            ssr_mode=False, allowed_paths=[SCRATCH.name], enable_monitoring=False, pwa=False, mcp_server=False, footer_links=[],
            prevent_thread_lock=not wait, theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"port {port} of {host} cannot be used ({error}); give another --port") from error
    return address
