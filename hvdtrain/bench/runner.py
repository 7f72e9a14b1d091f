"""Running the jobs of a strategy benchmark, one after the other.

A job's result is its run folder, so a benchmark that was stopped continues with the jobs that are not finished.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from hvdtrain.bench.strategies import BenchJob, StrategyBenchOptions, command, environment

JOB_TIMEOUT_S = 600
GRACE_S = 10


class BenchRunner:
    """Runs each job in new subprocesses, and prints the progress to stderr."""

    def __init__(self, options: StrategyBenchOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def run(self, jobs: list[BenchJob]) -> list[str]:
        """Run all jobs; returns why those failed that did."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        failed, began = [], time.monotonic()
        try:
            for done, job in enumerate(jobs):
                left_s = (time.monotonic() - began) / done * (len(jobs) - done) if done else 0.0
                self._show_progress(job, done, len(jobs), left_s)
                reason = self._run_job(job)
                if reason:
                    failed.append(f"{job.name}: {reason}")
                    print(f"    failed: {reason}", file=sys.stderr, flush=True)
        finally:
            self._end_process()
        return failed

    def _show_progress(self, job: BenchJob, done: int, total: int, left_s: float) -> None:
        left = f"; {left_s // 60:.0f}:{left_s % 60:02.0f} min left" if left_s else ""
        what = f"{job.row.name}, {job.replicas} replica(s), repeat {job.repeat + 1}/{self._options.repeats}"
        print(f"[{done + 1}/{total}] {what}{left}", file=sys.stderr, flush=True)

    def _run_job(self, job: BenchJob) -> str:
        """Run a job; why it failed, or an empty string."""
        output = self._options.output
        shutil.rmtree(output / job.name, ignore_errors=True)  # left by a benchmark that was stopped
        output.mkdir(parents=True, exist_ok=True)
        log = output / f"{job.name}.log"
        with open(log, "w") as file:
            self._process = subprocess.Popen(
                command(job, self._options),
                env=environment(),
                text=True,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            try:
                status = self._process.wait(JOB_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._end_process()
                return f"no end within {JOB_TIMEOUT_S} s (its output is in {log})"
        if status == 0:
            log.unlink()
            return ""
        return f"{_error_line(log) or f'exit status {status}'} (its output is in {log})"

    def _end_process(self) -> None:
        """End the job that is running: first with SIGTERM, on which its launcher ends the ranks, then with SIGKILL."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _error_line(log: Path) -> str:
    """The first error that a rank printed; empty if none did."""
    return next((line for line in log.read_text().splitlines() if "hvdtrain: rank" in line), "")
