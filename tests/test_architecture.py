"""The shape of the code itself: what imports what, what is never called, what the package promises to export."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import macs

SOURCE = Path(macs.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

#: Each core module may import only those before it.
ORDER = ["errors", "levels", "noise", "problem", "fidelity", "steps", "macs_d", "solver"]


def imported(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names)


@pytest.mark.parametrize("name", ORDER)
def test_the_core_imports_only_what_comes_before(name):
    allowed = {f"macs.{m}" for m in ORDER[: ORDER.index(name)]}
    ours = {".".join(m.split(".")[:2]) for m in imported(SOURCE / f"{name}.py") if m.startswith("macs.")}
    assert ours <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_does_what_none_may(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "each module says what it is"
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), "assert vanishes under python -O"
    assert not {"pickle", "torch.load", "dill"} & set(imported(path))
    text = path.read_text()
    if path.name == "convert.py":
        assert text.count("torch.load(") == text.count("weights_only=True") == 1, "the one place, and tensors only"
    else:
        assert "torch.load(" not in text
    assert "nan_to_num(" not in text or path.name == "problem.py"


def test_import_is_cheap_and_names_are_there():
    code = (
        "import sys, macs; heavy = {'torch', 'deepinv', 'gradio', 'matplotlib', 'ray', 'diffusers'} & set(sys.modules); "
        "assert not heavy, heavy; [getattr(macs, n) for n in macs.__all__]; "
        "heavy = {'gradio', 'matplotlib', 'ray'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Mask'"):
        _ = macs.Mask


def test_public_names():
    promised = {
        "Macs", "Ddim", "Euler", "Addim", "Multistep", "Heun", "DpmSolver", "MacsD", "Solver", "Problem", "discrepancy", "task",
        "load", "Cm4ir", "PnpCm", "Dps", "Ddrm", "DiffPir", "Lgd", "Deft",
    }  # fmt: skip
    assert promised <= set(macs.__all__)
