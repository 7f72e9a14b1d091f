"""Comparing the weights of runs: options that keep rounding errors small, and what runs leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdtrain.networks.description import Weights
from hvdtrain.runs import checkpoints
from support.jobs import distance, newest, records, result
from support.shared_runs import SharedRun
from support.stack import REFERENCE

PLAIN = (*("--momentum", "0", "--lr", "0.02", "--schedule", "constant", "--warmup-epochs", "0"), *("--max-steps", "16"))
EVERY_STEP = ("--checkpoint-every", "1", "--keep", "99")


def one_process(name: str, *options: str) -> SharedRun:
    """A run in one process without Horovod, of the REFERENCE framework, with which others are compared."""
    return SharedRun(REFERENCE, f"one-process-{name}", ("--strategy", "single", *options))


def reference() -> SharedRun:
    """The run with which all frameworks and strategies are compared."""
    return one_process("reference", *PLAIN, *EVERY_STEP)


def after(run_folder: Path, step: int) -> Weights:
    """Weights after that many steps, of a run with EVERY_STEP."""
    return checkpoints.load(run_folder / "checkpoints" / f"step-{step:08d}").weights


def checksums(run_folder: Path, moment: str) -> list[str]:
    """The checksum of parameters that each rank logged, at the `moment` "starts" or "ends"."""
    logs = sorted((run_folder / "logs").glob("rank-*.log"))
    return [log.read_text().split(f"{moment} with parameters ")[1].split()[0] for log in logs]


def losses(run_folder: Path) -> list[float]:
    """The training losses that a run recorded."""
    return [one["loss"] for one in records(run_folder, "train")]


def assert_same(run_folder: Path, reference_folder: Path) -> None:
    """Both runs have equal weights and statistics up to rounding, identical on all ranks, and equal scores."""
    assert distance(*(newest(folder).weights for folder in (run_folder, reference_folder))) < 1e-5
    assert len(set(checksums(run_folder, "ends"))) == 1
    one, other = result(run_folder), result(reference_folder)
    assert one.get("confusion") == other.get("confusion")
    assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-5)


def assert_same_training(run_folder: Path, reference_folder: Path, ranks: int) -> None:
    """`assert_same`, of runs with PLAIN and EVERY_STEP: also of the first step, the start, and the losses."""
    assert distance(after(run_folder, 1), after(reference_folder, 1)) < 1e-6
    assert_same(run_folder, reference_folder)
    for moment in ("starts", "ends"):
        sums = checksums(run_folder, moment)
        assert len(sums) == ranks
        assert len(set(sums)) == 1, "ranks must be bit-identical"
    assert losses(run_folder) == pytest.approx(losses(reference_folder), rel=1e-4)
    assert result(run_folder)["accuracy"] == result(reference_folder)["accuracy"]
