"""launch --on-end: the command runs once, after the last attempt, and is told how the job ended.

Needs processes: a launcher whose job ends in each way. tests/unit/system/test_run_end.py has the command itself.
"""

import os
import signal

from support.jobs import finish, run, start

NAMES = ("STATUS", "EXIT_STATUS", "RANK", "REASON", "RUN")
TOLD = " ".join(['printf "%s|"', *(f'"$HVDTRAIN_{name}"' for name in NAMES), ">> told"])
KILLED = 'if [ "$RANK" = 1 ]; then kill -9 $$; fi; exec sleep 60'


def launch(program: str, *options: str, ranks: int = 1) -> list[str]:
    command = ["python", "-m", "hvdtrain", "launch", "local", "-n", str(ranks), *options]
    return [*command, "--", "sh", "-c", program]


def told(folder):
    return (folder / "told").read_text().split("|")[:-1]


def test_a_killed_rank_with_restarts(tmp_path):
    """Once, after the last attempt, with its failure; the command's own failure changes nothing."""
    status, output = run(launch(KILLED, "--restarts", "1", "--on-end", f"{TOLD}; exit 5", ranks=2), tmp_path)
    assert status == 137, output
    assert output.endswith("hvdtrain: the command of --on-end ended with exit status 5\n")
    reason = f"rank 1 on {os.uname().nodename} was killed by SIGKILL"
    assert told(tmp_path) == ["failed", "137", "1", reason, ""]


def test_a_job_that_was_asked_to_end(tmp_path):
    """A signal during the command changes neither the command nor the job's status."""
    process = start(launch("echo up; exec sleep 60", "--on-end", f"sleep 0.5; {TOLD}"), tmp_path)
    assert process.stdout.readline().strip().endswith("up")
    os.kill(process.pid, signal.SIGTERM)
    next(line for line in iter(process.stdout.readline, "") if "ended by SIGTERM" in line)
    os.kill(process.pid, signal.SIGTERM)
    status, output = finish(process, 20)
    assert status == 143, output
    assert told(tmp_path)[:2] == ["stopped", "143"]


def test_a_job_that_cannot_start(tmp_path):
    (tmp_path / "file").touch()
    status, output = run(launch("", "--output-dir", "file/below", "--on-end", TOLD), tmp_path)
    assert status == 2, output
    ended, exit_status, _, reason, _ = told(tmp_path)
    assert (ended, exit_status) == ("failed", "2")
    assert reason.startswith("--output-dir file/below cannot be created (")
