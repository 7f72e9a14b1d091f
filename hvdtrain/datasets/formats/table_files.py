"""Files of tables, which pyarrow reads: Parquet, Arrow, Feather, and CSV of any country, spreadsheet or tool."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.datasets.formats.reading import Malformed, check_size, wrap_errors
from hvdtrain.errors import UserError, needed_by
from hvdtrain.system.text import did_you_mean, printable

if TYPE_CHECKING:
    import pyarrow

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".arrow", ".feather")
MAX_NAMED, MAX_COMPARED = 5, 100_000
"""Columns of a table in a message, and texts that are compared."""
ARROW_FILES = (b"ARROW1", b"FEA1")
"""How files of Arrow and Feather begin; a stream of Arrow has no such mark."""
DELIMITERS = ",|;\t"
"""If several divide as many rows like the header, the last: numbers and names also have commas."""
MISSING = ("?", "-", ".", "None", "<NA>", "NaT", r"\N")
"""A missing number or date in a CSV file, besides what pyarrow takes for one (empty, NA, #N/A, null, NaN ...)."""
DAYS = ("{0}/{1}/", "{0}-{1}-", "%d.%m.", "%d-%b-", "%d %b ", "%b %d, ")
"""Dates in a CSV file, before a year; {0} and {1} are month and day, or day and month."""
DATES = (*(f"{day}%{year}" for year in "yY" for day in DAYS), *(f"%Y{sign}%m{sign}%d" for sign in "-/."))
DATES += ("%Y. %m. %d.", "%Y年%m月%d日")
"""Besides ISO 8601. %Y comes after %y, as it also takes years of two digits."""
TEXTS = ("string", "null")
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
UNIT = (
    "(?:AED|ARS|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KRW|MXN|MYR|NOK|NZD|PHP|"
    r"PLN|RON|RSD|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR|[A-Z]{0,3}\p{Sc}|[Kk]r\.?|zł|Kč|Ft|Fr\.?|R[sp]\.?|"
    r"лв\.?|руб\.?|р\.|元|円|원|%)?"
)
SIGN = r"[(−\p{Pd}]?"
NUMBER = (
    rf"^{SIGN}[+]?{UNIT}\pZ*{SIGN}(?:[0-9]+|[1-9][0-9]{{0,2}}(?:[GROUP'’\pZ][0-9]{{2,3}})*[GROUP'’\pZ][0-9]{{3}})"
    rf"(?:[MARK][0-9]*)?(?:[eE][+-]?[0-9]+)?\pZ*{UNIT}[)]?$"
)
"""A number, for RE2, with a currency or percent sign; groups are of thousands, in India also of hundreds of them."""
SAMPLE, FIRST_BLOCK = 1 << 16, 1 << 20
"""Characters that are read at a time, and bytes that pyarrow reads first."""


@dataclass(frozen=True)
class CsvForm:
    """How the text of a CSV file is read."""

    encoding: str
    delimiter: str
    skip: int = 0
    """Lines before the header."""
    decimal_point: str = "."
    day_first: bool = False
    """Whether 3/4/2024 is in April."""


class TableFile:
    """A file, and its columns. Raises UserError if it cannot be read, or has no rows or a name twice.

    kinds: what training has read columns as. Those of a category are text, even where a CSV file has only numbers in
    them; of the others, the form is found. usual: see `csv_form`.
    """

    def __init__(self, path: Path, kinds: Mapping[str, str] | None = None, usual: CsvForm | None = None) -> None:
        self.path = path
        self.form: CsvForm | None = None
        self.guesses: list[str] = []
        with wrap_errors(path, "write the table again, with a header as its first line", "read as a table"):
            self._table = self._read(kinds or {}, usual)
        self.names: list[str] = self._table.column_names
        if twice := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise UserError(f"{path}: two columns have the name {shown(twice)}", "rename one, or add a header")
        if not len(self):
            raise UserError(f"{path}: has no rows below its header", "give it at least 1")

    def _read(self, kinds: Mapping[str, str], usual: CsvForm | None) -> pyarrow.Table:
        """The table, by its suffix. Raises UserError if pyarrow is missing, and other errors for what is no table."""
        with needed_by(f"{self.path}: a table", "tables"):
            import pyarrow.feather
            import pyarrow.ipc
            import pyarrow.parquet
        if (suffix := self.path.suffix.lower()) == ".parquet":
            file = pyarrow.parquet.ParquetFile(self.path)
            check_size(sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)))
            return file.read()
        check_size(self.path.stat().st_size)
        if suffix in (".csv", ".tsv"):
            texts = [name for name, kind in kinds.items() if kind == "category"]
            self.form, self.guesses = csv_form(self.path, usual, kinds.keys() - texts)
            return _read_csv(self.path, self.form, texts)
        with open(self.path, "rb") as opened:
            if opened.read(len(ARROW_FILES[0])).startswith(ARROW_FILES):
                return pyarrow.feather.read_table(self.path, memory_map=False)
            opened.seek(0)
            return pyarrow.ipc.open_stream(opened).read_all()  # as Hugging Face's data sets are saved

    def __len__(self) -> int:
        return self._table.num_rows

    def column(self, name: str) -> pyarrow.ChunkedArray:
        column = self._table.column(name)
        return column.cast(column.type.value_type) if hasattr(column.type, "index_type") else column  # categories

    @property
    def indices(self) -> list[str]:
        """Columns that pandas has written as the numbers or names of the rows, by its own metadata."""
        return [name for name in (self._table.schema.pandas_metadata or {}).get("index_columns", []) if name]

    def keep_zeros(self, name: str) -> None:
        """Let a column of integers be text if some begin with zeros, as names of classes do, or are beyond int64."""
        kind = str(self.column(name).type)
        if self.form and (kind == "int64" or (kind == "double" and (self.column(name).to_numpy() >= 2.0**63).any())):
            texts = _read_csv(self.path, self.form, [name], alone=True).column(name)
            if any(re.fullmatch(r"\s*(0\d+|\d{19,})\s*", text) for text in texts.unique().to_pylist()):
                self._table = self._table.set_column(self.names.index(name), name, texts)

    def require(self, *names: str) -> None:
        for name in names:
            if name not in self.names:
                hint = did_you_mean(name, self.names)
                reason = f"{self.path}: has no column {printable(name)}{hint}"
                raise UserError(reason, f"its columns are {shown(self.names)}")


def shown(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """Names of columns in a message."""
    return printable(", ".join(name or "(unnamed)" for name in names[:most])) + ", ..." * (len(names) > most)


def example(texts: pyarrow.Array) -> tuple[str, bool]:
    """One of these texts that is unlike most, if there is one, and whether most look like numbers or dates."""
    known = [text for text in texts.unique()[:MAX_COMPARED].to_pylist() if text]
    forms = [re.sub(r"\d+", "0", re.sub(r"[\s.,'’:/()−–-]", "", text)) for text in known]
    usual, count = [*Counter(forms).most_common(1), ("", 0)][0]
    are_most = 2 * count > len(known)
    others = [text for text, form in zip(known, forms, strict=True) if are_most and form != usual]
    return printable([*others, *known, ""][0]), are_most and "0" in usual and not any(map(str.isalpha, usual))


def csv_form(path: Path, usual: CsvForm | None = None, deciding: Collection[str] = ()) -> tuple[CsvForm, list[str]]:
    """The form by which most columns of a CSV file have numbers or dates, and what of it is a guess.

    usual: that of other rows, which decides instead of guesses. deciding: the columns that count; none for all. Raises
    OSError, and Malformed for another encoding.
    """
    encoding = _encoding(path)
    with open(path, encoding=encoding, errors="replace") as text:
        excel = re.match('\ufeff?"?sep=(.)"?\n', text.readline(SAMPLE))
    forms = [CsvForm(encoding, delimiter, int(bool(excel))) for delimiter in (excel[1] if excel else DELIMITERS)]
    form = max(forms, key=lambda form: _rows_like_header(path, form, usual))
    forms = [replace(form, decimal_point=mark, day_first=day_first) for mark in ".," for day_first in (False, True)]
    plain = [_read_csv(path, form) for form in forms]
    tables = [*map(_with_numbers, plain, forms)]

    def known(place: int) -> int:
        return _known(tables[place], deciding)

    def preference(place: int) -> tuple[int, ...]:
        form, as_it_is = forms[place], _known(plain[place])
        if usual:
            return known(place), form.decimal_point == usual.decimal_point, form.day_first == usual.day_first
        has_points = "double" in map(str, plain[0].schema.types)
        is_comma = form.decimal_point == "," and known(place) > as_it_is and not has_points
        by_delimiter = (as_it_is, is_comma) if form.delimiter != "," else ()
        return known(place), *by_delimiter, form.day_first == (form.decimal_point == ",")

    best = max(range(len(forms)), key=preference)
    rivals = [place for place in range(len(forms)) if known(place) == known(best) and not usual]
    if path.stat().st_size > FIRST_BLOCK and len(rivals) > 1:  # cells after the first block may decide
        for place in rivals:
            tables[place] = _read_csv(path, forms[place], ())
        best = max(rivals, key=preference)
    guesses = [_difference(tables[best], tables[place]) for place in rivals if known(place) == known(best)]
    for what, name in (("decimal sign", "decimal_point"), ("order of day and month", "day_first")):
        if usual and getattr(forms[best], name) != getattr(usual, name):
            guesses.append(f"has another {what} than the training rows")
    if encoding == "cp1252":
        guesses.append("is read as Windows-1252, as it is not UTF-8: save it as UTF-8 if letters are wrong")
    return forms[best], list(dict.fromkeys(filter(None, guesses)))


def _rows_like_header(path: Path, form: CsvForm, usual: CsvForm | None) -> tuple[int, int]:
    of_suffix = "\t" if path.suffix.lower() == ".tsv" else ","
    rows, is_usual = 0, form.delimiter == (usual.delimiter if usual else of_suffix)
    with contextlib.suppress(ValueError):  # by another delimiter, a quotation mark may have no end
        table = _read_csv(path, form)
        rows = len(table) if len(table.column_names) > 1 else 0
    return rows, DELIMITERS.find(form.delimiter) if rows else is_usual


def _known(table: pyarrow.Table, deciding: Collection[str] = ()) -> int:
    """How many columns, of all or of these, are no texts, nor dates before 1000: 13/4/24 is none of the year 13."""
    import pyarrow.compute

    compute: Any = pyarrow.compute
    pairs = zip(table.column_names, table.columns, strict=True)
    found = [cells for name, cells in pairs if name in (deciding or [name]) and str(cells.type) not in TEXTS]
    first = [compute.min(cells).as_py() for cells in found if str(cells.type).startswith(("date", "timestamp"))]
    return len(found) - sum(date is not None and date.year < 1000 for date in first)


def _difference(table: pyarrow.Table, other: pyarrow.Table) -> str:
    """A sentence about the first cell that two tables differ in; empty if there is none."""
    for name, cells, others in zip(table.column_names, table.columns, other.columns, strict=True):
        pairs = [] if cells.equals(others) else zip(cells.to_pylist(), others.to_pylist(), strict=True)
        for cell, second in pairs:
            if str(cell) != str(second):  # NaN is not equal to itself
                what = f"takes {cell} and not {second} for a cell in column {printable(name)}, as no other cell decides"
                return f"{what}: write numbers as 1234.5 and dates as 2024-12-31 if this is wrong"
    return ""


def _read_csv(path: Path, form: CsvForm, texts: Collection[str] | None = None, alone: bool = False) -> pyarrow.Table:
    """The table in a CSV file, with these columns as text, or these alone.

    For None its first block without rows that have more or fewer cells than the header, as pyarrow reads it.
    """
    import pyarrow
    import pyarrow.csv as csv

    order = ("%d", "%m") if form.day_first else ("%m", "%d")
    read = csv.ReadOptions(encoding=form.encoding, skip_rows=form.skip)
    parse = csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True)
    convert = csv.ConvertOptions(
        decimal_point=form.decimal_point,
        null_values=_nulls(),
        timestamp_parsers=[csv.ISO8601, *(date.format(*order) + time for time in TIMES for date in DATES)],
    )
    if texts is not None:
        names = _read_csv(path, form).column_names if texts else ()
        convert.column_types = {name: "string" for name in names if name.strip() in texts}
        convert.include_columns = [*convert.column_types] if alone else []
        return _with_numbers(csv.read_csv(path, read, parse, convert), form, texts)
    parse.invalid_row_handler = lambda row: "skip"
    with csv.open_csv(path, read, parse, convert) as reader:
        return pyarrow.Table.from_batches([*itertools.islice(reader, 1)], reader.schema)


def _nulls() -> list[str]:
    import pyarrow.csv

    return [*pyarrow.csv.ConvertOptions().null_values, *MISSING]


def _with_numbers(table: pyarrow.Table, form: CsvForm, texts: Collection[str] = ()) -> pyarrow.Table:
    """It with numbers in place of texts that stand for them, but in these columns, and names without blanks."""
    names = [name.strip() for name in table.column_names]
    pairs = zip(names, table.columns, strict=True)
    return table.from_arrays([cells if name in texts else _numbers(cells, form) for name, cells in pairs], names)


def _numbers(column: pyarrow.ChunkedArray, form: CsvForm) -> pyarrow.ChunkedArray:
    """The numbers that texts stand for; the column if one is no number, or they have several units."""
    import pyarrow
    import pyarrow.compute

    compute: Any = pyarrow.compute
    if str(column.type) != "string":
        return column
    mark, nulls = form.decimal_point, pyarrow.array(_nulls())
    number = NUMBER.replace("MARK", mark).replace("GROUP", ",.".strip(mark))
    for texts in (column[:MAX_NAMED], column):  # a few cells tell most texts
        cells = compute.utf8_trim_whitespace(texts)
        cells = compute.if_else(compute.is_in(cells, nulls), None, cells)
        if compute.any(compute.invert(compute.match_substring_regex(cells, number))).as_py():
            return column
    units = compute.replace_substring_regex(cells, r"[\pN\pZ.,'’()+−\p{Pd}]", "").unique().to_pylist()
    if len({*units} - {"", None}) > 1:
        return column
    cells = compute.replace_substring_regex(cells, r"^[^0-9]*[(−\p{Pd}][^0-9]*", "-")
    cells = compute.replace_substring_regex(cells, f"^[^0-9-]+|[^0-9]+$|[^0-9eE{mark}+-]", "")
    try:
        return cells.cast("int64")
    except pyarrow.ArrowInvalid:
        return compute.replace_substring(cells, ",", ".").cast("double")


def _encoding(path: Path) -> str:
    """UTF-16 by its mark, as Excel's "Unicode text"; else UTF-8, or what Windows writes in western Europe."""
    with open(path, "rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            return "utf-16"
    for encoding in ("utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError), open(path, encoding=encoding) as text:
            while text.read(SAMPLE):
                pass
            return encoding
    raise Malformed("is in no known encoding (UTF-8, UTF-16 or Windows-1252): save it as UTF-8")
