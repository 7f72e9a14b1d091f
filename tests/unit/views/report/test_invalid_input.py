"""Invalid input: a one-line error that names the file, and no report."""

import pytest
from support.report import make_run

from hvdtrain.cli import report


def error_of(capsys, *arguments):
    """The one-line error of a report that cannot be written."""
    with pytest.raises(SystemExit) as ended:
        report.main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    assert ended.value.code == 2
    assert output.out == ""
    assert output.err.startswith("hvdtrain: ") and output.err.count("\n") == 1
    return output.err


def test_folders_without_whole_finished_runs(tmp_path, capsys):
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "half" / "run" / "logs").mkdir(parents=True)
    make_run(tmp_path / "bad").joinpath("result.json").write_text("{")
    for name, problem in (
        ("none", "none: no such folder; give"),
        ("file", "file: not a folder; give"),
        ("empty", "empty: no finished run there; give run folders"),
        ("half", "no finished run there (1 did not finish: "),
        ("bad", f"{tmp_path / 'bad' / 'result.json'}: cannot be read ("),
    ):
        assert problem in error_of(capsys, tmp_path / name, "--output", out)
    assert not out.exists()


def test_output_that_cannot_be_written_is_unchanged(tmp_path, capsys):
    make_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/no/such"):
        assert f"--output {place}: nothing can be written there (" in error_of(
            capsys, tmp_path / "run", "--output", place
        )
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    assert "give another --output" in error_of(capsys, tmp_path / "run", "--output", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
