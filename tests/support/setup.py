"""The scripts of set-up as tests use them."""

from __future__ import annotations

import shlex
import subprocess
import sys

from support.jobs import ROOT

SETUP = ROOT / "setup"
STACKS = sorted(path.name for path in (SETUP / "stacks").iterdir())


def pinned_uv() -> str:
    """The uv that set-up uses, fetched if need be; empty where it cannot be had."""
    given = f"setup={shlex.quote(str(SETUP))} python={shlex.quote(sys.executable)}"
    script = f'{given}; source "$setup/uv.sh"; find_uv >/dev/null; echo "$HVDTRAIN_UV"'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.strip()
