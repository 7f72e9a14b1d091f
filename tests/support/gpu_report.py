"""The report of the tests on a GPU, in Markdown, ready for docs/gpus.md."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PATH = "gpu-report.md"
MARKS = {"passed": "passed", "failed": "**failed**", "skipped": "skipped"}


class Outcome(NamedTuple):
    """How a test ended. why: the reason of a skip, or the first line of a failure."""

    name: str
    outcome: str
    why: str
    seconds: float


def report(command: str, date: str, machine: Mapping[str, str], outcomes: Sequence[Outcome]) -> str:
    """The whole report. machine: values by name."""
    counts = {kind: sum(one.outcome == kind for one in outcomes) for kind in MARKS}
    lines = [
        f"## Tried on {machine.get('GPU', 'no GPU')}, {date}",
        "",
        f"By `{command}`: " if "(" not in command else f"By {command}: ",
        ", ".join(f"{count} {kind}" for kind, count in counts.items()) + ".",
        "",
        *_table(("machine", ""), [[name, value] for name, value in machine.items()]),
        "",
    ]
    rows = [[one.name, MARKS[one.outcome], one.why, f"{one.seconds:.1f}"] for one in outcomes]
    lines += _table(("test", "outcome", "reason", "seconds"), rows)
    return "\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', ' ').replace(chr(10), ' ') for cell in cells)} |"


def machine() -> dict[str, str]:
    """What the tests run on. Names no host."""
    found = {"system": f"{platform.system()} {platform.release()}", "Python": platform.python_version()}
    try:
        import torch
    except ImportError:
        return found
    if torch.cuda.is_available():
        count, name = torch.cuda.device_count(), torch.cuda.get_device_name(0)
        found = {
            "GPU": name if count == 1 else f"{count} x {name}",
            "GPU memory": f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB",
            "driver": _driver(),
            **found,
            "cuDNN": str(torch.backends.cudnn.version()),
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return {**found, "PyTorch": torch.__version__, "CUDA of PyTorch": str(torch.version.cuda), **_versions()}


def _versions() -> dict[str, str]:
    import numpy as np

    found = {"NumPy": np.__version__}
    try:
        import horovod
    except ImportError:
        return {**found, "Horovod": "not installed"}
    return {**found, "Horovod": horovod.__version__}


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip().splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return "unknown"
