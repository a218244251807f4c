"""The examples run, and restore better than what they start from."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tomography", "accelerated_mri"])
def test_an_example(name, tmp_path):
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--images", "4", "--out", str(picture)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[1:]
    first, *restored = (float(re.search(r"PSNR ([\d.]+) dB", line)[1]) for line in lines)
    assert len(restored) == 3
    assert max(restored) > first + 2
    assert picture.stat().st_size > 1000
