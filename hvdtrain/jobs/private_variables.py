"""Variables that hold credentials, among them the job's token, for ranks whose launcher shows variables.

horovodrun writes all variables on command lines, which every user of a host can read. Those with credentials therefore
go into a file on each host that only its owner can read, until all ranks have registered.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import subprocess
from collections.abc import Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor

from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import TIMEOUT_S, ssh
from hvdtrain.jobs.job import DEFAULT_ACCESS, SshAccess

FILE = "HVDTRAIN_VARIABLES_FILE"
"""Environment variable: the file, which a rank's agent reads when it starts."""


def distribute(hosts: list[str], variables: Mapping[str, str], access: SshAccess = DEFAULT_ACCESS) -> str:
    """Write variables to a file on this host and on these, readable by its owner only; the file's path.

    They go through the standard input of ssh, as all users of a host can read command lines. Raises UserError, naming
    the host, where the file cannot be written.
    """
    path = f"/tmp/hvdtrain-{secrets.token_hex(16)}"  # a random name, which no other user can have created before
    try:
        _run_everywhere(hosts, f"umask 077 && cat > {path}", json.dumps(dict(variables)), access)
    except UserError:
        with contextlib.suppress(UserError):
            remove(hosts, path, access)
        raise
    return path


def remove(hosts: list[str], path: str, access: SshAccess = DEFAULT_ACCESS) -> None:
    """Remove the files that `distribute` wrote. Raises UserError, naming a host that cannot be reached."""
    _run_everywhere(hosts, f"rm -f {path}", "", access)


def _run_everywhere(hosts: list[str], script: str, stdin: str, access: SshAccess) -> None:
    remote = shlex.join(["sh", "-c", script])

    def run(host: str) -> None:
        command = ssh(host, remote, access) if host else ["sh", "-c", script]
        try:
            subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        except subprocess.SubprocessError as error:
            reason = f"{host or 'this host'}: variables with credentials cannot be written to /tmp ({error})"
            raise UserError(reason, "check that the host can be reached and that its /tmp has free space") from None

    with ThreadPoolExecutor(min(len(hosts) + 1, 16)) as pool:
        list(pool.map(run, ["", *hosts]))


def receive(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of this rank's file, if it has one. Raises UserError if the file cannot be read."""
    path = environment.pop(FILE, "")
    if not path:
        return
    try:
        with open(path) as file:
            environment.update(json.load(file))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = f"{FILE}={path}: variables with credentials cannot be read ({error})"
        raise UserError(reason, "all hosts of a job need a /tmp that the launcher can write to") from None
