"""Classes of which one has few rows: what training, its result and the views say of them."""

import json

import numpy as np
import pytest
from support.in_process import command, train_here
from support.jobs import records, result
from support.stack import FASTEST

from hvdtrain.datasets.built_in import digits
from hvdtrain.errors import UserError

COUNTS = {"three": (3, 140), "eight": (8, 47), "nine": (9, 7)}
OPTIONS = ("--data", "unequal.npz", "--device", "cpu", "--epochs", "2", "--lr", "0.1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of an .npz file with three digits, of which training has 140, 47 and 7 rows, and the test all."""
    images, labels, test_images, test_labels = digits()
    folder, numbers = tmp_path_factory.mktemp("unequal"), np.array([digit for digit, _ in COUNTS.values()])
    train = np.concatenate([np.flatnonzero(labels == digit)[:count] for digit, count in COUNTS.values()])
    test = np.flatnonzero(np.isin(test_labels, numbers))
    of_class = {digit: number for number, digit in enumerate(numbers)}
    parts = {"train": (images[train], labels[train]), "test": (test_images[test], test_labels[test])}
    arrays = {f"x_{part}": part_images for part, (part_images, _) in parts.items()}
    arrays |= {f"y_{part}": np.array([of_class[one] for one in of_part]) for part, (_, of_part) in parts.items()}
    np.savez(folder / "unequal.npz", **arrays, classes=np.array(list(COUNTS)))
    return folder


def test_a_class_at_0_is_named_with_what_helps_and_then_is_not_at_0(folder):
    plain = train_here(folder, FASTEST, *OPTIONS, "--name", "plain")
    log = (plain / "logs" / "rank-0.log").read_text()
    assert "(worst class nine: 0.000)" in log, log
    assert "no test row was right of class nine (7 training rows): let small classes count as much" in log
    by_score = ("--score", "max:balanced_accuracy")
    sampled = train_here(folder, FASTEST, *OPTIONS, "--sample", "balanced", *by_score, "--name", "sampled")
    assert "no test row" not in (sampled / "logs" / "rank-0.log").read_text()
    (*_, last), of_classes = records(sampled, "test"), result(sampled)["per_class_accuracy"]
    assert min(of_classes.values()) > 0
    assert last["balanced_accuracy"] == pytest.approx(np.mean([*of_classes.values()])) and last["weighted_loss"] > 0
    assert "balanced_accuracy" not in records(plain, "test")[-1]


@pytest.mark.parametrize("given", [("--sample", "balanced"), ("--class-weights", "three=0")], ids=" ".join)
def test_a_run_that_is_resumed_in_an_epoch_has_the_same_bits(folder, given):
    """Also where all rows of a shard have weight 0. An epoch has six steps."""
    options = (*OPTIONS, *given, "--batch-size", "32", "--remainder", "drop", "--shards", "16")
    whole, part = (
        train_here(folder, FASTEST, *options, "--max-steps", str(steps), "--name", f"{steps}-steps{given[0]}")
        for steps in (5, 3)
    )
    begun = result(part)["parameters"]
    resumed = train_here(folder, FASTEST, "--resume", str(part), "--max-steps", "5")
    assert result(resumed)["parameters"] == result(whole)["parameters"] != begun


def test_views_show_the_classes_and_what_they_are_taken_for(folder):
    run = train_here(folder, FASTEST, *OPTIONS, "--max-steps", "1", "--name", "views")
    rows = [36, 35, 36]
    figures = {
        "per_class_accuracy": {"three": 1.0, "eight": 0.4, "nine": None},
        "per_class_rows": dict(zip(COUNTS, rows, strict=True)),
        "confusion": [[36, 0, 0], [21, 14, 0], [30, 2, 4]],
    }
    assert result(run)["per_class_rows"] == figures["per_class_rows"]
    (run / "result.json").write_text(json.dumps({**result(run), **figures}))
    _, output = command(folder, "show", str(run))
    assert "three: 1.000 of 36 rows" in output and "eight: 0.400 of 35 rows, 21 taken for three" in output, output
    assert "nine: " not in output
    for damaged in ({"per_class_rows": {}, "confusion": [[1] * 9] * 9}, {"per_class_accuracy": []}):
        (run / "result.json").write_text(json.dumps({**result(run), **damaged}))
        assert command(folder, "show", str(run))[0] == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--class-weights", "ten=2"), "there is no class ten"),
        (("--class-weights", "nine=-2"), "the weight of nine is not from 0"),
        (("--class-weights", "three=0,eight=0", "--batch-size", "8"), "all rows of step 1 of epoch 1 have weight 0"),
        (("--class-weights", "balanced", "--sample", "balanced"), "it lets the classes count the same already"),
        (("--score", "max:balanced_accuracy"), "--score max:balanced_accuracy: no such metric"),
        (("--weight-column", "w"), "--weight-column: --data unequal.npz has no columns"),
    ],
)
def test_wrong_weights_are_an_error_before_the_first_step(folder, options, text):
    with pytest.raises(UserError, match=text):
        train_here(folder, FASTEST, *OPTIONS, *options, "--name", "wrong")
    assert not list(folder.glob("runs/wrong/metrics.jsonl"))
