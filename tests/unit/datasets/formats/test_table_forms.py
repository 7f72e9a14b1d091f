"""One table in the forms of countries, spreadsheets and tools: each is read to the same numbers, or says why not."""

from __future__ import annotations

import csv
import io
import runpy
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from support.errors import refused
from support.jobs import ROOT

from hvdtrain.datasets.formats.table_columns import kind_of, recorded_recipe, values_of
from hvdtrain.datasets.formats.table_files import TableFile
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.validation import advice

pytestmark = pytest.mark.needs()
ROWS = 60
CITIES = ("Oslo", "Köln", "Nîmes")
HEADER = ("Size (m, cm or km)", "sold", "price", "units", "city", "label")
AREAS = [round(20 + 7.3 * row % 190, 1) for row in range(ROWS)]
DAYS = [datetime(2023, 1, 3) + timedelta(days=11 * row) for row in range(ROWS)]
PRICES = [round((-1) ** row * (87.15 + 37_003.37 * row), 2) for row in range(ROWS)]
UNITS = [row * row * 977 for row in range(ROWS)]
LABELS = ["yes" if row % 3 else "no" for row in range(ROWS)]


class Form(NamedTuple):
    """How a country, a spreadsheet or a tool writes a table."""

    name: str
    delimiter: str = ","
    decimal: str = "."
    group: str = ""
    date: str = "%Y-%m-%d"
    money: str = "{}"
    """Of prices, in which {} is the number, with its sign."""
    minus: str = "-{}"
    missing: str = ""
    encoding: str = "utf-8"
    first: str = ""
    """Lines before the header."""
    quotes: int = csv.QUOTE_MINIMAL
    end: str = "\r\n"
    index: str | None = None
    """The name of a column that counts the rows."""
    groups_of_two: bool = False

    def number(self, value: float, decimals: int) -> str:
        whole, _, fraction = f"{abs(value):.{decimals}f}".partition(".")
        groups = [whole[-3:]]
        while whole := whole[: -len(groups[0])]:
            groups.insert(0, whole[-2 if self.groups_of_two else -3 :])
        text = self.group.join(groups) + (self.decimal + fraction) * bool(fraction)
        return self.minus.format(text) if value < 0 else text

    def content(self) -> bytes:
        rows: list[list[str]] = []
        for row in range(ROWS):
            price = self.money.format(self.number(PRICES[row], 2))
            cells = [self.number(AREAS[row], 1), DAYS[row].strftime(self.date), price, self.number(UNITS[row], 0)]
            cells = [self.missing if (row + place) % 17 == 5 else cell for place, cell in enumerate(cells)]
            rows.append([*cells, CITIES[row % 3], LABELS[row]])
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter=self.delimiter, quoting=self.quotes, lineterminator=self.end)
        if self.index is not None:
            rows = [[str(number), *row] for number, row in enumerate(rows, 1)]
        writer.writerows([[self.index, *HEADER] if self.index is not None else HEADER, *rows])
        return (self.first + text.getvalue()).encode(self.encoding)


FORMS = (
    Form("United States", group=",", date="%m/%d/%Y", money="${}", minus="({})"),
    Form("United Kingdom", group=",", date="%d/%m/%Y", money="£{}"),
    Form("Germany", ";", ",", ".", "%d.%m.%Y", "{} €", encoding="cp1252"),
    Form("Austria", ";", ",", ".", "%d.%m.%y", "€ {}"),
    Form("Switzerland", ";", ".", "'", "%d.%m.%Y", "CHF {}"),
    Form("Liechtenstein", ";", ".", "’", "%d.%m.%Y", "Fr. {}", "−{}"),
    Form("France", ";", ",", "\u202f", "%d/%m/%Y", "{}\u202f€"),
    Form("Belgium", ";", ",", " ", "%d/%m/%Y", "{} EUR"),
    Form("Italy", ";", ",", ".", "%d/%m/%Y", "€ {}"),
    Form("Spain", ";", ",", ".", "%d/%m/%Y %H:%M", "{} €"),
    Form("Portugal", ";", ",", "\u00a0", "%d-%m-%Y", "{} €"),
    Form("Netherlands", ";", ",", ".", "%d-%m-%Y", "€ {}"),
    Form("Denmark", ";", ",", ".", "%d-%m-%Y", "kr. {}"),
    Form("Norway", ";", ",", "\u00a0", "%d.%m.%Y", "kr {}", "−{}"),
    Form("Sweden", ";", ",", "\u00a0", "%Y-%m-%d", "{} kr"),
    Form("Finland", ";", ",", "\u00a0", "%d.%m.%Y", "{} €"),
    Form("Poland", ";", ",", "\u00a0", "%d.%m.%Y", "{} zł"),
    Form("Czechia", ";", ",", "\u00a0", "%d. %m. %Y", "{} Kč"),
    Form("Hungary", ";", ",", "\u00a0", "%Y. %m. %d.", "{} Ft"),
    Form("Russia", ";", ",", "\u00a0", "%d.%m.%Y", "{} ₽"),
    Form("Turkey", ";", ",", ".", "%d.%m.%Y", "₺{}"),
    Form("Brazil", ";", ",", ".", "%d/%m/%Y", "R$ {}"),
    Form("Mexico", group=",", date="%d/%m/%Y", money="${}"),
    Form("Canada", ";", ",", "\u00a0", "%Y-%m-%d", "{} $"),
    Form("India", group=",", date="%d-%m-%Y", money="₹{}", groups_of_two=True),
    Form("Japan", group=",", date="%Y/%m/%d", money="¥{}"),
    Form("Japan, with signs", group=",", date="%Y年%m月%d日", money="{}円"),
    Form("China", group=",", date="%Y/%m/%d", money="￥{}"),
    Form("Korea", group=",", date="%Y. %m. %d.", money="₩{}"),
    Form("South Africa", ";", ",", " ", "%Y/%m/%d", "ZAR {}"),
    Form("Excel, with its line", ";", ",", ".", "%d.%m.%Y", first="sep=;\r\n"),
    Form("Excel, with its line and mark", ";", ",", ".", "%d.%m.%Y", first="sep=;\r\n", encoding="utf-8-sig"),
    Form("Excel, UTF-8", ";", ",", ".", "%d.%m.%Y", missing="#N/A", encoding="utf-8-sig"),
    Form("Excel, Unicode text", "\t", ",", ".", "%d.%m.%Y", encoding="utf-16"),
    Form("Access", group=",", date="%m/%d/%Y %I:%M:%S %p", money="${}"),
    Form("LibreOffice", ";", ",", date="%d.%m.%y", quotes=csv.QUOTE_ALL, end="\n"),
    Form("Google Sheets", group=",", date="%m/%d/%Y", money="${}", minus="-{}"),
    Form("pandas", index="", end="\n"),
    Form("R, write.csv", index="", missing="NA", quotes=csv.QUOTE_NONNUMERIC, end="\n"),
    Form("R, write.csv2", ";", ",", index="", missing="NA", quotes=csv.QUOTE_NONNUMERIC, end="\n"),
    Form("SPSS", "\t", ",", date="%d-%b-%Y", missing=".", encoding="utf-8-sig"),
    Form("SAS", date="%d-%b-%y", missing="."),
    Form("MySQL", "\t", date="%Y-%m-%d %H:%M:%S", missing=r"\N", end="\n"),
    Form("PostgreSQL", "|", date="%Y-%m-%d", end="\n"),
    Form("an old Macintosh", ";", ",", ".", "%d.%m.%Y", end="\r"),
)


def numbers(values: list[float], shift: int) -> np.ndarray:
    """What a column holds, NaN where `Form.content` leaves cells out."""
    return np.array([np.nan if (row + shift) % 17 == 5 else value for row, value in enumerate(values)])


EXPECTED = {
    HEADER[0]: numbers(AREAS, 0),
    "sold": numbers([(day - datetime(1970, 1, 1)).days for day in DAYS], 1),
    "price": numbers(PRICES, 2),
    "units": numbers(UNITS, 3),
}


def written(folder: Path, form: Form) -> Path:
    path = folder / ("rows.tsv" if form.delimiter == "\t" else "rows.csv")
    path.write_bytes(form.content())
    return path


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_each_form_has_the_same_numbers(tmp_path, form):
    path = written(tmp_path, form)
    table = TableFile(path)
    for name, expected in EXPECTED.items():
        found = values_of(table, name, "date" if name == "sold" else "number")
        np.testing.assert_array_equal(found, expected, name)
    data = load_dataset(str(path), split=0.5)
    assert data.classes == ("no", "yes") and [column["name"] for column in data.table["inputs"]] == [*HEADER[:-1]]
    assert set(data.table["inputs"][-1]["categories"]) == {*CITIES}
    said = [text for text in advice(data) if "fills missing" not in text and "Windows-1252" not in text]
    assert len(said) == (form.index is not None), said


@pytest.mark.parametrize(
    ("content", "first", "said"),
    [
        ('a,label\n"1,250",x\n950,y\n', 1250, "takes 1250 and not 1.25 for a cell in column a"),
        ('a,label\n"1,250",x\n"2,5",y\n', 1.25, ""),
        ('a,b,label\n"1,250",3.5,x\n950,4.5,y\n', 1250, ""),
        ("a,label\n1.250,x\n2.5,y\n", 1.25, ""),
        ("a;label\n1,250;x\n950;y\n", 1.25, "takes 1.25 and not 1250 for a cell in column a"),
        ("a;b;label\n1,250;3.5;x\n950;4.5;y\n", 1250, ""),
        ("a;b;label\n1,250;2.375;x\n950;1.125;y\n", 1250, "takes 1250 and not 1.25"),
        ("a;b;label\n1.250;3,5;x\n950;4,5;y\n", 1250, ""),
        ("a;label\n1.250;x\n950;y\n", 1.25, "takes 1.25 and not 1250 for a cell in column a"),
        ("a;label\n1.250.000;x\n950;y\n", 1250000, ""),
        ("a;label\n0,125;x\n1,250;y\n", 0.125, ""),
        ("a\tlabel\n1 250\tx\n950\ty\n", 1250, ""),
        ("a;label\n1'250;x\n950;y\n", 1250, ""),
        ('a,label\n"$10,000.50",x\n$5,y\n', 10000.5, ""),
        ("a,label\n($5.25),x\n$4,y\n", -5.25, ""),
        ("a,label\n12.5%,x\n50%,y\n", 12.5, ""),
        ("a,label\nUSD 5,x\nUSD 1.5,y\n", 5, ""),
        ("a,label\n03/04/2024,x\n01/02/2024,y\n", 19786, "takes 2024-03-04 00:00:00 and not 2024-04-03 00:00:00"),
        ("a,label\n03/04/2024,x\n31/01/2024,y\n", 19816, ""),
        ("a;b;label\n03/04/2024;1,5;x\n01/02/2024;2,5;y\n", 19816, "takes 2024-04-03 00:00:00 and not"),
        ("a,label\n3/4/24,x\n25/12/23,y\n14/6/24,x\n", 19816, ""),
        ("a,label\n2024-04-03 08:30 PM,x\n2024-04-04 08:30 AM,y\n", 19816 + 20.5 / 24, ""),
        ("a;label\n€ 14,692;x\n€ 3,125;y\n", 14.692, "takes 14.692 and not 14692"),
        ("a;label\n7 230,325;x\n1 250,125;y\n", 7230.325, "takes 7230.325 and not 7230325"),
        ("a;b;label\n€ 1,250;2.5;x\n€ 3,125;3.5;y\n", 1250, ""),
    ],
)  # fmt: skip
def test_what_a_cell_does_not_say_by_itself(tmp_path, content, first, said):
    """Other cells decide, then the delimiter; a guess is told."""
    path = tmp_path / "rows.csv"
    path.write_text(content)
    table = TableFile(path)
    kind = "number" if kind_of(table.column("a").type) == "number" else "date"
    assert values_of(table, "a", kind)[0] == first
    guesses = [text for text in advice(load_dataset(str(path), split=0.5)) if " and not " in text]
    assert len(guesses) == bool(said) and said in "".join(guesses)


def rows_of(column: list[str], labels: str = "xy") -> str:
    return "a,b,label\n" + "".join(f'"{cell}",{row}.5,{labels[row % 2]}\n' for row, cell in enumerate(column))


@pytest.mark.parametrize(
    ("column", "example", "seem_numbers"),
    [
        ([*map(str, range(50)), "old"], "old", True),
        ([*map(str, range(50)), "#DIV/0!"], "#DIV/0!", True),
        ([f"$1,{row}0.50" for row in range(10, 60)] + ["€1,250"], "€1,250", True),
        ([f"USD {row}" for row in range(50)] + ["EUR 7"], "EUR 7", False),
        ([f"{row}.12.2024" for row in range(1, 32)] + ["soon"], "soon", True),
        ([f"2024-01-{row:02}" for row in range(1, 32)] + ["1 Janvier"], "1 Janvier", True),
        ([f"{row}. Mai 2024" for row in range(1, 32)], "1. Mai 2024", False),
        ([f"{row}:50" for row in range(24, 74)], "24:50", True),
        ([f"{row} kg" for row in range(50)], "0 kg", False),
        ([f"{row},5 m, {row}.5 ft" for row in range(50)], "0,5 m, 0.5 ft", False),
    ],
)
def test_a_column_that_cannot_be_read_names_a_cell(tmp_path, column, example, seem_numbers):
    path = tmp_path / "rows.csv"
    path.write_text(rows_of(column))
    refused(lambda: load_dataset(str(path), split=0.9, label="a"), "over half of the rows", f"such as {example}; give")
    refused(lambda: load_dataset(str(path), split=0.9, label="a", target="regression"), f"such as {example}; give")
    assert f"have a text of their own there, such as {example};" in "".join(advice(load_dataset(str(path), split=0.9)))
    path.write_text(rows_of(column * 3))
    told = "".join(advice(load_dataset(str(path), split=0.9)))
    assert (
        f"takes a as categories, of which most look like numbers or dates, but not {example}:" in told
    ) == seem_numbers


def test_each_column_that_is_ignored_has_an_example(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [f"n{row},{row} kg,{row}.5,{'xy'[row % 2]}\n" for row in range(50)]
    path.write_text("name,weight,a,label\n" + "".join(rows))
    (told,) = advice(load_dataset(str(path), split=0.5))
    assert "ignores name, weight, as over half" in told and "such as n0, 0 kg;" in told


@pytest.mark.parametrize(
    ("content", "names", "rows"),
    [
        (
            "Size (cm, m or km);Price (EUR, gross);label\n1.5;2.5;x\n3;4;y\n",
            ["Size (cm, m or km)", "Price (EUR, gross)"],
            2,
        ),
        ("Size (cm, m);label\n1,5;x\n3,5;y\n", ["Size (cm, m)"], 2),
        ("Size (cm; m),label\n1.5,x\n3,y\n", ["Size (cm; m)"], 2),
        ("a, b\tc;d\tlabel\n1,5\t2,5\tx\n3,5\t4\ty\n", ["a, b", "c;d"], 2),
        ("a|label\n1,5|x, y\n2,5|z\n", ["a"], 2),
        ("sep=;\na;b;label\n1;2;x\n", ["a", "b"], 1),
        ('"sep=,"\r\na,b,label\r\n1,2,x\r\n', ["a", "b"], 1),
        ("\ufeffsep=\t\na\tb\tlabel\n1\t2\tx\n", ["a", "b"], 1),
        ('\ufeff"a\nb";label\n1;x\n', ["a\nb"], 1),
        ("\n\na;label\n1;x\n", ["a"], 1),
        (" a ; label \n1;x\n", ["a"], 1),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_headers(tmp_path, content, names, rows, encoding):
    path = tmp_path / "rows.csv"
    path.write_bytes(content.encode(encoding))
    table = TableFile(path, {"label": "category"})
    assert (table.names, len(table)) == ([*names, "label"], rows)
    assert all(kind_of(table.column(name).type) == "number" for name in names)


def test_a_quotation_mark_without_an_end_by_another_delimiter(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('a,label\n1,"x;"\n' + "2,y\n" * (1 << 19))
    table = TableFile(path)
    assert table.names == ["a", "label"] and len(table) == 1 + (1 << 19)


def test_an_encoding_that_is_not_known_is_one_line(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("a,label\n1,\u30fc\n".encode("shift-jis"))
    refused(lambda: TableFile(path), "is in no known encoding", "save it as UTF-8")


def test_rows_to_predict_are_read_like_those_of_training(tmp_path):
    """A cell that could mean both means what it meant there; other cells decide for themselves."""
    path = tmp_path / "rows.csv"
    path.write_text("a;sold;label\n1.250;3/4/2024;x\n2,5;31/1/2024;y\n")
    recipe = recorded_recipe(path, {"table": load_dataset(str(path), split=0.5).table})
    for content, expected in (
        ("a;sold\n1.250;1/2/2024\n", (1250, 19754)),
        ("a,sold\n1.250,1/2/2024\n", (1250, 19754)),
        ("a,sold\n1.25,1/31/2024\n", (1.25, 19753)),
    ):
        path.write_text(content)
        assert recipe.encode(TableFile(path, recipe.kinds, recipe.form))[0, :2].tolist() == [*expected]


def test_a_text_column_does_not_decide_how_other_rows_are_read(tmp_path):
    """Neither one that training reads as text, nor one that it does not use."""
    (tmp_path / "train.csv").write_text("a;v;w;label\n3,125;a1;1,5;10,5\n2,5;1.5;2,5;20,5\n1,5;a1;3,5;30,5\n")
    (tmp_path / "test.csv").write_text("a;v;w;other;label\n3,125;1.5;1,500;7.25;10,5\n2,250;2.5;1,125;8.25;20,5\n")
    data = load_dataset(str(tmp_path), scale="none")
    assert data.test.arrays[0][:, 0].tolist() == [3.125, 2.25] and data.test.arrays[0][:, -1].tolist() == [1.5, 1.125]
    (tmp_path / "test.csv").write_text("a;v;w;label\n3.125;a1;1.5;10.5\n")
    data = load_dataset(str(tmp_path), scale="none")
    assert data.test.arrays[0][0, 0] == 3.125
    assert any("has another decimal sign than the training rows" in note for note in data.test.advice)


@pytest.mark.parametrize("late", ["3,5", "31/12/2024"])
def test_cells_after_the_first_block_decide_as_well(tmp_path, late):
    path = tmp_path / "rows.csv"
    early = "" if "," in late else "01/01/2024"
    path.write_text("a;label\n" + f"{early};{'x' * 40}\n" * 30_000 + f"{late};y\n" * 9)
    assert kind_of(TableFile(path).column("a").type) == ("number" if "," in late else "date")


def test_labels_beyond_int64_are_classes_of_their_own(tmp_path):
    path = tmp_path / "rows.csv"
    labels = ("5234567890123456789", "10234567890123456789", "15234567890123456789")
    path.write_text("a,label\n" + "".join(f"{row}.5,{labels[row % 3]}\n" for row in range(30)))
    assert set(load_dataset(str(path), split=0.5).classes) == {*labels}


@pytest.mark.parametrize("words", [("True", "False"), ("TRUE", "FALSE"), ("true", "false")])
def test_booleans_are_labels_in_several_files(tmp_path, words):
    for name in ("train", "test"):
        rows = "".join(f"{row}.5,{words[row % 2]}\n" for row in range(8))
        (tmp_path / f"{name}.csv").write_text(f"a,label\n{rows}")
    data = load_dataset(str(tmp_path))
    assert data.classes == ("false", "true") and data.test.arrays[1].tolist() == data.train.arrays[1].tolist()


def test_one_column_is_read_with_the_delimiter_of_training(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a;label\n1,5;x\n2,5;y\n")
    recipe = recorded_recipe(path, {"table": load_dataset(str(path), split=0.5).table})
    path.write_text("a\n1,5\n2,5\n")
    assert recipe.encode(TableFile(path, recipe.kinds, recipe.form))[:, 0].tolist() == [1.5, 2.5]


@pytest.fixture(scope="module")
def matrix_of():
    """What reads tables in the example that knows nothing of hvdtrain."""
    pytest.importorskip("onnxruntime")
    return runpy.run_path(str(ROOT / "examples" / "score_table.py"))["matrix_of"]


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_the_example_reads_the_same_numbers(tmp_path, form, matrix_of):
    path = written(tmp_path, form)
    recipe = recorded_recipe(
        path, {"table": load_dataset(str(path), split=0.5, as_images=True, scale="standard").table}
    )
    expected = recipe.encode(TableFile(path, recipe.kinds, recipe.form))
    np.testing.assert_allclose(matrix_of(recipe.record(), path), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.parquet", "rows.arrow"])
def test_without_pyarrow_a_table_names_the_extra(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pyarrow.feather", None)
    (tmp_path / name).write_text("a,label\n1,x\n")
    refused(lambda: TableFile(tmp_path / name), f"{name}: a table needs pyarrow", "pip install 'hvdtrain[tables]'")
