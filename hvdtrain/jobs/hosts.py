"""Other hosts, by ssh: whether they can be reached and have the same versions."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.jobs.job import Host
from hvdtrain.system import versions
from hvdtrain.system.rank_info import host_name

TIMEOUT_S = 30.0
"""How long a command on another host may take."""


class HostCheck(NamedTuple):
    """The result of checking one host."""

    host: str
    problem: str = ""
    """What is wrong with the host; empty where it can be reached and has the same versions."""
    remedy: str = ""


def ssh(host: str, command: str) -> list[str]:
    """What runs a command in another host's shell."""
    # BatchMode: fail instead of asking for a password. --: a name never counts as an option.
    return ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "--", host, command]


def other_hosts(hosts: Sequence[Host]) -> list[str]:
    """Names of the hosts other than this one, which are reached by ssh."""
    here = host_name()
    return [name for name, _ in hosts if name not in ("localhost", "127.0.0.1", here, here.partition(".")[0])]


def check_hosts(hosts: list[str]) -> None:
    """Raises UserError, which names each host that cannot be reached by ssh or differs from this one."""
    problems = [one for one in inspect(hosts) if one.problem]
    if len(problems) == 1:
        raise UserError(f"{problems[0].host}: {problems[0].problem}", problems[0].remedy)
    if problems:
        lines = [f"\n  {one.host}: {one.problem}; {one.remedy}" for one in problems]
        raise UserError(f"{len(problems)} hosts cannot be used:{''.join(lines)}")


def inspect(hosts: list[str]) -> list[HostCheck]:
    """Check all hosts at once."""
    if not hosts:
        return []  # then this host's versions are not needed either
    if not shutil.which("ssh"):
        raise UserError("no ssh on PATH, which starts ranks on other hosts", "apt-get install openssh-client")
    here = versions.here()
    with ThreadPoolExecutor(min(len(hosts), 16)) as pool:
        return list(pool.map(lambda host: _inspect(host, here), hosts))


def _inspect(host: str, here: dict[str, str]) -> HostCheck:
    try:
        done = subprocess.run(
            ssh(host, _versions_command()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return HostCheck(
            host, f"no answer by ssh within {TIMEOUT_S:.0f} s", f"make sure that this works: ssh {host} true"
        )
    last_line = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
    if done.returncode == 255:
        return HostCheck(host, f"no ssh without a password ({last_line})", ssh_remedy(host, done.stderr))
    if done.returncode:
        return HostCheck(
            host,
            f"{sys.executable} -m hvdtrain does not run there in {os.getcwd()} ({last_line})",
            "provide the same folder and virtual environment on all hosts: run make setup there, or share the folders",
        )
    differs = versions.difference(json.loads(done.stdout.splitlines()[-1]), here)
    if differs:
        return HostCheck(
            host, f"it differs from this host: {differs}", "run make setup on both, from the same checkout"
        )
    return HostCheck(host)


def _versions_command() -> str:
    """The command for the other host's shell that prints its versions."""
    path = os.environ.get("PYTHONPATH")
    command = [sys.executable, "-m", "hvdtrain.jobs.agent", "--versions"]
    command = [*(["env", f"PYTHONPATH={path}"] if path else []), *command]
    return f"cd {shlex.quote(os.getcwd())} && {shlex.join(command)}"


def ssh_remedy(host: str, error: str) -> str:
    """How to fix an ssh that failed with this message."""
    if "Permission denied" in error:
        return f"ssh-keygen -t ed25519 (once), then ssh-copy-id {host}"
    if "verification failed" in error:
        return f"ssh-keyscan {host} >> ~/.ssh/known_hosts, after comparing the key; or ssh {host} once by hand"
    if "resolve" in error:
        return f"add {host} and its address to /etc/hosts, or correct the name"
    return f"check that {host} is up and runs sshd: ssh -v {host} true (another port: Port in ~/.ssh/config)"
