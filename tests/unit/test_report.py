"""The report: exact figures of runs made up here, what is said of bad input, and the page in a browser."""

import csv
import html
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from base64 import b64decode
from html.parser import HTMLParser

import numpy as np
import pytest
from support.jobs import ROOT

from hvdtrain.cli import report
from hvdtrain.config.options import Config
from hvdtrain.config.record import to_record
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.report import charts, pages
from hvdtrain.runs import checkpoints

HOST = {"name": "node1", "system": "Linux", "processor": "AMD EPYC", "cores": 4, "OMP_NUM_THREADS": "1"}


def make_run(folder, moved=None, ranks=1, devices=1, host=None, without=(), **given):
    """A run's folder. `moved` writes a checkpoint whose parameters are that far from zero, in one of them.

    given: options of training, or what `result.json` holds; without: names left out, as old runs do.
    """
    options = {name: given.pop(name) for name in list(given) if name in to_record(Config())}
    config = Config(**{"strategy": "single", **options})
    place = {"ranks": ranks, "devices": devices, "device": "cpu", "host": {**HOST, **(host or {})}}
    versions = {"python": "3.11.7", "numpy": "1.23.5", config.framework: "2.0"}
    result = {
        "accuracy": 0.9, "loss": 0.3, "steps": 8, "parameters": "ab", "images_per_s": 1000.0, "peak_rss_mb": 400.0,
        "skipped": 0, "per_class_accuracy": {"0": float("nan")}, "confusion": [[1]], "epoch_s": 2.0,
        "global_batch": config.global_batch(ranks), "shares": None, **given,
    }  # fmt: skip
    written = {
        "config": to_record(config),
        "places": {"devices": 0},
        "versions": versions,
        **place,
        "started": "2026-01",
    }
    folder.mkdir(parents=True)
    for name, values in (("config.json", written), ("result.json", result)):
        kept = {key: value for key, value in values.items() if key not in without}
        (folder / name).write_text(json.dumps(kept))
    if moved is not None:
        save(folder, config, moved, step=result["steps"])
    return folder


def save(folder, config, moved, step):
    weights = {"w": np.zeros((2, 3), np.float32), "b": np.array([0, moved], np.float32)}
    position = Position(1, 0, step, config.batch_size, config.seed)
    made = Checkpoint(weights, OptimizerState({}), position, "lenet", config.framework, "sgd", "f1", 0.5, ("0", "1"))
    checkpoints.save(folder / "checkpoints", made, keep=3)


def write(tmp_path, *runs):
    """The report's folder."""
    report.main([*map(str, runs), "--output", str(tmp_path / "out")])
    return tmp_path / "out"


def table(folder):
    """The rows of report.csv."""
    with open(folder / "report.csv", newline="") as file:
        return list(csv.DictReader(file))


def lines(folder):
    """The same by (framework, strategy, ranks, devices)."""
    rows = table(folder)
    found = {tuple(row[name] for name in ("framework", "strategy", "ranks", "devices")): row for row in rows}
    assert len(found) == len(rows)
    return found


def number(row, name):
    return float(row[name])


def test_repetitions_are_one_row_with_median_and_ends(tmp_path, capsys):
    for name, speed, seed in (("a", 900.0, 0), ("b", 1100.0, 1), ("c", 1000.0, 0)):
        given = {"epoch_s": speed / 100, "peak_rss_mb": speed / 2, "accuracy": speed / 2000, "seed": seed}
        shares = {"compute": 0.5, "communicate": 0.25, "data": 0.25} if name != "c" else None
        make_run(tmp_path / "runs" / name, images_per_s=speed, framework="mxnet", shares=shares, **given)
    row = lines(write(tmp_path, tmp_path / "runs"))["mxnet", "single", "1", "1"]
    expected = {
        "runs": 3, "images_per_s_median": 1000, "images_per_s_least": 900, "images_per_s_greatest": 1100,
        "epoch_s": 10, "peak_rss_mb": 550, "accuracy_median": 0.5, "accuracy_least": 0.45, "accuracy_greatest": 0.55,
        "compute_share": 0.5, "communicate_share": 0.25, "data_share": 0.25, "speedup": 1, "efficiency": 1,
    }  # fmt: skip
    assert {name: number(row, name) for name in expected} == pytest.approx(expected)
    output = capsys.readouterr().out
    assert (
        "| mxnet | single | 1 × 1 | 1,000 (900 to 1,100, 3 runs) | 10.00 | 50% / 25% / 25% | base | — | 550 | "
        "0.5000 (0.4500 to 0.5500) | — |"
    ) in output
    assert output.splitlines()[-1] == "written: " + ", ".join(
        str(tmp_path / "out" / name) for name in ("report.md", "report.csv", "report.html")
    )
    assert "- seed: differs: 0 (2 runs), 1 (1 run)\n" in (tmp_path / "out" / "report.md").read_text()


def test_a_default_spelt_out_is_a_repetition_and_another_style_is_not(tmp_path):
    for name, api in (("a", "auto"), ("b", "gluon"), ("c", "module")):
        make_run(tmp_path / name, framework="mxnet", api=api)
    make_run(tmp_path / "d", framework="mxnet", strategy="kvstore", kvstore="dist_sync", ranks=2)
    text = (write(tmp_path, tmp_path) / "report.md").read_text()
    assert [line.split(" | ")[1:4] for line in text.splitlines() if line.startswith("| mxnet")] == [
        ["single", "1 × 1", "1,000 (1,000 to 1,000, 2 runs)"],
        ["single (module)", "1 × 1", "1,000 (1 run)"],
        ["kvstore dist_sync", "2 × 1", "1,000 (1 run)"],
    ]


def test_strong_scaling(tmp_path):
    make_run(tmp_path / "one", images_per_s=1000.0, batch_size=64)
    make_run(tmp_path / "two", images_per_s=1600.0, batch_size=64, strategy="horovod", ranks=2)
    make_run(tmp_path / "four", images_per_s=2000.0, batch_size=64, strategy="horovod", ranks=2, devices=2)
    rows = lines(write(tmp_path, tmp_path))
    two, four = rows["torch", "horovod", "2", "1"], rows["torch", "horovod", "2", "2"]
    assert (two["scaling"], two["scaling_base"]) == ("strong", "torch single, 1 × 1")
    # S = 1.6: e = (1/1.6 - 1/2) / (1 - 1/2) = 0.25; S = 2: e = (1/2 - 1/4) / (1 - 1/4) = 1/3
    assert [number(two, name) for name in ("speedup", "efficiency", "karp_flatt")] == pytest.approx([1.6, 0.8, 0.25])
    assert [number(four, name) for name in ("speedup", "efficiency", "karp_flatt")] == pytest.approx([2, 0.5, 1 / 3])
    assert rows["torch", "single", "1", "1"]["karp_flatt"] == ""


def test_weak_scaling_takes_the_base_of_one_replicas_batch(tmp_path):
    make_run(tmp_path / "one", images_per_s=1000.0, batch_size=32)
    make_run(tmp_path / "large", images_per_s=3000.0, batch_size=96)
    make_run(
        tmp_path / "three", images_per_s=2400.0, batch_size=32, batch_scope="per-rank", strategy="horovod", ranks=3
    )
    row = next(row for row in table(write(tmp_path, tmp_path)) if row["strategy"] == "horovod")
    assert row["scaling"] == "weak"
    assert number(row, "efficiency") == pytest.approx(0.8)  # 2400 / (3 * 1000)
    assert row["karp_flatt"] == ""


def test_without_a_single_run_the_strategy_itself_at_one_replica_is_the_base(tmp_path):
    make_run(tmp_path / "one", images_per_s=500.0, strategy="horovod")
    make_run(tmp_path / "two", images_per_s=900.0, strategy="horovod", ranks=2)
    make_run(tmp_path / "other", images_per_s=900.0, strategy="ddp", ranks=2)
    make_run(tmp_path / "third", images_per_s=900.0, strategy="horovod", framework="mxnet", ranks=2)
    rows = lines(write(tmp_path, tmp_path))
    assert number(rows["torch", "horovod", "2", "1"], "efficiency") == pytest.approx(0.9)
    assert rows["torch", "ddp", "2", "1"]["efficiency"] == ""
    assert rows["mxnet", "horovod", "2", "1"]["efficiency"] == ""


@pytest.mark.parametrize(
    "other", [{"precision": "bf16"}, {"batch_size": 128}, {"data": "mnist"}, {"host": {"processor": "Xeon"}}]
)
def test_no_efficiency_against_what_is_not_comparable(tmp_path, other):
    make_run(tmp_path / "one", images_per_s=500.0)
    make_run(tmp_path / "two", strategy="horovod", ranks=2, **other)
    assert lines(write(tmp_path, tmp_path))["torch", "horovod", "2", "1"]["efficiency"] == ""


def test_settings_that_differ_are_said_in_their_row(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, framework={"a": "torch", "b": "mxnet"}[name])
    make_run(tmp_path / "c", precision="bf16", lr=0.1)
    folder = write(tmp_path, tmp_path)
    assert [row["settings"] for row in table(folder)] == [
        "",
        "",
        "lr 0.1, precision bf16",
    ]
    text = (folder / "report.md").read_text()
    assert "- precision: differs: fp32 (2 runs), bf16 (1 run)\n" in text
    assert "- momentum: 0.9\n" in text


def test_difference_from_one_process(tmp_path):
    make_run(tmp_path / "a-one", moved=0.0)
    make_run(tmp_path / "b-one", moved=0.0, images_per_s=1.0)
    make_run(tmp_path / "two", moved=-0.5, strategy="horovod", ranks=2)
    make_run(tmp_path / "two-again", moved=0.25, strategy="horovod", ranks=2)
    make_run(tmp_path / "other", moved=0.125, framework="mxnet", strategy="horovod", ranks=2)
    make_run(tmp_path / "seed", moved=0.125, framework="mxnet", strategy="horovod", ranks=3, seed=1)
    make_run(tmp_path / "short", moved=0.125, strategy="horovod", ranks=4, steps=7)
    make_run(tmp_path / "no-checkpoint", strategy="horovod", ranks=5)
    # Two ranks with half the batch and half the rate each train as one process does (linear scaling).
    per_rank = {"batch_scope": "per-rank", "batch_size": 32, "lr": 0.025}
    make_run(tmp_path / "per-rank", moved=0.75, strategy="ddp", ranks=2, **per_rank)
    folder = write(tmp_path, tmp_path)
    differences = {
        (row["framework"], row["strategy"], row["ranks"]): row["max_parameter_difference"]
        for row in lines(folder).values()
    }
    assert differences == {
        ("torch", "single", "1"): "0.0",
        ("torch", "horovod", "2"): "0.5",
        ("mxnet", "horovod", "2"): "0.125",
        ("mxnet", "horovod", "3"): "",
        ("torch", "horovod", "4"): "",
        ("torch", "horovod", "5"): "",
        ("torch", "ddp", "2"): "0.75",
    }
    text = (folder / "report.md").read_text()
    assert " 0.12 (from torch) |" in text
    assert " 0.5 |" in text


def test_a_damaged_or_older_checkpoint_is_not_compared(tmp_path):
    make_run(tmp_path / "one", moved=0.0)
    old = make_run(tmp_path / "old", strategy="horovod", ranks=2)
    save(old, Config(), 1.0, step=4)
    damaged = make_run(tmp_path / "damaged", moved=1.0, strategy="horovod", ranks=3)
    next(damaged.rglob("weights.safetensors")).write_bytes(b"x")
    make_run(tmp_path / "blown up", moved=float("nan"), strategy="horovod", ranks=4)
    rows = lines(write(tmp_path, tmp_path))
    assert [rows["torch", "horovod", ranks, "1"]["max_parameter_difference"] for ranks in "234"] == ["", "", ""]
    assert "| reference |" in (tmp_path / "out" / "report.md").read_text()


def test_old_runs_lack_what_was_added_later(tmp_path):
    folder = make_run(
        tmp_path / "old", without=("devices", "epoch_s", "global_batch", "shares", "places"), ranks=2,
        strategy="horovod", batch_scope="per-rank", images_per_s=0.0,
    )  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    for name in ("api", "kvstore", "on_nan"):
        del config["config"][name]
    (folder / "config.json").write_text(json.dumps(config))
    output = write(tmp_path, folder)
    row = lines(output)["torch", "horovod", "2", "1"]
    assert (row["global_batch"], row["api"], row["epoch_s"], row["images_per_s_median"]) == ("128", "auto", "", "")
    text = (output / "report.html").read_text()
    assert "Speed: no run measured its speed." in text
    assert "Shares of a step: no run measured them" in text
    assert "Scaling: no row of several replicas" in text
    assert "Difference from one process: no run has" in text
    assert images(text) == 1  # accuracy


def test_numbers_that_are_not_finite_are_not_measured(tmp_path):
    make_run(tmp_path / "a", accuracy=float("nan"), images_per_s=float("inf"), epoch_s=10**400, peak_rss_mb="1e9")
    output = write(tmp_path, tmp_path / "a")
    for path in output.iterdir():
        text = re.sub('base64,[^"]*|on-nan', "", path.read_text())
        assert not re.search(r"\b(nan|NaN|inf|Infinity|None)\b", text), path
    assert "Left out:" in (output / "report.html").read_text()


def test_unfinished_runs_are_named(tmp_path):
    make_run(tmp_path / "runs" / "whole")
    make_run(tmp_path / "runs" / "ended early").joinpath("result.json").unlink()
    (tmp_path / "runs" / "at once" / "logs").mkdir(parents=True)
    (tmp_path / "runs" / "no run").mkdir()
    (tmp_path / "runs" / "file").write_text("")
    output = write(tmp_path, tmp_path / "runs", tmp_path / "runs" / "whole")
    for name in ("report.md", "report.html"):
        text = (output / name).read_text()
        assert "ended early: no result.json" in text
        assert "at once: no config.json and no result.json" in text
        assert "no run" not in text.replace("no run measured", "").replace("no run to", "").replace("no run has", "")
    assert [row["runs"] for row in table(output)] == ["1"]  # named twice, counted once


def test_other_machines_are_said_and_kept_apart(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", host={"name": "node2", "processor": "Xeon"})
    make_run(tmp_path / "c", host={"name": "node3"})
    output = write(tmp_path, tmp_path)
    text = (output / "report.md").read_text()
    assert "- node2: Xeon, 4 cores, Linux (1 run)\n" in text
    assert "These are 3 machines" in text
    assert [row["runs"] for row in table(output)] == ["2", "1"]


ODD = "<script>alert(1)</script> | $x^$ & \"q\" 'r' \x1b[31m \n=1+1 `` \udce4 名"


def test_odd_names_are_text_and_nothing_else(tmp_path, capsys):
    odd = {"name": ODD, "processor": ODD}
    given = {"data": ODD, "moved": 0.0, "shares": {"compute": 1, "communicate": 0, "data": 0}}
    make_run(tmp_path / "runs" / "<b>&|x", host=odd, **given)
    make_run(tmp_path / "runs" / "two", host=odd, strategy=ODD, ranks=2, **given)
    (tmp_path / "runs" / "<i>stopped" / "logs").mkdir(parents=True)
    output = write(tmp_path, tmp_path / "runs")
    page = (output / "report.html").read_text()
    assert "<script" not in page and "<b>" not in page and "<i>" not in page
    assert html.escape('<script>alert(1)</script> | $x^$ & "q"', quote=False)[:20] in page
    assert images(page) == 5
    for uri in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page):
        ElementTree.fromstring(b64decode(uri))
    table = capsys.readouterr().out.split("\nwritten")[0].strip().splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {len(pages.HEADINGS) + 1}
    assert not any(character in "".join(table) for character in "\x1b\r<")


def images(page):
    return len(re.findall('<img src="data:image/svg', page))


class Outline(HTMLParser):
    """What a page must have: where it is from, and how it is told to a reader who does not see it."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.links = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        self.links += [values[name] for name in ("src", "href") if name in values]

    def named(self, tag):
        return [values for name, values in self.tags if name == tag]


def sample(tmp_path):
    """Runs that fill every chart."""
    shares = {"compute": 0.7, "communicate": 0.25, "data": 0.05}
    for framework, speed in (("torch", 1000.0), ("mxnet", 1100.0), ("tensorflow", 1200.0)):
        for repeat in range(2):
            given = {"framework": framework, "shares": shares, "accuracy": 0.9 + repeat / 50}
            name = f"{framework}-{repeat}"
            make_run(tmp_path / f"{name}-1", 0.0, images_per_s=speed + 50 * repeat, **given)
            for ranks in (2, 4):
                for strategy in ("horovod", "a_strategy_with_a_long_name"):
                    place = {"ranks": ranks, "strategy": strategy, "images_per_s": speed * ranks**0.8 + 90 * repeat}
                    make_run(tmp_path / f"{name}-{ranks}-{strategy}", 1e-7 * ranks * repeat, **place, **given)
    return tmp_path


def test_the_page_needs_no_other_file_and_tells_what_it_shows(tmp_path):
    page = (write(tmp_path, sample(tmp_path / "runs")) / "report.html").read_text()
    outline = Outline(page)
    assert all(link.startswith("data:") for link in outline.links)
    assert not re.search(r"url\(|@import", page)
    assert outline.named("html") == [{"lang": "en"}]
    assert {values.get("name") for values in outline.named("meta")} >= {"viewport", "color-scheme"}
    assert [len(values["alt"]) > 50 for values in outline.named("img")] == [True] * 5
    assert {values["scope"] for values in outline.named("th")} == {"col", "row"}
    assert len(outline.named("caption")) == len(outline.named("table"))
    assert len(outline.named("title")) == len(outline.named("h1")) == 1
    assert "Left out" not in page
    drawn = [b64decode(uri).decode() for uri in re.findall(r"svg\+xml;base64,([^\"]+)", page)]
    assert not any("math" in drawing for drawing in drawn)  # a drawing repeats each text as a comment
    axes = ("images/s", "part of a step", "replicas", "test accuracy", "largest")
    for drawing, axis in zip(drawn, axes, strict=True):
        assert f"<!-- {axis}" in drawing


def test_a_report_of_the_same_runs_is_the_same_bytes(tmp_path):
    runs = sample(tmp_path / "runs")
    first = {path.name: path.read_bytes() for path in write(tmp_path, runs).iterdir()}
    assert {path.name: path.read_bytes() for path in write(tmp_path, runs).iterdir()} == first


def fails(capsys, *words):
    """The sentence of a report that cannot be made."""
    with pytest.raises(SystemExit) as ended:
        report.main([str(word) for word in words])
    output = capsys.readouterr()
    assert ended.value.code == 2
    assert output.out == ""
    assert output.err.startswith("hvdtrain: ") and output.err.count("\n") == 1
    return output.err


def test_bad_input_is_one_sentence(tmp_path, capsys):
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "half" / "run" / "logs").mkdir(parents=True)
    for name, problem in (
        ("none", "none: no such folder; give"),
        ("file", "file: not a folder; give"),
        ("empty", "empty: no finished run there; give run folders"),
        ("half", "no finished run there (1 did not end: "),
    ):
        assert problem in fails(capsys, tmp_path / name, "--output", out)
    assert not out.exists()


@pytest.mark.parametrize("file", ["config.json", "result.json"])
@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", "\\xff", "[" * 100000])
def test_a_file_that_is_not_what_a_run_writes_is_named(tmp_path, capsys, file, text):
    make_run(tmp_path / "good")
    path = make_run(tmp_path / "bad") / file
    path.write_bytes(b"\xff" if text == "\\xff" else text.encode())
    assert f"{path}: cannot be read (" in fails(capsys, tmp_path, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("config.json", "config", None),
        ("config.json", "config", {"framework": ["torch"]}),
        ("config.json", "config", {"lr": "fast"}),
        ("config.json", "ranks", 0),
        ("config.json", "ranks", "two"),
        ("config.json", "host", "node"),
        ("result.json", "steps", None),
        ("result.json", "global_batch", -1),
        ("result.json", "shares", [1]),
    ],
)
def test_a_value_that_no_run_writes_is_named(tmp_path, capsys, file, name, value):
    path = make_run(tmp_path / "bad") / file
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    message = fails(capsys, tmp_path, "--output", tmp_path / "out")
    assert f"{path}: cannot be read (" in message
    assert f'"{next(iter(value)) if name == "config" and value else name}" is' in message


def test_an_output_that_cannot_be_written_leaves_nothing_behind(tmp_path, capsys):
    make_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/no/such"):
        assert f"{place}: the report cannot be written there (" in fails(capsys, tmp_path / "run", "--output", place)
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    assert "give another --output" in fails(capsys, tmp_path / "run", "--output", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_no_framework_is_imported(tmp_path):
    run = make_run(tmp_path / "run", moved=0.0)
    code = "import sys; from hvdtrain.cli import report; report.main(sys.argv[1:]); print(*sys.modules)"
    words = [sys.executable, "-c", code, str(run), "--output", str(tmp_path / "out")]
    output = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    loaded = {name.split(".")[0] for name in output.splitlines()[-1].split()}
    assert not loaded & {"torch", "mxnet", "tensorflow", "horovod"}
    assert "matplotlib.pyplot" not in output


# The page, unchanged, in a frame of a page of the test, which measures it and writes what it finds into its own text.
WRAPPER = """<!DOCTYPE html><html><body style="margin:0"><iframe id="frame" srcdoc="%s" style="border:0;width:%dpx;
height:800px"></iframe><pre id="found"></pre><script>
addEventListener("load", async () => {
  const page = document.getElementById("frame").contentDocument;
  await Promise.all([...page.images].map(image => image.decode()));
  const pictures = [...page.images].map(image => [image.naturalWidth, image.naturalHeight,
      image.getBoundingClientRect().right]);
  const root = page.documentElement, table = page.querySelector(".wide");
  document.getElementById("found").textContent = JSON.stringify({pictures, page: root.scrollWidth,
      window: root.clientWidth, table: table.scrollWidth, box: table.clientWidth});
});
</script></body></html>"""


@pytest.fixture(scope="session")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.skip(f"needs a browser: none of {', '.join(names)} is on PATH (Debian: apt-get install chromium)")
    return found


def browse(browser, folder, page, *flags, size="1200,900"):
    """What Chromium prints of a page, and its log."""
    words = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={size}", *flags, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_in_a_browser(tmp_path, browser, width):
    """All charts load; neither on a phone nor on a desk is the page wider than the window."""
    page = (write(tmp_path, sample(tmp_path / "runs")) / "report.html").read_text()
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(WRAPPER % (html.escape(page), width))
    output = browse(browser, tmp_path, wrapper, "--virtual-time-budget=20000", "--dump-dom")
    found = json.loads(html.unescape(re.search('<pre id="found">(.*?)</pre>', output)[1]))
    assert len(found["pictures"]) == 5
    for natural_width, natural_height, right in found["pictures"]:
        assert natural_width > 300 and natural_height > 150
        assert right <= width
    assert found["window"] == width or found["window"] == width - 15  # a scroll bar
    assert found["page"] <= found["window"]
    if width == 390:
        assert found["table"] > found["box"]  # it scrolls in its own box


def test_a_screenshot_shows_the_charts_colours(tmp_path, browser):
    from PIL import Image

    page = write(tmp_path, sample(tmp_path / "runs")) / "report.html"
    shot = tmp_path / "shot.png"
    browse(browser, tmp_path, page, f"--screenshot={shot}", size="1000,3000")
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    for colour in charts.COLOURS.values():
        wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
        assert (np.abs(pixels.astype(int) - wanted).max(1) <= 8).sum() > 500, colour
