"""Trainings on a GPU, or in a rehearsal on the CPU, as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.environment import importing
from support.jobs import ROOT, finish, launcher, newest, start

REHEARSAL = os.environ.get("GPU_REHEARSAL") == "1"
OPTIONS = ("--data", "synthetic", "--batch-size", "64", "--lr", "0.02", "--epochs", "4", "--quiet")
STEPS = 24
"""Of most trainings."""
DETERMINISTIC = """
import torch
from hvdtrain.cli.train import main
torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
main("torch")
"""
"""Training with cuDNN's deterministic kernels, as bit-exact comparisons on a GPU need them."""


class Jobs:
    """Starts trainings in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(
        self, *options: str, device: str = "gpu", name: str = "run", by: str = "alone", np: int = 1, program: str = ""
    ) -> list[str]:
        """The command line of a training. program: code that trains in its own way."""
        if REHEARSAL:
            device = "auto"
        begin = ["-c", program] if program else ["-m", "hvdtrain.torch_lenet"]
        # Where it is given a second time, an option has the last value.
        named = [] if "--resume" in options else ["--name", name]
        given = [*named, "--device", device, *OPTIONS, *options]
        return [*launcher(by, np), sys.executable, *begin, *given]

    def start(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        """Start a command with this checkout's packages, in full fp32 precision."""
        threads = os.environ.get("OMP_NUM_THREADS", "2")
        own = {**importing(ROOT, ROOT / "tests"), "NVIDIA_TF32_OVERRIDE": "0", "OMP_NUM_THREADS": threads}
        return start(command, self.folder, **own, **environment)

    def run(self, *options: str, timeout_s: float = 300, **given: Any) -> tuple[int, str]:
        """Exit status and output of a training."""
        environment = {name: given.pop(name) for name in list(given) if name.isupper()}
        return finish(self.start(self.command(*options, **given), **environment), timeout_s)

    def train(self, *options: str, steps: int = STEPS, name: str = "run", **given: Any) -> Any:
        """The newest checkpoint of a training that must succeed."""
        status, output = self.run(*options, "--max-steps", str(steps), name=name, **given)
        assert status == 0, output[-6000:]
        return newest(self.folder / "runs" / name)

    def log(self, name: str = "run") -> str:
        """The log of rank 0."""
        return (self.folder / "runs" / name / "logs" / "rank-0.log").read_text()
