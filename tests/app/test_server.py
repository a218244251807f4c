"""The page as a server, without a browser: limits, and a queue that holds."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from macs.app import MAX_PIXELS, examples_of


def test_too_many_bytes_are_refused(address):
    import httpx

    files = {"files": ("big.png", b"\0" * (9 * 2**20), "image/png")}
    assert httpx.post(f"{address}gradio_api/upload", files=files, timeout=60).status_code in (400, 413)


@pytest.mark.slow
def test_fifty_visitors_wait_their_turn(address):
    """Fifty at once: each is served, none sees an error."""
    from gradio_client import Client

    client = Client(address, verbose=False)
    controls = [next(iter(examples_of("fashion-mnist"))), None, None, "super-resolution", 2, 3, 50, 0.05]
    jobs = [client.submit(["multistep"], 1, 1, *controls, seed, api_name="/restore") for seed in range(50)]
    with ThreadPoolExecutor(50) as pool:
        results = list(pool.map(lambda job: job.result(timeout=600), jobs))
    assert all(len(result[0]) == 3 for result in results)


def test_no_drawing_is_a_bomb(address):
    assert Image.MAX_IMAGE_PIXELS == MAX_PIXELS
