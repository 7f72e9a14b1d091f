"""The doctor on a working installation, in jobs of every launcher, and in jobs with problems.

Processes: it compares the ranks of real jobs, and Horovod's allreduce between them.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import re
import signal

import pytest
from support.doctor import DOCTOR, DoctorResult, doctor, in_rank_1, path_with, requires
from support.environment import script
from support.jobs import ROOT, finish, launch, launcher, running, start, wait_for
from support.jobs import run as run_command
from support.stack import FASTEST, cases

from hvdtrain.doctor.checks.software import FRAMEWORKS
from hvdtrain.doctor.quick import QUICK
from hvdtrain.errors import UserError
from hvdtrain.system.network import free_port
from hvdtrain.system.stacks import framework_version

MATRIX = pytest.mark.matrix


@pytest.fixture(scope="module")
def working(tmp_path_factory, alone_in_a_job) -> DoctorResult:
    """All checks, without a launcher. Requests `alone_in_a_job`, which waits long, to start it early."""
    return doctor(tmp_path_factory.mktemp("working"))


def test_working_installation(working):
    if any((one["check"], one["status"]) == ("host-name", "fail") for one in working.report["findings"]):
        pytest.skip("needs a host whose own name and localhost resolve")
    assert working.status == 0, working.text
    assert not [finding for finding in working.report["findings"] if finding["status"] == "fail"]
    for name in FRAMEWORKS:
        if importlib.util.find_spec(name):
            working.has("frameworks", "ok", f"{name} {framework_version(name)}")
            working.has("horovod", "ok", f"for {name}")
    working.has("precision", "ok", "ms in fp32", "ms in bf16")
    assert len(working.text) < 8000
    assert working.text.splitlines()[-1].startswith(("ok: ", "warn: "))
    for by in ("horovodrun --gloo", "mpirun"):
        working.has("allreduce", "ok", f"{by}: an allreduce over 2 processes is correct", "8 bytes in", "GB/s")


def test_docs_list_the_json_fields(working):
    page = (ROOT / "docs" / "doctor.md").read_text()
    first, _, second = page.partition("## JSON")[2].partition("Each finding")
    for values, section in ((working.report, first), (working.report["findings"][0], second)):
        assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(values)


JOBS = {
    "horovodrun": launcher("gloo", 2),
    "mpirun": launcher("mpirun", 2),
    "torchrun": launcher("torchrun", 2),
    "launch local": launch("local", 2),
    "launch horovodrun": launch("horovodrun", 2),
    "launch mpirun": launch("mpirun", 2),
}


@pytest.mark.parametrize("by", cases(JOBS, short={"mpirun"}))
def test_working_job(by, tmp_path):
    names = ("meeting", "identical", "clocks", "shared-folder", "horovod-size", "limits", "threads", "variables")
    result = doctor(tmp_path, "--only", *names, by=JOBS[by])
    assert result.status == 0, result.text
    assert (result.report["launcher"], result.report["ranks"], len(result.report["hosts"])) == (by, 2, 1)
    result.has("meeting", "ok", "2 ranks on 1 host(s)")
    result.has("identical", "ok", "identical versions on all ranks")
    result.has("clocks", "ok", "clocks agree within")
    result.has("shared-folder", "ok", "all ranks see")
    assert all(finding["ranks"] in ([0], [0, 1]) for finding in result.report["findings"])
    assert result.findings_of("limits")[0]["ranks"] == [0, 1]  # once, for both
    assert len([line for line in result.text.splitlines() if "limits:" in line]) == 1
    correct = f"Horovod with {by}: an allreduce over 2 processes is correct"
    result.has("horovod-size", "ok", *(("without Horovod",) if by == "torchrun" else (correct, "GB/s")))


@pytest.fixture(scope="module")
def alone_in_a_job(tmp_path_factory):
    """Rank 0 of a job whose other rank never starts; it waits while other tests run."""
    folder = tmp_path_factory.mktemp("alone")
    environment = {
        "HVDTRAIN_RANK": "0",
        "HVDTRAIN_SIZE": "2",
        "HVDTRAIN_LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    command = [*DOCTOR, "--output", str(folder / "doctor.json"), "--only", "meeting", "limits"]
    process = start(command, folder, **environment)
    yield process, folder
    if process.poll() is None:
        process.kill()


def test_other_rank_never_starts(alone_in_a_job):
    process, folder = alone_in_a_job
    result = DoctorResult(*finish(process, 60), folder / "doctor.json")
    (meeting,) = result.findings_of("meeting")
    result.has("meeting", meeting["status"], "cannot exchange", "rank 1 did not", remedy="firewalls")
    result.has("limits", "ok", "open files")
    is_busy = "this machine is busy" in meeting["text"]  # with other tests: then a rank may be late
    assert (meeting["status"], result.status) == (("warn", 0) if is_busy else ("fail", 1))


def test_all_ranks_bound_to_one_core(tmp_path):
    requires("taskset", "-c", "0", "true")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    result = doctor(tmp_path, "--only", "bound", by=["taskset", "-c", "0", *launcher("local", 2)])
    result.has("bound", "fail", "all 2 ranks", "are bound to core 0", remedy="--bind-to none")
    assert result.status == 1
    result = doctor(tmp_path, "--only", "slots", by=["taskset", "-c", "0"])
    result.has("slots", "warn", "2 ranks on 1 core(s)", remedy="taskset")


def test_ranks_with_different_versions_options_limits_and_clocks(tmp_path):
    """Rank 1 has another NumPy, one more option, fewer open files and a clock that is 90 s ahead."""
    fake = tmp_path / "fake"
    (fake / "numpy-1.22.4.dist-info").mkdir(parents=True)
    (fake / "numpy-1.22.4.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.22.4\n")
    (fake / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 90\n")
    code = f"export PYTHONPATH={fake}${{PYTHONPATH:+:$PYTHONPATH}} HOROVOD_CYCLE_TIME=5; ulimit -n 64"
    result = doctor(tmp_path, "--only", "identical", "clocks", "limits", by=in_rank_1(code))
    result.has("identical", "fail", "numpy differs", "1.22.4 (rank 1)", "(rank 0)", remedy="make setup on all hosts")
    result.has("identical", "warn", "HOROVOD_CYCLE_TIME differs", "none (rank 0)", "5 (rank 1)")
    result.has("clocks", "warn", "rank 1", "+90.0 s", "±", remedy="NTP")
    assert result.has("limits", "fail", "64 files", remedy="ulimit -n")["ranks"] == [1]
    assert "rank 1 (" in result.text


def test_mpirun_of_another_mpi_and_broken_horovodrun(tmp_path):
    """An mpirun whose processes do not see each other, because Horovod was built with another MPI."""
    script(tmp_path / "bin" / "horovodrun", 'echo "RuntimeError: no port is free" >&2; exit 1')
    script(
        tmp_path / "bin" / "mpirun",
        'if [ "$1" = --version ]; then echo "HYDRA build details:"; echo "    Version: 4.2.1"; exit; fi',
        "shift 2",
        '"$@" & "$@"; wait',
    )
    result = doctor(tmp_path, "--only", "allreduce", PATH=path_with(tmp_path / "bin"))
    result.has("allreduce", "fail", "horovodrun --gloo: an allreduce", "exit status 1: RuntimeError")
    result.has("allreduce", "fail", "mpirun started 2 processes, but every process is rank 0", remedy="make setup")


def test_controller_that_the_launcher_does_not_provide(tmp_path):
    """The allreduce is not tried, as it would crash."""
    by = [*launch("mpirun", 2), "env", "HOROVOD_CONTROLLER=gloo"]
    result = doctor(tmp_path, "--only", "variables", "horovod-size", by=by)
    result.has("variables", "fail", "HOROVOD_CONTROLLER=gloo under launch mpirun", remedy="unset HOROVOD_CONTROLLER")
    assert result.status == 1 and not result.findings_of("horovod-size")


def test_run_folder_has_the_quick_findings(tmp_path):
    """And training logs a warning for each that failed."""
    command = ["python", "-m", "hvdtrain", "train", "--framework", FASTEST, "--strategy", "single", "--max-steps", "1"]
    command += ["--name", "run"]
    status, text = run_command(["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *command], tmp_path)
    assert status == 0, text
    findings = json.loads((tmp_path / "runs" / "run" / "doctor.json").read_text())["findings"]
    assert {finding["check"] for finding in findings} == {check.name for check in QUICK}
    assert all(finding.keys() == {"check", "topic", "status", "text", "remedy"} for finding in findings)
    (limits,) = [finding for finding in findings if finding["check"] == "limits"]
    assert limits["status"] == "fail"
    assert f"{limits['text']}; {limits['remedy']}" in text


@pytest.fixture
def two_hosts(monkeypatch):
    """Two network namespaces, whose link may be limited, as a benchmark makes them."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "links")
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(importlib.import_module("hosts").hosts(2))
        except UserError as error:
            pytest.skip(str(error))
        yield made


def on_hosts(made, folder, *checks) -> DoctorResult:
    """The doctor in a job with one rank on each host."""
    file = folder / "doctor.json"
    command = ["python", "-m", "hvdtrain", "doctor", "--only", *checks, "--output", str(file)]
    importlib.import_module("host_jobs").HostJob("doctor", command, True, folder, limit_s=120).run(made.spaces)
    return DoctorResult(0, "", file)


@pytest.mark.matrix
def test_a_slow_link_is_what_steps_wait_for(two_hosts, tmp_path, monkeypatch):
    """At 10 Mbit/s, where Horovod's allreduces still end in time.

    Cores that other programs take do not count: the doctor would not judge the link, although it is the bottleneck.
    """
    (tmp_path / "sitecustomize.py").write_text("import os\nos.getloadavg = lambda: (0.0, 0.0, 0.0)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    two_hosts.set_speed(importlib.import_module("hosts").Speed(10))
    result = on_hosts(two_hosts, tmp_path, "link", "horovod-size")
    link = result.has("link", "warn", "the link, not the cores, is what a step waits for", remedy="--compression int8")
    assert float(re.search(r"\((\d+) Mbit/s\)", link["text"])[1]) <= 10
    assert "powersgd:4 or --sync-every 8" in link["remedy"]
    result.has("horovod-size", "ok", "an allreduce over 2 processes is correct")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(number, marks=MATRIX) for number in (signal.SIGHUP, signal.SIGINT))]
)
def test_a_signal_ends_all_that_the_doctor_started(tmp_path, number):
    """An mpirun that hangs, and a rank of it in a session of its own."""
    hangs = "setsid sleep 600 & echo $$ $! >part; mv part hangs; wait; wait; wait"
    script(tmp_path / "bin" / "mpirun", "trap '' TERM HUP INT", hangs)
    process = start([*DOCTOR, "--only", "mpi"], tmp_path, PATH=path_with(tmp_path / "bin"))
    wait_for((tmp_path / "hangs").exists, 30)
    pids = [int(pid) for pid in (tmp_path / "hangs").read_text().split()]
    try:
        process.send_signal(number)
        finish(process, 15)
        assert not any(map(running, pids))
    finally:
        for pid in filter(running, pids):
            os.kill(pid, signal.SIGKILL)
