"""A benchmark that is killed goes on, repeats itself, refuses a folder of something else, and calls no other distance FID."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from macs.benchmark.bench import Bench
from macs.benchmark.dataset import DATASETS
from macs.benchmark.features import Extractor, to_bytes
from macs.benchmark.folder import read_npz, read_rows
from macs.benchmark.networks import Names, Networks
from macs.benchmark.paired import AGAINST, differences
from macs.benchmark.paper import NFE, TABLE_I, TABLE_II, TABLE_III
from macs.benchmark.perceptual import find_lpips
from macs.benchmark.report import write_report
from macs.benchmark.run import METRICS, missing_jobs, restore_chunk, run
from macs.benchmark.solvers import SOLVERS
from macs.benchmark.suite import chosen
from macs.cli import app
from macs.errors import ConfigError, DataError, MacsWarning
from macs.metrics import psnr, ssim
from tests.lpips import random_weights


@pytest.fixture(scope="module")
def test_set():
    """A test set of ten images that come with the package, four times over with small changes."""
    import macs

    x = macs.examples("fashion-mnist")
    images = to_bytes(torch.cat([x.roll(k, -1) for k in range(4)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("macs.benchmark.dataset.fashion_mnist", lambda split, root: images)
        patch.setattr("macs.benchmark.bench.AT_ONCE", 16 * 784)
        patch.delenv("MACS_LPIPS", raising=False)
        yield images


def a_bench(folder, labels=("Multistep", "DDIM", "MACS-D"), tasks=("inpainting",), suite="table", images=40, **options):
    entries = chosen(DATASETS["fashion-mnist"].suite(suite), labels)
    return Bench(folder, ("fashion-mnist",), tasks, entries, images=images, features="classifier", **options)


def without_times(rows):
    return [{key: value for key, value in row.items() if key != "seconds_per_image"} for row in rows]


@pytest.fixture(scope="module")
def once(test_set, tmp_path_factory):
    """A finished run, which nobody writes to."""
    bench = a_bench(tmp_path_factory.mktemp("once") / "bench")
    run(bench, lambda row: None)
    return bench


@pytest.fixture
def finished(once, tmp_path):
    """A finished run of one's own."""
    shutil.copytree(once.out, tmp_path / "bench")
    return a_bench(tmp_path / "bench")


def test_rows_say_what_they_are(finished, test_set):
    rows = read_rows(finished.rows_path)
    assert [row["sampler"] for row in rows] == ["Multistep", "DDIM", "MACS-D"]
    for row in rows:
        assert row["nfe"] == 2
        assert row["images"] == 40
        assert row["features"] == "classifier"
        assert row["levels"][0] == 80
        assert "lpips" not in row, "no weights were given"
        assert all(row[f"{m}_lo"] <= row[m] <= row[f"{m}_hi"] for m in METRICS if m != "lpips")


def restored_images(bench, label):
    parts = sorted((bench.cache / "restored" / f"fashion-mnist--inpainting--{label}").glob("*.npz"))
    return torch.cat([torch.from_numpy(read_npz(p)["x"]) for p in parts])


def test_a_row_is_what_the_images_say(finished, test_set):
    """PSNR and SSIM once more from the restored images in the cache."""
    row, truth = read_rows(finished.rows_path)[0], test_set.float() / 255
    x = restored_images(finished, "Multistep")
    assert row["psnr"] == pytest.approx(psnr(x, truth).mean().item(), rel=1e-6)
    assert row["ssim"] == pytest.approx(ssim(x, truth).double().mean().item(), rel=1e-6)


def test_a_killed_run_goes_on_where_it_was(finished, test_set, tmp_path, monkeypatch):
    """Killed in the middle of a row: the finished row and the finished chunks are not computed again, and nothing differs."""
    bench = a_bench(tmp_path / "other")
    calls = 0

    def until_killed(*args):
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return restore_chunk(*args)

    monkeypatch.setattr("macs.benchmark.run.restore_chunk", until_killed)
    with pytest.raises(KeyboardInterrupt):
        run(bench, lambda row: None)
    assert [job[2] for job in missing_jobs(bench)] == ["DDIM", "MACS-D"]
    run(bench, lambda row: None)
    assert calls == 6 + 4, "three chunks a row; two of the second were done"
    assert without_times(read_rows(bench.rows_path)) == without_times(read_rows(finished.rows_path))


def test_finished_rows_are_never_computed_again(finished, test_set, monkeypatch):
    before = finished.rows_path.read_bytes()
    monkeypatch.setattr("macs.benchmark.run.restore_chunk", None)
    run(finished, lambda row: None)
    assert finished.rows_path.read_bytes() == before


def test_a_torn_last_line_is_no_row(finished):
    whole = finished.rows_path.read_bytes()
    finished.rows_path.write_bytes(whole + b'{"model": "fashion-mn')
    assert len(read_rows(finished.rows_path)) == 3
    finished.rows_path.write_bytes(b"{]\n" + whole)
    with pytest.raises(DataError, match="is damaged"):
        read_rows(finished.rows_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"images": 20}, "holds rows of images 40, not 20"), ({"seed": 1}, "holds rows of seed 0, not 1")],
    ids=str,
)
def test_a_folder_of_another_configuration(finished, change, sentence):
    before = finished.rows_path.read_bytes()
    with pytest.raises(ConfigError, match=sentence):
        run(a_bench(finished.out, **change), lambda row: None)
    assert finished.rows_path.read_bytes() == before


def test_a_folder_of_another_model_file(finished):
    path = finished.out / "bench.json"
    path.write_text(path.read_text().replace('"fashion-mnist": "', '"fashion-mnist": "0'))
    with pytest.raises(ConfigError, match="another file for the model fashion-mnist"):
        run(finished, lambda row: None)


def test_pairs_are_compared_image_by_image(finished):
    rows = read_rows(finished.rows_path)
    found = {(d.sampler, d.against, d.metric): d for d in differences(finished, rows)}
    by = {row["sampler"]: row for row in rows}
    d = found["MACS-D", "Multistep", "psnr"]
    assert d.value == pytest.approx(by["MACS-D"]["psnr"] - by["Multistep"]["psnr"])
    assert d.hi - d.lo < by["MACS-D"]["psnr_hi"] - by["MACS-D"]["psnr_lo"], "pairs are sharper than two intervals"
    assert ("Multistep", "Multistep", "psnr") not in found


def test_a_report_of_nothing_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="holds no finished row to report of; run it without --report first"):
        write_report(a_bench(tmp_path))


def test_the_report(finished):
    page = write_report(finished)
    text = (finished.out / "report.md").read_text()
    assert "FD-FMNIST" in text
    assert "FID" not in text, "a distance on a classifier's features is not FID"
    html = page.read_text()
    assert "data:image/png;base64," in html
    assert "http" not in html
    assert r"\begin{tabular}" in (finished.out / "table-II-fashion-mnist.tex").read_text()
    lines = [json.loads(line) for line in (finished.out / "paired.jsonl").read_text().splitlines()]
    assert {line["verdict"] for line in lines} <= {"ahead", "behind", "open"}
    for name in ("plane", "residue", "comparison"):
        assert (finished.out / f"{name}-fashion-mnist.png").stat().st_size > 10_000


def test_differences_outlive_the_cache(finished):
    write_report(finished)
    before = (finished.out / "paired.jsonl").read_bytes()
    shutil.rmtree(finished.cache)
    write_report(finished)
    assert (finished.out / "paired.jsonl").read_bytes() == before


@pytest.fixture
def weights(tmp_path):
    save_file(random_weights(), tmp_path / "lpips.safetensors")
    return str(tmp_path / "lpips.safetensors")


def test_lpips_is_added_to_finished_rows(finished, test_set, weights, monkeypatch):
    """No network of a sampler runs again, nothing else changes, and the numbers are those of the images in the cache."""
    before = read_rows(finished.rows_path)
    monkeypatch.setattr("macs.benchmark.run.restore_chunk", None)
    told = []
    run(a_bench(finished.out, lpips=weights), told.append)
    rows = read_rows(finished.rows_path)
    assert told == rows
    for old, row in zip(before, rows, strict=True):
        each = find_lpips(weights)(restored_images(finished, row["sampler"]), test_set.float() / 255)
        assert row["lpips"] == pytest.approx(each.double().mean().item(), rel=1e-9)
        assert row["lpips_lo"] < row["lpips"] < row["lpips_hi"]
        assert {k: v for k, v in row.items() if not k.startswith("lpips")} == old
    run(a_bench(finished.out, lpips=weights), lambda row: pytest.fail("it was there"))


def test_lpips_of_new_rows_is_that_of_rows_completed_later(finished, weights, tmp_path):
    new = a_bench(tmp_path / "new", labels=("DDIM",), lpips=weights)
    run(new, lambda row: None)
    run(a_bench(finished.out, lpips=weights), lambda row: None)
    assert without_times(read_rows(new.rows_path)) == without_times(read_rows(finished.rows_path)[1:2])


def test_rows_whose_images_are_gone_stay_without_lpips(finished, weights):
    next((finished.cache / "restored" / "fashion-mnist--inpainting--DDIM").glob("*.npz")).unlink()
    with pytest.warns(MacsWarning, match=r"1 rows stay without LPIPS \(DDIM\).*another --out"):
        run(a_bench(finished.out, lpips=weights), lambda row: None)
    assert ["lpips" in row for row in read_rows(finished.rows_path)] == [True, False, True]
    write_report(finished)
    text = (finished.out / "report.md").read_text()
    assert "LPIPS is version 0.1 on AlexNet" in text
    line = next(line for line in text.splitlines() if line.startswith("| DDIM |"))
    assert line.count("|") == next(line for line in text.splitlines() if "ms/image" in line).count("|")
    found = {(d.sampler, d.against, d.metric): d for d in differences(finished, read_rows(finished.rows_path))}
    d = found["MACS-D", "Multistep", "lpips"]
    assert d.verdict == ("open" if d.lo <= 0 <= d.hi else "ahead" if d.value < 0 else "behind"), "less is better"
    assert ("MACS-D", "DDIM", "lpips") not in found


def test_features_are_cached_by_content(tmp_path):
    """An image that was seen in another set is not run again, whatever its place; a damaged cache is one sentence."""
    import macs

    x = macs.examples("fashion-mnist")
    first = Extractor("classifier", tmp_path)
    features = first(x)
    again = Extractor("classifier", tmp_path)
    again._network = lambda images: pytest.fail("the network ran")
    assert torch.equal(again(x.flip(0)), features.flip(0))
    next((tmp_path / "classifier").glob("*.npy")).write_bytes(b"torn")
    with pytest.raises(DataError, match="is damaged"):
        Extractor("classifier", tmp_path)(x)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["lsun"], "unknown dataset 'lsun'"),
        (["fashion-mnist", "--tasks", "deblur"], "unknown task 'deblur'"),
        (["fashion-mnist", "--samplers", "MACS-E"], "unknown sampler 'MACS-E'"),
        (["fashion-mnist", "--suite", "tables"], "unknown suite of Fashion-MNIST 'tables'"),
        (["fashion-mnist", "--features", "vgg"], "unknown kind of features 'vgg'"),
        (["fashion-mnist", "--model", "none"], "unknown model 'none'"),
        (["fashion-mnist", "--inception", "none.safetensors"], "none.safetensors cannot be read"),
        (["fashion-mnist", "--lpips", "none.safetensors"], "none.safetensors is no readable file of LPIPS weights"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(options, sentence, test_set, tmp_path):
    result = CliRunner().invoke(app, ["bench", *options, "--images", "10", "--out", str(tmp_path / "bench")])
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "bench" / "rows.jsonl").exists()


@pytest.mark.parametrize("name", DATASETS)
def test_the_suite_holds_what_the_paper_compares(name):
    suite = DATASETS[name].suite("table")
    assert set(NFE) <= set(suite)
    assert {label for labels in AGAINST.values() for label in labels} <= {*suite, *SOLVERS}
    assert {task for table in DATASETS[name].tables for task in table.tasks} == set(DATASETS[name].tasks)


@pytest.mark.parametrize("name", DATASETS)
def test_a_label_is_the_same_solver_in_every_suite(name):
    """Suites share a folder, and a row that is there is not computed again."""
    about, networks = DATASETS[name], Networks(lambda x, y, t: x, Names())
    seen, twice = {}, set()
    for suite in about.suites.values():
        for label, entry in suite.items():
            if entry.uses == ("model",) and label != "measurement":
                made = [(entry.settings(task), entry.solver(networks, task).levels) for task in about.tasks]
                assert seen.setdefault(label, made) == made, label
                twice |= {label} if seen[label] is not made else set()
    assert "MACS-D" in twice


def test_the_papers_numbers():
    assert TABLE_I.published("Multistep", "deblurring") == (24.41, 0.700, 41.57, 8.61)
    assert TABLE_II.published("MACS", "super-resolution") == (18.97, 0.557, 19.85, 12.1)
    assert TABLE_III.published("Heun", "nonlinear-deblurring") == (22.47, 0.563, 56.05, 13.4)
    for table in (TABLE_I, TABLE_II, TABLE_III):
        assert set(table.methods) == set(NFE)
        assert set(table.gamma) == set(table.tasks)
        assert all(len(numbers) == len(table.tasks) for numbers in table.methods.values())


def test_the_second_level_is_swept(test_set, tmp_path):
    """Two calls at (80, s) each, by the sampler that the label names; the figure draws both samplers."""
    bench = a_bench(tmp_path / "bench", labels=("Multistep, s 0.8", "Multistep, s 8", "MACS-D, s 0.8"), suite="levels")
    run(bench, lambda row: None)
    rows = read_rows(bench.rows_path)
    assert [row["levels"] for row in rows] == [[80, 0.8], [80, 8], [80, 0.8]]
    assert [row["nfe"] for row in rows] == [2, 2, 2]
    assert [row["settings"].split("(")[0] for row in rows] == ["Multistep", "Multistep", "MacsD"]
    assert len({row["psnr"] for row in rows}) == 3
    write_report(bench)
    assert (bench.out / "level-fashion-mnist.png").stat().st_size > 10_000
    assert "level-fashion-mnist.png" in (bench.out / "report.md").read_text()
    assert not (bench.out / "gamma-fashion-mnist.png").exists()
