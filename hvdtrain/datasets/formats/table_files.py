"""Files of tables, which pyarrow reads: CSV, TSV, Parquet, Arrow and Feather."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hvdtrain.datasets.formats.reading import check_size, wrap_errors
from hvdtrain.errors import UserError, needed_by
from hvdtrain.system.text import did_you_mean, printable

if TYPE_CHECKING:
    import pyarrow

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".arrow", ".feather")
MAX_NAMED = 5
"""Of the columns of a table, in a message."""
ARROW_FILES = (b"ARROW1", b"FEA1")
"""How files of Arrow and Feather begin; a stream of Arrow has no such mark."""
MISSING = ("?", "-", ".", "None", "<NA>", "NaT")
"""What stands for a missing number or date in a CSV file besides what pyarrow knows (empty, NA, null, NaN ...)."""
DATES = ("%m/%d/%y", "%d.%m.%y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d")
"""Forms of dates in a CSV file besides ISO 8601. %Y would also take two digits, as a year of the Romans."""
SAMPLE = 1 << 16
"""Bytes at the beginning of a CSV file by which its form is recognized."""


class CsvForm(NamedTuple):
    """How the text of a CSV file is to be read."""

    encoding: str
    delimiter: str
    decimal_point: str


class TableFile:
    """A file, and its columns. Raises UserError if it cannot be read, or has no rows or a name twice.

    texts: columns that are read as text, even where a CSV file has only numbers in them.
    """

    def __init__(self, path: Path, texts: Collection[str] = ()) -> None:
        self.path, self._table = path, read_table(path, texts)
        self.names: list[str] = self._table.column_names
        if twice := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise UserError(f"{path}: two columns have the name {shown(twice)}", "rename one, or add a header")
        if not len(self):
            raise UserError(f"{path}: has no rows below its header", "give it at least 1")

    def __len__(self) -> int:
        return self._table.num_rows

    def column(self, name: str) -> pyarrow.ChunkedArray:
        column = self._table.column(name)
        return column.cast(column.type.value_type) if hasattr(column.type, "index_type") else column  # categories

    @property
    def indices(self) -> list[str]:
        """Columns that pandas has written as the numbers or names of the rows, by its own metadata."""
        return [name for name in (self._table.schema.pandas_metadata or {}).get("index_columns", []) if name]

    def require(self, *names: str) -> None:
        for name in names:
            if name not in self.names:
                hint = did_you_mean(name, self.names)
                reason = f"{self.path}: has no column {printable(name)}{hint}"
                raise UserError(reason, f"its columns are {shown(self.names)}")


def shown(names: Sequence[str]) -> str:
    """Names of columns in a message."""
    return printable(", ".join(name or "(unnamed)" for name in names[:MAX_NAMED])) + ", ..." * (len(names) > MAX_NAMED)


def read_table(path: Path, texts: Collection[str] = ()) -> pyarrow.Table:
    """The table in a file, by its suffix; see `TableFile`. Raises UserError if it is not one, or pyarrow is missing."""
    with needed_by(f"{path}: a table", "tables"):
        import pyarrow.feather
        import pyarrow.ipc
        import pyarrow.parquet
    with wrap_errors(path, "write the table again, with a header", "read as a table"):
        if (suffix := path.suffix.lower()) == ".parquet":
            file = pyarrow.parquet.ParquetFile(path)
            check_size(sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)))
            return file.read()
        check_size(path.stat().st_size)
        if suffix in (".csv", ".tsv"):
            return _read_csv(path, csv_form(path), texts)
        with open(path, "rb") as opened:
            if opened.read(len(ARROW_FILES[0])).startswith(ARROW_FILES):
                return pyarrow.feather.read_table(path, memory_map=False)
            opened.seek(0)
            return pyarrow.ipc.open_stream(opened).read_all()  # as Hugging Face's data sets are saved


def _read_csv(path: Path, form: CsvForm, texts: Collection[str]) -> pyarrow.Table:
    import pyarrow.csv as csv

    table = csv.read_csv(
        path,
        csv.ReadOptions(encoding=form.encoding),
        csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True),
        csv.ConvertOptions(
            decimal_point=form.decimal_point,
            null_values=[*csv.ConvertOptions().null_values, *MISSING],
            timestamp_parsers=[csv.ISO8601, *DATES],
            column_types=dict.fromkeys(texts, "string"),
        ),
    )
    return table.rename_columns([name.strip() for name in table.column_names])


def csv_form(path: Path) -> CsvForm:
    """How a CSV file is to be read. Raises OSError."""
    with open(path, "rb") as file:
        encoding = _encoding(file.read(2), path)
    with open(path, encoding=encoding, errors="replace", newline="") as text:
        sample = text.read(SAMPLE)
    header = re.sub('"[^"]*"', "", sample.partition("\n")[0])
    usual, others = ("\t", ",;|") if path.suffix.lower() == ".tsv" else (",", ";\t|")
    delimiter = max(usual + others, key=header.count)  # of equally frequent ones, the usual one
    quote = '"' if delimiter == "," else '"?'
    commas = re.findall(f"[{delimiter}\n]{quote}-?\\d+,\\d+{quote}(?=[{delimiter}\r\n])", sample)
    points = re.findall(f'[{delimiter}\n]"?-?\\d+\\.\\d+"?(?=[{delimiter}\r\n])', sample)
    return CsvForm(encoding, delimiter, "," if len(commas) > len(points) else ".")


def _encoding(start: bytes, path: Path) -> str:
    """UTF-16 by its mark, as Excel's "Unicode text"; else UTF-8, or what Windows writes in western Europe."""
    if start in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    with open(path, encoding="utf-8") as text:
        try:
            while text.read(SAMPLE):
                pass
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8"
