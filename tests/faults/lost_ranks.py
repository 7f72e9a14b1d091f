"""A rank is killed, hangs or loses its network: the job names it, and its restart continues from the newest checkpoint.

With --shards, other ranks and another strategy continue it.
"""

from __future__ import annotations

import os
import signal
import time

from faults.suite import SHARDS, Row, Suite
from faults.watched_job import EVERY, HANG_S, STEPS, Mismatch, WatchedJob

RESTARTS = ["--restarts", "2"]


def signal_rank(
    suite: Suite, launcher: str, framework: str, number: signal.Signals, report: str, within_s: float
) -> Row:
    """Send a signal to a random rank at a random step. The job must report it within `within_s` and restart."""
    job, first_step_s = _start(suite, launcher, framework)
    at, rank = job.wait_for_step(suite.random.randrange(2, STEPS - 8)), suite.random.randrange(2)
    os.kill(job.pid(rank), number)
    sent = time.time()
    detected = job.reported(report.format(rank=rank), sent, within_s + 20)
    if f"rank {rank}" not in next(line for when, line in job.lines if when == detected):
        raise Mismatch(f"the job did not name rank {rank}:\n{job.output}")
    recovered_s = _wait_for_restart(job, detected) - sent - first_step_s
    job.end(0)
    suite.check_weights(job)
    lost = at - max(job.attempts()[1]["checkpoint"], 0)
    if lost > EVERY + 3:  # some steps run between reading the step and sending the signal
        raise Mismatch(f"{lost} steps were lost:\n{job.output}")
    job.check_time(detected - sent, within_s, "it was detected")
    # Other programs of this machine may slow the second start: it may take twice as long as the first.
    job.check_time(recovered_s, within_s + 10 + first_step_s, "it trained again")
    return Row(f"{number.name} to a rank", launcher, framework, detected - sent, max(recovered_s, 0.0), max(lost, 0))


def _start(suite: Suite, launcher: str, framework: str) -> tuple[WatchedJob, float]:
    """A job with restarts, under srun on two nodes; and the seconds from its start to its first step."""
    options, cluster = RESTARTS, None
    if launcher == "srun":
        options, cluster = [*options, "--nodes", "2"], suite.cluster()
    job = suite.job(launcher, framework, launch_options=options, cluster=cluster)
    job.wait_for_step(1)
    return job, time.time() - job.began


def _wait_for_restart(job: WatchedJob, since: float) -> float:
    """When the second attempt recorded a step."""
    job.reported("rank 0 of 2 starts with parameters", since, 60)
    path = job.run / "metrics.jsonl"
    before = path.stat().st_size
    job.wait(lambda: path.stat().st_size > before, 60)
    return time.time()


def suspend(suite: Suite, launcher: str, framework: str) -> Row:
    """SIGSTOP of all ranks, and SIGCONT of one after the other: only time is lost."""
    job = suite.job(launcher, framework, launch_options=RESTARTS)
    job.wait_for_step(suite.random.randrange(2, STEPS - 8))
    ranks = suite.random.sample([job.pid(0), job.pid(1)], 2)
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * HANG_S)
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
        time.sleep(HANG_S + 2)
    job.end(0)
    suite.check_weights(job)
    suite.check_not_restarted(job)
    return Row("all ranks are suspended and resumed", launcher, framework)


def sleep(suite: Suite, launcher: str, framework: str, program: str = "sleep") -> Row:
    """A rank sleeps in Python code, once; with `sleep_with_skewed_clock`, the clock of rank 1 is an hour ahead."""
    job = suite.job(launcher, framework, program, launch_options=RESTARTS)
    job.wait((job.folder / "slept").exists, 120, "asleep")
    began = time.time()
    detected = job.reported(") is at programs.py:", began, HANG_S + 20)
    job.end(0)
    suite.check_weights(job)
    job.check_time(detected - began, HANG_S + 5, "it was detected")
    named = next(line for at, line in job.lines if at == detected)
    if "in sleep, step 5, and the other ranks wait for it" not in named or "rank 1 (process " not in named:
        raise Mismatch(f"the job did not name rank 1 and its place in the code:\n{job.output}")
    if "no heartbeat of" in job.output:
        raise Mismatch(f"a rank that runs was named:\n{job.output}")
    title = "a rank sleeps in Python" if program == "sleep" else "a clock is an hour ahead, a rank sleeps"
    return Row(title, launcher, framework, detected - began)


def cable(suite: Suite, launcher: str, framework: str) -> Row:
    """The cable of a host is pulled: a third host takes its rank."""
    cluster = suite.cluster()
    options = ["--interface", "eth0", "-H", "host1:1,host2:1,host3:1", *RESTARTS]
    job = suite.job(launcher, framework, launch_options=options, cluster=cluster)
    at = job.wait_for_step(suite.random.randrange(2, STEPS - 8))
    cluster.hosts.cable("host2", plugged=False)
    pulled = time.time()
    try:
        detected = job.reported("ending the others", pulled, HANG_S + 20)
        job.wait((job.run / "attempts.json").exists, 20, "ended")
        ended = time.time()
        job.end(0, cleanup_s=20)
    finally:
        cluster.hosts.cable("host2", plugged=True)
    suite.check_weights(job)
    second = job.attempts()[1]
    if second["hosts"] != ["host1", "host3"]:
        raise Mismatch(f"it restarted on {second['hosts']}:\n{job.output}")
    job.check_time(ended - pulled, HANG_S + 5, f"it was detected after {detected - pulled:.1f} s and ended")
    lost = max(at - max(second["checkpoint"], 0), 0)
    return Row("a host's cable is pulled", f"{launcher}, ssh", framework, detected - pulled, None, lost)


def change(suite: Suite, launcher: str, framework: str) -> Row:
    """With --shards: kill -9 of a rank, and later a request to stop, both in the middle of an epoch."""
    suite.shards = SHARDS
    job = suite.job(launcher, framework)
    job.wait_for_step(suite.random.randrange(2, STEPS // 2 - 8))
    os.kill(job.pid(suite.random.randrange(job.ranks)), signal.SIGKILL)
    killed = time.time()
    job.process.wait(60)
    detected = job.reported("was killed by SIGKILL", killed, 1)
    second = suite.continued(job)
    second.wait_for_step(suite.random.randrange(STEPS // 2 + 5, STEPS - 8))
    os.kill(second.process.pid, signal.SIGTERM)
    second.end(75)
    third = suite.continued(second)
    third.end(0)
    suite.check_weights(third)
    ways = ", ".join(f"{one.ranks} of {one.strategy}" for one in (job, second, third))
    return Row(f"SIGKILL, then SIGTERM; ranks: {ways}", launcher, framework, detected - killed, state="same hash")
