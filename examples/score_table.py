"""Predict the rows of a CSV file by a network that was trained on a table and exported to ONNX, without hvdtrain.

After `hvdtrain export RUN model.onnx`, `python examples/score_table.py model.onnx rows.csv` prints a line for each row.
The metadata `table` of the model say what each column becomes (docs/data.md). The file may have any delimiter, decimal
point, order of dates and encoding that training takes; what its cells do not say is as in the table of training.
"""

import csv
import itertools
import json
import math
import re
import signal
import sys
from datetime import datetime, timezone

import numpy as np
import onnxruntime

MISSING = {
    *(
        "",
        "?",
        "-",
        ".",
        "NA",
        "N/A",
        "n/a",
        "null",
        "NULL",
        "None",
        "NaN",
        "nan",
        "-NaN",
        "-nan",
        "NaT",
        "<NA>",
        "#NA",
    ),
    *("#N/A", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN", r"\N"),
}
TRUTH = {"true": 1.0, "false": 0.0}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DATES = (
    "{0}/{1}/%y",
    "{0}-{1}-%y",
    "%d.%m.%y",
    "%d-%b-%y",
    "%d %b %y",
    "%b %d, %y",
    "%Y/%m/%d",
    "%Y.%m.%d.",
    "%Y年%m月%d日",
)
FORMS = [date.replace("%y", year) for date in DATES for year in ("%y", "%Y")] + ["%Y.%m.%d"]
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")


def number_of(text, decimal_point):
    """A number, with thousands, currency or percent sign."""
    if text.lower() in TRUTH:
        return TRUTH[text.lower()]
    group = "." if decimal_point == "," else ","
    groups = rf"[1-9]\d?\d?(?:[{group}'’\s]\d\d\d?)*[{group}'’\s]\d\d\d"
    match = re.fullmatch(rf"(\D*?)({groups}|\d*)([{decimal_point}]\d*)?([eE][+-]?\d+)?(\D*)", text)
    if not match or not any(match.group(2, 3)):
        raise ValueError(f"{text} is no number")
    before, whole, fraction, power, _ = match.groups("")
    value = float(re.sub(r"\D", "", whole) + "." + fraction[1:] + "0" + power)
    return -value if re.search("[(−–-]", before) else value


def days_of(text, day_first):
    """The days of a date since 1970, or of a time since midnight."""
    if time := re.fullmatch(r"(\d\d):(\d\d)(?::(\d\d))?", text):
        return sum(int(part) * unit for part, unit in zip(time.groups("0"), (3600, 60, 1), strict=True)) / 86400
    order = ("%d", "%m") if day_first else ("%m", "%d")
    text = text.replace(". ", ".")
    parsers = [datetime.fromisoformat]
    parsers += [
        lambda text, form=form + time: datetime.strptime(text, form.format(*order)) for form in FORMS for time in TIMES
    ]
    for parse in parsers:
        try:
            moment = parse(text.replace("Z", "+00:00") if parse is datetime.fromisoformat else text)
        except ValueError:
            continue
        return (moment.replace(tzinfo=moment.tzinfo or timezone.utc) - EPOCH).total_seconds() / 86400
    raise ValueError(f"{text} is no date")


def numbers_of(column, text, decimal_point, day_first):
    """What a cell becomes."""
    if column["kind"] == "category":
        return [float(text == category) for category in column["categories"]]
    value = None
    if (text := text.strip()) not in MISSING:
        value = days_of(text, day_first) if column["kind"] == "date" else number_of(text, decimal_point)
    known = column.get("fill", 0.0) if value is None else value
    numbers = [(known - column.get("shift", 0.0)) / column.get("scale", 1.0)]
    for period in column.get("periods", []):
        angle = 2 * math.pi * (known % period) / period
        numbers += [0.0, 0.0] if value is None else [math.sin(angle), math.cos(angle)]
    return numbers + [float(value is None)] * column.get("has_gaps", False)


def cells_of(path):
    """The columns of a file: their cells by name."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252")
    excel = re.match('"?sep=(.)"?\r?\n', text)
    lines = text[excel.end() if excel else 0 :].splitlines(keepends=True)
    tables = [
        [row for row in csv.reader(lines, delimiter=delimiter) if row] for delimiter in (excel[1] if excel else "\t;|,")
    ]
    header, *rows = max(tables, key=lambda rows: sum(len(row) == len(rows[0]) > 1 for row in rows))
    if any(len(row) != len(header) for row in rows):
        sys.exit(f"{path}: a row has more or fewer cells than the header")
    return dict(zip(map(str.strip, header), zip(*rows, strict=True), strict=True))


def read(column, texts, form):
    """The numbers of all rows for a column; the error where a cell cannot be read."""
    try:
        return [numbers_of(column, text, *form) for text in texts]
    except ValueError as error:
        return error


def matrix_of(table, path):
    """The inputs of the network, float32 (n, numbers), by the form in which most columns can be read."""
    cells, usual = cells_of(path), table.get("form") or {}
    usual = usual.get("decimal_point", "."), usual.get("day_first", False)
    forms = sorted(
        itertools.product(".,", (False, True)), key=lambda form: (form[0] != usual[0]) + (form[1] != usual[1])
    )
    columns = [[read(column, cells[column["name"]], form) for column in table["inputs"]] for form in forms]
    best = min(columns, key=lambda columns: sum(isinstance(column, ValueError) for column in columns))
    for column, numbers in zip(table["inputs"], best, strict=True):
        if isinstance(numbers, ValueError):
            sys.exit(f"{path}: column {column['name']}: {numbers}")
    return np.concatenate(best, 1).astype(np.float32)


def main(model, rows):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    table, classes = json.loads(metadata["table"]), json.loads(metadata["classes"])
    inputs = matrix_of(table, rows)[:, np.newaxis, np.newaxis]
    label = table["label"]
    for outputs in session.run(["logits"], {"images": inputs})[0]:
        print(classes[outputs.argmax()] if classes else outputs[0] * label.get("scale", 1.0) + label.get("shift", 0.0))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as `head` ends it
    main(*sys.argv[1:])
