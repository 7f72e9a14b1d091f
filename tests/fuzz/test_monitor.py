"""Folders of runs whose files come from anyone: no command that shows runs fails, or prints unprintable characters."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.run_folders import write_beat, write_changes, write_log, write_records, write_run

from fuzz.inputs import TOO_DEEP, json_like, mutated
from fuzz.properties import FUZZ, folder_of, rejects_cleanly
from hvdtrain.__main__ import main
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views import run_view
from hvdtrain.views.listing import Filter, sort_runs
from hvdtrain.views.run_view import RunFollower
from hvdtrain.views.terminal.follow import job_status, summary
from hvdtrain.views.terminal.screen import Shown, screen_lines


def files_of_a_run() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = write_run(Path(name, "run"))
        write_records(folder, 110, every=50)
        write_changes(folder, back=True)
        for rank in range(2):
            write_beat(folder, rank)
            write_log(folder, rank, "the loss jumped", level="WARNING")
        RunEnd("failed", 1, Failure("rank 1 was killed", rank=1, host="node1", stands_alone=True)).write(folder)
        attempt = {"checkpoint": 3, "ranks": 2, "began": 1.8e9, "seconds": 5.5, "step": 12, "status": 1, "ended": "x"}
        (folder / "attempts.json").write_text(json.dumps([attempt]))
        finding = {"status": "fail", "text": "full", "remedy": "enlarge it"}
        (folder / "doctor.json").write_text(json.dumps({"findings": [finding]}))
        result = {"accuracy": 0.5, "loss": 1.5, "steps": 40, "images_per_s": 100.0, "metrics": {"accuracy": 0.5}}
        (folder / "result.json").write_text(json.dumps(result))
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FILES = files_of_a_run()


def file_like(name: str, content: bytes) -> st.SearchStrategy[bytes]:
    if name.endswith(".json"):
        return json_like(json.loads(content)) | st.just(content)
    whole = content.splitlines()
    records = st.sampled_from(whole).flatmap(lambda line: json_like(json.loads(line)))
    lines = records if name.endswith(".jsonl") else mutated((whole[0],), (b"\x1b[2J", b"\n", b"\xff"))
    return st.lists(lines | st.sampled_from(whole), max_size=4).map(b"\n".join) | st.just(content)


CONTENTS = {name: file_like(name, content) for name, content in FILES.items()}
RUNS = st.fixed_dictionaries({"config.json": CONTENTS.pop("config.json")}, optional=CONTENTS)


NAME = "[red]x\x1b]0;y\x07\udc80"


@contextlib.contextmanager
def no_second_look() -> Iterator[None]:
    """Runs are not looked at twice, which would take more time than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_view, "SECOND_LOOK_S", 0.0)
        yield


def printed(*command: str) -> str:
    """What a command prints, which must be plain text that every encoding has, as in a file."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main(list(command))
    text = output.getvalue()
    assert all(line.isprintable() for line in text.split("\n"))
    text.encode()
    return text


@FUZZ
@given(RUNS)
@example(FILES)
@example(dict.fromkeys(FILES, TOO_DEEP))
def test_runs_show_and_diff(files: dict[str, bytes]) -> None:
    named = {f"{NAME}/{name}": content for name, content in files.items()}
    with no_second_look(), folder_of(**named) as folder, rejects_cleanly():
        hostile, other = str(folder / NAME), str(write_run(folder / "other"))
        printed("runs", str(folder))
        views = json.loads(printed("runs", str(folder), "--json"), parse_constant=pytest.fail)
        assert len(views) == 2
        printed("show", hostile, "--all")
        printed("diff", hostile, other)
        printed("diff", other, hostile, hostile)


@FUZZ
@given(RUNS, st.integers(1, 250), st.integers(1, 80), st.booleans())
def test_watch_screen(files: dict[str, bytes], width: int, height: int, plain: bool) -> None:
    with folder_of(**files) as folder, rejects_cleanly():
        follower = RunFollower(folder)
        follower.look()
        view = follower.look()
        lines = screen_lines(Shown.read(view), width, height, plain)
        assert len(lines) <= height
        assert all(line.cell_len <= width and line.plain.isprintable() for line in lines)
        assert summary(view).isprintable()
        assert 0 <= job_status(view) < 256
        sort_runs([view, view], "reason")


@FUZZ
@given(RUNS, st.text(max_size=12) | st.sampled_from(["accuracy>0.5", "name~r", "reason=", "rank!=1", "loss<1e999"]))
def test_filters(files: dict[str, bytes], given_filter: str) -> None:
    with folder_of(**files) as folder, rejects_cleanly():
        Filter.parse(given_filter).accepts(RunFollower(folder).look())
