"""Images per second and memory of hvdtrain's step, against PyTorch's own; the report says whether the goal is met."""

from __future__ import annotations

import json
import sys

import pytest
from support.gpu_jobs import REHEARSAL
from support.jobs import ROOT, finish

PROGRAM = ROOT / "tests" / "support" / "gpu_speed.py"
BATCH = 256
GOAL = 0.9
"""Images per second of hvdtrain, of those of the bare loop."""


@pytest.mark.parametrize("log_every", [20, 100])
def test_images_per_second_and_memory(jobs, measured, log_every):
    blocks, steps, batch = (3, 7, 8) if REHEARSAL else (21, 400, BATCH)
    process = jobs.start([sys.executable, str(PROGRAM), *map(str, (blocks, steps, batch, log_every))])
    status, output = finish(process, 580)
    assert status == 0, output[-4000:]
    found = json.loads(output.strip().splitlines()[-1])
    assert found["blocks"] >= blocks - 1
    what = f"LeNet, batch {batch}, --log-every {log_every}"
    for name, rate in found["images_per_s"].items():
        low, high = (steps * batch / seconds for seconds in reversed(found["block_s"][name]))
        text = f"{rate:,.0f} (median of {found['blocks']} blocks of {steps} steps; {low:,.0f} to {high:,.0f})"
        measured[f"{what}: images/s, {name}"] = text
    for name, size in found["memory_mb"].items():
        measured[f"{what}: largest GPU memory, {name}"] = f"{size:.0f} MB"
    met = "met" if found["of_bare"] >= GOAL else "not met"
    measured[f"{what}: hvdtrain / a bare loop"] = f"{found['of_bare']:.2f} (goal {GOAL:g}: {met})"
