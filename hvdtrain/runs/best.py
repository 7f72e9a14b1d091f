"""The best checkpoints of a run: by the score that its training had, or by any other figure of its evaluations.

`RUN/best` is the best one by the run's --score, and `RUN/best:min:perplexity` that with the least `perplexity`, of the
checkpoints that are still there.
"""

from __future__ import annotations

from pathlib import Path

from hvdtrain.config.option import invalid
from hvdtrain.config.score import CHOICE, LOSS, figure_of
from hvdtrain.errors import UserError
from hvdtrain.runs import metrics
from hvdtrain.runs.metrics import MetricsReader, metrics_of
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import BEST, Entry
from hvdtrain.system.text import did_you_mean, finite_number, printable

REMEDY = f"give RUN/{BEST}, or RUN/{BEST}:max:NAME or RUN/{BEST}:min:NAME with the name of a metric, or min:loss"


def best_checkpoints(run: Path, choice: str) -> list[Entry]:
    """The checkpoints of a run, best first. choice: as of --score; empty for the run's own score.

    Raises UserError if there is none, or for a figure that was not measured.
    """
    known = checkpoint_folder.entries(run / "checkpoints")
    if not choice:
        found = checkpoint_folder.best_first(known)
    else:
        scores = _scores(run, choice)
        ranked = [(scores[entry.step], entry.written, entry) for entry in known if entry.step in scores]
        found = [entry for _, _, entry in sorted(ranked, key=lambda one: one[:2], reverse=True)]
    if not found:
        reason = f"{printable(str(run))}: no evaluation has given a checkpoint of it a score"
        raise UserError(reason, f"give {printable(str(run))} for the newest")
    return found


def step_of(path: Path) -> int | None:
    """The step of the checkpoint that `path` names: `RUN/best`, or the folder of one of a run's; else None.

    Raises UserError as `best_checkpoints` does.
    """
    if run := checkpoint_folder.run_of_best(path):
        return best_checkpoints(run, choice_of(path))[0].step
    run = checkpoint_folder.run_of(path)
    known = checkpoint_folder.entries(run / "checkpoints") if run else []
    return next((entry.step for entry in known if entry.path.absolute() == path.absolute()), None)


def choice_of(path: Path) -> str:
    """What `RUN/best:CHOICE` says after its colon."""
    return path.name.partition(":")[2]


def _scores(run: Path, choice: str) -> dict[int, float]:
    """By step: what the evaluations measured; greater is better."""
    match = CHOICE.fullmatch(choice)
    if not match:
        raise invalid("score", choice, "does not say whether the greatest or the least value is the best", REMEDY)
    records = MetricsReader(run / metrics.NAME, only=metrics.EVALUATIONS).read()
    scores: dict[int, float] = {}
    known = dict.fromkeys([LOSS])
    for record in records.of_kind(records.part):
        measured = metrics_of(record)
        known |= dict.fromkeys(measured)
        if score := figure_of(finite_number(record.get("loss")), measured, choice).finite:
            scores[record["step"]] = score.signed
    if match[2] not in known:
        names = printable(", ".join(known))
        reason = f"{printable(str(run))}: has measured no {printable(match[2])!r}{did_you_mean(match[2], known)}"
        raise UserError(reason, f"its evaluations have {names}")
    return scores
