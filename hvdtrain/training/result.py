"""The result of a completed run: `result.json`, the plot, and the last line on the console."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np

from hvdtrain.runs import plots, record
from hvdtrain.runs.console import log
from hvdtrain.system.phases import RESULT, phases
from hvdtrain.training import consistency, cores
from hvdtrain.training.evaluation import Scores
from hvdtrain.training.run import Run
from hvdtrain.training.saving import must_write
from hvdtrain.training.start import StartedRun


def finish(started: StartedRun) -> None:
    """Write the result, and leave the job in order; call it on every rank, after the last step.

    Raises TrainingError if ranks differ or the result cannot be written.
    """
    run, reporter = started.run, started.reporter
    started.tracing.ended()
    evaluation = reporter.evaluation or started.training.evaluate()
    reporter.close()
    phases.begin(RESULT)
    parameters = consistency.check_same_weights(run.group, run.common_weights(), "after the last step")
    log.info("rank %d ends with parameters %s", run.group.rank, parameters)
    content = _content(started, evaluation.scores, parameters)
    if run.is_rank_0:
        _store(run, content)
        speed = f"{started.throughput.images_per_s:,.0f} {run.unit}/s"
        texts = (_summary(evaluation.scores, content["per_class_accuracy"]), speed, f"parameters {parameters}")
        reporter.show(f"{', '.join(filter(None, texts))}, record in {run.folder}")
    run.group.close()


def _summary(scores: Scores, per_class: dict[str, float]) -> str:
    """The test's metrics, or its loss if there are none."""
    texts = [f"test {name} {value:.4f}" for name, value in scores.metrics.items()]
    if per_class:
        worst = min(per_class, key=lambda name: np.nan_to_num(per_class[name], nan=2.0))  # accuracies end at 1
        texts[-1] += f" (worst class {worst}: {per_class[worst]:.3f})"
    if not texts and scores.loss is not None:
        texts = [f"test loss {scores.loss:.4f}"]
    return ", ".join(texts)


def _content(started: StartedRun, scores: Scores, parameters: str) -> dict[str, Any]:
    """The content of `result.json`; call it on every rank."""
    run, throughput = started.run, started.throughput
    peaks_kib = run.group.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    step_s = max(run.group.gather(throughput.seconds_per_step))
    compile_s = max(run.group.gather(started.compile_s))
    wait_share = max(run.group.gather(throughput.wait_share))
    bad_rows = started.batches.bad_rows.count(run.group)
    return {
        "accuracy": scores.metrics.get("accuracy"),
        "metrics": scores.metrics,
        "loss": scores.loss,
        "test_rows": scores.rows,
        "steps": started.training.at.step,
        "parameters": parameters,
        "images_per_s": throughput.images_per_s,
        "step_s": step_s,
        "compile_s": compile_s,
        "epoch_s": step_s * run.steps_per_epoch,
        "global_batch": run.global_batch,
        "outside_share": throughput.outside_share,
        "data_wait_share": wait_share,
        "bad_rows": bad_rows["train"],
        "bad_test_rows": bad_rows["test"],
        "cores": cores.count_cores(run),
        "flops_per_image": run.target.flops_per_row,
        "peak_rss_mb": max(peaks_kib) / 1024,
        "skipped": run.learner.skipped,
        "per_class_accuracy": dict(zip(run.dataset.classes, scores.per_class(), strict=False)),
        "confusion": None if scores.confusion is None else scores.confusion.tolist(),
    }


def _store(run: Run, content: dict[str, Any]) -> None:
    """Write `result.json` and the plot."""
    run.lock.check()
    with must_write("the result", run.folder):
        record.write_json(run.folder / "result.json", content)
        plots.plot_metrics(run.folder, f"{run.title} in {run.config.framework}")
