"""Every combination of options and strategies ends with the weights of one process, or is refused before it starts.

It starts processes because strategies connect real ranks; few, in each of which many combinations train.
"""

import dataclasses
import json
import math
import os
import sys

import numpy as np
import pytest
from support.combinations import FEW_STEPS, REFERENCES, SHAKEN, Case, network_of
from support.environment import importing
from support.jobs import ROOT, launcher, succeed
from support.stack import FRAMEWORKS, INSTALLED, REFERENCE, precision_problem

from hvdtrain.config.rules import SINGLE
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.system.arithmetic import MKL_BRANCH

TESTS = ROOT / "tests"
VARIABLES = {**importing(TESTS, ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", MKL_BRANCH: os.environ[MKL_BRANCH]}
"""In one process, cases with --shards follow others: MKL reads its variable once."""
LIMIT = {"fp32": 5e-3, "bf16": 0.4, "fp16": 0.3}
"""Largest distance of a precision from the reference in fp32, as a share of the distance that training moved.

One process in bf16 is up to 0.33 away: in MXNet, in the first steps of a warm-up with cifar_lenet.
"""
ROUNDED = {"none": 0.0, "fp16": 0.02, "bf16": 0.1, "int8": 0.5}
"""The same for a --compression, also of a sum: without it, its cases in fp32 are less than 1e-5 away.

One process is as far away as several if it rounds its gradients as they do, so this is what rounding makes of the four
steps. fp16 mostly moves them by 3e-4 of their way, and int8 by 0.29.
"""
ROUNDED_IN_ADAM = {**ROUNDED, "fp16": 0.1}
"""Adam divides a gradient by its size, so that errors of small ones count in full: fp16 keeps fewer bits of those below
6e-5 and none of those below 3e-8. With --init book, which makes small ones, one process that rounds its gradients to
fp16 is 0.033 away, and 0.064 if it rounds their halves; ranks that each round their half are 0.046 away, which is the
latter by the root of 2. With --epsilon 1e-3 it is 1.4e-4.
"""


def train_all(folder, cases):
    """Train the cases and their references in few jobs, of which those of one process and framework share it."""
    (folder / "cases.json").write_text(json.dumps([dataclasses.asdict(case) for case in cases]))
    commands = {case.job: launcher(case.launcher, case.ranks) for case in cases}
    alone = f"{REFERENCE}-alone-"
    jobs = [(REFERENCES, alone) if alone in commands else (REFERENCES,), *((job,) for job in commands if job != alone)]
    for names in jobs:
        run_job(folder, commands.get(names[-1], []), *names)
    far = [case for case in cases if trained(folder, case) and is_far(folder, case)]
    if far:
        (folder / "cases.json").write_text(json.dumps([dataclasses.asdict(case) for case in far]))
        run_job(folder, [], SHAKEN)


def run_job(folder, command, *names):
    program = ["python", str(TESTS / "support" / "train_combinations.py"), *names]
    output = succeed([*command, *program], folder, timeout_s=1800, **VARIABLES)
    assert "Grad strides" not in output, names


def trained(folder, case):
    return not case.refused and (folder / f"{case.id}.npz").exists()


def is_far(folder, case):
    return not distance(folder, case) <= limit(case)  # nor is it a number


def distance(folder, case):
    """From the nearest reference, as a share of the way that training moved the weights.

    Rounding decides which of two nearly equal values a pooling takes, or whether a ReLU lets one through, and so which
    of several ways training takes: 0.026 apart in one case, where a ReLU's input is -4e-10 by the sums of one framework
    and 1e-10 by those of another. So references are also trained from weights that are a little different.
    """
    weights = dict(np.load(folder / f"{case.id}.npz"))
    start = initial_weights(network_of(case.row), case.row.get("init", "xavier"), FEW_STEPS["seed"])
    references = [dict(np.load(path)) for path in folder.glob(f"{case.id}-reference*.npz")]
    return min(norm(weights, reference) / norm(reference, start) for reference in references)


def limit(case):
    """The largest distance; none for what has no reference: PowerSGD owes some gradients, and local steps differ."""
    compression, is_sgd = case.row.get("compression", "none"), case.row.get("optimizer", "sgd") == "sgd"
    if case.row.get("sync_every", 1) > 1 or "powersgd" in compression:
        return math.inf
    return max(LIMIT[case.row.get("precision", "fp32")], (ROUNDED if is_sgd else ROUNDED_IN_ADAM)[compression])


def problems(folder, cases):
    """What is wrong with each case, by its options."""
    found = {f"{case.id} {case.row}": list(_problems(folder, case)) for case in cases}
    return {name: texts for name, texts in found.items() if texts}


def _problems(folder, case):
    result = json.loads((folder / f"{case.id}.json").read_text())
    if case.refused or "skipped" not in result:
        if not case.refused or not result.get("refused"):
            yield str(result)
        return
    row, reference = case.row, json.loads((folder / f"{case.id}-reference.json").read_text())
    if "skipped" not in reference:
        yield f"one process: {reference}"
        return
    if result["skipped"] != reference["skipped"] or result["steps"] != reference["steps"]:
        yield f"{result}, but one process {reference}"
    if is_far(folder, case):
        yield f"{distance(folder, case):.2g} of its way from the weights of one process"
    if row["strategy"] in SINGLE and any(result["communicate_s"]):
        yield f"one process communicates: {result['communicate_s']}"


def norm(one, other):
    return sum(float(((one[name] - other[name]) ** 2).sum()) for name in one) ** 0.5


# A last batch with fewer rows than devices; a NaN that is skipped, and in fp16 counted once.
DEVICES = {"remainder": "exact", "devices": 3}
WORST = {
    "torch": [
        {"strategy": "single", "precision": "fp16", "on_nan": "skip"},
        {"strategy": "dataparallel", **DEVICES, "accumulate": 3, "on_nan": "skip"},
        {"strategy": "horovod", "remainder": "exact", "shards": 3, "precision": "bf16", "on_nan": "skip"},
        {"strategy": "manual", **DEVICES},
    ],
    "tensorflow": [
        {"strategy": "mirrored", **DEVICES, "accumulate": 2, "on_nan": "skip"},
        {"strategy": "keras-fit-mirrored", **DEVICES},
        {"strategy": "mirrored", **DEVICES, "precision": "fp16", "optimizer": "adam"},
    ],
    "mxnet": [
        {"strategy": "kvstore-device", **DEVICES, "on_nan": "skip", "clip_norm": 0.05},
        {"strategy": "module-kvstore-local", **DEVICES},
        {"strategy": "manual", **DEVICES},
        {"strategy": "module-single"},
    ],
}


@pytest.mark.guarantee("combinations")
def test_worst_combinations(tmp_path):
    rows = [(framework, {"precision": "fp32", **row}) for framework in INSTALLED for row in WORST[framework]]
    refused = [bool(precision_problem(framework, row["precision"])) for framework, row in rows]
    cases = [Case(framework, f"{i}", row, refused[i]) for i, (framework, row) in enumerate(rows)]
    train_all(tmp_path, cases)
    assert problems(tmp_path, cases) == {}


@pytest.mark.guarantee("combinations")
@pytest.mark.matrix(minutes=4)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_pair_of_options_works_or_is_refused(tmp_path, framework):
    program = [sys.executable, str(TESTS / "support" / "combinations.py"), framework]
    output = succeed(program, tmp_path, **VARIABLES)
    cases = [Case(**values) for values in json.loads(output.strip().splitlines()[-1])]
    assert sum(case.refused for case in cases) > 10
    train_all(tmp_path, cases)
    assert problems(tmp_path, cases) == {}
