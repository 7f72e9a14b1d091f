"""How busy this machine is with other programs: then what takes long says little about the installation."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

LOAD, PRESSURE = Path("/proc/loadavg"), Path("/proc/pressure/cpu")
MAX_PRESSURE = 50.0
"""Percent of the last 10 s in which some process waited for a core, above which the machine is busy: the kernel's
pressure stall information, which shows a load at once that the average of a minute does not show yet."""


class Load(NamedTuple):
    """Zeros where the kernel does not tell."""

    processes: float
    """Those that ran or waited for a core or a disk, on average of the last minute."""
    pressure: float
    """See MAX_PRESSURE."""
    cores: int

    @classmethod
    def read(cls) -> Load:
        processes = pressure = 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            processes = float(LOAD.read_text().split()[0])
        with contextlib.suppress(OSError):  # not every kernel counts it
            match = re.search(r"^some avg10=(\d{1,3}\.\d+)", PRESSURE.read_text(), re.MULTILINE)
            pressure = float(match[1]) if match else 0.0
        return cls(processes, pressure, os.cpu_count() or 1)

    def is_high(self) -> bool:
        return self.processes > self.cores or self.pressure > MAX_PRESSURE

    def __str__(self) -> str:
        """As in a sentence."""
        return (
            f"{self.processes:.1f} processes on average for {self.cores} core(s), and some waited for a core in "
            f"{self.pressure:.0f} % of the last 10 s"
        )
