"""Networks with batch normalization, dropout, groups and residual branches train to the same weights everywhere.

It starts processes because ranks exchange statistics and draw masks through the real libraries; see conftest.py.
"""

import numpy as np
import pytest
from support import mixed_networks
from support.jobs import distance
from support.parity import assert_same, checksums
from support.shared_runs import SharedRun, over_ranks, resumed, trains
from support.stack import FRAMEWORKS, REFERENCE

FILE = mixed_networks.__file__
"""A Python file with networks."""
STEPS = (
    *("--momentum", "0", "--lr", "0.02", "--schedule", "constant", "--warmup-epochs", "0", "--init", "he"),
    *("--max-steps", "4", "--epochs", "2"),
)
SYNC = ("--batch-norm", "sync")
UNEVEN = ("--batch-size", "500")
"""Of 1437 images: two whole batches and 437 rows, which neither two nor three ranks can share evenly."""
ACCUMULATE, CLIP = ("--accumulate", "2"), ("--clip-norm", "0.05")

STYLES = [
    ("mxnet", "single"),
    ("mxnet", "module-single"),
    ("mxnet", "ndarray-single"),
    ("tensorflow", "single"),
    ("tensorflow", "keras-fit-single"),
]
ON_DEVICES = [
    ("torch", "dataparallel"),
    ("tensorflow", "mirrored"),
    ("tensorflow", "keras-fit-mirrored"),
    ("mxnet", "kvstore-device"),
    ("mxnet", "module-kvstore-device"),
    ("mxnet", "manual"),
]
SHORT_ON_DEVICES = [("torch", "dataparallel"), ("mxnet", "kvstore-device")]
SHORT_STYLES = [("mxnet", "single"), ("mxnet", "module-single"), ("tensorflow", "single")]
"""TensorFlow compiles each network for seconds; test_strategies has all strategies with LeNet."""
HOROVOD = [
    ("torch", "horovod"),
    ("mxnet", "horovod"),
    ("tensorflow", "horovod"),
    ("tensorflow", "keras-fit"),
    ("mxnet", "ndarray"),
]
TORCH, MXNET, TENSORFLOW = HOROVOD[:3]
MODULE = ("mxnet", "module")
OTHERS = {"torch": ("ddp",), "tensorflow": ("multiworker", "keras-fit-multiworker"), "mxnet": ("kvstore-dist",)}
OVER_RANKS = [*HOROVOD, *((name, strategy) for name, own in OTHERS.items() for strategy in (*own, "ring", "mpi"))]


def mine(name, *options):
    """The options of a network of FILE."""
    return ("--model", f"{FILE}:{name}", *STEPS, *options)


def alone(row, name, *options):
    """A run of one process with the strategy of a row."""
    framework, strategy = row
    return SharedRun(framework, f"networks-{'-'.join(row)}-{name}", ("--strategy", strategy, *options))


def on_ranks(row, name, *options, ranks=2, own_job=False):
    """A run over ranks with the strategy of a row; those of Horovod are started as RANKED says."""
    framework, strategy = row
    by = "" if row in (*HOROVOD, MODULE) else "mpirun" if strategy == "mpi" else "local"
    given = ("--strategy", strategy, *options)
    return over_ranks(framework, f"networks-{'-'.join(row)}-{name}", *given, by=by, ranks=ranks, own_job=own_job)


def single(name, *options):
    """One process of the REFERENCE framework without Horovod, with which others are compared."""
    return alone((REFERENCE, "single"), "-".join([name, *options]), *mine(name, *options))


SYNCED, WHOLE = single("MIXED", *UNEVEN, *SYNC), single("WITHOUT_NORM", *UNEVEN, "--remainder", "exact")
TWO_DEVICES = alone(("torch", "manual"), "two-devices", *mine("MIXED"))
"""PyTorch's hand-written strategy, on the same halves of a batch as two ranks have."""
BATCH_NORM_SYNC, DROPOUT = pytest.mark.guarantee("batch-norm-sync"), pytest.mark.guarantee("dropout")


def case(own, expected, name, short=False, *marks):
    """Two runs whose weights are the same up to rounding."""
    return trains(own, expected, runs=(own, expected), id=name, short=short, marks=marks)


def style_cases():
    for row in STYLES:
        own = alone(row, "MIXED", *mine("MIXED"))
        yield case(own, single("MIXED"), f"style-{'-'.join(row)}", row in SHORT_STYLES)


def local_statistics_cases():
    """The running statistics are those of rank 0 or of the first device, which have the same rows."""
    for row in ON_DEVICES:
        own = alone(row, "MIXED", *mine("MIXED"))
        yield case(own, TWO_DEVICES, f"local-{'-'.join(row)}", row in SHORT_ON_DEVICES)
    for row in [*HOROVOD, MODULE]:
        yield case(on_ranks(row, "MIXED", *mine("MIXED")), TWO_DEVICES, f"local-{'-'.join(row)}", row == TORCH)
    compiled = on_ranks(TORCH, "compile-local", *mine("MIXED"), "--compile", own_job=True)
    yield case(compiled, TWO_DEVICES, "local-compile")


def synchronized_cases():
    """With the default, --remainder pad, which pads nothing here."""
    for row in OVER_RANKS:
        for ranks in (2, 3):
            own = on_ranks(row, "sync", *mine("MIXED", *UNEVEN, *SYNC), ranks=ranks)
            short = (ranks, row) in ((2, TORCH), (3, MXNET))
            yield case(own, SYNCED, f"sync-{ranks}-{'-'.join(row)}", short, BATCH_NORM_SYNC)
    for name in FRAMEWORKS:
        own = on_ranks((name, "horovod"), "clip", *mine("MIXED", *SYNC, *CLIP))
        yield case(own, single("MIXED", *SYNC, *CLIP), f"sync-clip-{name}")
    compiled = on_ranks(TORCH, "compile", *mine("MIXED", *SYNC), "--compile", own_job=True)
    yield case(compiled, single("MIXED", *SYNC), "sync-compile")


def dropout_cases():
    """The masks are those of one process, for any ranks and devices, also in the parts of --accumulate."""
    for row in (*OVER_RANKS, MODULE):
        for remainder in ("pad", "drop", "exact"):
            expected = single("WITHOUT_NORM", *UNEVEN, "--remainder", remainder) if remainder == "drop" else WHOLE
            for ranks in (2, 3):
                options = mine("WITHOUT_NORM", *UNEVEN, "--remainder", remainder)
                # How rows are divided is the same code in all frameworks.
                short = (ranks, row, remainder) in ((3, MXNET, "pad"), (3, MXNET, "drop"), (2, TORCH, "exact"))
                own = on_ranks(row, remainder, *options, ranks=ranks)
                yield case(own, expected, f"dropout-{remainder}-{ranks}-{'-'.join(row)}", short, DROPOUT)
    # TensorFlow can split a CPU once in a process; above it is two devices.
    for row in [("torch", "manual"), *(row for row in ON_DEVICES if "mirrored" not in row[1])]:
        own = alone(row, "dropout", *mine("WITHOUT_NORM", *UNEVEN), "--devices", "3")
        yield case(own, WHOLE, f"dropout-devices-{'-'.join(row)}", row[1] == "kvstore-device", DROPOUT)
    for row in (TORCH, TENSORFLOW):
        own = on_ranks(row, "accumulate", *mine("WITHOUT_NORM", *ACCUMULATE))
        yield case(own, single("WITHOUT_NORM"), f"dropout-accumulate-{'-'.join(row)}")


@pytest.mark.parametrize(
    ("own", "expected"), [*style_cases(), *local_statistics_cases(), *synchronized_cases(), *dropout_cases()]
)
def test_networks_train_to_the_same_weights(shared_jobs, own, expected):
    assert_same(shared_jobs.folder(own), shared_jobs.folder(expected))


PARTS = [alone((name, "single"), "parts", *mine("MIXED", *ACCUMULATE)) for name in ("torch", "tensorflow")]


@pytest.mark.parametrize("own", [trains(own, runs=(own, TWO_DEVICES), id=own.framework, short=False) for own in PARTS])
def test_the_parts_of_accumulate_are_normalized_one_by_one(shared_jobs, own):
    """As on two devices, except for the running statistics, which see both parts."""
    weights, expected = (shared_jobs.newest(one).weights for one in (own, TWO_DEVICES))
    differing = {name for name in weights if np.abs(weights[name] - expected[name]).max() > 1e-5}
    assert differing == {name for name in weights if ".running_" in name}


RECIPE = ("--lr", "0.02", "--nesterov", "--batch-size", "300", "--epochs", "2", "--check-sync", "1")
"""Of five steps in an epoch."""


def resumed_case(row, *options):
    """A training of 7 steps, and one that was interrupted after 3, in the middle of an epoch."""
    name = f"resumed{'-'.join(options)}"
    runs = resumed(on_ranks(row, name, "--model", f"{FILE}:MIXED", *RECIPE, *options), 7, 3)
    # The short suite has test_tasks, on two ranks, also with dropout and local statistics.
    return trains(runs, runs=runs, id=f"{'-'.join(row)}-{name}", short=False)


@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize(
    "runs", [*map(resumed_case, [*HOROVOD, MODULE]), *(resumed_case(row, *SYNC) for row in HOROVOD[:3])]
)
def test_resume_in_an_epoch_is_exact(shared_jobs, runs):
    """With local statistics those of rank 0 count, and other ranks lose theirs."""
    shared_jobs.assert_resumed(runs)


RESNET = ("--model", "resnet20", *STEPS, *SYNC, "--batch-size", "16", "--max-steps", "3")


def resnet_case(framework):
    one, reference = (alone((kind, "single"), "resnet20", *RESNET) for kind in (framework, REFERENCE))
    runs = (on_ranks((framework, "horovod"), "resnet20", *RESNET), one, reference)
    # The short suite has other frameworks with MIXED.
    return trains(*runs, runs=runs, id=framework, short=framework == REFERENCE)


@pytest.mark.guarantee("resnet20")
@pytest.mark.parametrize(("two", "one", "reference"), [*map(resnet_case, FRAMEWORKS)])
def test_resnet20_on_two_ranks_equals_one_process(shared_jobs, two, one, reference):
    weights, expected, others = (shared_jobs.newest(run).weights for run in (two, one, reference))
    assert distance(weights, expected) < 1e-5
    assert distance(weights, others) < 1e-4
    assert len(set(checksums(shared_jobs.folder(two), "ends"))) == 1
