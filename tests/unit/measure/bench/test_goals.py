"""The table of goals of `make bench`, from results made up here."""

import importlib
import json

import pytest
from support.jobs import ROOT

from hvdtrain.system.arithmetic import Processor


@pytest.fixture
def goals(tmp_path, monkeypatch, capsys):
    """The table of the results in the test's folder, in lines."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")

    def lines():
        importlib.import_module("goals").main([str(tmp_path)])
        return capsys.readouterr().out.splitlines()

    return lines


def test_goals_are_reached_missed_or_not_measured(tmp_path, goals):
    ratio = {"fastest": "torch/mpi", "ranks": 2, "ratios": [0.9, 0.94, 1], "median": 0.94}
    ratio["horovod"] = "torch/horovod/mpi"
    (tmp_path / "ratios.json").write_text(json.dumps([ratio, {**ratio, "horovod": "torch/horovod"}]))
    rows = [
        {"library": "horovod over MPI", "bytes": 8, "seconds": 5e-5, "runs": [4e-5, 5e-5, 9e-5]},
        {"library": "horovod over MPI, as shipped", "bytes": 8, "seconds": 1e-3, "runs": [1e-3, 1e-3, 1e-3]},
        {"library": "mpi by hand", "bytes": 8, "seconds": 1e-6, "runs": [1e-6]},
        {"library": "horovod over Gloo", "bytes": 8, "seconds": 4e-4, "runs": [4e-4]},
    ]
    idle = [{"library": "horovod over Gloo", "runs": [[0.01, 0.02], [0.014, 0.001], [0.0, 0.0]]}]
    (tmp_path / "allreduce").mkdir()
    (tmp_path / "allreduce" / "allreduce.json").write_text(json.dumps({"ranks": 2, "rows": rows}))
    (tmp_path / "idle.json").write_text(json.dumps(idle))
    lines = goals()
    assert lines[2:6] == [
        "| images/s, torch/horovod/mpi / torch/mpi, 2 ranks | 0.94 (0.90 to 1.00, 3) |  | at least 0.95 | MISSED |",
        "| images/s, torch/horovod / torch/mpi, 2 ranks | 0.94 (0.90 to 1.00, 3) |  | at least 0.85 | reached |",
        "| allreduce of 8 bytes, horovod over MPI, us | 50 (40 to 90, 3) "
        "| as shipped 1,000; `MPI.Allreduce` 1 | at most 60 | reached |",
        "| allreduce of 8 bytes, horovod over Gloo, us | 400 (400 to 400, 1) |  | at most 300 | MISSED |",
    ]
    goal = "allreduce of 524,288 bytes, horovod over MPI, us"
    assert lines[6] == f"| {goal} | not measured |  | at most 150 |  |"
    assert lines[9] == (
        "| idle cost of the busiest rank, horovod over Gloo | 1.4% (0.0% to 2.0%, 3) |  | at most 1.5% | reached |"
    )


def test_without_results_every_goal_is_not_measured(goals):
    lines = goals()[2:]
    goal = "images/s, FRAMEWORK/horovod / fastest other strategy"
    assert lines[0] == f"| {goal} | not measured |  | at least 0.85 |  |"
    assert len(lines) == 8
    assert all("| not measured |" in line for line in lines)


@pytest.mark.parametrize(
    ("vendor", "flags", "goal"),
    [
        ("AuthenticAMD", {"avx512_bf16"}, ["3.50 (3.50 to 3.50), reached", "3.0 on AMD processors with AVX512_BF16"]),
        ("AuthenticAMD", {"avx2"}, ["3.50 (3.50 to 3.50)", "3.0 on AMD processors with AVX512_BF16, not here"]),
        ("GenuineIntel", {"avx512_bf16"}, ["3.50 (3.50 to 3.50)", "3.0 on AMD processors with AVX512_BF16, not here"]),
    ],
)
def test_the_goal_of_bf16_is_one_of_some_processors(vendor, flags, goal, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module("run")
    monkeypatch.setattr(benchmark.arithmetic, "processor", lambda: Processor("", vendor, frozenset(flags)))
    results = {name: [{"images_per_s": 7.0}] for name in benchmark.TORCH_BF16} | {"by hand": [{"images_per_s": 2.0}]}
    line = benchmark.ratio_lines(benchmark.TORCH_BF16, "by hand", 3.0, results)[0]
    assert line == f"| {benchmark.TORCH_BF16[0]} / by hand | {' | '.join(goal)} |"
