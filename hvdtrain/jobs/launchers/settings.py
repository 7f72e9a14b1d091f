"""What all launchers share: the variables that go to the ranks, and the command line of a rank's agent."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from typing import NamedTuple

from hvdtrain.jobs.job import Job
from hvdtrain.system import credentials

PASSED_ON = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TERM|TMPDIR|VIRTUAL_ENV|PYTHON\w+|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|XDG_CACHE_HOME|(?i:(http|https|ftp|all|no)_proxy)|(SSL_CERT|(REQUESTS|CURL)_CA)_(FILE|DIR|BUNDLE)"
    r"|SSH_AUTH_SOCK|KRB5CCNAME|TF_CONFIG|MASTER_ADDR|MASTER_PORT"
    r"|(OMP|KMP|GOMP|MKL|OPENBLAS|MALLOC|HOROVOD|HVDTRAIN|NCCL|GLOO|UCX|OMPI|PMIX|PRTE|FI|I_MPI|CUDA|NVIDIA|TF"
    r"|XLA|TORCH|PYTORCH|MXNET|DMLC|SLURM|SLURMD|SBATCH|SALLOC|SRUN)_\w+)"
)
"""Variables that jobs need. No others are passed on to other hosts, where more users may see them."""
CORES_PER_TASK = "SLURM_CPUS_PER_TASK"


class LaunchSpec(NamedTuple):
    """A process to start: never a string for a shell."""

    command: list[str]
    variables: dict[str, str]
    """Environment variables to set beyond those passed on."""
    rank: int | None = None
    """The only rank that it starts; None: it starts all of them."""
    on_terminal: bool = False
    """Whether it keeps the terminal as its output, which is then not captured."""
    shows_variables: bool = False
    """Whether it writes variables on command lines, which all users of a host can read."""

    def pasteable(self) -> str:
        """One line for a shell, which takes credentials from the shell's own variables."""
        public, private = credentials.separated(self.variables)
        from_shell = "".join(f'{name}="${name}" ' for name in sorted(private))
        assigned = [f"{name}={value}" for name, value in sorted(public.items())]
        return from_shell + shlex.join([*(["env", *assigned] if assigned else []), *self.command])


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job on other hosts needs, without those whose names suggest a secret.

    --env NAME overrides this for one variable.
    """
    return {
        name: value
        for name, value in environment.items()
        if PASSED_ON.fullmatch(name) and not credentials.NAME.search(name)
    }


def variables(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables set for the ranks: defaults, where the user has not set them, and those that the job asks for."""
    values = {}
    if "OMP_NUM_THREADS" not in environment:
        values["OMP_NUM_THREADS"] = environment.get(CORES_PER_TASK) or str(job.threads)
    if job.interface:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            values[name] = job.interface
    return {**values, **job.environment}


def agent_command(job: Job, *flags: str, python: str = sys.executable) -> list[str]:
    """The command line that runs the job's program under a rank's agent (see `hvdtrain.jobs.agent`)."""
    inside = []
    if job.container:
        python = "python"  # the image's own
        inside = ["apptainer", "exec", "--nv", job.container] if job.container.endswith(".sif") else []
    interface = ["--interface", job.interface] if job.interface else []
    timeout = ["--start-timeout", f"{job.start_timeout_s:g}"]
    return [*inside, python, "-m", "hvdtrain.jobs.agent", *flags, *interface, *timeout, "--", *job.program]


def own_programs_first(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the folder of this Python's programs, such as horovodrun, first on PATH."""
    folder, path = os.path.dirname(sys.executable), environment.get("PATH", os.defpath)
    if sys.prefix == sys.base_prefix or folder in path.split(os.pathsep):
        return dict(environment)
    return {**environment, "PATH": f"{folder}{os.pathsep}{path}"}
