"""The hosts of a job: how they are named, whether ssh reaches them, and how they get credentials.

Hosts are named by -H, by a hostfile, or by a Slurm allocation. They must have the same versions as this one.

horovodrun writes all variables on command lines, which every user of a host can read. Those with credentials, among
them the job's token, therefore go into a file on each host that only its owner can read, until all have registered.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import resource
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info, stacks
from hvdtrain.system.network import HOST_NAME
from hvdtrain.system.processes import Result, end_with_parent, in_background
from hvdtrain.system.rank_info import host_name
from hvdtrain.system.text import last_line, printable


class Host(NamedTuple):
    name: str
    slots: int


def placed(ranks: int, hosts: tuple[Host, ...]) -> list[Host]:
    """The number of ranks of each host: hosts are filled in their order, as horovodrun and mpirun do."""
    left, hosts_used = ranks, []
    for name, slots in hosts:
        hosts_used.append(Host(name, min(slots, left)))
        left -= hosts_used[-1].slots
    return [host for host in hosts_used if host.slots] or list(hosts[:1])


FORM = "write lines of the form: name slots=N"


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Hosts of `node1:4,node2:4`. Raises UserError if the text is not of that form or names a host twice."""
    hosts = []
    for part in map(str.strip, text.split(",")):
        if not (host := _entry(r"(\S+?)(?::(\d{1,6}))?", part)):
            raise UserError(f"-H {text!r}: {part!r} is not a host", "write name:slots with commas: -H node1:4,node2:4")
        hosts.append(host)
    return _unique(hosts)


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Hosts of a file of `name slots=N` lines, the format of mpirun and horovodrun; # begins a comment.

    Raises UserError if the file cannot be read or a line is of another form.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--hostfile {path} cannot be read ({error})", f"give a readable file; {FORM}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        host = _entry(r"(\S+)(?:\s+slots\s*=\s*(\d{1,6}))?(?:\s+max[-_]slots\s*=\s*\d+)?", entry)
        if not host:
            raise UserError(f"--hostfile {path}: line {number} is {entry[:80]!r}", FORM)
        hosts.append(host)
    if not hosts:
        raise UserError(f"--hostfile {path} names no host", FORM)
    return _unique(hosts)


def _entry(pattern: str, text: str) -> Host | None:
    """A host and its slots; None if the text is not of that pattern."""
    match = re.fullmatch(pattern, text)
    host = Host(match[1], int(match[2] or 1)) if match else None
    return host if host and HOST_NAME.fullmatch(host.name) and host.slots > 0 else None


def _unique(hosts: list[Host]) -> tuple[Host, ...]:
    name, times = max(Counter(host.name for host in hosts).items(), key=lambda item: item[1])
    if times > 1:
        raise UserError(f"host {name} is named more than once", f"name it once, with all its slots: {name}:{times}")
    return tuple(hosts)


def slurm_hosts(environment: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of this Slurm allocation and their tasks. Raises UserError if Slurm's variables are inconsistent."""
    names = rank_info.slurm_hosts(environment["SLURM_JOB_NODELIST"])
    counts = rank_info.slurm_tasks_per_node(environment.get("SLURM_TASKS_PER_NODE") or f"1(x{len(names)})")
    number = environment.get("SLURM_JOB_NUM_NODES", str(len(names)))
    if len(names) != len(counts) or number != str(len(names)):
        reason = "SLURM_JOB_NODELIST, SLURM_JOB_NUM_NODES and SLURM_TASKS_PER_NODE contradict each other"
        raise UserError(reason, "name the hosts with -H")
    return tuple(map(Host, names, counts))


def slurm_allocation(ranks: int, spread: bool, environment: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts on which a launcher that knows its Slurm allocation starts ranks; empty without an allocation.

    spread: whether it spreads the ranks over all hosts; else it fills each up to its number of tasks. Raises UserError
    if Slurm's variables are inconsistent.
    """
    if "SLURM_JOB_NODELIST" not in environment:
        return ()
    hosts = slurm_hosts(environment)
    return tuple(Host(name, -(-ranks // len(hosts))) for name, _ in hosts) if spread else hosts


TIMEOUT_S = 30.0
AT_ONCE = 16
"""So many hosts are asked at the same time."""
OUTPUT_BYTES = 1 << 20
FILE_BYTES = 1 << 24
"""How much it may print, as a forced command may print without end; and the largest known_hosts that ssh may add to."""


def ssh(host: str, command: str) -> list[str]:
    # -T: a terminal there (RequestTTY force) would print what it reads, and not end with it. BatchMode: fail instead of
    # asking for a password. --: a name never counts as an option.
    return ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "--", host, command]


def other_hosts(hosts: Sequence[Host]) -> list[str]:
    """Names of the hosts other than this one, which are reached by ssh."""
    here = host_name()
    return [name for name, _ in hosts if name not in ("localhost", "127.0.0.1", here, here.partition(".")[0])]


def check_hosts(hosts: list[str], shell: str = "", wait_s: float = 0.0) -> None:
    """Raises UserError, which names each host with which `inspect` finds something wrong."""
    problems = {host: problem for host, problem in inspect(hosts, shell, wait_s).items() if problem}
    for host, problem in problems.items() if len(problems) == 1 else ():
        raise UserError(f"{host}: {problem.reason}", problem.remedy)
    if problems:
        lines = [f"\n  {host}: {problem}" for host, problem in problems.items()]
        raise UserError(f"{len(problems)} hosts cannot be used:{''.join(lines)}")


class NoAnswer(UserError):
    """A host does not answer, or not yet."""


def inspect(hosts: list[str], shell: str = "", wait_s: float = 0.0) -> dict[str, UserError | None]:
    """What is wrong with each host; None where it can be reached and has the same versions.

    shell: what its login shell must run (`launchers.sent`). wait_s: how long it may take until it answers at all.
    """
    if not hosts:
        return {}  # then this host's versions are not needed either
    if not shutil.which("ssh"):
        raise UserError("no ssh on PATH, which starts ranks on other hosts", "apt-get install openssh-client")
    here, began, failed = stacks.versions_here(), time.monotonic(), threading.Event()

    def look(host: str) -> UserError | None:
        problem = _inspect(host, here, shell)
        if wait_s and isinstance(problem, NoAnswer):
            sys.stderr.write(f"hvdtrain: waiting up to {wait_s:g} s for {host}: {problem.reason}\n")
        while isinstance(problem, NoAnswer) and time.monotonic() < began + wait_s and not failed.wait(2):
            problem = _inspect(host, here, shell)
        if problem and not isinstance(problem, NoAnswer):
            failed.set()  # for which nobody has to wait
        if not (shell and problem) or isinstance(problem, NoAnswer) or _inspect(host, here):
            return problem
        reason = f"its login shell does not run what launchers such as mpirun send to it: {shell}"
        return UserError(reason, f"choose one like sh, on {host}: chsh -s /bin/bash")

    return dict(zip(hosts, _of_each(hosts, look), strict=True))


def _of_each(hosts: Sequence[Any], function: Callable[[Any], Result]) -> list[Result]:
    """What a function returns for each host; its threads do not keep this process, as an ssh that hangs would."""
    free = threading.Semaphore(AT_ONCE)

    def call(host: Any) -> Result:
        with free:
            return function(host)

    results = [in_background(call, host) for host in hosts]
    wait(results)
    return [result.result() for result in results]


def _inspect(host: str, here: dict[str, str], shell: str = "") -> UserError | None:
    try:
        status, out, err = _run_limited(ssh(host, " && ".join(filter(None, (shell, _versions_command())))))
    except subprocess.TimeoutExpired:
        return NoAnswer(f"no answer by ssh within {TIMEOUT_S:.0f} s", f"make sure that this works: ssh {host} true")
    said = last_line(err)
    if status == 255:
        starts = re.search("resolve|refused|timed out|unreachable|No route|Connection (closed|reset)", said)
        return (NoAnswer if starts else UserError)(f"no ssh without a password ({said})", ssh_remedy(host, err))
    if status not in (0, -signal.SIGXFSZ):
        return UserError(
            f"{sys.executable} -m hvdtrain does not run there in {os.getcwd()} ({said})",
            "provide the same folder and virtual environment on all hosts: run make setup there, or share the folders",
        )
    there = _versions(out)
    if there is None:
        return UserError(
            f"ssh does not run what it is asked to: it printed {printable(last_line(out)):.100}",
            f"allow any command there (command= in authorized_keys, ForceCommand): ssh {host} date",
        )
    differs = stacks.version_difference(there, here)
    if differs:
        return UserError(f"it differs from this host: {differs}", "run make setup on both, from the same checkout")
    return None


def _run_limited(command: list[str]) -> tuple[int, str, str]:
    """Exit status, output and errors of a program; SIGXFSZ ends it where it prints more than FILE_BYTES."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        end_with_parent()

    with os.fdopen(os.memfd_create("out"), "rb") as out, os.fdopen(os.memfd_create("err"), "rb") as err:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=TIMEOUT_S, preexec_fn=limit
        )
        said = (os.pread(file.fileno(), OUTPUT_BYTES, 0).decode(errors="replace") for file in (out, err))
        return done.returncode, next(said), next(said)


def _versions(output: str) -> dict[str, str] | None:
    """The versions that another host printed, in the last line with any, as its shell may print more; None without."""
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            versions = json.loads(line)
            if isinstance(versions, dict) and all(isinstance(version, str) for version in versions.values()):
                return versions
    return None


def _versions_command() -> str:
    path = os.environ.get("PYTHONPATH")
    command = [sys.executable, "-m", "hvdtrain.jobs.agent", "--versions"]
    command = [*(["env", f"PYTHONPATH={path}"] if path else []), *command]
    return f"cd {shlex.quote(os.getcwd())} && {shlex.join(command)}"


def ssh_remedy(host: str, error: str) -> str:
    if "Permission denied" in error:
        return f"ssh-keygen -t ed25519 (once), then ssh-copy-id {host}; or name a key as IdentityFile in ~/.ssh/config"
    if "verification failed" in error:
        return f"ssh-keyscan {host} >> ~/.ssh/known_hosts, after comparing the key; or ssh {host} once by hand"
    if "resolve" in error:
        return f"add {host} and its address to /etc/hosts, or correct the name"
    return f"check that {host} is up and runs sshd: ssh -v {host} true (another port: Port in ~/.ssh/config)"


VARIABLES_FILE = "HVDTRAIN_VARIABLES_FILE"
"""Environment variable: the file, which a rank's agent reads when it starts."""
HOLDERS: dict[str, list[subprocess.Popen[bytes]]] = {}
"""By file, the processes that have written it, and remove it when their input ends: at the latest with this process."""


def distribute_variables(hosts: list[str], variables: Mapping[str, str]) -> str:
    """Write variables to a file on this host and on these, readable by its owner only; the file's path.

    They go through the standard input of ssh, as all users of a host can read command lines. Raises UserError, naming
    the host, where the file cannot be written.
    """
    path = f"/tmp/hvdtrain-{secrets.token_hex(16)}"  # a random name, which no other user can have created before
    content = json.dumps(dict(variables)).encode()
    write = f'trap "" HUP INT TERM; umask 077; head -c {len(content)} > {path} && echo {path} && cat; rm -f {path}'
    here, pipe = ["sh", "-c", write], subprocess.PIPE
    holders = HOLDERS[path] = []

    def begin(host: str) -> str | None:
        """What was printed in place of the path; None where the file is written."""
        command = ssh(host, shlex.join(here)) if host else here
        # In a session of its own, so that what kills the group of this process lets it remove the file.
        holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True)
        holders.append(holder)
        assert holder.stdin
        limit = threading.Timer(TIMEOUT_S, holder.kill)
        limit.daemon = True
        limit.start()
        with contextlib.suppress(BrokenPipeError):
            holder.stdin.write(content)
            holder.stdin.flush()
        printed = b""
        for printed in itertools.islice(holder.stdout or (), 1000):  # a shell may print more
            if printed.strip() == path.encode():
                limit.cancel()
                return None
        holder.kill()
        return printable(last_line(printed.decode(errors="replace")))

    places = ["", *hosts]
    for host, problem in zip(places, _of_each(places, begin), strict=True):
        if problem is not None:
            remove_variables(path)
            reason = f"{host or 'this host'}: variables with credentials cannot be written to /tmp ({problem:.200})"
            raise UserError(reason, "check that the host can be reached and that its /tmp has free space")
    return path


def remove_variables(path: str) -> None:
    """Remove the files that `distribute_variables` wrote, on hosts that can still be reached."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        _of_each(HOLDERS.pop(path), lambda holder: holder.communicate(timeout=TIMEOUT_S))


def receive_variables(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of this rank's file, if it has one. Raises UserError if the file cannot be read."""
    path = environment.pop(VARIABLES_FILE, "")
    if not path:
        return
    try:
        with open(path) as file:
            environment.update(json.load(file))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = f"{VARIABLES_FILE}={path}: variables with credentials cannot be read ({error})"
        raise UserError(reason, "all hosts of a job need a /tmp that the launcher can write to") from None
