"""The program of a batch script: how it is named, resumed and started, alone, as a task of an array, or as a sweep."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.jobs.program import RUNS, is_own, option_value, resumes_itself, sweep_program
from hvdtrain.jobs.slurm.submissions import Submission

TASK = "$SLURM_ARRAY_TASK_ID"
NAME, TASK_NAME = "slurm-$SLURM_JOB_ID", "slurm-${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
"""The names of runs in a script: of a job, and of a task of an array."""


class BatchProgram:
    """The program of a script. Raises UserError for one that cannot be what the options ask for.

    array: whether there is a task for each of several numbers. requeue: whether the job is queued again.
    """

    def __init__(self, program: Sequence[str], array: bool, requeue: bool) -> None:
        self._program, self._array = list(program), array
        self.sweep = sweep_program(self._program)
        self.own = is_own(self._program)
        self._name = option_value(self._program, "--name") if self.own else ""
        self._resume = option_value(self._program, "--resume") if self.own else ""
        self._auto_resume = self.own and requeue and not self._resume and not resumes_itself(self._program)
        if self.sweep and self.sweep.command[:1] not in (("train",), ("launch",)):
            raise UserError("-- sweep: it has no command to run", "write sweep --set NAME=V1,V2 -- train OPTIONS")
        if array and self._name:
            raise UserError(
                f"--array with --name {self._name}: all tasks would train the same run",
                "omit --name: each task then has a run of its own",
            )

    @property
    def starts_ranks_itself(self) -> bool:
        """Whether it is a sweep whose command has a launcher of its own."""
        return bool(self.sweep and self.sweep.command[0] == "launch")

    @property
    def _is_named(self) -> bool:
        """Whether the script names its run."""
        return self.own and not self._name and not self._resume

    def words(self, launcher: list[str]) -> str:
        """Its command line for the shell. launcher: what starts ranks, for a sweep that leaves that to the script."""
        if not self.sweep:
            named = f' --name "{TASK_NAME if self._array else NAME}"' if self._is_named else ""
            return _joined(self._program) + named + (" --auto-resume" if self._auto_resume else "")
        given = any(one.partition("=")[0] == "--trial" for one in self.sweep.options)
        trial = f' --trial "{TASK}"' if self._array and not given else ""
        train = [*launcher[launcher.index("launch") :], "--", "python", "-m", "hvdtrain"]
        command = [*([] if self.starts_ranks_itself else train), *self.sweep.command]
        return f"{_joined([*self.sweep.start, *self.sweep.options])}{trial} -- {_joined(command)}"

    def submission(self, job: str, cluster: str, name: str, array: str) -> Submission:
        """What is remembered about it when it was submitted."""
        runs, run = self._run()
        return Submission(job, name, os.getcwd(), self._program, cluster, array, runs, run)

    def _run(self) -> tuple[str, str]:
        """Folder of runs and name of its run; empty texts where they are unknown, and no name for a sweep."""
        if self.sweep:
            return self.sweep.folder, ""
        if not self.own:
            return "", ""
        runs = option_value(self._program, "--runs") or RUNS
        if self._is_named:
            return runs, "slurm-{job}_{task}" if self._array else "slurm-{job}"
        if self._name:
            return runs, self._name
        resumed = Path(os.path.abspath(self._resume))  # a run, or a checkpoint of it
        resumed = resumed.parent.parent if resumed.parent.name == "checkpoints" else resumed
        return str(resumed.parent), resumed.name


def _joined(words: Sequence[str]) -> str:
    """Words of an array for the shell; those with a comma in quotes, which otherwise looks as if it divided them."""
    return " ".join(f"'{word}'" if "," in word and word == shlex.quote(word) else shlex.quote(word) for word in words)
