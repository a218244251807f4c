"""What a newcomer tries first: the lines of the README and the demonstration."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import macs
from macs import demo
from macs.cli import app

ROOT = Path(__file__).parent.parent


def test_the_lines_of_the_readme_run(capsys):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    names = {}
    exec(block, names)  # noqa: S102
    assert names["x_hat"].shape == names["x"].shape
    assert names["trace"].nfe == [1, 2]
    assert "[1, 2]" in capsys.readouterr().out


@pytest.fixture
def few(monkeypatch):
    """Two of the samplers, to be quick."""
    monkeypatch.setattr(demo, "CAST", {k: demo.CAST[k] for k in ("Multistep", "MACS-D")})
    return demo.CAST


def test_the_demonstration(tmp_path, few):
    """A table, a picture and a page for every task."""
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    for word in (*macs.TASKS, *few, "PSNR", "chi2"):
        assert word in result.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("http-equiv", "")
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 10_000


def test_the_bundled_model_restores(few):
    """Every task: nearer to the truth than the measurement by 3 dB and more, in two calls, within the noise."""
    rows = {(r.task, r.sampler): r for r in demo.rows()}
    for name in macs.TASKS:
        best = rows[name, "MACS-D"]
        assert best.nfe == 2
        assert best.psnr > rows[name, "measurement"].psnr + 3
        assert 0.5 < best.chi2 < 2


def test_the_bundled_model_is_also_a_prior():
    """Without a measurement it makes images laid out like the data: a bright middle between dark sides."""
    model = macs.load("fashion-mnist")
    z = torch.randn(16, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = (model(80 * z, None, 80.0).clamp(-1, 1) + 1) / 2
    sides, middle = torch.cat([x[..., :3], x[..., -3:]], -1).mean(), x[..., 8:20, 8:20].mean()
    assert middle > sides + 0.2
