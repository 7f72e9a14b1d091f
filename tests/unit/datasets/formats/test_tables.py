"""Tables of numbers, whole and with whatever may be wrong with them."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.errors import refused
from support.row_data import rejected

from hvdtrain.datasets.formats.table_columns import recorded_recipe
from hvdtrain.datasets.formats.table_files import TableFile
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.validation import advice, suspicious
from hvdtrain.errors import UserError

pytestmark = pytest.mark.needs()
ROWS = 20
NUMBERS = {"height": np.arange(ROWS) / 2, "width": np.arange(ROWS)[::-1]}
LABELS = ["yes" if row % 3 else "no" for row in range(ROWS)]


def write(path: Path, columns: dict[str, object]) -> Path:
    table = pyarrow.table(columns)
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    elif path.suffix in (".arrow", ".feather"):
        pyarrow.feather.write_feather(table, str(path))
    else:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(delimiter=delimiter))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".arrow", ".feather"])
def test_each_format_has_the_same_rows(tmp_path, suffix):
    path = write(tmp_path / f"rows{suffix}", {**NUMBERS, "Label": LABELS})
    for given_path in (path, tmp_path):
        data = load_dataset(str(given_path), split=0.75, seed=3)
        assert data.classes == ("no", "yes") and (len(data.train), len(data.test)) == (15, 5)
        rows = [data.train[np.arange(15)], data.test[np.arange(5)]]
        numbers, labels = (np.concatenate([part[i] for part in rows]) for i in range(2))
        assert numbers.dtype == np.float32 and labels.dtype == np.int64
        order = np.argsort(numbers[:, 0])
        assert np.array_equal(numbers[order], np.stack([*NUMBERS.values()], 1).astype(np.float32))
        assert [data.classes[label] for label in labels[order]] == LABELS


def test_two_tables_are_both_parts_and_columns_are_chosen(tmp_path):
    write(tmp_path / "train.csv", {**NUMBERS, "city": LABELS, "kind": np.arange(ROWS) % 2 + 5})
    write(tmp_path / "test.csv", {"kind": [6, 5], "width": [1.5, 2], "height": [0, 1], "city": ["a", "b"]})
    data = load_dataset(str(tmp_path), label="kind", columns=("width",), as_images=True)
    assert data.classes == ("5", "6") and data.input_shape == (1, 1, 1)
    assert data.test[np.arange(2)][0].ravel().tolist() == [1.5, 2] and data.test[np.arange(2)][1].tolist() == [1, 0]
    whole = load_dataset(str(tmp_path), label="kind", as_images=True)
    assert [column["name"] for column in whole.table["inputs"]] == ["height", "width", "city"] and not suspicious(whole)
    rejected(tmp_path, "no column is called label (height, width, city, kind); name the column of labels by --label")
    rejected(tmp_path, "has no column kint (did you mean kind?)", label="kint")
    rejected(tmp_path, "--columns kind: is the label", label="kind", columns=("kind",))
    write(tmp_path / "test.csv", {"kind": [7], "width": [1.5], "height": [0], "city": ["a"]})
    rejected(tmp_path, "test.csv: the label of row 0, 7, is not among those of training", label="kind")


def test_labels_with_fractions_are_numbers(tmp_path):
    path = write(tmp_path / "rows.csv", {**NUMBERS, "y": np.arange(ROWS) / 4})
    data = load_dataset(str(path), split=0.5)
    assert data.classes == () and data.train[np.arange(3)][1].dtype == np.float32
    assert load_dataset(str(path), split=0.5, target="classes").classes == tuple(map(str, np.arange(ROWS) / 4))
    whole = write(tmp_path / "whole.csv", {**NUMBERS, "y": np.arange(ROWS) % 2 * 1.0})
    assert load_dataset(str(whole), split=0.5).classes == ("0", "1")
    write(tmp_path / "parts" / "train.csv", {"x": [1, 2], "label": [0.5, 1.5]})
    write(tmp_path / "parts" / "test.csv", {"x": [1, 2], "label": [3, 4]})
    assert load_dataset(str(tmp_path / "parts")).test[np.arange(2)][1].tolist() == [3.0, 4.0], "whole in one part"


def test_a_column_has_the_weights_of_rows(tmp_path):
    columns = {**NUMBERS, "w": np.arange(ROWS) + 1, "label": LABELS}
    path = write(tmp_path / "rows.csv", columns)
    data = load_dataset(str(path), split=0.5, weight="w", as_images=True)
    assert data.input_shape == (1, 1, len(NUMBERS)) and "w" not in "".join(advice(data))
    assert sorted([*data.train.weights, *data.test.weights]) == [*range(1, ROWS + 1)]
    assert load_dataset(str(path), split=0.5, columns=[*NUMBERS]).fingerprint != data.fingerprint
    refused(lambda: load_dataset(str(path), split=0.5, weight="v"), f"{path}: has no column v")
    write(other := tmp_path / "rows.parquet", {**columns, "w": [Decimal(row) for row in range(ROWS)]})
    assert load_dataset(str(other), split=0.5, weight="w").train.weights.sum() > 0
    write(other, {**columns, "w": [None, *range(1, ROWS)]})
    refused(lambda: load_dataset(str(other), split=0.5, weight="w"), "column w: the weight of row 0 is nan")
    assert (
        "leaves out 1 of 20 rows" in load_dataset(str(other), split=0.5, weight="w", skip_bad_rows=True).train.advice[0]
    )
    write(path, {**columns, "w": -np.arange(ROWS)})
    refused(lambda: load_dataset(str(path), split=0.5, weight="w"), f"{path}: column w: the weight of row 1 is -1")
    refused(lambda: load_dataset("digits", weight="w"), "--weight-column: digits has no columns")


def test_missing_values(tmp_path):
    path = write(
        tmp_path / "rows.csv", {"a": [1.0, None, 3, 4, 5], "b": [1, 2, 3, 4, float("nan")], "y": [0, 1, 0, 1, 0]}
    )
    filled = load_dataset(str(path), split=0.5)
    assert len(filled.train) + len(filled.test) == 5 and "fills missing values of a, b with" in filled.train.advice[0]
    data = load_dataset(str(path), split=0.5, skip_bad_rows=True)
    assert len(data.train) + len(data.test) == 3
    assert any("leaves out 2 of 5 rows" in sentence for sentence in data.train.advice)
    for labels in (["x", None, "y"], [0.0, np.nan, 1.0]):
        no_label = write(tmp_path / "labels.parquet", {"a": [1 << 60, 2, 3], "label": labels})
        rejected(no_label, "row 1 has no value in column label", split=0.5)
        assert len(load_dataset(str(no_label), split=0.5, skip_bad_rows=True).train) == 1


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("empty.csv", b"", "cannot be read as a table (Empty CSV file"),
        ("header.csv", b"a,label\n", "has no rows below its header"),
        ("one.csv", b"a,label\n1,x\n", "of the 1 row(s) of"),
        ("ragged.csv", b"a,label\n1,x\n2\n", "cannot be read as a table (CSV parse error"),
        ("two.csv", b"a,label,y\n1,x,z\n", "several columns may be the label (label, y)"),
        (
            "semicolon.csv",
            b"a;b\n1;x\n",
            "no column is called label (a, b); name the column of labels by --label, or add",
        ),
        ("comment.csv", b"# made by me\na,label\n1,x\n", "got 2: a,label); write the table again, with a header"),
        ("ones.csv", b"1,1,0\n3,4,1\n", "two columns have the name 1; rename one, or add a header"),
        ("empty.csv", b"a,label\n,x\n,y\n", "no column besides label holds numbers, dates or texts (a: null)"),
        ("infinite.csv", b"a,label\n1,x\n-inf,y\n", "row 1 has no finite value in column a; correct it"),
        ("large.csv", b"a,label\n1,x\n1e39,y\n", "row 1 has no finite value in column a; correct it"),
        (
            "names.csv",
            b"a,label\n" + b"".join(b"n%d,x\n" % i for i in range(99)),
            "ignores a, as over half of the rows",
        ),
        ("dates.csv", b"a,label\n1,2020-01-01\n2,2020-01-02\n", "the labels in column label are date32"),
        ("bytes.parquet", b"PAR1 no more", "cannot be read as a table"),
    ],
)
def test_odd_tables_are_one_line(tmp_path, name, content, text):
    (tmp_path / name).write_bytes(content)
    rejected(tmp_path / name, text, split=0.5)


VIEWS = [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.dictionary("int8", pyarrow.string())]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("kind", VIEWS, ids=str)
def test_labels_are_texts_of_any_type(tmp_path, kind, suffix):
    labels = pyarrow.array(["NA", "null", "", None, "x", "nan"], "string").cast(kind)
    table, path = pyarrow.table({"a": np.arange(6), "label": labels}), tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:  # write_feather crashes at views
        with pyarrow.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    data = load_dataset(str(path), split=0.5, skip_bad_rows=True)
    assert data.classes == ("NA", "nan", "null", "x") and len(data.train) + len(data.test) == 4
    rejected(path, "row 2 has no value in column label", split=0.5)


@pytest.mark.parametrize(
    ("content", "classes", "inputs", "ignored"),
    [
        (",a,label\n0,5,x\n1,6,y\n", "xy", [5, 6], "(unnamed)"),
        ("Unnamed: 0,a,label\n0,5,x\n1,6,y\n", "xy", [5, 6], "Unnamed: 0"),
        (" a , label\n5,x\n6,y\n", "xy", [5, 6], ""),
        ("\ufeff# a,label\r\n5,x\r\n6,y\r\n", "xy", [5, 6], ""),
        ('"a","label"\n5,"x"\n6,"y"\n', "xy", [5, 6], ""),
        ("0,1,label\n5,1,x\n6,1,y\n", "xy", [5, 1, 6, 1], ""),
        ("a,label\n5,NA\n6,null\n7,x\n", ["NA", "null", "x"], [5, 6, 7], ""),
        ("a,label\n5,0.0\n6,1.0\n", "01", [5, 6], ""),
        ('a,b,label\n5,"1,5",x\n6,"2,5",y\n', "xy", [5, 1.5, 6, 2.5], ""),
        ("a;b;label\n5;1,5;x\n6;2,5;y\n", "xy", [5, 1.5, 6, 2.5], ""),
        ("a|label\n5|x, y\n6|y\n", ["x, y", "y"], [5, 6], ""),
        ('"a, b";label\n5;x\n6;y\n', "xy", [5, 6], ""),
        ("a,b,label\n5,,x\n6,,y\n", "xy", [5, 6], "b"),
    ],
)
def test_forms_of_a_csv_file(tmp_path, content, classes, inputs, ignored):
    path = tmp_path / "rows.csv"
    path.write_bytes(content.encode())
    data = load_dataset(str(path), split=0.5)
    rows = np.concatenate([part[np.arange(len(part))][0] for part in (data.train, data.test)])
    assert data.classes == tuple(classes) and sorted(rows.ravel()) == sorted(inputs)
    said = "".join(advice(data))
    assert said.count("ignores") == bool(ignored) and (f"ignores {ignored}, no numbers or index; " in said) == bool(
        ignored
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings_of_csv_files(tmp_path, encoding):
    path = tmp_path / "rows.csv"
    path.write_bytes("größe;label\r\n1,5;süß\r\n2;fad\r\n".encode(encoding))
    data = load_dataset(str(path), split=0.5)
    assert data.classes == ("fad", "süß") and data.table["inputs"][0]["name"] == "größe"


MIXED = """size,city,sold,new,label
1,Oslo,2020-01-01,true,no
2,Paris,2021-01-15,false,yes
?,,2021-12-31,true,no
4,Rome,,false,yes
5,Oslo,2020-01-05,true,no
6,Oslo,2020-01-06,false,yes
"""


def test_how_columns_become_numbers(tmp_path):
    """By the training rows alone: those of the test part have other cities, sizes and gaps."""
    (tmp_path / "train.csv").write_text(MIXED)
    (tmp_path / "test.csv").write_text("size,city,sold,new,label\n3.6,0123,1970-01-08,true,no\n,Oslo,,,yes\n")
    data = load_dataset(str(tmp_path))
    size, city, sold, new = data.table["inputs"]
    assert size.items() >= {"name": "size", "kind": "number", "fill": 3.6, "has_gaps": True}.items()
    assert city.items() >= {"name": "city", "kind": "category", "categories": ["", "Oslo", "Paris", "Rome"]}.items()
    assert sold["periods"] == [7.0, 365.2425] and sold["has_gaps"] and new["name"] == "new"
    rows = data.test[np.arange(2)][0]
    assert rows.shape == (2, 2 + 4 + 6 + 1)
    assert rows[0, :8] == pytest.approx([3.6, 0, 0, 0, 0, 0, 7, 0], abs=1e-6) and rows[0, -2:].tolist() == [0, 1]
    assert rows[1, :8] == pytest.approx([3.6, 1, 0, 1, 0, 0, sold["fill"], 0]) and rows[1, -2:].tolist() == [1, 0.5]
    scaled = load_dataset(str(tmp_path), as_images=True)
    first = scaled.train[np.arange(6)][0][:, 0, 0]
    assert first[:, 0].mean() == pytest.approx(0, abs=1e-6) and first[2, 0] == 0
    again = recorded_recipe(tmp_path, {"table": scaled.table})
    assert np.array_equal(again.encode(TableFile(tmp_path / "train.csv", again.kinds)), first)
    for scale, expected in (("none", [1, 0]), ("standard", [first[0, 0], 0])):
        assert load_dataset(str(tmp_path), scale=scale).train[np.arange(1)][0][0, :2].tolist() == expected


def test_columns_of_a_parquet_file(tmp_path):
    """Categories as pandas writes them, times, decimals, and what becomes no number; then a file with gaps alone."""
    columns = {
        "a": pyarrow.array([1, 2] * 4).dictionary_encode(),
        "b": pyarrow.array(["x", None] * 4).dictionary_encode(),
        "time": pyarrow.array([3600, 7200] * 4, pyarrow.time32("s")),
        "part": pyarrow.array([1, 2] * 4, pyarrow.decimal128(5, 2)),
        "list": [[1]] * 8,
        "label": [0.5, 1] * 4,
    }
    data = load_dataset(str(write(tmp_path / "rows.parquet", columns)), split=0.5)
    a, b, time, part = data.table["inputs"]
    assert (a["kind"], b["categories"], part["kind"]) == ("number", ["", "x"], "number")
    assert time["periods"] == [1.0] and 1 / 24 <= time["fill"] <= 2 / 24 and "ignores list" in data.train.advice[0]
    (tmp_path / "gaps.csv").write_text("b,a,time,part\n,,,\n")
    recipe = recorded_recipe(tmp_path, {"table": data.table})
    row = recipe.encode(TableFile(tmp_path / "gaps.csv", recipe.kinds))[0]
    assert row.tolist() == pytest.approx([a["fill"], 1, 0, time["fill"], 0, 0, part["fill"]])


def test_numbers_alone_stay_as_they_are(tmp_path):
    path = write(tmp_path / "rows.csv", {**NUMBERS, "label": LABELS})
    data = load_dataset(str(path), split=0.5, as_images=True)
    assert set(data.train.arrays[0].ravel()) <= {*map(np.float32, np.concatenate([*NUMBERS.values()]))}
    scaled = load_dataset(str(path), split=0.5, as_images=True, scale="standard").train.arrays[0]
    assert scaled.reshape(-1, 2).std(0) == pytest.approx(1)
    assert not data.train.advice
    names = [f"row {row}" for row in range(60)]
    write(path, {"name": names, "row": np.arange(60), "income": np.arange(60) * 1000, "label": LABELS * 3})
    (*_, told) = load_dataset(str(path), split=0.5, as_images=True).train.advice
    assert told.startswith("takes income with numbers above 100 as they are: give --scale standard")
    (names, counts) = load_dataset(str(path), split=0.5, as_images=True, scale="none").train.advice
    assert names.startswith("ignores name, as over half") and counts.startswith("ignores row, which counts the rows; ")


@pytest.mark.parametrize(
    ("target", "labels", "classes"),
    [
        ("auto", np.arange(200) % 150 * 1000, 0),
        ("classes", np.arange(200) % 150 * 1000, 150),
        ("auto", np.arange(200) % 100 * 1000, 0),
        ("auto", 18 + np.arange(200) % 48, 0),
        ("auto", np.arange(200), 0),
        ("auto", np.minimum(np.arange(400) // 3, 40), 0),
        ("auto", np.arange(400) % 40, 40),  # forty persons with ten photos each
        ("auto", np.arange(400) % 26 + 1, 26),
        ("auto", 18 + np.arange(4000) % 48, 48),
        ("auto", 1990 + np.arange(40) % 10, 10),
    ],
)
def test_many_integers_are_numbers_to_predict(tmp_path, target, labels, classes):
    """Unless they count classes of which each has a few rows, or have many rows each."""
    path = write(tmp_path / "rows.csv", {"a": np.arange(len(labels)), "price": labels})
    data = load_dataset(str(path), label="price", split=0.5, target=target, as_images=True)
    assert len(data.classes) == classes
    count, said = len(np.unique(labels)), "".join(data.train.advice)
    if target == "auto" and count > 10:
        meaning = "classes; --target regression" if classes else "numbers to predict; --target classes"
        assert f"the {count} different integers of price are {meaning}" in said
    if not classes:
        assert data.label_scale > 1 and data.train.arrays[1].std() == pytest.approx(1)


SHUFFLED = np.random.default_rng(0).permutation(60)


@pytest.mark.parametrize(
    ("numbers", "is_index"),
    [
        (range(60), True),
        (range(1, 61), True),
        (range(60, 0, -1), True),
        (SHUFFLED, True),
        (np.sort(np.random.default_rng(0).permutation(75)[:60]) + 1000, True),  # of the part of a divided table
        ([*range(59), 0], False),
        (np.arange(60) / 2, False),
        (np.arange(60) * 10, False),
        (np.arange(60) % 30, False),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_that_counts_the_rows_is_no_input(tmp_path, suffix, numbers, is_index):
    path = write(tmp_path / f"rows{suffix}", {"id": list(numbers), "a": np.arange(60) % 7, "label": LABELS * 3})
    data = load_dataset(str(path), split=0.4)
    assert data.train.arrays[0].shape[1] == 2 - is_index
    assert (data.table["read"]["id"] == "ignored") == is_index
    assert ("ignores id, which counts the rows; name it in --columns" in "".join(advice(data))) == is_index
    assert load_dataset(str(path), split=0.4, columns=("id", "a")).train.arrays[0].shape[1] == 2
    alone = load_dataset(str(write(path, {"id": list(numbers), "label": LABELS * 3})), split=0.4)
    assert alone.train.arrays[0].shape[1] == 1 and not advice(alone), "the only input"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("day", np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]").astype(str)),
        ("year", range(1960, 2020)),
        ("volt", range(60)),
    ],
)
def test_a_series_is_an_input(tmp_path, name, values):
    """A date, or numbers that begin elsewhere or are another column than the first."""
    columns = {name: list(values), "a": np.arange(60) % 7, "label": LABELS * 3}
    columns = {"a": columns["a"], **columns} if name == "volt" else columns
    data = load_dataset(str(write(tmp_path / "rows.csv", columns)), split=0.4)
    assert data.table["read"][name] != "ignored" and "counts the rows" not in "".join(advice(data))


def test_cells_after_the_first_block_decide_a_guess(tmp_path):
    """Of 3 MB, the first MB has days of months up to 12 only."""
    lines = [f"{1 + row % 12:02}/03/2024,{'x' * 30},{row % 2}" for row in range(40_000)]
    lines += [f"{13 + row % 15}/03/2024,{'x' * 30},{row % 2}" for row in range(30_000)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["when,text,label", *lines]))
    data = load_dataset(str(path), columns=("when",), split=0.5)
    assert data.table["read"]["when"] == "date" and data.table["form"]["day_first"]
    assert "no other cell decides" not in "".join(advice(data))


def test_columns_that_count_the_rows_of_two_tables(tmp_path):
    """Each by itself, or both together."""
    for first, second in ((range(40), range(10)), (SHUFFLED[:14], SHUFFLED[14:])):
        for name, ids in (("train", first), ("test", second)):
            columns = {"id": list(ids), "a": np.arange(len(ids)) / 2, "label": ["x", "y"] * (len(ids) // 2)}
            write(tmp_path / f"{name}.csv", columns)
        assert load_dataset(str(tmp_path)).table["read"]["id"] == "ignored"


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["01", "1", "10"], ["01", "1", "10"]),
        (["01", "02", "03"], ["01", "02", "03"]),
        (["007", "8", "-9"], ["-9", "007", "8"]),
        (["0", "1", "10"], ["0", "1", "10"]),
        (["0.5", "0.50", "1"], []),
    ],
)
def test_names_of_classes_keep_their_zeros(tmp_path, labels, classes):
    for name in ("train", "test"):
        rows = [f'{row}.5,"{labels[row % 3]}"\n' for row in range(12)]
        (tmp_path / f"{name}.csv").write_text(f"a, label \n{''.join(rows)}")
    data = load_dataset(str(tmp_path))
    assert list(data.classes) == classes
    if classes:
        assert [data.classes[label] for label in data.test.arrays[1][:3]] == labels
    assert load_dataset(str(tmp_path), target="regression").classes == ()


@pytest.mark.parametrize("first", [1 << 53, (1 << 64) - 3])
def test_large_integers_are_different_classes(tmp_path, first):
    labels = np.array([first, first + 1, first + 2] * (ROWS // 3), np.uint64)
    path = write(tmp_path / "rows.parquet", {"a": np.arange(len(labels)), "label": labels})
    assert load_dataset(str(path), split=0.5).classes == tuple(str(first + number) for number in range(3))


def test_truth_values_are_classes_or_numbers_to_predict(tmp_path):
    path = write(tmp_path / "rows.parquet", {"a": np.arange(8), "label": np.arange(8) % 2 == 0})
    assert load_dataset(str(path), split=0.5).classes == ("false", "true")
    data = load_dataset(str(path), split=0.5, target="regression")
    assert data.classes == () and set(data.train.arrays[1]) == {0.0, 1.0}


def test_labels_of_text_are_no_numbers(tmp_path):
    path = write(tmp_path / "rows.csv", {**NUMBERS, "label": LABELS})
    rejected(path, "--target regression: the labels in column label are not numbers", split=0.5, target="regression")
    rejected("digits", "--target: digits has no columns; leave it out", target="regression")
    rejected("digits", "--scale: digits has no columns; leave it out", scale="none")


def test_texts_of_digits_are_no_silent_categories(tmp_path):
    """Numbers with thousands separators are numbers; those of which a cell is a word are not."""
    priced = write(tmp_path / "rows.csv", {**NUMBERS, "label": [f"1,{row + 100}.50" for row in range(ROWS)]})
    assert load_dataset(str(priced), split=0.5).classes == ()
    ages = [str(row % 30) for row in range(99)]
    write(tmp_path / "rows.csv", {"age": [*ages, "old"], "label": [f"{row} kg" for row in range(100)]})
    rejected(priced, "over half of the rows have a text of their own in column label, such as 0 kg", split=0.5)
    write(tmp_path / "rows.csv", {"age": [*ages, "old"], "label": ["a", "b"] * 50})
    (told,) = load_dataset(str(priced), split=0.9).train.advice
    assert told.startswith("takes age as categories, of which most look like numbers or dates")


def test_large_labels_keep_their_fractions(tmp_path):
    path = write(tmp_path / "rows.csv", {"a": np.arange(ROWS), "y": 1.6e9 + np.arange(ROWS) / 2})
    labels = load_dataset(str(path), split=0.5, as_images=True).train.arrays[1]
    assert labels.dtype == np.float32 and len(np.unique(labels)) == ROWS // 2


def test_years_of_two_digits_and_labels_that_a_part_has_as_numbers(tmp_path):
    (tmp_path / "train.csv").write_text("sold;label\n31.12.69;a\n1.1.1970;5\n2.1.70;a\n")
    (tmp_path / "test.csv").write_text("sold;label\n1/3/70;5\n")
    data = load_dataset(str(tmp_path), scale="none")
    assert data.train.arrays[0][:, 0].tolist() == [-1, 0, 1] and data.test.arrays[0][0, 0] == 2
    assert data.test.arrays[1] == 0


def test_numbers_are_no_dates(tmp_path):
    path = write(tmp_path / "rows.csv", {"sold": ["2024-01-05", "2024-01-06"] * 5, "label": ["a", "b"] * 5})
    recipe = recorded_recipe(path, {"table": load_dataset(str(path), split=0.5).table})
    write(path, {"sold": [20240105]})
    refused(lambda: recipe.encode(TableFile(path, recipe.kinds)), "column sold holds int64, and no dates")


def test_the_index_of_pandas_in_parquet_is_no_input(tmp_path):
    for name in ("__index_level_0__", "id"):
        table = pyarrow.table({"a": [5, 6], "label": ["x", "y"], name: [1, 2]})
        if name == "id":  # as pandas writes an index that has a name
            table = table.replace_schema_metadata({"pandas": '{"index_columns": ["id"]}'})
        pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
        data = load_dataset(str(tmp_path / "rows.parquet"), split=0.5)
        assert data.train[np.arange(1)][0].shape == (1, 1) and f"ignores {name}, " in advice(data)[0]
        chosen = load_dataset(str(tmp_path / "rows.parquet"), split=0.5, columns=(name,))
        assert chosen.train[np.arange(1)][0].item() < 3


@given(st.lists(st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=3)), min_size=2, max_size=2), max_size=6))
def test_any_cells_load_or_are_one_line(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("cells") / "rows.csv"
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
    path.write_bytes("\n".join(["a,label", *lines]).encode("utf-8", "surrogatepass"))
    try:
        data = load_dataset(str(path), split=0.5)
        data.train[np.arange(len(data.train))]
    except UserError as error:
        assert "\n" not in str(error) and error.remedy


def test_loose_photos_say_what_is_missing(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.jpg").touch()
    rejected(tmp_path, "holds no data of a known format (0.jpg, 1.jpg, 2.jpg)", "folders CLASS")


class HuggingFace:
    """A data set with the attributes of Hugging Face's, whose rows are dictionaries."""

    column_names = ("img", "fine_label", "text")

    def __init__(self):
        self.features = {"fine_label": type("ClassLabel", (), {"names": ["a", "b"]})}

    def __len__(self):
        return 8

    def __getitem__(self, key):
        if isinstance(key, str):
            return [row % 2 for row in range(8)]
        return {"img": Image.new("L", (4, 4), key), "fine_label": key % 2, "text": "x"}


def test_hugging_faces_data_sets(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(
        "from test_tables import HuggingFace\n"
        "def one():\n    return HuggingFace()\n"
        "def both():\n    return {'train': HuggingFace(), 'test': HuggingFace()}\n"
    )
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    chosen = {"label": "fine_label", "columns": ("img",)}
    data = load_dataset(f"{path}:one", split=0.5, **chosen)
    assert data.classes == ("a", "b") and data.train[np.arange(4)][0].shape == (4, 1, 4, 4)
    assert len(load_dataset(f"{path}:both", **chosen).test) == 8
    rejected(f"{path}:one", "has no test part; give --split 0.8/0.1/0.1", **chosen)
    rejected(f"{path}:one", "which of its columns are image and label is not known (img, fine_label, text)", split=0.5)
    rejected(f"{path}:both", "which of its columns are image and label", label="fine_label")
    rejected(f"{path}:both", "--weight-column: ", "leave it out", **chosen, weight="text")
    rejected(f"{path}:both", "--target: ", "leave it out", **chosen, target="regression")
    rejected(f"{path}:both", "has a test part; give TRAIN/VALIDATION", split=0.5, **chosen)


def test_streams_of_arrow_and_names_in_capitals(tmp_path):
    table = pyarrow.table({**NUMBERS, "label": LABELS})
    stream = str(tmp_path / "data-00000-of-00001.arrow")  # as Hugging Face's save_to_disk() writes it
    with pyarrow.OSFile(stream, "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    pyarrow.csv.write_csv(table, tmp_path / "ROWS.CSV")
    for name in ("data-00000-of-00001.arrow", "ROWS.CSV"):
        assert len(load_dataset(str(tmp_path / name), split=0.5).train) == ROWS // 2


def test_a_table_in_a_folder_of_other_data_describes_it(tmp_path):
    for part in ("train", "test"):
        for name in "ab":
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("L", (4, 4)).save(tmp_path / part / name / "0.png")
    write(tmp_path / "labels.csv", {"file": ["a"], "label": ["b"]})
    assert load_dataset(str(tmp_path)).input_shape == (1, 4, 4)
