"""With --shards, any number of processes on one GPU ends with the same bits."""

from __future__ import annotations

import pytest
from support.gpu_jobs import REHEARSAL
from support.same_bits import assert_same_bits

SHARDED = ("--strategy", "ring", "--shards", "4", "--log-every", "4")
TRAININGS = {
    "lenet": (),
    "adam": ("--optimizer", "adam", "--lr", "0.0001"),
    "bf16": ("--precision", "bf16"),
    "batch normalization": ("--model", "resnet20"),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_processes_that_share_a_gpu_have_the_bits_of_one(jobs, name):
    steps = 6 if "resnet20" in TRAININGS[name] else 24
    for ranks in (1, 2, 4):
        jobs.train(*SHARDED, *TRAININGS[name], steps=steps, name=f"np{ranks}", by="local", np=ranks)
    runs = jobs.folder / "runs"
    for ranks in (2, 4):
        assert_same_bits(runs / f"np{ranks}", runs / "np1")
    if not REHEARSAL:
        assert "cuda:0" in jobs.log("np4")


def test_the_same_process_twice_has_the_same_bits(jobs):
    """Which the deterministic settings are for."""
    for name in ("one", "two"):
        jobs.train("--strategy", "single", "--shards", "2", name=name)
    assert_same_bits(jobs.folder / "runs" / "one", jobs.folder / "runs" / "two")
