"""The programs of benchmarks/ still run, each in its smallest form. They measure jobs, so they need processes."""

import re
import shlex

import pytest
from support.browser import find_browser
from support.cluster import need
from support.jobs import ROOT, run
from support.stack import FASTEST

PROGRAMS = ROOT / "benchmarks"
TORCH = pytest.mark.needs("torch")
PEER = {"torch": "torch/bare-ddp", "mxnet": "mxnet/bare-kvstore"}.get(FASTEST, f"{FASTEST}/horovod")
SMALLEST = [
    ("allreduce.py --libraries ring --sizes 8 --repeats 1", r"\bring\b"),
    pytest.param("audits.py flips --trials 20", "persistent, weight: 3 faults, ", marks=TORCH),
    pytest.param("audits.py sound --steps 40", "40 audits of a sound job of 2 ranks, 0 unequal", marks=TORCH),
    pytest.param("audits.py cost --repeats 1", r"--audit 100: \d", marks=TORCH),
    pytest.param("balance.py --shares 0.4 0.2 --steps 40 --repeats 1", r"\| --balance auto, 1 \|", marks=TORCH),
    ("goals.py .", r"\| idle cost of the busiest rank, horovod over MPI \| not measured"),
    (f"groups.py {FASTEST} lenet --groups 1 auto --blocks 1", r"\| auto \|"),
    pytest.param("idle.py --repeats 1", r"horovod over Gloo, as shipped: \d", marks=TORCH),
    pytest.param("larger_than_memory.py --steps 30 --repeats 1", r"\| tar shards, 512 MiB of memory \|", marks=TORCH),
    pytest.param("layouts.py --launchers alone torchrun", r"\| torch \| torchrun \| `ddp` \| 4 \|", marks=TORCH),
    (f"links/run.py --part speed --links 200 --np 2 --tasks lenet --rows {PEER}", PEER),
    pytest.param("links/throttled.py --rates 50 --ranks 2 --strategies ring", "Median error: ", marks=TORCH),
    ("list_runs.py --runs 9 --records 100 --ranks 2", r"hvdtrain watch: curves and messages: \d"),
    ("loop_overhead.py --steps 100 --repeats 1", r"median step \d"),
    ("many_ranks.py --ranks 2", r"\| ring \| 2 \|"),
    ("published.py", r"Median of \|held_out_error\|: "),
    (f"run.py --steps 60 --repeats 1 --frameworks {FASTEST}", rf"\| hvdtrain {FASTEST} - "),
    (f"same_bits.py --frameworks {FASTEST} --networks lenet --optimizers sgd --ranks 1 2", "one hash in all"),
    pytest.param("shard_sums.py --ranks 2 --networks LeNet", r"\| tree \|.* the same in all", marks=TORCH),
    (f"shards.py --frameworks {FASTEST} --libraries mpi --shards 2 --steps 60 --repeats 1", r"\| mpi \| 2 \| 2 \|"),
    ("start.py --runs 1 --only 'hvdtrain runs'", r"\| hvdtrain runs \|"),
    (f"survive.py --parts kill --losses 1 --frameworks {FASTEST} --strategies ring", rf"\| {FASTEST} \| ring \| 1 \|"),
    pytest.param("user_task.py --steps 60 --repeats 1", r"\| by hand, DataLoader, 2 workers \|", marks=TORCH),
    ("web_page.py --curves 2 --records 100 --runs 9", r"\| page \| seconds \|"),
]
"""Command lines with which the programs end soonest, and what they print."""
OTHERS = {
    "allreduce_of_ranks.py": "allreduce.py starts it",
    "core_to_core.py": "it measures only where no other program, such as a test, takes a core",
    "train_several.py": "same_bits.py starts it",
}
"""Programs that have no test of their own, and why."""


COMMANDS = [getattr(case, "values", case)[0] for case in SMALLEST]


def test_each_program_has_a_smallest_form():
    used = {
        str(path.relative_to(PROGRAMS)) for path in PROGRAMS.rglob("*.py") if "python benchmarks/" in path.read_text()
    }
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"benchmarks/([\w/]+\.py)", page.read_text())}
    assert used | named == {*(command.split()[0] for command in COMMANDS), *OTHERS}


@pytest.mark.matrix(minutes=0.7)
@pytest.mark.parametrize(("command", "expected"), SMALLEST, ids=COMMANDS)
def test_a_program_runs(request, tmp_path, command, expected):
    program, *options = shlex.split(command)
    if program.startswith("links/"):
        need(("ip", "tc", "sysctl"), "iproute2 procps")
    if program == "web_page.py" and not find_browser():
        pytest.skip("needs chromium")
    if program == "layouts.py":
        request.getfixturevalue("real_data")
    start = ["horovodrun", "--gloo", "-np", "2"] if program == "groups.py" else []
    status, output = run([*start, "python", str(PROGRAMS / program), *options], tmp_path, timeout_s=300)
    if "no control group can be made here" in output:
        pytest.skip("limits of memory and cores need a control group")
    assert status == 0 and re.search(expected, output), output
