"""Time and memory of the launcher with many ranks on one machine. Run by hand.

usage: python benchmarks/many_ranks.py [--ranks N...] [--programs trivial ring]

`trivial` is `python -c pass`: what starting and supervising a rank costs. `ring` joins all ranks by --strategy ring's
group and sums one number over them, which imports NumPy in each. Memory is the sum of the proportional set sizes (PSS)
of all processes of the job, which counts shared pages once; its largest value is reported, of samples 0.5 s apart.
Nothing starts if less memory is free than --least-free-mb.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import subprocess
import sys
import time

import psutil

RING = """
import numpy as np
from hvdtrain.collectives import ring
group = ring.start()
total = group.sum(np.ones(1))[0]
assert total == group.size, total
group.close()
"""
PROGRAMS = {"trivial": "pass", "ring": RING}
START_TIMEOUT_S = 900


def main() -> None:
    """Run each job once, and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256], help="default: 16 64 256")
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--least-free-mb", type=int, default=40, help="free memory for each rank; default: 40")
    options = parser.parse_args()
    print("| program | ranks | seconds | CPU seconds of a rank | memory of a rank, MB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for program in options.programs:
        for ranks in options.ranks:
            free_mb = psutil.virtual_memory().available >> 20
            if free_mb < ranks * options.least_free_mb:
                sys.exit(f"{free_mb} MB are free, too little for {ranks} ranks")
            seconds, cpu_s, megabytes = measure(program, ranks)
            print(
                f"| {program} | {ranks} | {seconds:.1f} | {cpu_s / ranks:.2f} | {megabytes / ranks:.1f} |", flush=True
            )


def measure(program: str, ranks: int) -> tuple[float, float, float]:
    """Seconds of a job, CPU seconds, and its largest memory in MB; ends this program if the job fails."""
    launch = [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", str(ranks)]
    command = [*launch, "--start-timeout", str(START_TIMEOUT_S), "--", sys.executable, "-c", PROGRAMS[program]]
    began, used = time.monotonic(), cpu_of_children()
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    largest = 0.0
    while True:
        try:
            _, error = job.communicate(timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            largest = max(largest, memory_mb(job.pid))
    if job.returncode:
        sys.exit(f"{program}, {ranks} ranks: the job ended with status {job.returncode}: {error[-2000:]}")
    return time.monotonic() - began, cpu_of_children() - used, largest


def memory_mb(launcher: int) -> float:
    """PSS of the launcher and all processes below it."""
    total = 0
    with contextlib.suppress(psutil.Error):
        for process in [psutil.Process(launcher), *psutil.Process(launcher).children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total / (1 << 20)


def cpu_of_children() -> float:
    """CPU seconds of all processes that this one has waited for, and of those that they have."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
