"""The record of a sweep, a study of Optuna in its folder: which trials it has, and which of them a process runs.

A grid has all its trials from the beginning. In a search Optuna draws each from those that went before, by the study
and the trial's number alone, so that one that was interrupted continues as if it had not been. A trial without a
result, as one that was interrupted or has failed, stays open, and the same command runs it again.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from hvdtrain.config.score import Score
from hvdtrain.errors import Stopped, UserError
from hvdtrain.measure.sweep.trials import (
    COMPLETE,
    PRUNED,
    Settings,
    SweepOptions,
    Trial,
    from_text,
    import_optuna,
    shown,
    text_of,
)
from hvdtrain.runs import metrics
from hvdtrain.runs.metrics import EVALUATIONS, MetricsReader, metrics_of
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.files import require_writable
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.system.text import finite_number, printable

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

FILE = "study.jsonl"
NAME = "sweep"
SEED = "seed"
"""The parameter of a grid's trials beside their options; a trial of a search has all seeds."""
STARTUP_TRIALS, FIRST_EVALUATION = 4, 2
"""Complete trials before `median` ends another one, and from which evaluation on: the first says little."""
STOP = "STOP"
"""In a run's folder, the file that asks it to stop."""
LOCKS = ".locks"
"""In the sweep's folder; each is held while a process runs the trial."""


class Proposal(NamedTuple):
    """What a process is to train: a trial of the study."""

    trials: list[Trial]
    """One for each seed."""
    trial: optuna.Trial
    lock: FileLock


class SweepStudy:
    """The study in a sweep's folder. Several processes may work on one."""

    def __init__(self, options: SweepOptions, command: list[str], settings: Settings) -> None:
        """Open the study, or begin one. Raises UserError without Optuna, and if it is of another command or search.

        command: of the trials; empty to read a study, whatever its command is.
        """
        self._optuna = import_optuna()
        self.folder, self.options, self._settings = options.output, options, settings
        self._chosen: set[str] | None = None
        self._attempted: set[int] = set()
        if not command and not (self.folder / FILE).is_file():
            raise UserError(f"--output {self.folder} holds no sweep", "name the folder of one with --output")
        require_writable(self.folder, "--output")
        (self.folder / LOCKS).mkdir(exist_ok=True)
        try:
            with exclusive(self.folder):
                self._study = self._opened(command)
            self.command, known = self._study.user_attrs["command"], self._study.user_attrs["search"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
            reason = f"{self.folder / FILE}: no valid record of a sweep ({error})"
            raise UserError(reason, "remove it, or give another --output") from None
        if command and (self.command, known) != (command, options.search):
            reason = f"{self.folder} holds another sweep: {known or 'all combinations'} -- {shlex.join(self.command)}"
            raise UserError(reason, "repeat that command, or give another --output")

    def _opened(self, command: list[str]) -> optuna.Study:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self._storage = JournalStorage(JournalFileBackend(str(self.folder / FILE)))
        if command and not self._storage.get_all_studies():
            study = self._optuna.create_study(storage=self._storage, study_name=NAME, direction="maximize")
            recorded = {"command": command, "search": self.options.search, "seeds": self.options.seeds}
            for name, value in recorded.items():
                study.set_user_attr(name, value)
        pruners = self._optuna.pruners
        median = pruners.MedianPruner(STARTUP_TRIALS, n_warmup_steps=FIRST_EVALUATION)
        pruner = {"median": median, "halving": pruners.SuccessiveHalvingPruner()}.get(self.options.pruner)
        return self._optuna.load_study(study_name=NAME, storage=self._storage, pruner=pruner or pruners.NopPruner())

    @property
    def frozen(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    @property
    def trials(self) -> list[Trial]:
        """All trials that the sweep has had. Raises UserError for options that no trial has."""
        return list({trial.name: trial for frozen in self.frozen for trial in self._trials_of(frozen)}.values())

    def _trials_of(self, frozen: FrozenTrial) -> list[Trial]:
        drawn = dict(frozen.params)
        seeds = [drawn.pop(SEED)] if SEED in drawn else range(self._study.user_attrs["seeds"])
        options = {}
        for name in sorted(drawn):
            text = text_of(drawn[name], frozen.distributions[name])
            options[name] = from_text(name, text, f"{self.folder / FILE}: {name}")
        return [Trial(options, seed) for seed in seeds]

    def add(self, planned: list[Trial], chosen: list[Trial]) -> None:
        """Add those trials of a grid that are new, or whose result is gone, in the order in which they are planned.

        chosen: those that this process is to run.
        """
        self._chosen = {trial.name for trial in chosen}
        choices: Settings = {**self._settings, SEED: sorted({trial.seed for trial in planned})}
        distributions = self._distributions(choices)
        create, state = self._optuna.trial.create_trial, self._optuna.trial.TrialState.WAITING
        with exclusive(self.folder):
            known = {
                trial.name
                for frozen in self.frozen
                for trial in self._trials_of(frozen)
                if not frozen.state.is_finished() or trial.status(self.folder) == COMPLETE
            }
            for trial in planned:
                if trial.name not in known:
                    values = {name: _choice(value) for name, value in {**trial.options, SEED: trial.seed}.items()}
                    self._study.add_trial(create(state=state, params=values, distributions=distributions))

    def _distributions(self, settings: Settings) -> dict[str, BaseDistribution]:
        choices = self._optuna.distributions.CategoricalDistribution
        return {
            name: choices([_choice(value) for value in values]) if isinstance(values, list) else values
            for name, values in settings.items()
        }

    def _open(self) -> list[FrozenTrial]:
        unfinished = [frozen for frozen in self.frozen if not frozen.state.is_finished()]
        if self._chosen is None:
            return unfinished
        return [frozen for frozen in unfinished if self._trials_of(frozen)[0].name in self._chosen]

    def left(self) -> int:
        """How many trials of this process have no result yet."""
        return len(self._open()) + max((self.options.trials or 0) - len(self.frozen), 0)

    def proposals(self) -> Iterator[Proposal]:
        """What to train, each once in this process, until nothing is left that no other process trains."""
        while proposal := self._next():
            self._attempted.add(proposal.trial.number)
            try:
                yield proposal
            finally:
                proposal.lock.release()

    def _next(self) -> Proposal | None:
        with exclusive(self.folder):
            number = len(self.frozen)
            for frozen in self._open():
                if frozen.number not in self._attempted and (lock := self._locked(frozen.number)):
                    self._storage.set_trial_state_values(frozen._trial_id, self._optuna.trial.TrialState.RUNNING)
                    trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
                    return Proposal(self._trials_of(frozen), trial, lock)
            if number >= (self.options.trials or 0) or not (lock := self._locked(number)):
                return None
            # Not one sampler for all trials, whose next numbers a process that starts does not know.
            samplers = self._optuna.samplers
            kind = samplers.RandomSampler if self.options.sampler == "random" else samplers.TPESampler
            self._study.sampler = kind(seed=number)
            trial = self._study.ask(self._distributions(self._settings))
            return Proposal(self._trials_of(self.frozen[trial.number]), trial, lock)

    def _locked(self, number: int) -> FileLock | None:
        """The lock of a trial, which ends with its process; None if another process runs the trial."""
        lock = FileLock(self.folder / LOCKS / f"trial-{number}", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            # The only trial of a process, as of a task of an array: its job then waits for the other process.
            return lock if self._chosen is not None and len(self._chosen) == 1 else None
        except (OSError, NotImplementedError):
            pass  # a shared folder may have no locks
        return lock

    def ended(self, proposal: Proposal) -> None:
        """Record how a trial ended, as the folders of its runs say; it stays open if they have no result."""
        status = [trial.status(self.folder) for trial in proposal.trials]
        if PRUNED in status:
            self._study.tell(proposal.trial, state=self._optuna.trial.TrialState.PRUNED, skip_if_finished=True)
        elif set(status) == {COMPLETE}:
            scores = [RecordedRun(self.folder / trial.name).score for trial in proposal.trials]
            self._study.tell(proposal.trial, statistics.median(map(signed, scores)), skip_if_finished=True)

    def results(self, failures: Mapping[str, str]) -> tuple[list[RecordedRun], list[str]]:
        """The runs of trials that are complete, and the names of the others, with the reason.

        failures: reasons that are known here, by the names of trials; the folders of runs have others.
        """
        finished, unfinished = [], []
        for trial in self.trials:
            if trial.status(self.folder) == COMPLETE:
                finished.append(trial.run(self.folder))
            else:
                end = RunEnd.read(self.folder / trial.name)
                why = ": ".join(filter(None, (end.status, end.reason))) if end else "no result yet"
                why = failures.get(trial.name, why)
                unfinished.append(printable(f"{trial.name} ({why})"))
        return finished, unfinished


class EarlyEnd:
    """Watches the run of a trial while it trains, and asks it to stop when its scores are worse than others."""

    def __init__(self, trial: optuna.Trial, folder: Path) -> None:
        self._trial, self._folder = trial, folder
        self._reported = len(trial.storage.get_trial(trial._trial_id).intermediate_values)
        self._reader = MetricsReader(folder / metrics.NAME, only=EVALUATIONS)
        self._reason = ""

    def look(self) -> None:
        """Report the evaluations since the last look; ask the run to stop if it is to end."""
        if self._reason:
            return
        run = RecordedRun(self._folder)
        records = self._reader.read().of_kind(self._reader.part)
        scores = [run.score_of(finite_number(record.get("loss")), metrics_of(record)) for record in records]
        for number in range(self._reported + 1, len(scores) + 1):
            self._reported, score = number, scores[number - 1]
            self._trial.report(signed(score), number)
            if self._trial.should_prune():
                shown_score = f"{score.title} {score.value:.4g}" if score else "no finite score"
                self._reason = f"after evaluation {number}: {shown_score} is worse than that of other trials"
                with contextlib.suppress(OSError):  # it then trains to its end
                    (self._folder / STOP).touch()
                return

    def excuse(self) -> str:
        """Why the run ended early, which is then recorded in its folder; empty where it did not for this reason."""
        with contextlib.suppress(OSError):
            (self._folder / STOP).unlink(missing_ok=True)  # of a run that had ended already
        end = RunEnd.read(self._folder)
        if not self._reason or not end or end.status != "stopped":
            return ""
        RunEnd(PRUNED, Stopped.exit_status, Failure(self._reason, stands_alone=True)).write(self._folder)
        return f"pruned {self._reason}"


def _choice(value: Any) -> Any:
    """A value as a study has it: a number or a text."""
    return value if type(value) in (int, float) else shown(value)


def signed(score: Score | None) -> float:
    """The value of a trial in the study: greater is better. One that diverged has no finite score."""
    return score.signed if score else -math.inf


def exclusive(folder: Path) -> FileLock:
    """Only one process at a time writes the sweep's record and report: those of an array run at once."""
    return FileLock(folder / LOCKS / "record")
