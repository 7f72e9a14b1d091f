"""The result of a completed run: `result.json`, the plot, and the last line on the console."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hvdtrain.errors import HvdtrainError
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.interfaces.reading import EvaluatedPart
from hvdtrain.runs import checkpoints, record
from hvdtrain.runs.console import log
from hvdtrain.system import checkpoint_folder, rank_info
from hvdtrain.system.arithmetic import threads_by_variables
from hvdtrain.system.checkpoint_folder import BEST, Entry
from hvdtrain.system.phases import RESULT, phases
from hvdtrain.system.text import figure, printable
from hvdtrain.training.evaluation import Evaluation
from hvdtrain.training.loop import TrainingLoop
from hvdtrain.training.run import RunContext
from hvdtrain.training.state import broadcast_checkpoint, must_write, restoring
from hvdtrain.training.timing import wait_share

MAX_NAMED = 5
"""Of the classes that a warning lists."""


def finish(training: TrainingLoop) -> None:
    """Write the result, and leave the job in order; call it on every rank, after the last step.

    Raises TrainingError if ranks differ or the result cannot be written.
    """
    run, reporter = training.run, training.reporter
    evaluated: EvaluatedPart = run.dataset.evaluated
    last = reporter.evaluations.get(evaluated) or training.evaluate(evaluated)
    tested = last if evaluated == "test" else training.evaluate("test")
    reporter.close()
    phases.begin(RESULT)
    parameters = run.check_same_weights(training.at.step, "after the last step")
    log.info("rank %d ends with parameters %s", run.group.place, parameters)
    scores = {"validation": last.record, "test": tested.record} if evaluated != "test" else {}
    chosen = {"validation": scores.get("validation"), "best": _test_best(training, scores) if scores else None}
    content = {**_content(training, tested, parameters), **chosen}
    if run.is_rank_0:
        _store(run, content)
        speed = f"{training.throughput.images_per_s:,.0f} {run.target.unit}/s"
        texts = (_summary(tested, content["per_class_accuracy"]), speed, f"parameters {parameters}")
        newest = content["best_checkpoint"] in (None, f"step-{content['steps']:08d}")
        best = "" if newest else f" (best checkpoint: {run.folder / BEST}, {_described_best(content)})"
        if content["early_stop"]:
            reporter.show(content["early_stop"])
        elif last.rows and not ((score := last.score(run.config.score)).finite or content["best_checkpoint"]):
            title = printable(score.title)
            log.warning("no checkpoint is the best: no %s was finite, the last is %s", title, score.value)
        reporter.show(f"{', '.join(filter(None, texts))}, record in {run.folder}{best}")
        if advice := _advice(tested, run):
            log.warning("%s", advice)
    run.group.close()


def _summary(scores: Evaluation, per_class: dict[str, float]) -> str:
    """The test's metrics, or its loss if there are none."""
    figures = scores.metrics or ({} if scores.loss is None else {"loss": scores.loss})
    texts = [f"test {name} {figure(value)}" for name, value in figures.items()]
    if per_class:
        worst = min(per_class, key=lambda name: (np.isnan(per_class[name]), per_class[name]))
        at = list(figures).index("accuracy") if "accuracy" in figures else -1
        texts[at] += f" (worst class {worst}: {per_class[worst]:.3f})"
    return ", ".join(texts)


def _advice(scores: Evaluation, run: RunContext) -> str:
    """What helps small classes, of which no test row was right; empty where there are none, or something is done."""
    counts = None if run.weighting.is_given else run.weighting.count_classes(len(scores.per_class()))
    if counts is None:
        return ""
    worst = (np.array(scores.per_class()) == 0) & (counts < counts.mean() / 2)
    names = [f"{_class_names(run, scores)[place]} ({counts[place]:,} training rows)" for place in np.flatnonzero(worst)]
    if not names:
        return ""
    named = printable(", ".join(names[:MAX_NAMED])) + ", ..." * (len(names) > MAX_NAMED)
    return (
        f"no test row was right of class {named}: let small classes count as much by --sample balanced or "
        "--class-weights balanced (docs/unequal-classes.md)"
    )


def _class_names(run: RunContext, scores: Evaluation) -> Sequence[str]:
    """Names of the classes by number; of a task, whose classes have none, the numbers."""
    return run.dataset.classes or tuple(map(str, range(len(scores.per_class()))))


def _described_best(content: dict[str, Any]) -> str:
    """The best checkpoint, with its test where it was chosen by validation data."""
    tested = (content["best"] or {}).get("test", {})
    figures = tested.get("metrics") or ({"loss": tested["loss"]} if tested.get("loss") is not None else {})
    return ", ".join([content["best_checkpoint"], *(f"test {name} {figure(value)}" for name, value in figures.items())])


def _early_stop(training: TrainingLoop) -> str | None:
    """Why the run ended before its last step (--patience); None if it did not."""
    run, at = training.run, training.at
    if at.step >= run.last_step or not at.has_waited(run.config.patience, run.config.score_choice):
        return None
    score = training.reporter.evaluations[run.dataset.evaluated].score(run.config.score)
    better = f"no better {score.title} than that of epoch {at.best_epoch}" if at.best else f"no finite {score.title}"
    now = "" if score.finite else f", which was {score.value} at the end"
    return (
        f"stopped early, after epoch {at.epoch} of {run.config.epochs}: {printable(better)}{now} "
        f"(--patience {run.config.patience})"
    )


def _content(training: TrainingLoop, scores: Evaluation, parameters: str) -> dict[str, Any]:
    """The content of `result.json`; call it on every rank."""
    run, throughput = training.run, training.throughput
    peak_kib, waits = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, wait_share(throughput.intervals)
    of_ranks = run.group.gather([peak_kib, throughput.seconds_per_step, training.compile_s, waits])
    peak_kib, step_s, compile_s, waits = map(max, zip(*of_ranks, strict=True))
    bad_rows, names = training.batches.bad_rows.count(run.group), _class_names(run, scores)
    return {
        "accuracy": scores.metrics.get("accuracy"),
        "metrics": scores.metrics,
        "loss": scores.loss,
        "test_rows": scores.rows,
        "steps": training.at.step,
        "parameters": parameters,
        "images_per_s": throughput.images_per_s,
        "step_s": step_s,
        "compile_s": compile_s,
        "epoch_s": step_s * run.steps_per_epoch,
        "global_batch": run.global_batch,
        "best_checkpoint": best.path.name if (best := _best_entry(run)) else None,
        "early_stop": _early_stop(training),
        "outside_share": throughput.outside_share,
        "data_wait_share": waits,
        "bad_rows": bad_rows["train"],
        "bad_validation_rows": bad_rows["validation"],
        "bad_test_rows": bad_rows["test"],
        "cores": count_cores(run),
        "flops_per_image": run.target.flops_per_row,
        "peak_rss_mb": peak_kib / 1024,
        "skipped": run.learner.skipped,
        "per_class_accuracy": dict(zip(names, scores.per_class(), strict=False)),
        "per_class_rows": dict(zip(names, scores.class_rows, strict=False)),
        "confusion": None if scores.confusion is None else scores.confusion.tolist(),
    }


def _best_entry(run: RunContext) -> Entry | None:
    """On rank 0, the checkpoint with the best score; None if there is none."""
    with contextlib.suppress(OSError):
        best = checkpoint_folder.best_first(checkpoint_folder.entries(run.folder / "checkpoints"))
        return best[0] if best and run.is_rank_0 else None
    return None


def _test_best(training: TrainingLoop, last: dict[str, Any]) -> dict[str, Any] | None:
    """The scores of the best checkpoint, by which a run with validation data is compared; call it on every rank.

    last: those of the last weights, which the learner has before and after. None if there is no such checkpoint, or it
    cannot be read.
    """
    run = training.run
    entry = _best_entry(run)
    name, step = run.group.broadcast((entry.path.name, entry.step) if entry else ("", -1))
    if not name:
        return None
    if step == training.at.step:
        return {"checkpoint": name, "step": step, **last}
    best = broadcast_checkpoint(run.group, _read(entry) if entry else None)
    if best is None:
        return None
    with restoring(run.learner):  # also where ranks have changed, which end the run with these weights again
        run.learner.load(best.weights)
        run.learner.load_averages(best.averages)
        validated, tested = (training.evaluate(part, step) for part in ("validation", "test"))
    return {"checkpoint": name, "step": step, "validation": validated.record, "test": tested.record}


def _read(entry: Entry) -> Checkpoint | None:
    try:
        return checkpoints.load(entry.path)
    except (HvdtrainError, OSError) as error:
        log.warning("the best checkpoint is not tested: %s", error)
        return None


def _store(run: RunContext, content: dict[str, Any]) -> None:
    from hvdtrain.runs import plots

    run.lock.check()
    with must_write("the result", run.folder):
        record.write_json(run.folder / "result.json", content)
        plots.plot_metrics(run.folder, f"{run.target.title(run.config)} in {run.config.framework}", run.config.score)


def count_cores(run: RunContext) -> int | None:
    """Cores that the job computes with; call it on every rank. None if it trains on GPUs."""
    cores = sorted(os.sched_getaffinity(0))
    ranks = run.group.gather([rank_info.host_name(), threads_by_variables() * run.learner.devices, cores])
    return total_cores(ranks) if run.learner.device == "cpu" else None


def total_cores(ranks: Iterable[Sequence[Any]]) -> int:
    """Threads of all ranks, but no more than the cores of each host that its ranks may use.

    ranks: of each its host, the number of its threads, and the numbers of the cores that it may use.
    """
    threads, cores = Counter[str](), defaultdict[str, set[int]](set)
    for host, of_rank, numbers in ranks:
        threads[host] += of_rank
        cores[host].update(numbers)
    return sum(min(threads[host], len(cores[host])) for host in threads)
