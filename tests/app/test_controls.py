"""What the page's controls do, without a browser and, but for the last tests, without Gradio."""

import json
import logging
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import macs
from macs import app
from macs.app import Page, drawn_mask, examples_of, kept
from macs.images import encode
from macs.restore import BLIND
from tests.faults.test_file_models import saved

EXAMPLE = next(iter(examples_of("fashion-mnist")))


@pytest.fixture(scope="module")
def page():
    return Page()


def test_the_controls_make_a_problem(page):
    """What the controls call: pure functions of their arguments, errors in one sentence."""
    controls = ("deblurring", 2, 3.0, 50, 0.05, 0)
    _, y, told, _ = page.problem(EXAMPLE, None, None, *controls)
    assert torch.equal(y, page.problem(EXAMPLE, None, None, *controls)[1])
    assert told.blur_std == 3
    layer = np.zeros((280, 280, 4), dtype=np.uint8)
    layer[100:200, 50:100, 3] = 255
    mask = drawn_mask({"layers": [layer]}, (28, 28))
    assert (mask == 0).sum() == 50
    assert drawn_mask({"layers": [layer * 0]}, (28, 28)) is None
    for upload, sentence in (
        (b"x" * (9 * 2**20), "may have 8,388,608 bytes"),
        (b"nothing", "does not begin like one"),
        (encode(torch.zeros(1, 20, 30)), "at least 28x28 pixels"),
        (encode(torch.zeros(1, 5000, 5000)), "may have 16,777,216 pixels"),
    ):
        with pytest.raises(macs.MacsError, match=sentence):
            page.problem(None, upload, None, *controls)
    with pytest.raises(macs.MacsError, match="no bundled image"):
        page.chosen("none", None)
    with pytest.raises(macs.MacsError, match="at least one sampler"):
        page.restored(told, y, [], macs.restore.Settings())


@pytest.mark.parametrize("shapes", [[(9, 9, 4), (9, 8, 4)], [(9, 9)], [(9, 9, 3)]], ids=str)
def test_a_drawing_that_is_none_is_refused(shapes):
    with pytest.raises(macs.MacsError, match="RGBA layers of one size"):
        drawn_mask({"layers": [np.zeros(shape, dtype=np.uint8) for shape in shapes]}, (28, 28))


@pytest.mark.parametrize(("place", "name"), [(4, "the noise"), (5, "the seed")])
def test_an_empty_box_is_said(page, place, name):
    controls = ["super-resolution", 2, 3.0, 50, 0.05, 0]
    controls[place] = None
    with pytest.raises(macs.MacsError, match=f"{name} must be a number; the box is empty"):
        page.problem(EXAMPLE, None, None, *controls)


def test_a_larger_model_has_larger_images(tmp_path):
    """Bundled images are enlarged to its side and uploads keep twice that; each task has its own ControlNet."""
    saved(tmp_path, image_shape=(3, 64, 64))
    page = Page(str(tmp_path / "m.safetensors"), {"inpainting": str(tmp_path / "control.safetensors")})
    x, note = page.chosen(EXAMPLE, None)
    assert x.shape == (1, 64, 64)
    assert "enlarged to 64x64" in note
    assert page.chosen(None, encode(torch.zeros(1, 200, 300)))[0].shape == (1, 85, 128)
    for task, notes in (("deblurring", [BLIND]), ("inpainting", [])):
        _, y, told, _ = page.problem(EXAMPLE, None, None, task, 2, 3.0, 50, 0.05, 0)
        restored = page.restored(told, y, ["macs-d@1"], macs.restore.Settings(sigma_y=0.05))["macs-d@1"]
        assert restored.image.shape == (1, 64, 64)
        assert restored.record["notes"][: len(notes)] == notes
        assert (BLIND in restored.record["notes"]) == bool(notes)


def test_scratch_files_are_whole_and_go(monkeypatch):
    old = kept("record", b"old")
    os.utime(old, (time.time() - 2 * app.KEPT,) * 2)
    new = kept("record", b"new", "json")
    assert kept("record", b"new", "json") == new
    assert new.read_bytes() == b"new"
    assert not old.exists()
    assert not [path for path in Path(app.SCRATCH.name).iterdir() if path.name.startswith("tmp")]


def test_the_page_is_given_files_and_no_arrays(page):
    """Gradio writes an array over the file of an equal one, which another visitor may be fetching."""
    pytest.importorskip("gradio")
    from macs.page import Handlers

    handlers, controls = Handlers(page), (EXAMPLE, None, None, "super-resolution", 2, 3.0, 50, 0.05, 0)
    drawing, _ = handlers.choose(EXAMPLE, None)
    gallery, slider, *_ = handlers.restore(["multistep"], 1, 1, *controls, progress=lambda *_, **__: None)
    given = [drawing["background"], handlers.measure(*controls)[0], *(picture for picture, _ in gallery), *slider]
    assert {Path(picture).parent for picture in given} == {Path(app.SCRATCH.name)}
    assert handlers.choose(EXAMPLE, None)[0]["background"] == drawing["background"]


def test_what_nobody_foresaw_is_a_sentence_and_in_the_log(page, caplog, monkeypatch):
    gradio = pytest.importorskip("gradio")
    from macs.page import Handlers

    controls = (EXAMPLE, None, None, "super-resolution", 2, 3.0, 50, 0.05, 0)
    shown = Handlers(page).restore(["multistep"], 1, 1, *controls, progress=lambda *_, **__: None)
    assert json.loads(Path(shown[6]).read_text())["model_sha256"] == page.weights["super-resolution"]["model_sha256"]
    with pytest.raises(gradio.Error, match="the number of draws must be a number"):
        Handlers(page).restore(["multistep"], 1, None, *controls)
    monkeypatch.setattr(Page, "problem", lambda *_: None + 1)
    for call in (lambda: Handlers(page).measure(*controls), lambda: Handlers(page).restore(["multistep"], 1, 1, *controls)):
        with caplog.at_level(logging.ERROR), pytest.raises(gradio.Error, match="its log does"):
            call()
        assert "unsupported operand" in caplog.text
        caplog.clear()


def test_one_piece_of_work_runs_at_a_time(monkeypatch, page):
    pytest.importorskip("gradio")
    from macs import page as gradio_page

    monkeypatch.setattr(gradio_page, "Page", lambda *_: page)
    events = gradio_page.build().fns.values()
    assert {event.name for event in events} == {"choose", "measure", "restore", "settle"}
    assert {(event.concurrency_id, event.concurrency_limit) for event in events if event.name != "settle"} == {("work", 1)}
