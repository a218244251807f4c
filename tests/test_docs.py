"""The documentation: the tutorial runs, the reference names every option, every page can be reached."""

import re
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torchmetrics.functional.image.lpips import _LPIPS
from torchmetrics.image import lpip
from typer.main import get_command

from macs.cli import app
from macs.lpips import Lpips
from tests.faults.test_training import TINY, images

DOCS = Path(__file__).parent.parent / "docs"


def commands(group, prefix=""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} ")
        else:
            yield f"{prefix}{name}"


def python_in(page):
    return "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))


@pytest.mark.parametrize("page", ["tutorial.md", "index.md"])
def test_the_python_of_a_page_runs(page, capsys):
    with torch.random.fork_rng(devices=[]):
        exec(compile(python_in(page), page, "exec"), {"__name__": "tutorial"})  # noqa: S102


def test_the_python_of_a_training_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "photos").mkdir()
    for i, image in enumerate(images()):
        Image.fromarray(image[0].numpy()).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "my.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "models"}
    exec(compile(python_in("models.md"), "models.md", "exec"), names)  # noqa: S102
    assert names["run"].done
    assert names["model"].image_shape == (1, 8, 8)


def test_the_file_of_lpips_is_what_torchmetrics_computes(tmp_path, monkeypatch):
    """On an AlexNet that was not trained, whose weights need no download; the linear layers are those of LPIPS."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = _LPIPS(net="alex", pnet_rand=True)
    monkeypatch.setattr(lpip, "LearnedPerceptualImagePatchSimilarity", lambda net_type: SimpleNamespace(net=theirs))
    monkeypatch.chdir(tmp_path)
    exec(compile(python_in("reproducibility.md"), "reproducibility.md", "exec"), {})  # noqa: S102
    x, y = 2 * torch.rand(2, 3, 3, 64, 64, generator=torch.Generator().manual_seed(1)) - 1
    torch.testing.assert_close(Lpips("lpips.safetensors")(x, y), theirs(x, y).flatten())


def test_the_reference_is_the_help_of_every_command():
    made, text = run_path(DOCS / "commands.py"), (DOCS / "commands.md").read_text()
    assert set(made["COMMANDS"]) == set(commands(get_command(app)))
    assert text == made["reference"](text), "run python docs/commands.py"
    assert text.count("Example:") == len(made["COMMANDS"])


def test_every_page_is_in_the_navigation_and_there():
    nav = set(re.findall(r": (\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE))
    assert nav == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
