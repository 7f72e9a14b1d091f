"""The description of a job, and what all launchers share to build a command line from it.

That is the variables that go to the ranks, and the command line of a rank's agent.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import Host, other_hosts, placed
from hvdtrain.system import agent_pipe, credentials, rank_info, resources
from hvdtrain.system.rank_info import START_TIMEOUT_S


@dataclass(frozen=True)
class Job:
    """Which program runs on how many ranks, and where. Nothing in it changes a result."""

    program: tuple[str, ...]
    ranks: int
    hosts: tuple[Host, ...] = ()
    """Empty: this host, or those of the batch system."""
    allocation: tuple[Host, ...] = ()
    """Without `hosts`: the batch system's hosts, and how many ranks it would start on each; empty: this host."""
    interface: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    mpi: str = ""
    nodes: int = 0
    """srun's --nodes; 0: the batch system decides."""
    mpi_prefix: str = ""
    """The folder of Open MPI on all hosts; empty where it is the system's."""
    container: str = ""
    """Image in which the ranks run: a .sif file for Apptainer, else a name for Slurm's pyxis."""
    cores: int = field(default_factory=lambda: resources.within_quota(len(os.sched_getaffinity(0))))
    """Cores of this host; other hosts are assumed to have as many."""
    as_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    start_timeout_s: float = START_TIMEOUT_S
    """Between the registration of the first rank and that of the last one; then until all have initialized Horovod."""
    output_dir: Path | None = None
    survives: bool = False
    """--survive: ranks that are lost are left out and started again, while the others go on in memory."""
    grows_to: int = 0
    """If it survives: more ranks than it begins with, where hosts have slots; 0: it does not grow."""
    hostfile: Path | None = None
    """If it survives: the hosts and their slots, read again when it changes."""
    spare: tuple[Host, ...] = ()
    """If it survives, with srun: all slots of the Slurm allocation, also those where no rank begins."""
    launcher: str = "local"
    restarts: int = 0
    min_ranks: int = 0
    """With fewer, it ends, or is not restarted; 0: all are needed."""

    @property
    def needed_ranks(self) -> int:
        return self.min_ranks or self.ranks

    @property
    def max_ranks(self) -> int:
        """The largest number of ranks that it may have while it runs."""
        return max(self.ranks, self.grows_to)

    @property
    def ranks_per_host(self) -> int:
        if self.nodes:
            return -(-self.ranks // self.nodes)
        if self.hosts or self.allocation:
            return max(count for _, count in placed(self.ranks, self.hosts or self.allocation))
        return self.ranks

    @property
    def threads(self) -> int:
        return max(self.cores // self.ranks_per_host, 1)

    @property
    def crowded(self) -> bool:
        """Whether there are more ranks than cores, so that ranks must yield while they wait."""
        return self.ranks_per_host > self.cores


def check_job(job: Job) -> list[str]:
    """Warnings about a job that runs, but not as expected. Raises UserError for a job that cannot run."""
    if job.ranks < 1:
        raise UserError(f"-n {job.ranks} is invalid", "give 1 or more")
    if not job.program:
        raise UserError("no program to start", "write it after --, such as -- python -m hvdtrain.torch_lenet")
    hosts = job.hosts or job.allocation
    slots = sum(host.slots for host in hosts)
    if hosts and job.ranks > slots:
        listed = ", ".join(f"{name}:{count}" for name, count in hosts)
        reason = f"{job.ranks} ranks, but {slots} slot(s) ({listed})"
        raise UserError(reason, "name more slots or hosts")
    if job.crowded:
        return [f"{job.ranks_per_host} ranks share {job.cores} core(s): the job runs, but slower than with {job.cores}"]
    return []


def reduced(job: Job, checked: Mapping[str, UserError | None], say: Callable[[object], None]) -> Job:
    """The job on those of its hosts that respond, with fewer ranks where they have too few slots.

    checked: its other hosts, and what is wrong with them. Raises UserError if there are slots for too few ranks.
    """
    if not job.hosts:
        return job
    unusable = {host: problem.reason for host, problem in checked.items() if problem}
    left = tuple(host for host in job.hosts if host.name not in unusable)
    slots = sum(host.slots for host in left)
    ranks = min(job.ranks, slots)
    if ranks < job.needed_ranks:
        listed = "; ".join(f"{name}: {problem}" for name, problem in unusable.items())
        reason = f"{slots} slot(s) are left for {job.needed_ranks} ranks ({listed})"
        raise UserError(reason, "fix the hosts, or give a lower --min-np")
    for name, problem in unusable.items():
        say(f"continuing without {name}: {problem}")
    return dataclasses.replace(job, hosts=left, ranks=ranks)


PASSED_ON = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TERM|TMPDIR|VIRTUAL_ENV|PYTHON\w+|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|XDG_CACHE_HOME|(?i:(http|https|ftp|all|no)_proxy)|(SSL_CERT|(REQUESTS|CURL)_CA)_(FILE|DIR|BUNDLE)"
    r"|SSH_AUTH_SOCK|KRB5CCNAME|TF_CONFIG|MASTER_ADDR|MASTER_PORT"
    r"|(OMP|KMP|GOMP|MKL|OPENBLAS|MALLOC|HOROVOD|HVDTRAIN|NCCL|GLOO|UCX|OMPI|PMIX|PRTE|FI|I_MPI|CUDA|NVIDIA|TF"
    r"|XLA|TORCH|PYTORCH|MXNET|DMLC|SLURM|SLURMD|SBATCH|SALLOC|SRUN)_\w+)"
)
"""Variables that jobs need. No others are passed on to other hosts, where more users may see them."""
CONTROL_VARIABLES = (agent_pipe.SUPERVISOR, rank_info.TOKEN, rank_info.LAUNCHER)
"""What is set for the agents; the token goes into a file where variables show on command lines."""


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
    remote: tuple[str, ...] = ()
    """What the shell that `command` starts on another host is to run. The shell gets it, and the variables, through its
    standard input."""

    def pasteable(self) -> str:
        """One line for a shell, which takes credentials from the shell's own variables."""
        private = {name for name, value in self.variables.items() if credentials.holds(name, value)}
        from_shell = "".join(f'{name}="${name}" ' for name in sorted(private))
        assigned = [f"{name}={value}" for name, value in sorted(self.variables.items()) if name not in private]
        if self.remote:
            there = f"cd {shlex.quote(os.getcwd())} && {shlex.join(['env', *assigned, *self.remote])}"
            return shlex.join([*self.command[:-1], there])
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


OF_RANK = {
    "HVDTRAIN_RANK": r"HVDTRAIN_(LOCAL_)?(RANK|SIZE)",
    "HVDTRAIN_MEMBERSHIP": "HVDTRAIN_(MEMBERSHIP|REPLACES)",
    "HOROVOD_RANK": r"HOROVOD_(((LOCAL|CROSS)_)?(RANK|SIZE)|HOSTNAME|GLOO_RENDEZVOUS_\w+|CONTROLLER|CPU_OPERATIONS)",
    "OMPI_COMM_WORLD_RANK": r"OMPI_(?!MCA_|ALLOW_)\w+|OMPI_MCA_(ess|orte|pmix|initial_wdir|shmem_RUNTIME)\w*",
    "PMIX_RANK": r"(PMIX|PMI)_\w+",
}
"""What a launcher sets for a rank, by one of them: the ranks of a job that it starts would take it for theirs."""
OF_STEP = r"(SLURM|SRUN)_EXPORT_ENV=(?!(.*,)?ALL(,|$))|SLURM_(WORKING_DIR|REMOTE_CWD|WAIT)="
"""By these, as sbatch --export=NONE sets them, srun changes what ranks have from the launcher, or when they end."""
OF_SHELL = re.compile(
    r"_.*|PWD|OLDPWD|SHLVL|HOST(NAME)?|MAIL|EDITOR|VISUAL|PAGER|PS[0-9]|COLORTERM|COLUMNS|LINES|DISPLAY|XAUTHORITY|WINDOWID"
    r"|(LS|LESS|HIST|XDG|DBUS|SSH|GPG|BASH|ZSH|TMUX|STY|CONDA|PYENV|LMOD|MODULE|SYSTEMD|INVOCATION|JOURNAL|DEBUGINFOD).*"
    r"|OPAL_PREFIX|container"
)
"""Variables that say nothing about a job, also podman's in a container, and the place of this host's Open MPI."""


def has_other_hosts(job: Job, environment: Mapping[str, str]) -> bool:
    """Whether other hosts than this one take part in a job, or may do so later."""
    if job.launcher == "local":
        return False
    if job.hosts:
        return bool(other_hosts(job.hosts) or job.hostfile)
    return job.launcher == "srun" or "SLURM_JOB_ID" in environment


def inherited(job: Job, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables that ranks get as they get those of a shell, and the names of others: all, where no host but this
    one takes part."""
    if not has_other_hosts(job, environment):
        return dict(environment), []
    passed = passed_on(environment)
    return passed, sorted(name for name in {*environment} - {*passed, *job.environment} if not OF_SHELL.fullmatch(name))


OF_HOST = re.compile(
    r"HOME|USER|LOGNAME|SHELL|TERM|TMPDIR|SSH_AUTH_SOCK|KRB5CCNAME|(OMPI|PMIX|PRTE|SLURM|SLURMD|SBATCH|SALLOC|SRUN)_\w+"
)
"""Variables that each host or launcher sets for itself."""


def remote_script(command: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """What a shell on another host reads to run a command in this folder with these variables."""
    exported = [
        f"export {name}={shlex.quote(value)}\n" for name, value in environment.items() if not OF_HOST.fullmatch(name)
    ]
    return os.fsencode(f"{''.join(exported)}cd {shlex.quote(os.getcwd())} && exec {shlex.join(command)}\n")


def variables(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables set for the ranks: defaults, where the user has not set them, and those that the job asks for."""
    values = {rank_info.START_TIMEOUT: f"{job.start_timeout_s:g}"}
    if job.interface:
        of_mpi = ["OMPI_MCA_btl_tcp_if_include"] if job.mpi else []  # mpirun gets it as an option
        for name in ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", *of_mpi):
            values[name] = job.interface
    values.update(job.environment)
    path = Path({**environment, **values}.get("HOROVOD_TIMELINE", ""))
    task = environment.get("SLURM_ARRAY_TASK_ID")
    if task and path.name not in ("", "DYNAMIC") and not path.stem.endswith(f"-{task}"):  # a file for each task
        values["HOROVOD_TIMELINE"] = str(path.with_name(f"{path.stem}-{task}{path.suffix}"))
    return values


def agent_command(job: Job, *flags: str) -> list[str]:
    """The command line that runs the job's program under a rank's agent (see `hvdtrain.jobs.agent`)."""
    python = "python" if job.container else sys.executable  # the image's own
    inside = ["apptainer", "exec", "--nv", job.container] if job.container.endswith(".sif") else []
    return [*inside, python, "-m", "hvdtrain.jobs.agent", *flags, "--", *job.program]


def in_container(job: Job) -> list[str]:
    """Options of srun for a container of pyxis; none for others."""
    if not job.container or job.container.endswith(".sif"):
        return []
    return [f"--container-image={job.container}", f"--container-mounts={os.getcwd()}", "--container-workdir=."]


def for_launchers(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what makes a rank of this process or changes a step of Slurm's, and with this Python's
    programs first on PATH."""
    left_out = "|".join([OF_STEP, *(f"({names})=" for own, names in OF_RANK.items() if own in environment)])
    environment = {name: value for name, value in environment.items() if not re.match(left_out, f"{name}={value}")}
    folder, path = os.path.dirname(sys.executable), environment.get("PATH", os.defpath)
    if sys.prefix == sys.base_prefix or folder in path.split(os.pathsep):
        return dict(environment)
    return {**environment, "PATH": f"{folder}{os.pathsep}{path}"}
