"""The hosts that a script of the user's prints, as --host-discovery-script."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import Host, parse_hosts
from hvdtrain.system.processes import describe_status

SCRIPT_S = 30.0
"""How long a script may take."""


def discover(script: Path) -> tuple[Host, ...]:
    """The hosts that a script prints, each as name:slots in a line of its own.

    Raises UserError where it fails, takes too long, or prints something else.
    """
    try:
        done = subprocess.run(
            [script.absolute()], stdin=subprocess.DEVNULL, capture_output=True, timeout=SCRIPT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"--host-discovery-script {script} took more than {SCRIPT_S:g} s", "make it faster") from None
    except OSError as error:
        raise UserError(f"--host-discovery-script {script} cannot be run ({error.strerror})", "correct it") from None
    if done.returncode:
        reason = f"--host-discovery-script {script} {describe_status(done.returncode)}"
        raise UserError(reason, "let it print a line of name:slots for each host")
    lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
    try:
        return parse_hosts(",".join(lines)) if lines else ()
    except UserError as error:
        remedy = "let it print a line of name:slots for each host"
        raise UserError(f"--host-discovery-script {script}: {error.reason}", remedy) from None
