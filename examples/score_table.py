"""Predict the rows of a CSV file by a network that was trained on a table and exported to ONNX, without hvdtrain.

After `hvdtrain export RUN model.onnx`, `python examples/score_table.py model.onnx rows.csv` prints a line for each row.
The metadata `table` of the model say what each column becomes (docs/data.md). The file is UTF-8, and dates ISO 8601.
"""

import csv
import json
import math
import sys
from datetime import datetime, timezone

import numpy as np
import onnxruntime

MISSING = {"", "?", "-", ".", "NA", "N/A", "null", "NULL", "None", "NaN", "nan", "NaT"}
TRUTH = {"true": 1.0, "false": 0.0}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def value_of(column, text):
    """A number, or the days of a date since 1970; None if it is missing."""
    if text in MISSING:
        return None
    if column["kind"] == "date":
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=moment.tzinfo or timezone.utc) - EPOCH).total_seconds() / 86400
    return TRUTH[text.lower()] if text.lower() in TRUTH else float(text.replace(",", "."))


def numbers_of(column, text):
    """What a cell becomes."""
    if column["kind"] == "category":
        return [float(text == category) for category in column["categories"]]
    value = value_of(column, text)
    known = column.get("fill", 0.0) if value is None else value
    numbers = [(known - column.get("shift", 0.0)) / column.get("scale", 1.0)]
    for period in column.get("periods", []):
        angle = 2 * math.pi * (known % period) / period
        numbers += [0.0, 0.0] if value is None else [math.sin(angle), math.cos(angle)]
    return numbers + [float(value is None)] * column.get("has_gaps", False)


def main(model, rows):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    table, classes = json.loads(metadata["table"]), json.loads(metadata["classes"])
    with open(rows, newline="", encoding="utf-8-sig") as file:
        delimiter = max(",;\t|", key=file.readline().count)
        file.seek(0)
        matrix = [
            [number for column in table["inputs"] for number in numbers_of(column, row[column["name"]])]
            for row in csv.DictReader(file, delimiter=delimiter)
        ]
    inputs = np.array(matrix, np.float32)[:, np.newaxis, np.newaxis]
    for outputs in session.run(["logits"], {"images": inputs})[0]:
        label = table["label"]
        print(classes[outputs.argmax()] if classes else outputs[0] * label.get("scale", 1.0) + label.get("shift", 0.0))


main(*sys.argv[1:])
