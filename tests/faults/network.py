"""A host of a job loses its network: the job restarts on another host."""

from __future__ import annotations

import time

from faults.suite import Row, Suite
from faults.watched_job import HANG_S, STEPS, Mismatch


def cable(suite: Suite, launcher: str, framework: str) -> Row:
    """The cable of a host is pulled: a third host takes its rank."""
    cluster = suite.cluster()
    options = ["--interface", "eth0", "-H", "host1:1,host2:1,host3:1", "--restarts", "2"]
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
