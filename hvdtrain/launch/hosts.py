"""Whether other hosts can be reached by ssh, and have what this one has. Asked before a job starts there."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.launch.job import Host
from hvdtrain.system import versions

SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
"""Without a question for a password, which nobody would answer."""
ANSWER_S = 30.0


class Answer(NamedTuple):
    """What a host said."""

    host: str
    problem: str = ""
    """What is wrong with it, and what mends it; empty where it is reached and alike."""
    remedy: str = ""


def elsewhere(hosts: Sequence[Host]) -> list[str]:
    """Names of those that are not this one, so that it takes ssh to reach them."""
    here = socket.gethostname()
    return [name for name, _ in hosts if name not in ("localhost", "127.0.0.1", here, here.partition(".")[0])]


def check(hosts: list[str]) -> None:
    """Raises UserError, which names each host that is not reached by ssh or differs from this one."""
    problems = [answer for answer in ask(hosts) if answer.problem]
    if problems:
        raise UserError("; ".join(f"{one.host}: {one.problem}; {one.remedy}" for one in problems))


def ask(hosts: list[str]) -> list[Answer]:
    """Ask all hosts at once."""
    if not hosts:
        return []  # and nothing of this one need be known
    if not shutil.which("ssh"):
        raise UserError("no ssh on PATH, by which ranks are started on other hosts: apt-get install openssh-client")
    mine = versions.here()
    with ThreadPoolExecutor(min(len(hosts), 16)) as pool:
        return list(pool.map(lambda host: _ask(host, mine), hosts))


def _ask(host: str, mine: dict[str, str]) -> Answer:
    words = [sys.executable, "-m", "hvdtrain.launch.agent", "--versions"]
    path = os.environ.get("PYTHONPATH")
    remote = (
        f"cd {shlex.quote(os.getcwd())} && {shlex.join([*(['env', f'PYTHONPATH={path}'] if path else []), *words])}"
    )
    try:
        done = subprocess.run(
            [*SSH, host, remote], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired:
        return Answer(host, f"no answer by ssh within {ANSWER_S:.0f} s", f"ssh {host} true must work")
    said = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "no word")
    if done.returncode == 255:
        return Answer(host, f"no ssh without a password ({said})", remedy(host, done.stderr))
    if done.returncode:
        return Answer(
            host,
            f"{sys.executable} -m hvdtrain does not run there in {os.getcwd()} ({said})",
            "have the same folder and the same virtual environment on all hosts: make setup there, or share them",
        )
    differs = versions.difference(json.loads(done.stdout.splitlines()[-1]), mine)
    if differs:
        return Answer(host, f"it differs from this host: {differs}", "make setup on both, from the same checkout")
    return Answer(host)


def entrust(hosts: list[str], token: str) -> str:
    """Leave a job's token in a file of this host and of these, which only its owner can read; the file's path.

    It goes through the standard input of ssh, for everybody on a host can read command lines. Raises UserError, naming
    the host, where the file cannot be written.
    """
    path = f"/tmp/hvdtrain-{secrets.token_hex(16)}"  # nobody can have made one of this name before
    try:
        _everywhere(hosts, f"umask 077 && cat > {path}", token)
    except UserError:
        with contextlib.suppress(UserError):
            forget(hosts, path)
        raise
    return path


def forget(hosts: list[str], path: str) -> None:
    """Remove what `entrust` left."""
    _everywhere(hosts, f"rm -f {path}", "")


def _everywhere(hosts: list[str], script: str, told: str) -> None:
    words = shlex.join(["sh", "-c", script])

    def run(host: str) -> None:
        command = [*SSH, host, words] if host else ["sh", "-c", script]
        try:
            subprocess.run(command, input=told, capture_output=True, text=True, timeout=ANSWER_S, check=True)
        except subprocess.SubprocessError as error:
            name = host or "this host"
            raise UserError(f"{name}: the job's token cannot be left in /tmp ({error}); make room there") from None

    with ThreadPoolExecutor(min(len(hosts) + 1, 16)) as pool:
        list(pool.map(run, ["", *hosts]))


def remedy(host: str, error: str) -> str:
    """What mends an ssh that failed with this message."""
    if "Permission denied" in error:
        return f"ssh-keygen -t ed25519 (once), then ssh-copy-id {host}"
    if "verification failed" in error:
        return f"ssh-keyscan {host} >> ~/.ssh/known_hosts, after you have compared the key; or ssh {host} once by hand"
    if "resolve" in error:
        return f"write {host} and its address into /etc/hosts, or correct the name"
    return f"look whether {host} is up and sshd runs there: ssh -v {host} true (another port: Port in ~/.ssh/config)"
