"""The doctor recognises frequent problems, each from a setting that is really broken so."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from support.jobs import BIN, ROOT, finish, launcher, start
from support.jobs import run as run_words

from hvdtrain.cli import doctor as doctor_package
from hvdtrain.doctor import findings, job, subprocesses
from hvdtrain.doctor.checks import allreduce, mpi, software

DOCTOR = ["python", "-m", "hvdtrain", "doctor"]
SITE = Path(sysconfig.get_path("purelib"))
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Told:
    """What the doctor said and how it ended."""

    def __init__(self, status: int, text: str, file: Path) -> None:
        self.status, self.text = status, text
        assert file.exists(), text[-4000:]
        self.whole = json.loads(file.read_text())

    def of(self, check: str) -> list[dict]:
        return [one for one in self.whole["findings"] if one["check"] == check]

    def has(self, check: str, status: str, *words: str, remedy: str = "") -> dict:
        """The one finding of that check and status which holds all words; its remedy holds `remedy`."""
        found = [one for one in self.of(check) if one["status"] == status and all(w in one["text"] for w in words)]
        assert len(found) == 1, (check, status, words, self.of(check), self.text[-3000:])
        assert remedy in found[0]["remedy"], found[0]
        assert bool(found[0]["remedy"]) == (status != "ok"), found[0]
        return found[0]


def doctor(folder: Path, *options: str, by: tuple[str, ...] | list[str] = (), **environment: str) -> Told:
    """Run the doctor, started by the words of `by`."""
    file = folder / "doctor.json"
    file.unlink(missing_ok=True)
    words = [*by, *DOCTOR, "--output", str(file), *options]
    return Told(*run_words(words, folder, 120, **environment), file)


def script(path: Path, *lines: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def first_on_path(folder: Path) -> str:
    return f"{folder}:{BIN}:{os.environ['PATH']}"


def can(*words: str) -> bool:
    """Whether a program runs here."""
    try:
        return subprocess.run(words, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


def needs(*words: str) -> None:
    """Skip a test whose means are missing."""
    if not can(*words):
        pytest.skip(f"needs: {' '.join(words)}")


def unshared(flags: str, code: str) -> list[str]:
    """Words that run what follows in own namespaces, after some shell code. Skips where that is not allowed."""
    needs("unshare", flags, "true")
    return ["unshare", flags, "sh", "-ec", f'{code}\nexec "$@"', "sh"]


def launched(by: str) -> list[str]:
    """Words of a job of two ranks by hvdtrain's own launcher."""
    return ["python", "-m", "hvdtrain", "launch", by, "-n", "2", "--"]


def in_one_rank(code: str) -> list[str]:
    """Words of a job of two ranks in which rank 1 runs some shell code first."""
    return [*launcher("local", 2), "sh", "-ec", f'if [ "$HVDTRAIN_RANK" = 1 ]; then {code}; fi\nexec "$@"', "sh"]


# Nothing is broken.


@pytest.fixture(scope="module")
def whole(tmp_path_factory, alone_in_a_job) -> Told:
    """One full run, alone. (The other fixture has to wait long: let it begin now.)"""
    return doctor(tmp_path_factory.mktemp("whole"))


def test_a_whole_installation_is_found_so(whole):
    assert whole.status == 0, whole.text
    assert not [one for one in whole.whole["findings"] if one["status"] == "fail"]
    for name in findings.FRAMEWORKS:
        if importlib.util.find_spec(name):
            whole.has("frameworks", "ok", name)
            whole.has("horovod", "ok", f"for {name}")
    assert len(whole.text) < 8000
    assert whole.text.splitlines()[-1].startswith(("ok: ", "warn: "))


def test_two_processes_really_add_up(whole):
    for by in ("horovodrun --gloo", "mpirun"):
        whole.has("allreduce", "ok", f"{by}: 2 processes add up rightly", "8 bytes in", "GB/s")


@as_root
def test_root_without_allow_run_as_root(whole):
    if os.environ.get("OMPI_ALLOW_RUN_AS_ROOT"):
        pytest.skip("OMPI_ALLOW_RUN_AS_ROOT is set")
    whole.has("root", "warn", "refuses to run as root", remedy="--allow-run-as-root")


def test_options(tmp_path):
    for options in (["--only", "nonsense"], ["--ranks", "0"], ["--nonsense"]):
        assert run_words([*DOCTOR, *options], tmp_path)[0] == 2
    status, text = run_words([*DOCTOR, "--output", "/proc/nothing/file", "--only", "limits"], tmp_path)
    assert status == 2 and "cannot be written" in text
    status, text = run_words([*DOCTOR, "--json", "--only", "limits"], tmp_path)
    assert status == 0 and json.loads(text)["findings"][0]["check"] == "limits"
    status, text = run_words([*DOCTOR, "--help"], tmp_path)
    assert status == 0 and all(one.name in text for one in findings.CHECKS) and "horovod-size" in text


# Software.


@pytest.fixture(scope="module")
def without_horovod(tmp_path_factory) -> Path:
    """The bin folder of an environment that has all but Horovod."""
    folder = tmp_path_factory.mktemp("no-horovod")
    base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    subprocess.run([base, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    for entry in SITE.iterdir():
        if not entry.name.startswith("horovod") and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return folder / "venv" / "bin"


def test_horovod_not_installed(without_horovod, tmp_path):
    told = doctor(tmp_path, "--only", "horovod", "controllers", "allreduce", PATH=f"{without_horovod}:{SYSTEM}")
    told.has("horovod", "fail", "Horovod is not installed", remedy="make setup")
    assert told.status == 1


def own_horovod(folder: Path, versions: dict[str, str], extension: Path | None, *replaced: str) -> str:
    """PYTHONPATH of a Horovod as it is, but built with other versions of frameworks, and with another extension, or
    none, for those `replaced`."""
    real, mine = SITE / "horovod", folder / "horovod"
    if not real.is_dir():
        pytest.skip("needs Horovod")
    for name in replaced:
        (mine / name).mkdir(parents=True)
        for entry in (real / name).iterdir():
            if not entry.name.startswith(("mpi_lib", "__pycache__")):
                (mine / name / entry.name).symlink_to(entry)
            elif extension and entry.suffix == ".so":
                shutil.copy(extension, mine / name / entry.name)
    for entry in real.iterdir():
        if entry.name not in (*replaced, "metadata.json", "__pycache__"):
            (mine / entry.name).symlink_to(entry)
    was = json.loads((real / "metadata.json").read_text())
    (mine / "metadata.json").write_text(json.dumps({**was, **versions}))
    return str(folder)


@pytest.fixture
def linked_against_another(tmp_path) -> Path:
    """An extension that asks for a function which no framework here has."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if not compiler:
        pytest.skip("needs a C compiler")
    symbol, source, made = "_ZN3c1016of_another_torchEv", tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(f"extern void *{symbol}(void);\nvoid *PyInit_mpi_lib_v2(void) {{ return {symbol}(); }}\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def test_horovods_extensions_that_do_not_load(linked_against_another, tmp_path):
    versions = {"pytorch": "2.12.0", "tensorflow": "2.14.0"}
    path = own_horovod(tmp_path / "own", versions, linked_against_another, "torch", "mxnet")
    told = doctor(tmp_path, "--only", "horovod", PYTHONPATH=path)
    words, remedy = ("does not load", "undefined symbol", "another_torch"), "builds Horovod anew"
    told.has("horovod", "fail", "for torch", *words, "it was built with torch 2.12.0", remedy=remedy)
    mxnet = told.has("horovod", "fail", "for mxnet", *words, remedy=remedy)
    assert "built with" not in mxnet["text"]
    told.has("horovod", "warn", "built with tensorflow 2.14.0", remedy="make setup")


def test_horovod_built_without_a_framework(tmp_path):
    told = doctor(tmp_path, "--only", "horovod", PYTHONPATH=own_horovod(tmp_path / "own", {}, None, "mxnet", "torch"))
    for name in ("mxnet", "torch"):
        told.has("horovod", "fail", f"built without {name}", remedy="make setup")


def test_a_framework_that_crashes_and_one_that_lacks_a_library(tmp_path):
    for name, line in (
        ("torch", "import os; os.kill(os.getpid(), 11)"),
        ("mxnet", "raise OSError('libcudart.so.11.0: no')"),
    ):
        (tmp_path / "fake" / name).mkdir(parents=True)
        (tmp_path / "fake" / name / "__init__.py").write_text(line)
    told = doctor(tmp_path, "--only", "frameworks", PYTHONPATH=str(tmp_path / "fake"))
    told.has("frameworks", "fail", "torch is installed and does not import", "SIGSEGV", remedy="pip install")
    told.has("frameworks", "fail", "mxnet is installed and does not import", "libcudart", remedy="CUDA")
    (tmp_path / "fake" / "mxnet" / "__init__.py").write_text("raise OSError('libquadmath.so.0: cannot open')")
    told = doctor(tmp_path, "--only", "frameworks", PYTHONPATH=str(tmp_path / "fake"))
    told.has("frameworks", "fail", "mxnet", "libquadmath", remedy="apt-get install libquadmath0")


def test_numpy_too_new_for_mxnet(tmp_path):
    """NumPy 1.26 as MXNet sees it: another version, and no numpy.bool."""
    fake = tmp_path / "fake"
    (fake / "numpy-1.26.4.dist-info").mkdir(parents=True)
    (fake / "numpy-1.26.4.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.4\n")
    (fake / "sitecustomize.py").write_text(
        "import numpy\ndef gone(name):\n    raise AttributeError(f\"module 'numpy' has no attribute '{name}'\")\n"
        "numpy.__getattr__ = gone\n"
    )
    if not importlib.util.find_spec("mxnet"):
        pytest.skip("needs MXNet")
    told = doctor(tmp_path, "--only", "numpy", "frameworks", "versions", PYTHONPATH=str(fake))
    told.has("numpy", "fail", "NumPy 1.26.4 is too new for MXNet", remedy="numpy<1.24")
    told.has("frameworks", "fail", "mxnet is installed and does not import", "bool", remedy="numpy<1.24")
    told.has("versions", "warn", "numpy 1.26.4 (pinned 1.23.5)", remedy="make setup")


def test_mpirun_is_missing(tmp_path):
    """All of the environment on PATH but MPI's programs."""
    for name in ("python", "horovodrun"):
        script(tmp_path / "bin" / name, f'exec {shlex.quote(str(BIN / name))} "$@"')
    needs("test", "!", "-e", "/usr/bin/mpirun")
    told = doctor(tmp_path, "--only", "mpi", PATH=f"{tmp_path / 'bin'}:{SYSTEM}")
    told.has("mpi", "warn", "mpirun is not on PATH", remedy="PATH")


def test_two_mpis(tmp_path):
    script(tmp_path / "bin" / "mpirun", 'echo "mpirun (Open MPI) 5.0.6"')
    told = doctor(tmp_path, "--only", "mpi", PATH=first_on_path(tmp_path / "bin"))
    told.has("mpi", "warn", "2 MPIs on PATH", "Open MPI 5.0.6", str(BIN / "mpirun"), remedy="Horovod was built with")
    told.has("mpi", "fail", "mpirun is Open MPI 5.0.6, and mpi4py uses Open MPI", remedy="first on PATH")


def test_every_process_is_rank_0(tmp_path):
    """The mpirun of an MPI that Horovod was not built with: it starts two, and each hears of nobody.

    And a horovodrun that cannot start any.
    """
    script(tmp_path / "bin" / "horovodrun", 'echo "RuntimeError: no port is free" >&2; exit 1')
    script(
        tmp_path / "bin" / "mpirun",
        'if [ "$1" = --version ]; then echo "HYDRA build details:"; echo "    Version: 4.2.1"; exit; fi',
        "shift 2",
        '"$@" & "$@"; wait',
    )
    told = doctor(tmp_path, "--only", "allreduce", PATH=first_on_path(tmp_path / "bin"))
    told.has("allreduce", "fail", "horovodrun --gloo: an allreduce", "exit status 1: RuntimeError", remedy="by hand")
    told.has("allreduce", "fail", "mpirun started 2 processes, but every process is rank 0", remedy="make setup")


def test_wrong_controller_in_a_job(tmp_path):
    by = [*launcher("gloo", 2), "env", "HOROVOD_CONTROLLER=mpi", "HOROVOD_CPU_OPERATIONS=mpi"]
    told = doctor(tmp_path, "--only", "horovod-size", "variables", by=by)
    remedy = "unset HOROVOD_CONTROLLER"
    told.has("variables", "fail", "HOROVOD_CONTROLLER=mpi under horovodrun --gloo", remedy=remedy)
    told.has("horovod-size", "fail", "started 2 processes, but every process is rank 0", remedy=remedy)
    assert told.status == 1


def test_a_controller_that_the_launcher_does_not_serve(tmp_path):
    """Under each of hvdtrain's own launchers; without a try, which would crash."""
    by = [*launched("mpirun"), "env", "HOROVOD_CONTROLLER=gloo"]
    told = doctor(tmp_path, "--only", "variables", "horovod-size", by=by)
    told.has("variables", "fail", "HOROVOD_CONTROLLER=gloo under launch mpirun", remedy="unset HOROVOD_CONTROLLER")
    assert told.status == 1 and not told.of("horovod-size")
    told = doctor(tmp_path, "--only", "variables", by=[*launched("local"), "env", "HOROVOD_CONTROLLER=mpi"])
    told.has("variables", "fail", "HOROVOD_CONTROLLER=mpi under launch local", remedy="unset HOROVOD_CONTROLLER")
    assert told.status == 1


def test_the_remedy_is_that_of_the_launcher():
    for by, gloo, remedy in (
        ("mpirun", False, "the mpirun of the MPI"),
        ("launch local", True, "Horovod with Gloo"),
        ("srun", False, "srun --mpi=pmix"),
        ("launch srun", True, "Horovod with Gloo"),
    ):
        assert remedy in allreduce.alone(by, 2, 1, gloo).remedy


def test_variables(tmp_path):
    told = doctor(tmp_path, "--only", "variables", TF_CONFIG="", HOROVOD_FUSION_TRESHOLD="1", HOROVOD_CYCLE_TIME="fast",
                  HOROVOD_CONTROLLER="glo", HOROVOD_TIMELINE="/nowhere/t.json")  # fmt: skip
    told.has("variables", "fail", "TF_CONFIG is set and empty", remedy="unset TF_CONFIG")
    told.has("variables", "warn", "HOROVOD_FUSION_TRESHOLD is no variable", remedy="HOROVOD_FUSION_THRESHOLD")
    told.has("variables", "fail", "HOROVOD_CYCLE_TIME=fast is no number", remedy="unset")
    told.has("variables", "fail", "HOROVOD_CONTROLLER=glo is none of gloo, mpi", remedy="unset")
    told.has("variables", "warn", "HOROVOD_TIMELINE=/nowhere/t.json", remedy="unset")
    told = doctor(tmp_path, "--only", "variables", TF_CONFIG="{}", HOROVOD_CONTROLLER="gloo",
                  HOROVOD_CPU_OPERATIONS="mpi")  # fmt: skip
    told.has("variables", "fail", "TF_CONFIG is not what MultiWorkerMirroredStrategy expects", remedy="unset it")
    told.has("variables", "fail", "contradict", remedy="unset HOROVOD_CPU_OPERATIONS")
    told = doctor(tmp_path, "--only", "variables", RANK="one", WORLD_SIZE="2")
    told.has("variables", "fail", "RANK=one", "no whole numbers", remedy="unset")


# Jobs.


def test_not_enough_slots(tmp_path):
    cores = len(os.sched_getaffinity(0))
    told = doctor(tmp_path, "--only", "slots", "--ranks", str(20 * cores))
    told.has("slots", "fail", "not enough slots", str(20 * cores), remedy="--oversubscribe")
    told.has("slots", "warn", f"{20 * cores} ranks on {cores} core(s)", "oversubscribe", remedy=f"at most {cores}")


JOBS = {
    "horovodrun": launcher("gloo", 2),
    "mpirun": launcher("mpirun", 2),
    "torchrun": launcher("torchrun", 2),
    "launch local": launched("local"),
    "launch horovodrun": launched("horovodrun"),
    "launch mpirun": launched("mpirun"),
}


@pytest.mark.parametrize("by", JOBS)
def test_a_whole_job(by, tmp_path):
    names = ("meeting", "alike", "clocks", "shared-folder", "horovod-size", "limits", "threads", "variables")
    told = doctor(tmp_path, "--only", *names, by=JOBS[by])
    assert told.status == 0, told.text
    assert (told.whole["launcher"], told.whole["ranks"], len(told.whole["hosts"])) == (by, 2, 1)
    told.has("meeting", "ok", "2 ranks on 1 host(s)")
    told.has("alike", "ok", "the same versions on all ranks")
    told.has("clocks", "ok", "clocks agree within")
    told.has("shared-folder", "ok", "all ranks see")
    assert all(one["ranks"] in ([0], [0, 1]) for one in told.whole["findings"])
    assert told.of("limits")[0]["ranks"] == [0, 1]  # once, for both
    assert len([line for line in told.text.splitlines() if "limits:" in line]) == 1
    tried = ("without Horovod",) if by == "torchrun" else (f"Horovod by {by}: 2 processes add up rightly", "GB/s")
    told.has("horovod-size", "ok", *tried)


def test_all_ranks_bound_to_one_core(tmp_path):
    needs("taskset", "-c", "0", "true")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    told = doctor(tmp_path, "--only", "bound", by=["taskset", "-c", "0", *launcher("local", 2)])
    told.has("bound", "fail", "all 2 ranks", "are bound to core 0", remedy="--bind-to none")
    assert told.status == 1
    told = doctor(tmp_path, "--only", "binding", by=["taskset", "-c", "0"])
    told.has("binding", "warn", "bound to core 0 alone", remedy="taskset")


def test_ranks_that_differ(tmp_path):
    """Rank 1 has another NumPy, an option more, fewer files and a clock that runs 90 s ahead."""
    fake = tmp_path / "fake"
    (fake / "numpy-1.22.4.dist-info").mkdir(parents=True)
    (fake / "numpy-1.22.4.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.22.4\n")
    (fake / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 90\n")
    code = f"export PYTHONPATH={fake} HOROVOD_CYCLE_TIME=5; ulimit -n 64"
    told = doctor(tmp_path, "--only", "alike", "clocks", "limits", by=in_one_rank(code))
    told.has("alike", "fail", "numpy differs", "1.22.4 (rank 1)", "(rank 0)", remedy="make setup on all hosts")
    told.has("alike", "warn", "HOROVOD_CYCLE_TIME differs", "none (rank 0)", "5 (rank 1)", remedy="the same")
    told.has("clocks", "warn", "rank 1", "+90.0 s off", "±", remedy="NTP")
    assert told.has("limits", "fail", "64 files", remedy="ulimit -n")["ranks"] == [1]
    assert "rank 1 (" in told.text


@pytest.fixture(scope="module")
def alone_in_a_job(tmp_path_factory):
    """Rank 0 of a job whose other rank never starts; it waits while other tests run."""
    folder = tmp_path_factory.mktemp("alone")
    environment = {"HVDTRAIN_RANK": "0", "HVDTRAIN_SIZE": "2", "HVDTRAIN_LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(job.free_port())}  # fmt: skip
    words = [*DOCTOR, "--output", str(folder / "doctor.json"), "--only", "meeting", "limits"]
    process = start(words, folder, **environment)
    yield process, folder
    if process.poll() is None:
        process.kill()


# Machine.


def test_threads(tmp_path):
    cores = os.cpu_count() or 1
    told = doctor(tmp_path, "--only", "threads", OMP_NUM_THREADS=str(4 * cores))
    told.has("threads", "warn", f"OMP_NUM_THREADS={4 * cores} is too high", remedy="export OMP_NUM_THREADS=")
    told = doctor(tmp_path, "--only", "threads", OMP_NUM_THREADS=str(cores + 1), by=launcher("local", 2))
    told.has("threads", "warn", f"2 rank(s) times {cores + 1} threads on {cores} core(s)", remedy="OMP_NUM_THREADS=")
    told = doctor(tmp_path, "--only", "threads", OMP_NUM_THREADS="many")
    told.has("threads", "fail", "is no number", remedy="OMP_NUM_THREADS=")


@as_root
def test_shared_memory_too_small_and_folder_not_writable(tmp_path):
    """A small tmpfs over /dev/shm, and one for runs that is read-only."""
    (tmp_path / "runs").mkdir()
    code = f"mount -t tmpfs -o size=16m none /dev/shm; mount -t tmpfs -o ro none {tmp_path / 'runs'}"
    told = doctor(tmp_path, "--only", "shm", "folder", by=unshared("-m", code))
    told.has("shm", "fail", "16 MiB free of 16 MiB", "too small", remedy="--shm-size")
    told.has("folder", "fail", "runs is not writable", "Read-only", remedy="--runs")
    code = f"mount -t tmpfs -o size=80m none /dev/shm; mount -t tmpfs -o size=50m none {tmp_path / 'runs'}"
    told = doctor(tmp_path, "--only", "shm", "folder", by=unshared("-m", code))
    told.has("shm", "warn", "80 MiB", "too small for 2 ranks", remedy="--shm-size")
    told.has("folder", "fail", "full", remedy="--runs")


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "runs").write_text("")
    told = doctor(tmp_path, "--only", "folder")
    told.has("folder", "fail", str(tmp_path / "runs"), remedy="--runs")


def test_open_files(tmp_path):
    told = doctor(tmp_path, "--only", "limits", by=["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"])
    told.has("limits", "fail", "64 files may be open", remedy="ulimit -n")
    assert told.status == 1


def test_memory_limit_of_a_cgroup(tmp_path, monkeypatch):
    """Version 2 and version 1, as folders of files."""
    from hvdtrain.doctor.checks import machine

    (tmp_path / "memory.max").write_text("536870912\n")
    (tmp_path / "memory.current").write_text("436870912\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "v1" / "memory.usage_in_bytes").write_text("1\n")
    (tmp_path / "v1" / "cpu.cfs_quota_us").write_text("200000\n")
    (tmp_path / "v1" / "cpu.cfs_period_us").write_text("50000\n")
    monkeypatch.setattr(machine, "cgroups", lambda _: [tmp_path / "v1", tmp_path])
    assert machine.memory_limit() == (536870912, 436870912)
    assert machine.quota() == 4
    setting = findings.Setting(findings.environ.Place("none", 0, 1, 0), 2, time.monotonic() + 9)
    (found,) = [one for one in machine.check_memory(setting) if "cgroup" in one.text]
    assert found.status == "fail" and "512 MiB" in found.text and "fewer ranks" in found.remedy
    monkeypatch.setattr(machine, "cgroups", lambda _: [tmp_path])
    assert machine.quota() == 1


def test_damaged_data(tmp_path):
    real = Path(os.environ.get("HVDTRAIN_DATA", ""), "fashion-mnist")
    if not os.environ.get("HVDTRAIN_DATA") or not real.is_dir():
        pytest.skip("needs HVDTRAIN_DATA, a folder that holds fashion-mnist/")
    mine = tmp_path / "data" / "fashion-mnist"
    shutil.copytree(real, mine)
    file = next(path for path in sorted(mine.iterdir()) if "t10k-images" in path.name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    told = doctor(tmp_path, "--only", "data", HVDTRAIN_DATA=str(tmp_path / "data"))
    told.has("data", "fail", "t10k-images", remedy="put the published file in its place")
    told = doctor(tmp_path, "--only", "data", HVDTRAIN_DATA=str(tmp_path / "nowhere"))
    told.has("data", "warn", "is no folder", remedy="fashion-mnist/")


# Network.


@as_root
def test_docker0_is_chosen(tmp_path):
    """Real interfaces, in a network namespace of its own."""
    add = "; ip link add {0} type {2}; ip addr add {1} dev {0}; ip link set {0} up"
    code = "ip link set lo up" + add.format("docker0", "172.17.0.1/16", "bridge")
    more = add.format("eth0", "10.9.9.1/24", "veth peer name other")
    needs("unshare", "-n", "sh", "-ec", code)
    told = doctor(tmp_path, "--only", "interfaces", by=unshared("-n", code + more), HOROVOD_GLOO_IFACE="docker0")
    text = ("HOROVOD_GLOO_IFACE=docker0", "172.17.0.1")
    told.has("interfaces", "fail", *text, remedy="--network-interfaces eth0")
    told = doctor(tmp_path, "--only", "interfaces", by=unshared("-n", code + more))
    told.has("interfaces", "warn", "docker0 (172.17.0.1) is up beside eth0", remedy="HOROVOD_GLOO_IFACE=eth0")
    told = doctor(tmp_path, "--only", "interfaces", by=unshared("-n", code), NCCL_SOCKET_IFNAME="ib0")
    told.has("interfaces", "warn", "no network interface to other hosts", remedy="eth0")
    told.has("interfaces", "fail", "no interface ib0", remedy="NCCL_SOCKET_IFNAME")


@as_root
def test_host_name_does_not_resolve(tmp_path):
    told = doctor(tmp_path, "--only", "host-name", by=unshared("-un", "hostname no-such-host-here; ip link set lo up"))
    told.has("host-name", "fail", "no-such-host-here does not resolve", remedy="/etc/hosts")


def test_ssh(tmp_path):
    """An ssh that runs its command here, as node1, as node2 with another PyTorch, and is refused by node3."""
    fake = tmp_path / "fake" / "torch-1.0.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    script(
        tmp_path / "bin" / "ssh",
        'while [ "$1" = -o ]; do shift 2; done',
        "case $1 in node1) ;; node2) export PYTHONPATH=" + str(tmp_path / "fake") + ";;",
        '*) echo "$1: Permission denied (publickey)." >&2; exit 255;; esac',
        'exec sh -c "$2"',
    )
    told = doctor(tmp_path, "--only", "ssh", "--hosts", "node1,node2,node3,-oProxyCommand=x",
                  PATH=first_on_path(tmp_path / "bin"))  # fmt: skip
    told.has("ssh", "ok", "node1: ssh works")
    told.has("ssh", "fail", "node2: it differs from this host: torch 1.0 against 2", remedy="make setup")
    told.has("ssh", "fail", "node3: no ssh without a password", "Permission denied", remedy="ssh-copy-id node3")
    told.has("ssh", "fail", "no host name", remedy="--hosts")


# GPUs.


@pytest.fixture
def one_gpu(tmp_path) -> str:
    """PATH on which nvidia-smi knows one GPU and a driver for CUDA 11.4."""
    script(
        tmp_path / "bin" / "nvidia-smi",
        'case "$*" in *--query-gpu*) echo "0, Tesla T4, 470.82.01";;',
        '*) echo "| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: 11.4     |";; esac',
    )
    return first_on_path(tmp_path / "bin")


def test_cuda_newer_than_the_driver(one_gpu, tmp_path):
    (tmp_path / "fake" / "torch").mkdir(parents=True)
    (tmp_path / "fake" / "torch" / "__init__.py").write_text(
        "from types import SimpleNamespace as N\n__version__ = '2.13.0'\nversion = N(cuda='13.0')\n"
        "cuda = N(is_available=lambda: False, device_count=lambda: 0)\n"
    )
    told = doctor(
        tmp_path, "--only", "gpu", PATH=one_gpu, PYTHONPATH=str(tmp_path / "fake"), CUDA_VISIBLE_DEVICES="0,3"
    )
    told.has("gpu", "ok", "1 x Tesla T4, driver 470.82.01, CUDA up to 11.4")
    told.has("gpu", "fail", "torch is built for CUDA 13.0", "driver 470.82.01 runs CUDA up to 11.4", remedy="update")
    told.has("gpu", "fail", "CUDA_VISIBLE_DEVICES=0,3 names GPU 3", remedy="unset")
    told.has("gpu", "warn", "mxnet 1.9.1 is built for CPUs", remedy="mxnet-cu112")
    told.has("gpu", "warn", "built without NCCL", remedy="HOROVOD_GPU_OPERATIONS=NCCL")


def test_another_nccl_than_torchs(one_gpu, tmp_path):
    """Frameworks and Horovod as far as the doctor asks them: Horovod has NCCL 2.10, and torch brings 2.27."""
    fake = {
        "torch": "from types import SimpleNamespace as N\n__version__ = '2.13.0'\nversion = N(cuda='11.8')\n"
        "cuda = N(is_available=lambda: True, device_count=lambda: 1, nccl=N(version=lambda: (2, 27, 3)))\n",
        "mxnet": "raise ImportError('not asked here')",
        "tensorflow": "raise ImportError('not asked here')",
        "horovod": "",
        "horovod/torch": "init = print\ngloo_built = mpi_built = lambda: 1\nnccl_built = lambda: 21003\n",
    }
    for name, content in fake.items():
        (tmp_path / "fake" / name).mkdir(parents=True)
        (tmp_path / "fake" / name / "__init__.py").write_text(content)
    told = doctor(tmp_path, "--only", "gpu", PATH=one_gpu, PYTHONPATH=str(tmp_path / "fake"))
    told.has("gpu", "ok", "torch sees 1 GPU(s)")
    told.has("gpu", "warn", "built with NCCL 2.10, and torch brings 2.27", remedy="HOROVOD_NCCL_HOME")


def test_a_driver_that_does_not_answer(tmp_path):
    script(
        tmp_path / "bin" / "nvidia-smi", 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18'
    )
    told = doctor(tmp_path, "--only", "gpu", "gpu-per-rank", PATH=first_on_path(tmp_path / "bin"))
    told.has("gpu", "fail", "does not reach the driver", "version mismatch", remedy="reboot")


def test_more_ranks_than_gpus(one_gpu, tmp_path):
    told = doctor(tmp_path, "--only", "gpu-per-rank", by=launcher("local", 2), PATH=one_gpu)
    told.has("gpu-per-rank", "fail", "2 ranks on this host, and 1 GPU", remedy="at most 1 rank")
    told = doctor(tmp_path, "--only", "gpu-per-rank", "--ranks", "1", PATH=one_gpu)
    told.has("gpu-per-rank", "ok", "1 GPU(s) for 1 rank(s)")


# In a run's record.


def test_what_a_run_s_folder_tells_of_its_host(tmp_path):
    """And a warning where it is bad. No process is started for it, and it takes no time."""
    words = ["python", "-m", "hvdtrain", "train", "--framework", "torch", "--strategy", "single", "--max-steps", "1"]
    words += ["--name", "run"]
    status, text = run_words(["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *words], tmp_path)
    assert status == 0, text
    found = json.loads((tmp_path / "runs" / "run" / "doctor.json").read_text())["findings"]
    assert {one["check"] for one in found} == set(doctor_package.QUICK)
    assert all(one.keys() == {"check", "topic", "status", "text", "remedy"} for one in found)
    (limits,) = [one for one in found if one["check"] == "limits"]
    assert limits["status"] == "fail"
    assert f"{limits['text']}; {limits['remedy']}" in text


def test_quick_findings_start_nothing(tmp_path):
    code = (
        "import sys, time\nfrom hvdtrain.cli import doctor\n"
        "forbidden = {'subprocess.Popen', 'os.fork', 'os.exec', 'os.posix_spawn', 'os.system', 'socket.getaddrinfo'}\n"
        "def heard(event, _):\n    assert event not in forbidden, event\n"
        "sys.addaudithook(heard)\nbegan = time.perf_counter()\nfound = doctor.quick()\n"
        "print(time.perf_counter() - began, len(found), 'stumbled' in str(found), 'numpy' in sys.modules)"
    )
    status, text = run_words(["python", "-c", code], ROOT)
    assert status == 0, text
    seconds, count, stumbled, numpy = text.split()
    assert float(seconds) < 0.05
    assert int(count) >= len(doctor_package.QUICK) and (stumbled, numpy) == ("False", "False")


# The page.


def test_the_page_lists_what_json_holds(whole):
    page = (ROOT / "docs" / "doctor.md").read_text()
    first, _, second = page.partition("## JSON")[2].partition("Each finding")
    for values, section in ((whole.whole, first), (whole.whole["findings"][0], second)):
        assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(values)


def test_the_page_names_checks_that_exist():
    page = (ROOT / "docs" / "doctor.md").read_text()
    problems = page.partition("| what happens |")[2].partition("\n\n")[0].splitlines()[2:]
    named = {name for line in problems for name in line.split("|")[3].strip().split(", ")}
    assert len(problems) > 15
    assert named <= {one.name for one in findings.CHECKS} | doctor_package.TOGETHER.keys()
    assert f"take no time: {', '.join(doctor_package.QUICK)}." in page.replace("\n", " ")


# Nothing hangs.


def test_a_subprocess_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocesses, "GRACE_S", 0.5)
    code = f"trap '' TERM; sleep 321 & echo $! > {tmp_path / 'pid'}; wait"
    began = time.monotonic()
    done = subprocesses.run(["sh", "-c", code], 0.5, dict(os.environ))
    assert done.status is None and time.monotonic() - began < 5
    assert "no end within" in done.reason()
    pid = int((tmp_path / "pid").read_text())
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(") ")[2][0] == "Z"


def test_a_probe_ends_itself():
    words = findings.probe_words("seen", "/nothing", "100", limit_s=1)
    done = subprocesses.run(words, 20, dict(os.environ, PYTHONPATH=str(ROOT)))
    assert "stood still" in done.reason()
    assert subprocesses.run(["/no/such/program"], 1, {}).status == 127


def test_an_mpirun_that_hangs(tmp_path, monkeypatch):
    script(tmp_path / "mpirun", "exec sleep 300")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    setting = findings.Setting(findings.environ.Place("none", 0, 1, 0), 2, time.monotonic() + 1)
    found = list(mpi.check_slots(setting)) + findings.examine(findings.CHECKS[0], setting)
    assert time.monotonic() < setting.deadline + 6
    assert found


# The pure parts.


def test_clocks_from_gathers():
    """Rank 1 is 5 s ahead; each gather takes 0.2 s and nobody leaves before all came."""
    zero = ([10.0, 20.0], [10.2, 20.1])
    one = ([15.1, 25.0], [15.2, 25.1])
    seconds, uncertain = job.offset(one, zero)
    assert abs(seconds - 5) <= uncertain <= 0.2
    assert job.offset(zero, zero)[0] == 0


def test_words():
    assert job.spans([0, 1, 2, 3, 7]) == "0-3, 7"
    assert job.differences([{"a": "1"}, {"a": "1"}]) == {}
    assert job.differences([{"a": "1"}, {}, {"a": "1"}]) == {"a": "1 (rank 0, 2), none (rank 1)"}
    assert software.read_pins("# x\na-b==1.2.3\nc==4 # why\n") == {"a-b": "1.2.3", "c": "4"}
    for text, name in (
        ("mpirun (Open MPI) 4.1.8", ("Open MPI", "4.1.8")),
        ("Open MPI v4.1.4, package: Debian", ("Open MPI", "4.1.4")),
        ("HYDRA build details:\n    Version:      4.0.2\n", ("MPICH", "4.0.2")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build", ("Intel MPI", "2021.11")),
        ("what", ("an unknown MPI", "")),
    ):
        assert mpi.identify(text) == name


def test_ranks_on_this_host_by_the_launcher_s_word():
    assert job.local_size({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}) == 3
    slurm = {"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "2"}
    assert job.local_size(slurm) == 1
    assert job.local_size({**slurm, "SLURM_NODEID": "0"}) == 4
    ours = {"HVDTRAIN_RANK": "0", "HVDTRAIN_SIZE": "9"}
    assert job.local_size({**slurm, **ours, "SLURM_NODEID": "7"}) == 9
    assert job.local_size({}) == 1


def test_what_probes_said_through_a_launcher():
    """Behind a rank's label, several on one line, and one that was cut off."""
    text = '[1]<stdout>:@doctor {"a": 1}@doctor {"b": {"c": 2}}\n\nother\n@doctor {"d": '
    assert subprocesses.said(text) == [{"a": 1}, {"b": {"c": 2}}]


def test_equal_findings_are_shown_once():
    row = {"check": "c", "topic": "machine", "status": "ok", "text": "t", "remedy": ""}
    other = {**row, "text": "u"}
    reports = [{"rank": rank, "host": f"h{rank}", "findings": [row if rank < 2 else other]} for rank in range(3)]
    first, second = job.merge(reports)
    assert first["ranks"] == [0, 1] and first["hosts"] == ["h0", "h1"] and not first["everywhere"]
    assert second["ranks"] == [2]


def test_ranks_that_never_meet(alone_in_a_job):
    process, folder = alone_in_a_job
    told = Told(*finish(process, 60), folder / "doctor.json")
    told.has("meeting", "fail", "cannot gather", "rank 1 did not connect", remedy="firewalls")
    told.has("limits", "ok", "open files")
    assert told.status == 1
