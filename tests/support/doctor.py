"""Running the doctor in tests, in environments that are really broken."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from support.jobs import BIN, launcher
from support.jobs import run as run_command

DOCTOR = ["python", "-m", "hvdtrain", "doctor"]


SITE = Path(sysconfig.get_path("purelib"))


SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class DoctorResult:
    """The doctor's exit status, output and report."""

    def __init__(self, status: int, text: str, file: Path) -> None:
        self.status, self.text = status, text
        assert file.exists(), text[-4000:]
        self.report = json.loads(file.read_text())

    def findings_of(self, check: str) -> list[dict]:
        return [finding for finding in self.report["findings"] if finding["check"] == check]

    def has(self, check: str, status: str, *texts: str, remedy: str = "") -> dict:
        """The only finding of this check and status that contains all texts; its remedy contains `remedy`."""
        of_status = [finding for finding in self.findings_of(check) if finding["status"] == status]
        matching = [finding for finding in of_status if all(text in finding["text"] for text in texts)]
        assert len(matching) == 1, (check, status, texts, self.findings_of(check), self.text[-3000:])
        assert remedy in matching[0]["remedy"], matching[0]
        assert bool(matching[0]["remedy"]) == (status != "ok"), matching[0]
        return matching[0]


def doctor(folder: Path, *options: str, by: tuple[str, ...] | list[str] = (), **environment: str) -> DoctorResult:
    """Run the doctor. by: the command line of a launcher, or of another program that starts it."""
    file = folder / "doctor.json"
    file.unlink(missing_ok=True)
    command = [*by, *DOCTOR, "--output", str(file), *options]
    if "PYTHONPATH" in environment:
        environment["PYTHONPATH"] += f":{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    return DoctorResult(*run_command(command, folder, 120, **environment), file)


def script(path: Path, *lines: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def path_with(folder: Path) -> str:
    """PATH with this folder first, then the environment's programs."""
    return f"{folder}:{BIN}:{os.environ['PATH']}"


def can_run(*command: str) -> bool:
    """Whether a program runs here."""
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


def requires(*command: str) -> None:
    """Skip the test if a program that it needs does not run here."""
    if not can_run(*command):
        pytest.skip(f"needs: {' '.join(command)}")


def unshared(flags: str, code: str) -> list[str]:
    """A command line that runs a program in namespaces of its own, after some shell code; skips if not permitted."""
    requires("unshare", flags, "true")
    return ["unshare", flags, "sh", "-ec", f'{code}\nexec "$@"', "sh"]


def hvdtrain_launch(launcher: str) -> list[str]:
    """The command line of a job of two ranks, started by hvdtrain launch."""
    return ["python", "-m", "hvdtrain", "launch", launcher, "-n", "2", "--"]


def in_rank_1(code: str) -> list[str]:
    """The command line of a job of two ranks in which rank 1 runs some shell code first."""
    return [*launcher("local", 2), "sh", "-ec", f'if [ "$HVDTRAIN_RANK" = 1 ]; then {code}; fi\nexec "$@"', "sh"]


def nvidia_smi(folder: Path) -> str:
    """PATH with an nvidia-smi that reports one GPU and a driver for CUDA 11.4."""
    script(
        folder / "bin" / "nvidia-smi",
        'case "$*" in *--query-gpu*) echo "0, Tesla T4, 470.82.01";;',
        '*) echo "| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: 11.4     |";; esac',
    )
    return path_with(folder / "bin")
