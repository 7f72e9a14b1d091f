"""Networks with batch normalization, dropout, groups and residual branches train to the same weights everywhere."""

import numpy as np
import pytest
from support import mixed_networks
from support.jobs import distance, newest, real_data_folder
from support.network_runs import (
    FILE,
    STEPS,
    SYNC,
    assert_same,
    case,
    job,
    mine,
    name_of,
    on_two_ranks,
    run_of,
    single,
    two_devices,
)
from support.networks import shaped
from support.parity import checksums
from support.shared_runs import SharedRun
from support.stack import FRAMEWORKS, REFERENCE

from hvdtrain.networks.random_numbers import initial_weights

UNEVEN = ("--batch-size", "500")
"""Of 1437 images: two whole batches and 437 rows, which neither two nor three ranks can share evenly."""
STYLES = [
    ("mxnet", "single"),
    ("mxnet", "single", "--api", "module"),
    ("mxnet", "single", "--api", "ndarray"),
    ("tensorflow", "single"),
    ("tensorflow", "single", "--api", "fit"),
]
ON_DEVICES = [
    ("torch", "dataparallel"),
    ("tensorflow", "mirrored"),
    ("tensorflow", "mirrored", "--api", "fit"),
    ("mxnet", "kvstore"),
    ("mxnet", "kvstore", "--api", "module"),
    ("mxnet", "manual"),
]
HOROVOD = [
    ("torch", "horovod"),
    ("mxnet", "horovod"),
    ("tensorflow", "horovod"),
    ("tensorflow", "horovod", "--api", "fit"),
    ("mxnet", "horovod", "--api", "ndarray"),
]
SHORT = HOROVOD[:3]
FASTEST = HOROVOD[1]
"""Of the short suite, MXNet's processes start fastest; how rows are divided is the same code in all frameworks."""
SHORT_ON_DEVICES = [row for row in ON_DEVICES if row[1:] not in (("manual",), ("mirrored", "--api", "fit"))]
"""Keras' fit is one of STYLES."""
MODULE = ("mxnet", "horovod", "--api", "module")
OVER_RANKS = {
    ("torch", "ddp"): "local",
    ("torch", "ring"): "local",
    ("torch", "mpi"): "mpirun",
    ("tensorflow", "multiworker"): "local",
    ("tensorflow", "multiworker", "--api", "fit"): "local",
    ("tensorflow", "ring"): "local",
    ("tensorflow", "mpi"): "mpirun",
    ("mxnet", "kvstore", "--kvstore", "dist_sync"): "local",
    ("mxnet", "ring"): "local",
    ("mxnet", "mpi"): "mpirun",
}
"""Other strategies over ranks, and their launchers."""


@pytest.mark.parametrize(
    ("own", "expected"),
    [case(run_of(row, "MIXED", *mine("MIXED")), single("MIXED"), name_of(row)) for row in STYLES],
)
def test_all_styles_train_to_the_same_weights(shared_jobs, own, expected):
    assert_same(shared_jobs, own, expected)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        *(
            case(run_of(row, "MIXED", *mine("MIXED")), two_devices(), name_of(row), row in SHORT_ON_DEVICES)
            for row in ON_DEVICES
        ),
        *(
            case(run_of(row, "MIXED", *mine("MIXED"), by="gloo", ranks=2), two_devices(), name_of(row), row == FASTEST)
            for row in [*HOROVOD, MODULE]
        ),
    ],
)
def test_local_statistics_are_those_of_a_rank_or_a_device(shared_jobs, own, expected):
    """The running statistics are those of rank 0 or of the first device, which have the same rows."""
    assert_same(shared_jobs, own, expected)


@pytest.mark.guarantee("batch-norm-sync")
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        case(
            run_of(row, "sync", *mine("MIXED", *UNEVEN, *SYNC), by=by, ranks=ranks),
            single("MIXED", *UNEVEN, *SYNC),
            f"{ranks}-{name_of(row)}",
            (ranks, row) in ((2, HOROVOD[0]), (3, FASTEST)),
        )
        for row, by in [*((row, "gloo") for row in HOROVOD), *OVER_RANKS.items()]
        for ranks in (2, 3)
    ],
)
def test_synchronized_statistics_are_those_of_one_process(shared_jobs, own, expected):
    """With the default, --remainder pad, which pads nothing here."""
    assert_same(shared_jobs, own, expected)


@pytest.mark.guarantee("dropout")
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        case(
            run_of(row, remainder, *mine("WITHOUT_NORM", *UNEVEN, "--remainder", remainder), by=by, ranks=ranks),
            single("WITHOUT_NORM", *UNEVEN, "--remainder", "exact" if remainder == "pad" else remainder),
            f"{remainder}-{ranks}-{name_of(row)}",
            (ranks == 3 and row == FASTEST) or (ranks == 2 and row in SHORT and remainder == "exact"),
        )
        for row, by in [*((row, "gloo") for row in [*HOROVOD, MODULE]), *OVER_RANKS.items()]
        for remainder in ("pad", "drop", "exact")
        for ranks in (2, 3)
    ],
)
def test_dropout_is_the_same_for_any_number_of_ranks(shared_jobs, own, expected):
    assert_same(shared_jobs, own, expected)


@pytest.mark.guarantee("dropout")
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        case(
            run_of(row, "dropout", *mine("WITHOUT_NORM", *UNEVEN), "--devices", "3"),
            single("WITHOUT_NORM", *UNEVEN, "--remainder", "exact"),
            name_of(row),
            row[1] == "kvstore",
        )
        for row in [("torch", "manual"), *(row for row in ON_DEVICES if "mirrored" not in row)]
    ],
)
def test_dropout_is_the_same_for_any_number_of_devices(shared_jobs, own, expected):
    """TensorFlow can split a CPU once in a process; above it is two devices."""
    assert_same(shared_jobs, own, expected)


ACCUMULATE, CLIP = ("--accumulate", "2"), ("--clip-norm", "0.05")


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        *(
            case(
                on_two_ranks(name, "accumulate", *mine("WITHOUT_NORM", *ACCUMULATE)),
                single("WITHOUT_NORM"),
                f"accumulate-{name}",
                short=False,
            )
            for name in ("torch", "tensorflow")
        ),
        *(
            case(
                on_two_ranks(name, "clip", *mine("MIXED", *SYNC, *CLIP)),
                single("MIXED", *SYNC, *CLIP),
                f"clip-{name}",
                short=False,
            )
            for name in FRAMEWORKS
        ),
    ],
)
def test_options_have_the_same_effect(shared_jobs, own, expected):
    assert_same(shared_jobs, own, expected)


PARTS = [job(name, "parts", "--strategy", "single", *mine("MIXED", *ACCUMULATE)) for name in ("torch", "tensorflow")]


@pytest.mark.matrix
@pytest.mark.trains(two_devices())
@pytest.mark.parametrize("own", [pytest.param(own, marks=pytest.mark.trains(own), id=own.framework) for own in PARTS])
def test_the_parts_of_accumulate_are_normalized_one_by_one(shared_jobs, own):
    """As on two devices, except for the running statistics, which see both parts."""
    weights, expected = (newest(shared_jobs.folder(one)).weights for one in (own, two_devices()))
    differing = {name for name in weights if np.abs(weights[name] - expected[name]).max() > 1e-5}
    assert differing == {name for name in weights if ".running_" in name}


def low_precision_case(framework, precision):
    options = mine("MIXED", *SYNC, "--precision", precision)
    # MXNet's bf16 changes all graphs of its process.
    own = on_two_ranks(framework, precision, *options, own_job=framework == "mxnet")
    return case(own, single("MIXED", *SYNC), f"{precision}-{framework}", short=False)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        *(low_precision_case(name, "bf16") for name in FRAMEWORKS),
        *(low_precision_case(name, "fp16") for name in ("torch", "tensorflow")),
    ],
)
def test_low_precision_moves_the_weights_almost_as_fp32(shared_jobs, own, expected):
    """Dropout, whose masks are 0 and 4/3 or 2, and sums over ranks are not what low precision changes."""
    weights, exact = (newest(shared_jobs.folder(one)).weights for one in (own, expected))
    start = initial_weights(shaped(mixed_networks.MIXED), "he", 0)
    assert 0 < norm(weights, exact) < 0.1 * norm(exact, start)
    assert len(set(checksums(shared_jobs.folder(own), "ends"))) == 1


def norm(one, other):
    return sum(float(((one[name] - other[name]) ** 2).sum()) for name in one) ** 0.5


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        case(
            on_two_ranks("torch", "compile", *mine("MIXED", *SYNC), "--compile", own_job=True),
            single("MIXED", *SYNC),
            "sync",
            short=False,
        ),
        case(
            on_two_ranks("torch", "compile-local", *mine("MIXED"), "--compile", own_job=True),
            two_devices(),
            "local",
            short=False,
        ),
    ],
)
def test_compiled_networks_train_to_the_same_weights(shared_jobs, own, expected):
    assert_same(shared_jobs, own, expected)


RECIPE = ("--lr", "0.02", "--nesterov", "--batch-size", "300", "--epochs", "2", "--check-sync", "1")
"""Of five steps in an epoch."""


def resumed_case(framework, *options):
    """A training of 7 steps, and one that was interrupted after 3, in the middle of an epoch."""
    name, model = f"resume{'-'.join(options)}", ("--model", f"{FILE}:MIXED")
    straight, part = (
        on_two_ranks(framework, f"{name}-{steps}", *model, *RECIPE, *options, "--max-steps", str(steps))
        for steps in (7, 3)
    )
    resume = ("--resume", f"runs/{part.folder_name}", "--max-steps", "7")
    runs = (part, SharedRun(framework, part.name, resume, "gloo", 2), straight)
    return pytest.param(*runs, marks=pytest.mark.trains(*runs), id=f"{framework}{'-'.join(options)}")


@pytest.mark.matrix  # the short suite has test_tasks, on two ranks, also with dropout and local statistics
@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize(
    ("part", "resumed", "straight"),
    [
        *(resumed_case(name) for name in FRAMEWORKS),
        *(resumed_case(name, *SYNC) for name in FRAMEWORKS),
        resumed_case("mxnet", "--api", "module"),
        resumed_case("mxnet", "--api", "ndarray"),
        resumed_case("tensorflow", "--api", "fit"),
    ],
)
def test_resume_in_an_epoch_is_exact(shared_jobs, part, resumed, straight):
    """With local statistics those of rank 0 count, and other ranks lose theirs."""
    shared_jobs.folder(part)  # must be trained before it can be resumed
    one, other = (newest(shared_jobs.folder(run)) for run in (resumed, straight))
    assert one.position == other.position
    assert distance(one.weights, other.weights) == 0
    assert distance(one.optimizer.arrays, other.optimizer.arrays) == 0


RESNET = ("--model", "resnet20", *STEPS, *SYNC)
SMALL = ("--batch-size", "16", "--max-steps", "3")
FULL = ("--data", "fashion-mnist", "--max-steps", "16", "--seed", "1")
"""With some seeds, 0 among them, rounding decides on which side of 0 a value before a ReLU is (docs/networks.md)."""
NEEDS_DATA = pytest.mark.skipif(not real_data_folder(), reason="needs HVDTRAIN_DATA, a folder with fashion-mnist/")


def resnet_case(framework, name, options, *marks):
    one, reference = (
        job(kind, f"resnet20-{name}", "--strategy", "single", *RESNET, *options) for kind in (framework, REFERENCE)
    )
    two = on_two_ranks(framework, f"resnet20-{name}", *RESNET, *options)
    marks = [pytest.mark.trains(two, one, reference), *marks]
    return pytest.param(two, one, reference, marks=marks, id=f"{name}-{framework}")


@pytest.mark.guarantee("resnet20")
@pytest.mark.parametrize(
    ("two", "one", "reference"),
    [
        *(resnet_case(name, "small", SMALL) for name in FRAMEWORKS if name != "tensorflow"),
        resnet_case("tensorflow", "small", SMALL, pytest.mark.matrix),  # the short suite has TensorFlow with MIXED
        *(resnet_case(name, "full", FULL, pytest.mark.matrix, NEEDS_DATA) for name in FRAMEWORKS),
    ],
)
def test_resnet20_on_two_ranks_equals_one_process(shared_jobs, two, one, reference):
    weights, expected, others = (newest(shared_jobs.folder(run)).weights for run in (two, one, reference))
    assert distance(weights, expected) < 1e-5
    assert distance(weights, others) < 1e-4
    assert len(set(checksums(shared_jobs.folder(two), "ends"))) == 1
