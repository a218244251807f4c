"""A page that is served on this machine."""

import socket

import pytest
from PIL import Image


@pytest.fixture(scope="package")
def address():
    pytest.importorskip("gradio")
    from macs.page import build, serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    limit, blocks = Image.MAX_IMAGE_PIXELS, build()
    yield serve(blocks, port=port, wait=False)
    blocks.close()
    Image.MAX_IMAGE_PIXELS = limit
