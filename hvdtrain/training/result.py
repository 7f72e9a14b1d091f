"""The result of a completed run: `result.json`, the plot, and the last line on the console."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np

from hvdtrain.runs import plots, record
from hvdtrain.runs.console import log
from hvdtrain.training import consistency, cores
from hvdtrain.training.evaluation import Scores
from hvdtrain.training.loop import Training
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.run import Run
from hvdtrain.training.saving import must_write
from hvdtrain.training.step_profile import step_shares


def write(run: Run, scores: Scores, training: Training, reporter: Reporter) -> None:
    """Compare the ranks a last time and write the result; call it on every rank.

    Raises TrainingError if ranks differ or the result cannot be written.
    """
    parameters = consistency.check_same_weights(run.group, run.common_weights(), "after the last step")
    log.info("rank %d ends with parameters %s", run.group.rank, parameters)
    content = _content(run, scores, training, parameters)
    if not run.is_rank_0:
        return
    _store(run, content)
    speed = f"{training.throughput.images_per_s:,.0f} {run.unit}/s"
    texts = (_summary(scores, content["per_class_accuracy"]), speed, f"parameters {parameters}")
    reporter.show(f"{', '.join(filter(None, texts))}, record in {run.folder}")


def _summary(scores: Scores, per_class: dict[str, float]) -> str:
    """The test's metrics, or its loss if there are none."""
    texts = [f"test {name} {value:.4f}" for name, value in scores.metrics.items()]
    if per_class:
        worst = min(per_class, key=lambda name: np.nan_to_num(per_class[name], nan=2.0))  # accuracies end at 1
        texts[-1] += f" (worst class {worst}: {per_class[worst]:.3f})"
    if not texts and scores.loss is not None:
        texts = [f"test loss {scores.loss:.4f}"]
    return ", ".join(texts)


def _content(run: Run, scores: Scores, training: Training, parameters: str) -> dict[str, Any]:
    """The content of `result.json`; call it on every rank."""
    throughput = training.throughput
    peaks_kib = run.group.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    step_s = max(run.group.gather(throughput.seconds_per_step))
    profiled = bool(run.runtime.profile)
    compile_s = max(run.group.gather(training.compile_s))
    wait_share = max(run.group.gather(throughput.wait_share))
    bad_rows = training.bad_rows.count(run.group)
    return {
        "accuracy": scores.metrics.get("accuracy"),
        "metrics": scores.metrics,
        "loss": scores.loss,
        "test_rows": scores.rows,
        "steps": training.position.step,
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
        "shares": step_shares(run, throughput, training.watchdog) if profiled else None,
        "cores": cores.count_cores(run),
        "peak_flops": cores.peak_flops(run) if profiled else None,
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
