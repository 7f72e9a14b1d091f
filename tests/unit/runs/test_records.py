"""Values of a run's files: of another kind than is asked for, they are None or empty."""

import pytest

from hvdtrain.runs.records import DamagedFile, Record


@pytest.mark.parametrize("value", [None, True, "1", [1], {}, float("nan"), float("inf"), 10**400, -1, 1.5])
def test_counts_are_integers_from_0_and_numbers_are_finite(value):
    record = Record({"value": value})
    assert record.count("value") is None and record.number("value") == (value if value in (-1, 1.5) else None)


def test_texts_have_no_control_characters_and_are_cut():
    record = Record({"host": "a\x1b[2J", "long": "x" * 1000, "number": 3, "flag": True, "list": [1]})
    assert (record.text("host"), record.text("number"), len(record.text("long"))) == ("a\\x1b[2J", "", 301)
    assert {name: record.texts().get(name) for name in ("number", "flag", "list")} == {
        "number": "3", "flag": "yes", "list": None,
    }  # fmt: skip


def test_objects_in_an_object_report_their_problems_to_its_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"host": [], "config": null, "list": [{"step": 1}, 2]}')
    record = Record.read(path)
    record.require()
    assert not record.table("config") and [item.count("step") for item in record.tables("list")] == [1]
    record.require()
    assert not record.table("host")
    with pytest.raises(DamagedFile) as error:
        record.require()
    assert (error.value.path, error.value.what) == (path, '"host" is not a JSON object')
