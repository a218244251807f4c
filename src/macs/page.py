"""The page itself, in Gradio: its layout and what happens when a control changes.

It needs no network but the loopback: no analytics, no remote font, no shared link. One visitor's work runs at a time; the
others wait in a queue that is bounded.
"""

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_OFFLINE"] = "1"

import gradio as gr
from PIL import Image

from macs.app import (
    MAX_BYTES,
    MAX_PIXELS,
    SAMPLERS,
    SCRATCH,
    TASKS,
    Page,
    checked,
    curve,
    examples_of,
    in_words,
    kept,
    shown,
    summary,
    table,
)
from macs.degrade import enlarged
from macs.errors import ConfigError, MacsError
from macs.images import encode
from macs.restore import STD_WHITE, Restored, Settings

#: Visitors that may wait; the next is told to come back.
QUEUE = 100
#: What a visitor is told of an error that nobody foresaw.
UNFORESEEN = "this could not be done, and the page does not know why; its log does; change a control and try again"
INVENTED = "What was not measured is invented: plausible, not true."
#: How an event is wired that computes: one of all of them at a time, whoever the visitor is.
WORK: dict[str, Any] = {"concurrency_id": "work", "concurrency_limit": 1}
#: How an event that shows something at once is wired.
QUICK: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
LOG = logging.getLogger(__name__)


def guarded(work: Callable[[], Any]) -> Any:
    """The result of some work; an error becomes a message on the page, one that nobody foresaw also a line in the log."""
    try:
        return work()
    except MacsError as error:
        raise gr.Error(" ".join(str(error).split()), duration=None, print_exception=False) from error
    except Exception as error:
        LOG.exception("a control's work failed")
        raise gr.Error(UNFORESEEN, duration=None, print_exception=False) from error


@dataclass(frozen=True)
class Handlers:
    """What the page does when a control changes."""

    page: Page

    def choose(self, example: str, upload: bytes | None) -> Any:
        """Show the chosen image, ready to be drawn on."""
        x, note = guarded(lambda: self.page.chosen(example, upload))
        picture = guarded(lambda: shown(x))
        return {"background": picture, "layers": [], "composite": picture}, note

    def measure(self, *controls: Any) -> Any:
        """Show the measurement."""
        _, y, told, _ = guarded(lambda: self.page.problem(*controls))
        return guarded(lambda: shown(y)), f"{in_words(told)}; {y.shape[2]}x{y.shape[1]} pixels"

    def settle(self, task: str) -> list[Any]:
        """Show the control that belongs to a task."""
        return [gr.update(visible=task == owner) for owner in ("super-resolution", "deblurring", "inpainting")]

    def restore(self, samplers: list[str], steps: int, draws: int, *controls: Any, progress: Any = gr.Progress()) -> Any:  # noqa: B008
        """Restore with each sampler; show images, numbers, misfit, deviation and files."""
        return guarded(lambda: self.results(samplers, steps, draws, controls, progress))

    def results(self, samplers: list[str], steps: int, draws: int, controls: Sequence[Any], progress: Any) -> Any:
        """What :meth:`restore` shows."""
        x, y, told, note = self.page.problem(*controls)
        steps, draws = (int(n) for n in checked({"the number of calls": steps, "the number of draws": draws}))
        sigma_y, seed = controls[-2:]
        settings = Settings(self.page.name, steps=steps, seed=int(seed), samples=draws, sigma_y=float(sigma_y))
        results: dict[str, Restored] = {}
        for some in [[name] for name in samplers] or [[]]:
            progress((len(results), max(len(samplers), 1)), desc=" ".join(some))
            results |= self.page.restored(told, y, some, settings)
        rows, first = summary(x, y, results), results[samplers[0]]
        seen, best = shown(enlarged(y, (x.shape[1], x.shape[2]))), shown(first.image)
        spread = None if first.std is None else shown(first.std.mean(0, keepdim=True) / STD_WHITE)
        notes = first.record["notes"]
        made = {**told.record(), **settings.record(), **self.page.weights[told.task]}
        record = {**made, "sampler": samplers, "rows": rows, "notes": notes}
        return (
            [(shown(x), "truth"), (seen, "measurement"), *((shown(r.image), name) for name, r in results.items())],
            (seen, best), table(rows), curve(results), gr.update(value=spread, visible=spread is not None),
            str(kept("restored", encode(first.image))), str(kept("record", json.dumps(record, indent=2).encode(), "json")),
            "\n".join(f"- {text}" for text in (note, *notes, INVENTED) if text),
        )  # fmt: skip


def inputs(names: list[str]) -> dict[str, Any]:
    """The controls of the image and its degradation, and the pictures of both, in the order in which handlers take them."""
    with gr.Row():
        with gr.Column(min_width=300):
            example = gr.Dropdown(names, value=names[0], label="Bundled image", elem_id="example")
            label = "or your own (PNG, JPEG, WEBP, BMP, TIFF; 8 MB)"
            upload = gr.File(type="binary", label=label, elem_id="upload", height=150)
            task = gr.Radio(TASKS, value=TASKS[0], label="Degradation", elem_id="task")
            factor = gr.Slider(2, 4, value=2, step=2, label="Reduced by", elem_id="factor")
            std = gr.Slider(0.5, 4, value=3, step=0.1, label="Blur, deviation in pixels", visible=False, elem_id="std")
            hole = gr.Slider(10, 80, value=50, step=5, label="Central hole, % of the side", visible=False, elem_id="hole")
            sigma_y = gr.Slider(0.01, 0.2, value=0.05, step=0.01, label="Noise on [-1, 1]", elem_id="noise")
            seed = gr.Number(0, precision=0, label="Seed", elem_id="seed")
        with gr.Column(min_width=300):
            drawing = gr.ImageEditor(
                label="Image", type="numpy", sources=(), transforms=(), layers=False, height=430, elem_id="drawing",
                brush=gr.Brush(default_size=40, colors=["#e4572e"], color_mode="fixed"),
            )  # fmt: skip
            gr.Markdown("For inpainting, draw on the image what is missing; else the central hole is.")
            choice_note = gr.Markdown(elem_id="choice-note")
        with gr.Column(min_width=300):
            seen = gr.Image(label="Measurement", interactive=False, height=430, elem_id="measurement", buttons=["fullscreen"])
            seen_note = gr.Markdown(elem_id="measurement-note")
    return {
        "example": example, "upload": upload, "drawing": drawing, "task": task, "factor": factor, "std": std, "hole": hole,
        "sigma_y": sigma_y, "seed": seed, "choice_note": choice_note, "seen": seen, "seen_note": seen_note,
    }  # fmt: skip


def solver_inputs() -> tuple[list[Any], Any]:
    """The controls of the restoration, and the button."""
    with gr.Row():
        samplers = gr.CheckboxGroup(SAMPLERS, value=["macs-d", "multistep"], label="Samplers", elem_id="samplers")
        steps = gr.Slider(1, 4, value=2, step=1, label="Network calls (where @ does not say)", elem_id="steps")
        draws = gr.Slider(1, 16, value=1, step=1, label="Draws, for the uncertainty map", elem_id="draws")
        return [samplers, steps, draws], gr.Button("Restore", variant="primary", elem_id="restore")


def outputs() -> list[Any]:
    """Where a restoration is shown, in the order in which :meth:`Handlers.restore` returns it."""
    gallery = gr.Gallery(
        label="Side by side", columns=4, height=310, object_fit="contain", elem_id="gallery", buttons=["fullscreen"]
    )  # fmt: skip
    with gr.Row():
        slider = gr.ImageSlider(label="Before and after (first sampler)", height=430, elem_id="before-after")
        headers = ["", "calls", "PSNR", "SSIM", "chi2", "seconds"]
        numbers = gr.Dataframe(headers=headers, label="Numbers", interactive=False, elem_id="numbers")
    with gr.Row():
        residual = gr.Plot(label="Misfit per network call; 1 is the noise", elem_id="curve")
        spread = gr.Image(
            label=f"Deviation of the draws, white from {STD_WHITE}", interactive=False, visible=False, elem_id="spread",
            buttons=["download", "fullscreen"],
        )  # fmt: skip
    with gr.Row():
        picture = gr.DownloadButton("Download PNG", elem_id="download-png")
        record = gr.DownloadButton("Download JSON", elem_id="download-json")
    return [gallery, slider, numbers, residual, spread, picture, record, gr.Markdown(INVENTED, elem_id="notes")]


def build(model: str = "fashion-mnist", control: dict[str, str] | None = None) -> Any:
    """The page, ready to be served; ``control`` holds ControlNets by task, where not those bundled with the model."""
    on = Handlers(Page(model, control))
    with gr.Blocks(title="macs", analytics_enabled=False, delete_cache=(3600, 3600)) as blocks:
        gr.Markdown(
            "# Restore an image from a degraded measurement\nChoose, degrade, restore; compare samplers; see what is sure."
        )
        here = inputs(list(examples_of(model)))
        choices, button = solver_inputs()
        results = outputs()
        controls = list(here.values())[:9]
        measurement = [here["seen"], here["seen_note"]]
        for event in (blocks.load, here["example"].change, here["upload"].upload, here["upload"].clear):
            chose = event(on.choose, [here["example"], here["upload"]], [here["drawing"], here["choice_note"]], **QUICK, **WORK)
            chose.success(on.measure, controls, measurement, **QUICK, **WORK)
        settled = here["task"].change(on.settle, here["task"], [here["factor"], here["std"], here["hole"]], **QUICK)
        settled.success(on.measure, controls, measurement, **QUICK, **WORK)
        for name in ("factor", "std", "hole", "sigma_y"):
            here[name].release(on.measure, controls, measurement, **QUICK, **WORK)
        for name in ("seed", "drawing"):
            here[name].change(on.measure, controls, measurement, trigger_mode="always_last", **QUICK, **WORK)
        button.click(on.restore, [*choices, *controls], results, api_name="restore", **WORK)
    return blocks.queue(max_size=QUEUE, default_concurrency_limit=1)


def serve(blocks: Any, host: str = "127.0.0.1", port: int = 7860, wait: bool = True) -> str:
    """Serve the page and return its address; ``wait=False`` returns at once.

    Pillow is told to refuse large pictures in this process, since Gradio opens drawings before a handler sees them.
    """
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    try:
        _, address, _ = blocks.launch(
            server_name=host, server_port=port, share=False, quiet=True, show_error=True, max_file_size=MAX_BYTES,
            ssr_mode=False, allowed_paths=[SCRATCH.name], enable_monitoring=False, pwa=False, mcp_server=False, footer_links=[],
            prevent_thread_lock=not wait, theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"port {port} of {host} cannot be used ({error}); give another --port") from error
    return address
