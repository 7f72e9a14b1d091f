"""Runs of the networks in `mixed_networks`, and comparisons of two runs, for test_networks."""

import json

import pytest

from support import mixed_networks
from support.jobs import distance, newest
from support.parity import checksums
from support.shared_runs import SharedRun
from support.stack import REFERENCE

FILE = mixed_networks.__file__
"""A Python file with networks."""
STEPS = (
    *("--momentum", "0", "--lr", "0.02", "--schedule", "constant", "--warmup-epochs", "0", "--init", "he"),
    *("--max-steps", "4", "--epochs", "2"),
)
SYNC = ("--batch-norm", "sync")
STARTS_ONCE = {"ddp", "multiworker", "dist_sync"}


def mine(name, *options):
    """The options of a network of FILE."""
    return ("--model", f"{FILE}:{name}", *STEPS, *options)


def job(framework, name, *options, by="alone", ranks=1, own_job=False):
    """A run of one process, or of several ranks."""
    return SharedRun(
        framework, f"networks-{name}-{ranks}", options, by, ranks, own_job or bool(STARTS_ONCE & {*options})
    )


def run_of(row, name, *options, by="alone", ranks=1):
    """A run with the strategy of a row of the tables below."""
    framework, strategy, *others = row
    name = "-".join([strategy, *others[1:], name])
    return job(framework, name, "--strategy", strategy, *others, *options, by=by, ranks=ranks)


def on_two_ranks(framework, name, *options, own_job=False):
    return job(framework, name, *options, by="gloo", ranks=2, own_job=own_job)


def single(name, *options):
    """One process of the REFERENCE framework without Horovod, with which others are compared."""
    return job(REFERENCE, f"single-{'-'.join([name, *options])}", "--strategy", "single", *mine(name, *options))


def two_devices():
    """PyTorch's hand-written strategy, on the same halves of a batch as two ranks have."""
    return job("torch", "two-devices", "--strategy", "manual", *mine("MIXED"))


def case(own, expected, name, short=True):
    """Two runs whose weights are the same up to rounding."""
    marks = [pytest.mark.trains(own, expected), *([] if short else [pytest.mark.matrix])]
    return pytest.param(own, expected, marks=marks, id=name)


def name_of(row):
    return "-".join(part for part in row if not part.startswith("--"))


def assert_same(shared_jobs, own, expected):
    """Both runs have equal weights and statistics up to rounding, identical on all ranks, and equal scores."""
    folders = [shared_jobs.folder(one) for one in (own, expected)]
    assert distance(*(newest(folder).weights for folder in folders)) < 1e-5
    assert len(set(checksums(folders[0], "ends"))) == 1
    one, other = (json.loads((folder / "result.json").read_text()) for folder in folders)
    assert one["confusion"] == other["confusion"]
