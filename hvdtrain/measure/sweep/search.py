"""Searches: Optuna draws the options of each trial from those that went before, and says which trials end early.

The study is kept in the sweep's folder. What is drawn for a trial depends on the study and the trial's number alone, so
a search that was interrupted continues as if it had not been. A trial without a result, as one that was interrupted or
has failed, stays open in the study, and the same command runs it again.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from hvdtrain.config.score import Score
from hvdtrain.errors import Stopped, UserError
from hvdtrain.measure.sweep.outcomes import is_pruned
from hvdtrain.measure.sweep.ranges import Range
from hvdtrain.measure.sweep.trials import Settings, Trial, exclusive, from_text, shown, written
from hvdtrain.runs import metrics
from hvdtrain.runs.metrics import EVALUATIONS, MetricsReader, metrics_of
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.system.text import finite_number

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner

STUDY = "study.jsonl"
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "halving", "none")
STARTUP_TRIALS, FIRST_EVALUATION = 4, 2
"""Complete trials before `median` ends another one, and from which evaluation on: the first says little."""
LOCKS = ".locks"
"""In the sweep's folder; each is held while a process runs the trial."""
STOP = "STOP"
"""In a run's folder, the file that asks it to stop."""


class Rules(NamedTuple):
    """How a search goes."""

    trials: int
    sampler: str
    pruner: str
    seeds: int
    """With how many seeds each combination is trained."""
    sampler_seed: int = 0

    def record(self, settings: Settings) -> dict[str, Any]:
        """What all trials of a study have in common, as JSON."""
        values = [f"--set {written(name)}={','.join(map(shown, known))}" for name, known in sorted(settings.items())]
        return {
            "settings": " ".join(values),
            "seeds": self.seeds,
            "sampler": self.sampler,
            "sampler_seed": self.sampler_seed,
        }


class Proposal(NamedTuple):
    """A combination of options, to be trained."""

    number: int
    """Of the trial in the study, from 0."""
    options: dict[str, Any]
    trial: optuna.Trial
    lock: FileLock


class Search:
    """A search in a sweep's folder. Several processes may work on one."""

    def __init__(self, folder: Path, settings: Settings, rules: Rules) -> None:
        """Open the study of the folder, or begin one. Raises UserError without Optuna, and for a study of others."""
        self._optuna = _imported()
        self._folder, self._settings, self._rules = folder, settings, rules
        self._attempted: set[int] = set()
        with exclusive(folder):
            self._study = self._opened()
        recorded = rules.record(settings)
        known = self._study.user_attrs.get("search", recorded)
        if different := [name for name, value in recorded.items() if known.get(name) != value]:
            reason = f"{folder} holds a search with other {different[0]}: {known.get(different[0])}"
            raise UserError(reason, "repeat its command, or give another --output")

    def _opened(self) -> optuna.Study:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        (self._folder / LOCKS).mkdir(exist_ok=True)
        storage = JournalStorage(JournalFileBackend(str(self._folder / STUDY)))
        study = self._optuna.create_study(
            storage=storage, study_name="sweep", direction="maximize", load_if_exists=True, pruner=self._pruner()
        )
        if "search" not in study.user_attrs:
            study.set_user_attr("search", self._rules.record(self._settings))
        return study

    def _pruner(self) -> BasePruner:
        pruners = self._optuna.pruners
        if self._rules.pruner == "median":
            return pruners.MedianPruner(STARTUP_TRIALS, n_warmup_steps=FIRST_EVALUATION)
        return pruners.SuccessiveHalvingPruner() if self._rules.pruner == "halving" else pruners.NopPruner()

    @property
    def _distributions(self) -> dict[str, BaseDistribution]:
        return {name: self._distribution(values) for name, values in self._settings.items()}

    def _distribution(self, values: list[Any]) -> BaseDistribution:
        distributions, drawn = self._optuna.distributions, values[0]
        if not isinstance(drawn, Range):
            return distributions.CategoricalDistribution([shown(value) for value in values])
        if drawn.is_of_integers:
            low, high, step = int(drawn.low), int(drawn.high), int(drawn.step or 1)
            return distributions.IntDistribution(low, high, log=drawn.is_logarithmic, step=step)
        return distributions.FloatDistribution(drawn.low, drawn.high, log=drawn.is_logarithmic, step=drawn.step)

    def left(self) -> int:
        """How many trials have no result yet."""
        states = [trial.state for trial in self._study.get_trials(deepcopy=False)]
        return max(self._rules.trials, len(states)) - sum(state.is_finished() for state in states)

    def proposals(self) -> Iterator[Proposal]:
        """Combinations to train, each once in this process, until there are as many trials as the rules say."""
        while proposal := self._next():
            self._attempted.add(proposal.number)
            try:
                yield proposal
            finally:
                proposal.lock.release()

    def _next(self) -> Proposal | None:
        with exclusive(self._folder):
            trials = self._study.get_trials(deepcopy=False)
            opened = [trial for trial in trials if not trial.state.is_finished()]
            for frozen in opened:
                if frozen.number not in self._attempted and (lock := self._locked(frozen.number)):
                    trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
                    return Proposal(frozen.number, self._options(frozen.params), trial, lock)
            number = len(trials)
            if number >= self._rules.trials or not (lock := self._locked(number)):
                return None
            self._study.sampler = self._sampler(number)
            trial = self._study.ask(self._distributions)
            return Proposal(trial.number, self._options(trial.params), trial, lock)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """For the trial with this number: not one for all, whose next numbers a process that starts does not know."""
        seed = (self._rules.sampler_seed * 1_000_003 + number) % (1 << 32)
        samplers = self._optuna.samplers
        return samplers.RandomSampler(seed) if self._rules.sampler == "random" else samplers.TPESampler(seed=seed)

    def _locked(self, number: int) -> FileLock | None:
        """The lock of a trial; None if another process runs it."""
        lock = FileLock(self._folder / LOCKS / f"trial-{number}", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return None
        except (OSError, NotImplementedError):
            pass  # a shared folder may have no locks
        return lock

    def _options(self, drawn: dict[str, Any]) -> dict[str, Any]:
        """The options of a trial, in their order, of what was drawn."""
        options = {}
        for name in sorted(self._settings):
            first = self._settings[name][0]
            text = first.text(drawn[name]) if isinstance(first, Range) else drawn[name]
            options[name] = from_text(name, text, f"{STUDY}: {name}")
        return options

    def early_end(self, proposal: Proposal, folder: Path) -> EarlyEnd | None:
        """What watches the run of a combination in this folder; None if no trial ends early."""
        if self._rules.pruner == "none":
            return None
        known = self._study.get_trials(deepcopy=False)[proposal.number].intermediate_values
        return EarlyEnd(proposal, folder, len(known))

    def ended(self, proposal: Proposal, runs: Sequence[RecordedRun]) -> None:
        """Tell the study how a combination ended. runs: of all its seeds; of one that was pruned, those until then."""
        if any(is_pruned(run) for run in runs):
            self._study.tell(proposal.trial, state=self._optuna.trial.TrialState.PRUNED, skip_if_finished=True)
        elif len(runs) == self._rules.seeds and all((run.folder / "result.json").is_file() for run in runs):
            values = [_signed(run.score) for run in runs]
            self._study.tell(proposal.trial, statistics.median(values), skip_if_finished=True)


def corners(settings: Settings) -> list[Trial]:
    """Trials with the first and with the last value of each option, by which options can be checked."""
    ends = [{name: _end(name, settings[name], place) for name in sorted(settings)} for place in (0, -1)]
    return [Trial(options, 0) for options in ends]


def _end(name: str, values: list[Any], place: int) -> Any:
    value = values[place]
    return from_text(name, value.ends[place], f"--set {written(name)}") if isinstance(value, Range) else value


def _signed(score: Score | None) -> float:
    """The value of a trial in the study: greater is better. One that diverged has no finite score."""
    if score is None:
        return -math.inf
    return -score.value if score.is_least_best else score.value


def _imported() -> Any:
    """Optuna. Raises UserError where it is missing."""
    try:
        import optuna
    except ImportError as error:
        raise UserError(f"a search needs Optuna ({error})", "pip install 'hvdtrain[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class EarlyEnd:
    """Watches the run of a trial while it trains, and asks it to stop when its scores are worse than others."""

    def __init__(self, proposal: Proposal, folder: Path, reported: int) -> None:
        """folder: of the run. reported: evaluations that the study knows already."""
        self._trial, self._folder, self._reported = proposal.trial, folder, reported
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
            self._trial.report(_signed(score), number)
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
        RunEnd("pruned", Stopped.exit_status, Failure(self._reason, stands_alone=True)).write(self._folder)
        return f"pruned {self._reason}"
