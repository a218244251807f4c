"""The page in a real browser: load, change, draw, upload, restore, fail; and no request leaves the machine.

Screenshots go to ``$MACS_ARTEFACTS`` where that is set, else to pytest's temporary folder.
"""

import json
import os
import shutil
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest
from PIL import Image

from macs.images import decode

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytest.importorskip("gradio")
sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
WAIT = 120_000


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking", "--disable-dev-shm-usage"]
        )


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    folder = Path(os.environ.get("MACS_ARTEFACTS") or tmp_path_factory.mktemp("page"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def seen():
    """The hosts that the browser asked, and what it complained of."""
    return {"hosts": set(), "errors": []}


@pytest.fixture(scope="module")
def page(browser, address, seen):
    """One visit, which the tests below continue in their order."""
    page = browser.new_page(viewport={"width": 1280, "height": 1500})
    page.set_default_timeout(WAIT)
    page.on("request", lambda request: seen["hosts"].add(urlparse(request.url).hostname))
    page.on("pageerror", lambda error: seen["errors"].append(str(error)))
    page.goto(address)
    page.wait_for_selector("#measurement img")
    return page


def note(page, text):
    page.wait_for_function("text => document.querySelector('#measurement-note').innerText.includes(text)", arg=text)


def restore(page):
    page.click("#restore")
    page.wait_for_selector("#gallery img")
    page.wait_for_function("() => document.querySelector('#numbers').innerText.includes('macs-d')")


def test_the_page_loads_with_an_example(page, artefacts):
    note(page, "reduced by 2, bicubic; 14x14 pixels")
    page.wait_for_selector("#drawing canvas")
    page.screenshot(path=artefacts / "1-loaded.png")


def test_restoring_shows_images_numbers_and_files(page, artefacts):
    restore(page)
    page.wait_for_selector("#curve img")
    assert page.locator("#gallery img").count() >= 4
    words = page.inner_text("#numbers")
    assert "multistep" in words
    page.screenshot(path=artefacts / "2-restored.png", full_page=True)
    with page.expect_download() as download:
        page.click("#download-json")
    rows = json.loads(Path(download.value.path()).read_text())["rows"]
    assert [row["name"] for row in rows] == ["measurement", "macs-d", "multistep"]
    assert rows[1]["psnr"] > rows[0]["psnr"] + 1
    with page.expect_download() as download:
        page.click("#download-png")
    assert decode(Path(download.value.path()).read_bytes(), None).shape == (1, 28, 28)


def test_a_slider_changes_the_measurement(page):
    page.get_by_label("deblurring").check()
    note(page, "standard deviation 3 pixels")
    number = page.locator("#std input[type=number]")
    number.fill("1.5")
    number.press("Enter")
    page.locator("#std input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => !document.querySelector('#measurement-note').innerText.includes('deviation 3 pixels')")


def draw_a_stroke(page):
    canvas = page.locator("#drawing canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.45, steps=8)
    page.mouse.up()


def test_a_mask_is_drawn(page, artefacts):
    page.get_by_label("inpainting").check()
    note(page, "25 % of the pixels are missing")
    before = page.get_attribute("#measurement img", "src")
    for _ in range(6):  # a stroke is lost where the canvas is still being set up
        draw_a_stroke(page)
        try:
            page.wait_for_function("src => document.querySelector('#measurement img')?.src !== src", arg=before, timeout=10_000)
            break
        except sync_api.TimeoutError:
            continue
    assert page.get_attribute("#measurement img", "src") != before
    page.locator("#draws input[type=number]").fill("4")
    page.locator("#draws input[type=number]").press("Enter")
    restore(page)
    page.wait_for_selector("#spread img")
    page.screenshot(path=artefacts / "3-drawn.png", full_page=True)


def test_a_photo_is_uploaded(page, artefacts, tmp_path):
    rows, columns = np.mgrid[0:150, 0:200]
    photo = np.stack([rows + 50, columns, 255 - rows], 2).astype(np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.jpg")
    page.set_input_files("#upload input[type=file]", tmp_path / "photo.jpg")
    page.wait_for_function("() => document.querySelector('#choice-note').innerText.includes('averaged down to 112x84')")
    page.screenshot(path=artefacts / "4-uploaded.png")


def test_what_is_no_image_is_said(page, artefacts, tmp_path):
    (tmp_path / "fake.png").write_bytes(b"this is no picture")
    page.locator("#upload button[aria-label*='lear'], #upload button[aria-label*='emove']").first.click()
    page.set_input_files("#upload input[type=file]", tmp_path / "fake.png")
    page.wait_for_selector("text=does not begin like one")
    page.screenshot(path=artefacts / "5-refused.png")


def test_nothing_left_the_machine(page, seen):
    assert {host for host in seen["hosts"] if host} == {"127.0.0.1"}
    assert seen["errors"] == []
