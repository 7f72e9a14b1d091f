"""Running the doctor in tests, in environments that are really broken."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from hvdtrain.cli import doctor as command_line
from hvdtrain.system.stacks import DISTRIBUTIONS
from support.environment import script
from support.jobs import BIN, launcher
from support.jobs import run as run_command

DOCTOR = ["python", "-m", "hvdtrain", "doctor"]
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
    """Run the doctor in this process. by: the command line of a launcher, or of another program that starts it."""
    file = folder / "doctor.json"
    file.unlink(missing_ok=True)
    options = ("--output", str(file), *options)
    if by:
        return DoctorResult(*run_command([*by, *DOCTOR, *options], folder, 120, **environment), file)
    output, ends = io.StringIO(), pytest.raises(SystemExit)
    with in_environment(folder, environment), contextlib.redirect_stdout(output), ends as ended:
        command_line.main([*options])
    return DoctorResult(ended.value.code, output.getvalue(), file)


@contextlib.contextmanager
def in_environment(folder: Path, variables: dict[str, str]) -> Iterator[None]:
    """As a process that is started in this folder with these variables; those that it starts have them."""
    before, path = Path.cwd(), [*sys.path]
    given = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **variables}
    imported = {}
    if "PYTHONPATH" in variables:
        given["PYTHONPATH"] += f":{os.environ.get('PYTHONPATH', '')}".rstrip(":")
        imported = {name: sys.modules.pop(name) for name in (*DISTRIBUTIONS, "horovod") if name in sys.modules}
        sys.path[:0] = variables["PYTHONPATH"].split(":")
    try:
        with mock.patch.dict(os.environ, given):
            os.chdir(folder)
            yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        sys.modules.update(imported)


def path_with(folder: Path) -> str:
    """PATH with this folder first, then the environment's programs."""
    return f"{folder}:{BIN}:{os.environ['PATH']}"


def requires(*command: str) -> None:
    """Skip the test if a program that it needs does not run here."""
    with contextlib.suppress(OSError):
        if subprocess.run(command, capture_output=True, timeout=20).returncode == 0:
            return
    pytest.skip(f"needs: {' '.join(command)}")


def unshared(flags: str, code: str) -> list[str]:
    """A command line that runs a program in namespaces of its own, after some shell code; skips where that fails."""
    requires("unshare", flags, "sh", "-ec", code)
    return ["unshare", flags, "sh", "-ec", f'{code}\nexec "$@"', "sh"]


def in_rank_1(code: str) -> list[str]:
    """The command line of a job of two ranks in which rank 1 runs some shell code first."""
    return [*launcher("local", 2), "sh", "-ec", f'if [ "$HVDTRAIN_RANK" = 1 ]; then {code}; fi\nexec "$@"', "sh"]


def nvidia_smi(
    folder: Path, name: str = "Tesla T4", driver: str = "470.82.01", cuda: str = "11.4", capability: str = ""
) -> str:
    """PATH with an nvidia-smi that reports one GPU; its driver supports this CUDA and older ones."""
    script(
        folder / "bin" / "nvidia-smi",
        f'case "$*" in *compute_cap*) echo "{capability}";; *--query-gpu*) echo "0, {name}, {driver}";;',
        f'*) echo "| NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: {cuda}     |";; esac',
    )
    return path_with(folder / "bin")
