"""Benchmarks. They need processes: frameworks list their strategies there, and each measurement is a job of its own."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from support.jobs import ROOT, finish, run, start, succeed, wait_for
from support.report import table
from support.stack import INSTALLED

from hvdtrain.cli import bench
from hvdtrain.jobs.series import STOPS
from hvdtrain.measure.scale.measured import read_table

BENCH = ("python", "-m", "hvdtrain", "bench")
SMALL = ("--rows", "torch/ring", "torch/manual", "--steps", "20", "--repeats", "2", "--set", "data=synthetic",
         "--batch-size", "64", "--output", "bench")  # fmt: skip
PARTS = ("compute", "communicate", "data")
NEEDS_TORCH = pytest.mark.needs("torch")
JOBS = {f"torch-{row}-r{repeat}" for row in ("single-np1", "ring-np2", "manual-np2") for repeat in (0, 1)}


def results(folder: Path) -> dict[str, float]:
    """The modification time of each finished job's result."""
    return {path.parent.name: path.stat().st_mtime for path in folder.glob("bench/*/result.json")}


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes whose working directory is this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.joinpath("cwd").resolve() == folder.resolve() and path.joinpath("cmdline").read_bytes():
                found.append(path.joinpath("cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.matrix(minutes=1.5)
def test_stopped_bench_resumes_with_unfinished_jobs(tmp_path):
    before: dict[str, float] = {}
    for stop, finished in ((signal.SIGTERM, 2), (signal.SIGKILL, 4)):
        process = start([*BENCH, *SMALL], tmp_path)
        wait_for(lambda finished=finished: len(results(tmp_path)) >= finished, 120)
        os.kill(process.pid, stop)
        finish(process, 30)
        wait_for(lambda: not processes_in(tmp_path), 15)
        now = results(tmp_path)
        assert finished <= len(now) < len(JOBS)
        assert before.items() <= now.items()
        before = now
    output = succeed([*BENCH, *SMALL], tmp_path, timeout_s=240)
    after = results(tmp_path)
    assert after.keys() == JOBS
    assert before.items() <= after.items()
    assert f"[1/{len(JOBS) - len(before)}]" in output
    text = (tmp_path / "bench" / "report" / "report.md").read_text()
    assert "ring" in text
    assert "manual" in text
    assert (tmp_path / "bench" / "report" / "report.html").is_file()
    result = json.loads((tmp_path / "bench" / "torch-ring-np2-r0" / "result.json").read_text())
    assert result["cores"] == min(2, os.cpu_count() or 1)
    rows = {row["strategy"]: row for row in table(tmp_path / "bench" / "report")}
    ring, manual = ([rows[name][f"{part}_share"] for part in PARTS] for name in ("ring", "manual"))
    assert sum(map(float, ring)) == pytest.approx(1)
    assert float(ring[1]) > 0
    assert manual[1] == "", "devices of one process: the time of their communication is not known"
    assert float(rows["ring"]["gflops_per_core_median"]) > 0
    status, output = run([*BENCH, *SMALL, "--batch-size", "32"], tmp_path)
    assert status == 2
    assert "was run with --batch-size 64, not 32; give another --output" in output


@pytest.fixture(scope="module")
def listed():
    """The strategies of all frameworks; to list them starts each of these."""
    return bench.all_rows()


@pytest.fixture
def benchmark(listed, tmp_path, monkeypatch, capfd):
    """Runs the command in this process: exit status, output and errors."""

    def run_here(*options: str) -> tuple[int, str, str]:
        try:
            bench.main([*options])
        except SystemExit as ended:
            return ended.code, *capfd.readouterr()
        return 0, *capfd.readouterr()

    handlers = {number: signal.getsignal(number) for number in STOPS}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "all_rows", lambda: listed)
    yield run_here
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_an_unknown_row_lists_all(benchmark):
    status, _, errors = benchmark("--rows", "none")
    expected = {
        "torch/single", "torch/horovod", "torch/horovod/mpi", "torch/ddp", "torch/dataparallel",
        "torch/ring", "torch/mpi", "torch/manual",
        "tensorflow/mirrored", "tensorflow/multiworker", "tensorflow/keras-fit", "tensorflow/keras-fit-multiworker",
        "mxnet/kvstore-device", "mxnet/kvstore-dist", "mxnet/module", "mxnet/manual",
    }  # fmt: skip
    names = set(errors.strip().rpartition("choose from ")[2].split(", "))
    assert status == 2 and {name for name in expected if name.partition("/")[0] in INSTALLED} <= names


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param(("--rows", "torch/horvod"), "(did you mean torch/horovod?); choose from ", marks=NEEDS_TORCH),
        (("--np", "2,x"), "--np 2,x is invalid; give positive integers, for example 1,2,4"),
        (("--steps", "5"), "--steps 5: must be 20 or more"),
        (("links",), "unrecognized arguments: links"),
    ],
)
def test_invalid_options(benchmark, options, error):
    status, _, errors = benchmark(*options)
    assert status == 2 and error in errors


@NEEDS_TORCH
def test_failed_job_is_reported_and_others_run(benchmark, tmp_path):
    """--strategy manual has fewer rows than devices; strategy single runs."""
    options = ("--rows", "torch/manual", "--np", "3", "--steps", "20", "--repeats", "1", "--set", "data=synthetic",
             "--batch-size", "2", "--output", "bench")  # fmt: skip
    status, output, errors = benchmark(*options)
    assert status == 1, output + errors
    failed = re.search(r"1 job\(s\) failed: torch-manual-np3-r0: (.*)", errors)
    assert failed and "--devices 3" in failed[1]
    assert set(results(tmp_path)) == {"torch-single-np1-r0"}


ALLREDUCE = ("python", str(ROOT / "benchmarks" / "allreduce.py"), "--repeats", "1", "--output", "made")
SIZES = ("--sizes", "8", "1048576")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--sizes",), "--sizes: no size is given; give some, such as 8 1048576"),
        (("--sizes", "7"), "--sizes 7: float32 takes 4 bytes; give multiples of 4"),
        (("--libraries", "rung"), "--libraries rung: none has that name"),
    ],
)
def test_invalid_options_of_allreduces(tmp_path, options, error):
    status, output = run([*ALLREDUCE, *options], tmp_path)
    assert status == 2 and error in output


@pytest.mark.matrix(minutes=1.5)
def test_allreduce_of_every_library(tmp_path):
    succeed([*ALLREDUCE, *SIZES], tmp_path)
    table = (tmp_path / "made" / "allreduce.md").read_text()
    horovods = [f"horovod over {by}{end}" for by in ("MPI", "Gloo") for end in ("", ", as shipped")]
    for library in ("gloo", "ring", "mpi", "mpi by hand", *horovods):
        assert table.count(f"| {library} |") == 2


@NEEDS_TORCH
def test_allreduce_of_chosen_libraries(tmp_path):
    horovod = "horovod over Gloo, as shipped"
    succeed([*ALLREDUCE, *SIZES, "--libraries", "ring", horovod], tmp_path)
    written = json.loads((tmp_path / "made" / "allreduce.json").read_text())
    assert (written["ranks"], written["hosts"]) == (2, 1)
    measured = [(library, size) for library in ("ring", horovod) for size in (8, 1 << 20)]
    assert sorted((row["library"], row["bytes"]) for row in written["rows"]) == sorted(measured)
    assert all(row["seconds"] == row["runs"][0] > 0 for row in written["rows"])
    assert {row.library for row in read_table(tmp_path / "made" / "allreduce.json").rows} == {"ring", horovod}
