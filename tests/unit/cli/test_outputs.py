"""Where a command cannot write is an error of one line, before any work."""

from __future__ import annotations

import pytest
from support.report import make_run

from hvdtrain.__main__ import main
from hvdtrain.cli import bench, doctor
from hvdtrain.measure.bench import allreduce


@pytest.mark.parametrize(
    "command",
    [
        "bench --output {} --rows torch/single",
        "bench allreduce --output {}",
        "doctor --output {}/file",
        "report run --output {}",
        "scale run --latency-us 5 --bandwidth-gb-s 1 --output {}",
    ],
)
@pytest.mark.parametrize("place", ["/proc/x", "file", "file/below"])
def test_folder_that_cannot_be_written(tmp_path, capsys, monkeypatch, command, place):
    (tmp_path / "file").touch()
    make_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "all_rows", list)
    monkeypatch.setattr(bench, "choose", lambda *_: [])
    monkeypatch.setattr(bench, "plan", pytest.fail)
    monkeypatch.setattr(allreduce, "measure", pytest.fail)
    monkeypatch.setattr(doctor, "examine", pytest.fail)
    with pytest.raises(SystemExit) as ended:
        main(command.format(place).split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hvdtrain: --output {place}: nothing can be written there (")
    assert error.count("\n") == 1
