"""What Slurm's commands print, and the file of submitted jobs, to which several processes and hosts write."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.inputs import altered, mutated, text_like
from fuzz.properties import FUZZ, rejects_cleanly
from hvdtrain.jobs.slurm import overview, queue, sbatch
from hvdtrain.jobs.slurm.queue import NamedJob
from hvdtrain.jobs.slurm.submissions import OpenedRun, Submission, parse_submitted

RECORD = {"job": "12", "name": "a", "folder": "/", "command": ["x"], "array": "0-3", "sweep": "runs",
          "submitted": 1.5}  # fmt: skip
OPENED = {"job": "12", "task": "3", "run": "/runs/slurm-12_3"}
LINE = json.dumps(RECORD).encode()
SQUEUE = "\x1f".join(["12", "3", "RUNNING", "ada", "1-02:03:04", "2", "None", "2026-01-02T03:04:05", "n[1-2]", "a"])
SACCT = "\x1f".join(["12_3", "CANCELLED by 1", "ada", "00:01", "1", "None", "Unknown", "None assigned", "a"])


@FUZZ
@given(
    mutated((LINE,), (b"\\u0000", b"1e999", b"-1", b"{", b"null", b"[" * 2000))
    | (altered(RECORD) | altered(OPENED)).map(lambda one: json.dumps(one).encode())
)
@example(b'{"job": "1", "name": "", "folder": "", "submitted": ' + b"9" * 400 + b"}")
def test_submitted_jobs(line: bytes) -> None:
    with rejects_cleanly():
        OpenedRun.from_json(line)
        found = Submission.from_json(line)
        if found:
            assert overview.of_job(NamedJob(found.job, "3", found), []).record()
            assert found.has_task("3") in (True, False)


@FUZZ
@given(text_like((SQUEUE, SACCT), ("\x1f", "-", ":", "_", "[1-2]", "N/A", "PENDING", " ", "٣")))
@example("\x1f".join(["12_3", "", "ada", "", "", "", "", "", ""]))
@example("\x1f".join(["12", "٣", "RUNNING", "ada", "²", "²", "None", "", "", ""]))
def test_answers_of_slurm(line: str) -> None:
    with rejects_cleanly():
        for entry in (queue.parse_squeue(line), queue.parse_sacct(line)):
            if entry:
                rows = [overview.of_job(NamedJob(entry.job), [entry, entry]), overview.of_entry(entry, None)]
                assert all(json.dumps(row.record()) for row in rows)
                overview.in_words(entry.reason, active=True)
        parse_submitted(line)


@FUZZ
@given(text_like(("0-9%2", "1,3,5", "0-8:4", "7"), "-,:%0٣ ") | st.text(max_size=4))
def test_arrays(text: str) -> None:
    with rejects_cleanly():
        tasks = sbatch.array_tasks(text)
        assert tasks.has(tasks.last) or tasks.indexes[0][2] > 1
