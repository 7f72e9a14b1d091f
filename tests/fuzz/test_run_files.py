"""Files in the folder of a run, which come from anyone: those of training, and all that commands show of them."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.networks import LENET_RECORD
from support.run_folders import write_beat, write_changes, write_log, write_records, write_run
from support.untrusted import manifest_of

from fuzz.inputs import TOO_DEEP, json_like, mutated
from fuzz.properties import FUZZ, folder_of, rejects_cleanly
from hvdtrain.__main__ import main
from hvdtrain.config.options import Config
from hvdtrain.config.sources import from_record, recorded, to_record
from hvdtrain.interfaces.learner import Checkpoint, OptimizerState, Position
from hvdtrain.networks.description import Weights
from hvdtrain.runs import checkpoints, metrics
from hvdtrain.runs.history import HistoryReader
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.training import replay
from hvdtrain.views import run_view
from hvdtrain.views.listing import Filter, sort_runs
from hvdtrain.views.report.content import RunsReport
from hvdtrain.views.report.pages import csv_page, markdown_page
from hvdtrain.views.run_view import RunFollower
from hvdtrain.views.terminal.follow import job_status, summary
from hvdtrain.views.terminal.screen import Shown, screen_lines


def saved_files(*other_ranks: Weights) -> dict[str, bytes]:
    weights = {"w": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    state = OptimizerState({f"momentum/{name}": value for name, value in weights.items()})
    position = Position(1, 2, 42, 64, 0)
    named = position, "lenet", LENET_RECORD, "torch", "sgd", "ab12", 0.5, ("0", "1")
    whole = Checkpoint(*named, weights=weights, optimizer=state, other_ranks=other_ranks)
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoints.save(Path(folder), whole, keep=1)
        return {file.name: file.read_bytes() for file in path.iterdir()}


SAVED = saved_files()
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(checkpoints, "FILE_BYTES", 16)
    DIVIDED = saved_files({"error": np.ones(3, np.float32)})
    """The same weights in several files, and two ranks."""
STATE = checkpoints.FILES[2]


def tensors_like(file: bytes) -> st.SearchStrategy[bytes]:
    """A safetensors file with its bytes mutated, or with another header in front of the same values."""
    length = struct.unpack("<Q", file[:8])[0]
    header, values = json.loads(file[8 : 8 + length]), file[8 + length :]
    return mutated((file,)) | json_like(header).map(lambda text: struct.pack("<Q", len(text)) + text + values)


def load(files: dict[str, bytes]) -> None:
    with folder_of(**files) as folder, rejects_cleanly():
        path, found = checkpoints.newest(folder)
        counts = [value for name, value in vars(found.position).items() if name not in ("best", "best_by")]
        assert all(type(count) is int and count >= 0 for count in counts)
        assert all(np.isfinite(order).all() for order in (found.position.best, found.score))
        assert all(isinstance(name, str) for name in (found.position.best_by, *found.classes))
        checkpoints.network(path, found)


def changed(saved: dict[str, bytes], *names: str) -> st.SearchStrategy[dict[str, bytes]]:
    """The files of a checkpoint of which these have other contents, with the sums of those."""
    strategies = {
        name: tensors_like(saved[name]) if "safetensors" in name else json_like(json.loads(saved[name]))
        for name in names
    }
    drawn = st.fixed_dictionaries(strategies).map(lambda others: {**saved, **others})
    return drawn.map(with_sums) if checkpoints.MANIFEST not in names else drawn


def tensor_files(saved: dict[str, bytes]) -> list[str]:
    return sorted(name for name in saved if name.endswith(".safetensors"))


def with_sums(files: dict[str, bytes]) -> dict[str, bytes]:
    files = {name: data for name, data in files.items() if name != checkpoints.MANIFEST}
    return {**files, checkpoints.MANIFEST: manifest_of(files).encode()}


def with_state(**changes: object) -> dict[str, bytes]:
    return with_sums({**SAVED, STATE: json.dumps({**json.loads(SAVED[STATE]), **changes}).encode()})


@FUZZ
@given(changed(SAVED, *tensor_files(SAVED)) | changed(DIVIDED, *tensor_files(DIVIDED)))
def test_checkpoint_tensors(files: dict[str, bytes]) -> None:
    load(files)


@FUZZ
@given(changed(SAVED, STATE) | changed(SAVED, checkpoints.MANIFEST) | changed(DIVIDED, checkpoints.MANIFEST))
@example(with_sums({**SAVED, STATE: TOO_DEEP}))
@example(with_state(model=[]))
@example(with_state(model="vgg", position={"step": "x"}))
@example({**SAVED, checkpoints.MANIFEST: TOO_DEEP})
@example({**SAVED, checkpoints.MANIFEST: b'{"sha256": []}'})
def test_checkpoint_schemas(files: dict[str, bytes]) -> None:
    load(files)


TIMES = {"compute_s": [1.0, 2.0], "communicate_s": [1.1, 0.1], "data_s": [0.0, 0.0]}
RECORDS = [
    {"kind": "train", "step": 20, "epoch": 0.5, "loss": 2.1, "lr": 0.1, **TIMES},
    {"kind": "test", "step": 40, "epoch": 1.0, "loss": 1.5, "accuracy": 0.5, "per_class": [0.5, 0.5]},
    {"kind": "checkpoint", "step": 40, "epoch": 1.0, "parameters": "0123456789abcdef"},
    {"kind": "members", "step": 41, "epoch": 1.1, "number": 2, "ranks": [0, 2], "hosts": ["node1", "node2"],
     "lost": [{"rank": 1, "why": "was killed by SIGKILL"}], "joined": [2], "seconds": 0.31, "repeated": 1},
    {"kind": "shards", "step": 42, "epoch": 1.1, "counts": [3, None, 1], "moved": [[1, 2, 0]], "why": "rank 2 is slow"},
    {"kind": "audit", "step": 43, "epoch": 1.1, "shard": 1, "rank": 0, "by": 2, "wrong": None},
    {"kind": "audited", "step": 44, "epoch": 1.1, "audits": 10, "unequal": 1},
]  # fmt: skip


@FUZZ
@given(st.lists(st.sampled_from(RECORDS).flatmap(json_like), max_size=4))
@example([TOO_DEEP, b"[]", b"{}", b'{"kind": [], "step": 1}', b'{"kind": "x", "step": "1"}', b"\xff"])
def test_metrics(lines: list[bytes]) -> None:
    whole = json.dumps(RECORDS[0]).encode()
    with folder_of(**{"metrics.jsonl": b"\n".join([whole, *lines, b""])}) as folder, rejects_cleanly():
        found = metrics.read(folder / "metrics.jsonl")
        assert all(isinstance(record["kind"], str) and isinstance(record["step"], int) for record in found)
        hashes = HistoryReader(folder / "metrics.jsonl").read().hashes()
        assert all(step >= 0 and len(saved.parameters) == 16 for step, saved in hashes.items())
        run = RecordedRun(folder)
        assert all(np.isfinite(point).all() for curve in run.curves.values() for point in curve[::2])
        changes = run.changes
        assert all(type(change.step) is int and change.text.isprintable() for change in changes.changes)
        assert changes.summary.isprintable()
        assert all(rank.local <= rank.total for rank in run.rank_times.values())


RUN = {
    "config.json": {
        "config": to_record(Config()),
        "ranks": 2,
        "devices": 1,
        "network": LENET_RECORD,
        "device": "cpu",
        "host": {"processor": "Z80", "cores": 8},
        "versions": {"numpy": "1.23.5"},
        "started": "2023-01-01T00:00:00",
    },
    "result.json": {
        "steps": 40,
        "accuracy": 0.5,
        "images_per_s": 100.0,
        "epoch_s": 1.5,
        "global_batch": 64,
        "step_s": 0.25,
        "cores": 2,
        "flops_per_image": 13_258_800,
        "peak_rss_mb": 100.0,
        "test_rows": 100,
        "confusion": [[5, 1], [0, 4]],
    },
}


@FUZZ
@given(
    st.fixed_dictionaries({name: json_like(value) | st.just(json.dumps(value).encode()) for name, value in RUN.items()})
)
def test_run_folder(files: dict[str, bytes]) -> None:
    with folder_of(**files) as folder, rejects_cleanly():
        report = RunsReport([RecordedRun(folder).require()], [])
        markdown_page(report)
        csv_page(report)


SESSION = {**RUN["config.json"], "runtime": {"device": "cpu", "workers": 2}, "started": "2023-01-01T00:00:00+0000"}
TRAINED = [{**record, "step": 40, "time": 1.7e9} for record in RECORDS]


@FUZZ
@given(json_like(SESSION), json_like(SESSION), st.sampled_from(TRAINED).flatmap(json_like))
@example(json.dumps(SESSION).encode(), b"", b'{"kind": "checkpoint", "step": false, "parameters": "0123456789abcdef"}')
def test_segment_to_replay(config: bytes, earlier: bytes, line: bytes) -> None:
    lines = b"\n".join([*(json.dumps(record).encode() for record in TRAINED), line, b""])
    files = {"config.json": config, "config-1.json": earlier, "metrics.jsonl": lines}
    with folder_of(**files) as folder, rejects_cleanly():
        segment = replay.choose(folder)
        runtime = segment.runtime
        assert segment.config.max_steps == max(segment.hashes) and not runtime.on_end and not runtime.auto_resume


@FUZZ
@given(json_like({"config": to_record(Config())}))
@example(TOO_DEEP)
@example(b'{"config": {"data": 5, "seed": 1.5}}')
def test_recorded_config(content: bytes) -> None:
    with folder_of(**{"config.json": content}) as folder, rejects_cleanly():
        config = recorded(folder)
        assert from_record(to_record(config)) == config
        assert all(type(getattr(config, name)) in (type(value), int) for name, value in vars(Config()).items())


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
@given(RUNS, st.integers(1, 250), st.integers(1, 80), st.text(max_size=12))
@example(FILES, 80, 24, "accuracy>0.5")
@example(FILES, 80, 24, "name~r")
@example(FILES, 80, 24, "loss<1e999")
@example(dict.fromkeys(FILES, TOO_DEEP), 80, 24, "rank!=1")
def test_all_that_shows_runs(files: dict[str, bytes], width: int, height: int, given_filter: str) -> None:
    named = {f"{NAME}/{name}": content for name, content in files.items()}
    with no_second_look(), folder_of(**named) as folder, rejects_cleanly():
        hostile, other = str(folder / NAME), str(write_run(folder / "other"))
        printed("runs", str(folder))
        views = json.loads(printed("runs", str(folder), "--json"), parse_constant=pytest.fail)
        assert len(views) == 2
        printed("show", hostile, "--all")
        printed("diff", hostile, other)
        printed("diff", other, hostile, hostile)
        check_screen(folder / NAME, width, height)
        Filter.parse(given_filter).accepts(RunFollower(folder / NAME).look())


def check_screen(folder: Path, width: int, height: int) -> None:
    """As `watch` shows it."""
    follower = RunFollower(folder)
    follower.look()
    view = follower.look()
    lines = screen_lines(Shown.read(view), width, height)
    assert len(lines) <= height
    assert all(line.cell_len <= width and line.plain.isprintable() for line in lines)
    assert summary(view).isprintable()
    assert 0 <= job_status(view) < 256
    sort_runs([view, view], "reason")
