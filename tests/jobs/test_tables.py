"""A table with texts, dates and missing values trains, predicts and exports by one command line each.

In the process of the test, but for the two ranks of a job, and for a program that knows nothing of hvdtrain.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support.in_process import command, train_here
from support.jobs import ROOT, newest, result, succeed, train_several
from support.jobs import run as run_program
from support.same_bits import assert_same_bits
from support.stack import FASTEST, INSTALLED, REFERENCE

CITIES, ROWS = ("Oslo", "Paris", "Rome"), 240
PRICE = ("--data", "houses.csv", "--label", "price", "--model", "mlp", "--split", "0.8")
FEW = ("--epochs", "6", "--batch-size", "32", "--log-every", "5", "--device", "cpu")
PRICES = (*PRICE, "--columns", "size,city,sold,heated", "--score", "max:r2", *FEW)
NEW = """sold;city;size;heated
2020-02-01;Paris;100,5;true
;Paris;100,5;true
2020-02-01;Berlin;NaN;False
"""
"""Rows to predict: in another order, without the label, with a city and gaps that training did not have."""
AGAIN = """sep=,
 heated ,"size", sold,city
true,"100.50 ",1/2/2020,Paris
true,100.5,#N/A,Paris
False,n/a,01.02.2020,Berlin
"""
"""The same rows, as another program has written them; the order of the date is that of training."""


def write_houses(path: Path) -> None:
    """Houses whose price follows from size and city, some without a size or a date."""
    draw = np.random.default_rng(0)
    rows = ["size;city;sold;heated;price;cheap"]
    for row in range(ROWS):
        size, city = draw.uniform(30, 200), int(draw.integers(3))
        price = size * (2 + 2 * city)
        shown = "" if row % 17 == 0 else f"{size:.1f}".replace(".", ",")
        sold = "" if row % 23 == 0 else f"{2010 + row % 12}-{row % 12 + 1:02}-{row % 28 + 1:02}"
        text = "yes" if price < 400 else "no"
        rows.append(
            f"{shown};{CITIES[city]};{sold};{'true' if row % 2 else 'false'};{price:.2f};{text}".replace(".", ",")
        )
    path.write_text("\n".join(rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("houses")
    write_houses(folder / "houses.csv")
    (folder / "new.csv").write_text(NEW)
    (folder / "again.csv").write_text(AGAIN)
    return folder


@pytest.fixture(scope="module")
def runs(folder) -> dict[str, Path]:
    """A run that predicts prices, of each framework."""
    return {framework: train_here(folder, framework, *PRICES, "--name", framework) for framework in INSTALLED}


def predicted(folder: Path, run: Path, *files: str) -> list[str]:
    status, output = command(folder, "predict", str(run), *files)
    assert status == 0, output
    return [line.split("\t")[1] for line in output.splitlines() if line.startswith(files)]


def test_prices_are_predicted_and_exported_in_each_framework(folder, runs):
    scores = {framework: result(run)["metrics"] for framework, run in runs.items()}
    assert all(score.keys() == {"mae", "rmse", "r2"} and score["r2"] > 0.8 for score in scores.values())
    assert scores[REFERENCE]["mae"] < scores[REFERENCE]["rmse"] < 150, "in the unit of the label"
    values = {framework: np.array(predicted(folder, run, "new.csv"), float) for framework, run in runs.items()}
    for of_framework in values.values():
        assert of_framework == pytest.approx(values[REFERENCE], rel=1e-4)
    assert values[REFERENCE][0] == pytest.approx(402, rel=0.25) and len(values[REFERENCE]) == 3
    for framework, run in runs.items():
        status, output = command(folder, "export", str(run), f"{framework}.onnx")
        assert status == 0 and "float32 rows of 12 numbers" in output and "to a number" in output, output
    program = [sys.executable, str(ROOT / "examples" / "score_table.py"), f"{REFERENCE}.onnx"]
    for file in ("new.csv", "again.csv"):
        alone = [float(line) for line in succeed([*program, file], folder).splitlines()]
        assert alone == pytest.approx([float(line) for line in predicted(folder, runs[REFERENCE], file)], rel=1e-5)
        assert alone == pytest.approx(values[REFERENCE], rel=1e-5), "the same rows"
    (folder / "many.csv").write_text(NEW + NEW.partition("\n")[2] * 4000)
    line = f"{' '.join(program)} many.csv | head -n 1"
    assert float(succeed(["bash", "-o", "pipefail", "-c", f"{line} || [ $? -eq 141 ]"], folder)) == pytest.approx(
        alone[0], rel=1e-5
    )


def test_classes_and_what_predict_refuses(folder):
    options = ("--data", "houses.csv", "--label", "cheap", "--model", "mlp", "--split", "0.8", *FEW)
    run = train_here(folder, REFERENCE, *options, "--columns", "size,city,sold", "--name", "classes")
    assert newest(run).classes == ("no", "yes") and result(run)["accuracy"] > 0.8
    assert predicted(folder, run, "new.csv")[0].split()[0] == "no"
    _, page = command(folder, "show", str(run))
    assert "heated ignored" in page and "cheap classes" in page and "city category" in page
    (log,) = (run / "logs").glob("*.log")
    read = "reads size: number, city: category, sold: date, heated: ignored, price: ignored, cheap: classes; "
    form = "encoding 'utf-8', delimiter ';', skip 0, decimal point ',', day first True; --label, --columns, --target"
    assert read + form in log.read_text()
    for name, content, text in (
        ("less.csv", "size;sold\n1;2020-01-01\n", "less.csv: has no column city; its columns are size, sold"),
        ("other.csv", NEW.replace("100,5", "large"), "other.csv: column size holds string, and no numbers"),
        ("days.csv", NEW.replace("2020-02-01", "soon"), "days.csv: column sold holds string, and no dates"),
        ("none.csv", "sold;city;size\n", "none.csv: has no rows below its header"),
        ("large.csv", NEW.replace("100,5", "inf"), "large.csv: row 0 has no finite value in column"),
        ("photo.png", "", "photo.png: cannot be read as a table"),
    ):
        (folder / name).write_text(content)
        status, output = command(folder, "predict", str(run), name)
        assert status == 2 and text in output, output
    status, output = command(folder, "predict", str(run), "new.csv", "--invert")
    assert status == 2 and "--invert: the network was trained on a table; leave it out" in output


def test_any_ranks_train_the_same_bits(folder):
    options = (*PRICE, *FEW, "--columns", "size,city,sold", "--shards", "4")
    two = train_several(folder, FASTEST, {"two": (*options, "--strategy", "horovod")}, "local", 2)
    assert_same_bits(two / "two", train_here(folder, FASTEST, *options, "--name", "one"))


def test_a_run_of_an_earlier_version_does_not_train_on_other_columns(folder):
    """Which had no record of them but that of the network, and took a column that counts the rows."""
    lines = [f"{row},{row % 7}.5,{row % 12}" for row in range(60)]
    (folder / "ids.csv").write_text("\n".join(["id,a,label", *lines]))
    options = ("--data", "ids.csv", "--model", "mlp", "--split", "0.8", "--columns", "id,a", "--target", "classes")
    trained = train_here(folder, REFERENCE, *options, *FEW, "--epochs", "1", "--name", "earlier")
    record = json.loads((trained / "config.json").read_text())
    record["config"] |= {"columns": "", "target": "auto"}
    del record["network"]["table"]["form"], record["network"]["table"]["read"]
    (trained / "config.json").write_text(json.dumps(record))
    resumed = [sys.executable, "-m", "hvdtrain", "train", "--resume", str(trained), "--epochs", "2"]
    status, output = run_program(resumed, folder)
    assert status == 2 and "give --columns and --target if the run read its table in another way" in output
    succeed([*resumed, "--columns", "id,a", "--target", "classes"], folder)
    inputs = json.loads((trained / "config.json").read_text())["network"]["table"]["inputs"]
    assert [column["name"] for column in inputs] == ["id", "a"]
    status, output = command(folder, "predict", str(trained), "ids.csv")
    assert status == 0 and len(output.splitlines()) == 60
    options = (*options[:-4], *FEW, "--epochs", "1", "--name", "now")
    names = [column["name"] for column in newest(train_here(folder, REFERENCE, *options)).network["table"]["inputs"]]
    assert names == ["a"]
