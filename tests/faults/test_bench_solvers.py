"""All solvers in one benchmark: each row is what the package's own call computes; a network that is missing is one sentence."""

import json

import pytest
import torch
from typer.testing import CliRunner

import macs
from macs.benchmark.bench import Bench
from macs.benchmark.dataset import DATASETS
from macs.benchmark.features import to_bytes
from macs.benchmark.folder import chunks, read_rows
from macs.benchmark.networks import Names
from macs.benchmark.report import write_report
from macs.benchmark.run import run
from macs.benchmark.sealed import read_npz
from macs.benchmark.solvers import OTHERS, SOLVERS, TRAINED, available
from macs.benchmark.suite import chosen
from macs.benchmark.tables import tables
from macs.cli import app
from macs.demo import measured
from macs.models import store
from macs.models.build import ModelConfig, build

LEVELS = (2.0, 1.0, 0.5, 0.25)
#: What the rows are, written out once more.
SAME = {
    "MACS-D": lambda model, denoiser: macs.Solver(model, macs.MacsD(), steps=2),
    "zero-shot DDNM": lambda model, denoiser: macs.Solver(
        macs.Prior(model), macs.Multistep(data=macs.BackProjection()), steps=4
    ),
    "zero-shot MACS-D": lambda model, denoiser: macs.Solver(
        macs.Prior(model), macs.MacsD(), levels=LEVELS, init=macs.PseudoInverse()
    ),
    "PnP-CM": lambda model, denoiser: macs.PnpCm(model),
    "CM4IR": lambda model, denoiser: macs.Cm4ir(model),
    "DDRM": lambda model, denoiser: macs.Ddrm(denoiser),
    "DDRM, published noise": lambda model, denoiser: macs.Ddrm(denoiser, gain=2**0.5),
}
CALLS = {
    "measurement": 0, "MACS-D": 2, "zero-shot DDNM": 4, "zero-shot MACS-D": 4, "PnP-CM": 4, "CM4IR": 4, "DDRM": 20,
    "DDRM, published noise": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def images():
    """The ten images that come with the package as the test set."""
    pixels = to_bytes(macs.examples("fashion-mnist"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("macs.benchmark.dataset.fashion_mnist", lambda split, root: pixels)
        patch.delenv("MACS_LPIPS", raising=False)
        yield pixels


def a_bench(out, labels, **names):
    suite = chosen(DATASETS["fashion-mnist"].suite("solvers"), labels)
    return Bench(out, ("fashion-mnist",), ("inpainting",), suite, features="classifier", names=Names(**names))


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory):
    bench = a_bench(tmp_path_factory.mktemp("solvers") / "out", tuple(CALLS))
    run(bench, lambda row: None)
    return bench


def cached(bench, label):
    paths = chunks(bench, ("fashion-mnist", "inpainting", label), bench.entries[label].settings("inpainting")).values()
    return torch.cat([torch.from_numpy(read_npz(path)["x"]) for path in paths])


def test_calls_are_counted(finished):
    assert {row["sampler"]: row["nfe"] for row in read_rows(finished.rows_path)} == CALLS


@pytest.mark.parametrize("label", SAME)
def test_a_row_is_what_the_package_computes(label, finished, images):
    y, physics = measured(images.float() / 255, "inpainting", 0)
    solver = SAME[label](macs.load("fashion-mnist"), macs.load("fashion-mnist-edm"))
    torch.testing.assert_close(cached(finished, label), solver(y, physics, ids=range(10)), atol=1e-4, rtol=0)


def test_the_table_and_the_figure_of_all_solvers(finished):
    rows = read_rows(finished.rows_path)
    write_report(finished)
    text = (finished.out / "report.md").read_text()
    assert "whose noise has half the variance of the published scheme" in text
    text = text.split("Differences on the same images")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    lines = {line[0]: line for line in cells}
    assert lines["solver"][-1] == "time / MACS-D"
    assert lines["MACS-D"][-1] == "1"
    assert lines["CM4IR"][1:3] == ["no, zero-shot", "4"]
    by = {row["sampler"]: row["seconds_per_image"] for row in rows}
    assert float(lines["DDRM"][-1]) == pytest.approx(by["DDRM"] / by["MACS-D"], rel=0.01)
    assert "ms/image" not in text, "no second table of the same rows"
    assert (finished.out / "solvers-inpainting-fashion-mnist.png").stat().st_size > 20_000
    more = [*rows, {**rows[1], "sampler": "DDIM"}]
    first, second = tables(more, [], [])
    assert {line[0] for line in first.body} == {"measurement", "MACS-D", "DDIM"}
    assert {line[0] for line in second.body} == set(CALLS)


def test_the_networks_of_a_run_are_kept_in_mind(finished):
    path = finished.out / "bench.json"
    before = path.read_text()
    assert json.loads(before)["networks"]["denoiser"] == store.model_digest("fashion-mnist-edm")
    path.write_text(before.replace('"denoiser": "', '"denoiser": "0'))
    with pytest.raises(macs.MacsError, match="another file for the network denoiser"):
        run(finished, lambda row: None)
    path.write_text(before)


def test_deft_from_a_file(images, tmp_path):
    config = ModelConfig(family="deft", channels=(8, 8), layers=1, groups=4, head_dim=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        store.save_model(tmp_path / "deft.safetensors", build(config).state_dict(), config, {"kind": "denoiser"})
    bench = a_bench(tmp_path / "out", ("DEFT",), deft=str(tmp_path / "deft.safetensors"))
    run(bench, lambda row: None)
    y, physics = measured(images.float() / 255, "inpainting", 0)
    solver = macs.Deft(macs.load("fashion-mnist-edm"), macs.load(tmp_path / "deft.safetensors"))
    torch.testing.assert_close(cached(bench, "DEFT"), solver(y, physics, ids=range(10)), atol=1e-4, rtol=0)
    assert read_rows(bench.rows_path)[0]["nfe"] == 20


def test_without_its_network_deft_is_left_out():
    kept, said = available(SOLVERS, Names())
    assert set(SOLVERS) - set(kept) == {"DEFT"}
    assert said.startswith("DEFT is left out, its network is not bundled; train one with examples/train_deft.py")
    assert available(SOLVERS, Names(deft="x")) == (SOLVERS, None)
    assert available({"CM4IR": SOLVERS["CM4IR"]}, Names())[1] is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--samplers", "DEFT"], "error: DEFT is left out, its network is not bundled"),
        (["--samplers", "DEFT", "--deft", "fashion-mnist"], "Deft needs the network that was trained to correct its denoiser"),
        (["--samplers", "DEFT; DDRM", "--deft", "none.safetensors"], "none.safetensors cannot be read"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(options, sentence, images, tmp_path, monkeypatch):
    monkeypatch.setattr("macs.benchmark.solvers.DEFT", "none")
    args = ["bench", "fashion-mnist", "--suite", "solvers", "--features", "classifier", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*args, *options])
    assert result.exit_code == 2
    assert sentence in result.output
    assert not (tmp_path / "out" / "rows.jsonl").exists()


def test_slow_solvers_are_kept_in_small_parts(images, tmp_path):
    bench = a_bench(tmp_path, ("DPS", "MACS-D"))
    assert (bench.chunk("MACS-D"), bench.chunk("DPS")) == (5, 5), "two parts at least"
    bench.__dict__["pixels"] = images.repeat(100, 1, 1, 1)
    assert (bench.chunk("MACS-D"), bench.chunk("DPS")) == (500, 50)


def test_every_solver_says_what_it_is():
    assert SOLVERS["DPS"].settings("inpainting") == "Dps(denoiser, steps=1000)"
    assert SOLVERS["MACS"].settings("inpainting") == f"{macs.Macs(gamma=0.15)!r}, steps=2"
    assert set(TRAINED) == set(SOLVERS)
    assert set(OTHERS) == set(SOLVERS) - set(DATASETS["fashion-mnist"].suite("table")) - {"measurement"}
