"""From a job to the words that start it: pure, so that they can be shown and tested. Never a string for a shell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.launch.job import Host, Job, placed

PASSED = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TERM|TMPDIR|VIRTUAL_ENV|PYTHON\w+|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|XDG_CACHE_HOME|SSL_CERT_FILE|SSL_CERT_DIR|SSH_AUTH_SOCK|KRB5CCNAME|TF_CONFIG|MASTER_ADDR|MASTER_PORT"
    r"|(OMP|KMP|GOMP|MKL|OPENBLAS|MALLOC|HOROVOD|HVDTRAIN|NCCL|GLOO|UCX|OMPI|PMIX|PRTE|FI|I_MPI|CUDA|NVIDIA|TF"
    r"|XLA|TORCH|PYTORCH|MXNET|DMLC|SLURM|SLURMD|SBATCH|SALLOC|SRUN)_\w+)"
)
"""Variables that jobs need. Others stay behind, as horovodrun writes all it passes on command lines."""
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|JWT|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)
"""In the names of variables that stay behind all the same; --env NAME passes one on."""
OF_A_HOST = re.compile(
    r"HOME|USER|LOGNAME|SHELL|TERM|TMPDIR|SSH_AUTH_SOCK|KRB5CCNAME|(OMPI|PMIX|PRTE|SLURM|SLURMD|SBATCH|SALLOC|SRUN)_\w+"
)
"""Of these, what every host has of its own or mpirun passes by itself."""
CORES_A_TASK = "SLURM_CPUS_PER_TASK"
NOT_BETWEEN_HOSTS = "lo,docker0,virbr0"
"""Interfaces that Open MPI takes unless it is told not to, and that lead to no other host."""


class LaunchSpec(NamedTuple):
    """A program to start, and what is set for it."""

    words: list[str]
    set: dict[str, str]
    """Variables beyond those passed on."""

    def pasteable(self) -> str:
        """A line for a shell."""
        assigned = [f"{name}={value}" for name, value in sorted(self.set.items())]
        return shlex.join([*(["env", *assigned] if assigned else []), *self.words])


def passed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job on other hosts needs, of this environment; none whose name says that it is secret."""
    return {name: value for name, value in environment.items() if PASSED.fullmatch(name) and not SECRET.search(name)}


def settings(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """What is set for the ranks: measured defaults, unless the user set them, and what he asked for."""
    found = {}
    if "OMP_NUM_THREADS" not in environment:
        found["OMP_NUM_THREADS"] = environment.get(CORES_A_TASK) or str(job.threads)
    if job.interface:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            found[name] = job.interface
    return {**found, **job.environment}


def keeper(job: Job, *flags: str, python: str = sys.executable) -> list[str]:
    """The program under its rank's keeper (see `hvdtrain.launch.agent`)."""
    inside = []
    if job.container:
        python = "python"  # the image's own
        inside = ["apptainer", "exec", "--nv", job.container] if job.container.endswith(".sif") else []
    where = ["--interface", job.interface] if job.interface else []
    patience = ["--start-timeout", f"{job.start_timeout_s:g}"]
    return [*inside, python, "-m", "hvdtrain.launch.agent", *flags, *where, *patience, "--", *job.program]


def horovodrun(job: Job, environment: Mapping[str, str], python: str = sys.executable) -> LaunchSpec:
    """horovodrun, by Gloo or MPI. Raises UserError for a folder of Python's that it cannot pass on."""
    if job.hosts and not job.interface and any(sign.isspace() for sign in python):
        raise UserError(
            f"horovodrun cannot ask other hosts for their interfaces by {python!r}, whose folder has a space: "
            "name the interface by --interface, or make setup VENV=/a/folder/without"
        )
    # Its cache keeps for an hour what it found of hosts, and hides that one is no longer reached.
    words = ["horovodrun", "--disable-cache", f"--{job.controller}", "-np", str(job.ranks)]
    words += ["--start-timeout", f"{job.start_timeout_s:.0f}"]
    if job.hosts:
        # By Gloo it starts a rank in every slot that it is told of, whatever -np says.
        words += ["-H", listed(placed(job.ranks, job.hosts))]
        words += ["--network-interfaces", job.interface] if job.interface else []
    if job.controller == "mpi":
        # By which interfaces the ranks talk it decides itself, and Open MPI refuses to be told twice.
        more = [*as_root(job), *polite(job), *installed_at(job), *daemons_by(job)]
        words += [f"--mpi-args={shlex.join(more)}"] if more else []
    set_ = settings(job, environment)
    if job.controller == "gloo" and job.interface:
        set_.setdefault("HOROVOD_GLOO_IFACE", job.interface)
    return LaunchSpec([*words, *keeper(job, python=python)], set_)


def mpirun(job: Job, environment: Mapping[str, str], python: str = sys.executable) -> LaunchSpec:
    """Open MPI's mpirun. Ranks are not bound to cores, which leaves Horovod's own thread one."""
    set_ = settings(job, environment)
    names = sorted({*passed(environment), *set_}) if job.hosts or "SLURM_JOB_ID" in environment else []
    exported = [word for name in names if not OF_A_HOST.fullmatch(name) for word in ("-x", name)]
    return LaunchSpec([*mpirun_words(job), *exported, *keeper(job, python=python)], set_)


def mpirun_words(job: Job) -> list[str]:
    """mpirun and its options, before the program."""
    words = ["mpirun", *as_root(job), "-np", str(job.ranks)]
    words += ["-H", listed(job.hosts)] if job.hosts else []
    words += ["--oversubscribe"] if job.oversubscribe or (not job.hosts and job.crowded) else []
    words += ["--bind-to", "none", "--map-by", "slot", *polite(job), *installed_at(job)]
    return [*words, *ranks_by(job), *daemons_by(job)]


def mpirun_here(ranks: int) -> list[str]:
    """mpirun and its options for ranks on this host."""
    return mpirun_words(Job((), ranks))


def as_root(job: Job) -> list[str]:
    return ["--allow-run-as-root"] if job.as_root else []


def polite(job: Job) -> list[str]:
    """Open MPI's ranks spin while they wait; where they share cores, they had better yield."""
    return ["--mca", "mpi_yield_when_idle", "1"] if job.crowded or job.oversubscribe or job.threads == 1 else []


def installed_at(job: Job) -> list[str]:
    """A shell that ssh starts has not the PATH of this one. Raises UserError for a folder that it cannot be told."""
    if job.hosts and any(sign.isspace() for sign in job.mpi_prefix):
        raise UserError(
            f"Open MPI lies in {job.mpi_prefix!r}, and cannot start itself on other hosts in a folder with a space: "
            "make setup VENV=/a/folder/without, or launch horovodrun without --mpi"
        )
    return ["--prefix", job.mpi_prefix] if job.hosts and job.mpi_prefix else []


def ranks_by(job: Job) -> list[str]:
    """By which interfaces Open MPI's ranks talk."""
    return ["--mca", *_interfaces("btl", job)] if job.hosts else []


def daemons_by(job: Job) -> list[str]:
    """By which interfaces Open MPI's daemons, one a host, talk."""
    return ["--mca", *_interfaces("oob", job)] if job.hosts else []


def _interfaces(layer: str, job: Job) -> tuple[str, str]:
    if job.interface:
        return f"{layer}_tcp_if_include", job.interface
    return f"{layer}_tcp_if_exclude", NOT_BETWEEN_HOSTS


def mpi_prefix(environment: Mapping[str, str]) -> str:
    """Where Open MPI lies; empty where it is the system's, which every shell finds."""
    found = shutil.which("mpirun", path=environment.get("PATH"))
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(found))) if found else ""
    return "" if prefix in ("", "/", "/usr", "/usr/local") else prefix


def listed(hosts: Sequence[Host]) -> str:
    return ",".join(f"{name}:{slots}" for name, slots in hosts)


def srun(job: Job, environment: Mapping[str, str], python: str = sys.executable) -> LaunchSpec:
    """Slurm's srun: with Gloo alone, or with an MPI that Slurm starts (--mpi pmix)."""
    words = ["srun", "--ntasks", str(job.ranks)]
    words += ["--nodes", str(job.nodes)] if job.nodes else []
    # The keepers end the other ranks, sooner than srun does, and with the first one's words.
    words += ["--mpi", job.mpi or "none", "--kill-on-bad-exit=0", "--unbuffered"]
    if CORES_A_TASK in environment:  # sbatch's, which srun does not take over by itself since Slurm 22.05
        words += ["--cpus-per-task", environment[CORES_A_TASK]]
    if job.container and not job.container.endswith(".sif"):
        words += [f"--container-image={job.container}", f"--container-mounts={os.getcwd()}", "--container-workdir=."]
    gloo = () if job.mpi else ("--gloo",)
    return LaunchSpec([*words, *keeper(job, *gloo, python=python)], settings(job, environment))


LAUNCHERS: dict[str, Callable[[Job, Mapping[str, str]], LaunchSpec]] = {
    "horovodrun": horovodrun,
    "mpirun": mpirun,
    "srun": srun,
}


def local(job: Job, environment: Mapping[str, str], rank: int, python: str = sys.executable) -> LaunchSpec:
    """One rank on this machine, started without any other launcher."""
    on_terminal = rank == 0 and not job.output_dir and sys.stderr.isatty() and sys.stdout.isatty()
    flags = ["--gloo", *(["--on-terminal"] if on_terminal else [])]
    place = zip(("HVDTRAIN_RANK", "HVDTRAIN_SIZE", "HVDTRAIN_LOCAL_RANK"), (rank, job.ranks, rank), strict=True)
    set_ = {**settings(job, environment), **{name: str(value) for name, value in place}}
    return LaunchSpec(keeper(job, *flags, python=python), set_)


def with_own_programs(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the programs beside this Python, horovodrun for one, found before others."""
    own, path = os.path.dirname(sys.executable), environment.get("PATH", os.defpath)
    if sys.prefix == sys.base_prefix or own in path.split(os.pathsep):
        return dict(environment)
    return {**environment, "PATH": f"{own}{os.pathsep}{path}"}
