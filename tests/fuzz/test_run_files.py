"""Files in the folder of a run: checkpoints, metrics, the recorded options and the result."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.networks import LENET_RECORD
from support.untrusted import manifest_of

from fuzz.inputs import TOO_DEEP, json_like, mutated
from fuzz.properties import FUZZ, folder_of, rejects_cleanly
from hvdtrain.config.options import Config
from hvdtrain.config.sources import from_record, recorded, to_record
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.runs import checkpoints, metrics, shards
from hvdtrain.runs.run import Run
from hvdtrain.runs.segment import Segment
from hvdtrain.training import replay
from hvdtrain.views.report.content import Report
from hvdtrain.views.report.pages import csv_page, markdown_page


def saved_files() -> dict[str, bytes]:
    weights = {"w": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    state = OptimizerState({f"momentum/{name}": value for name, value in weights.items()})
    position = Position(1, 2, 42, 64, 0)
    whole = Checkpoint(weights, state, position, "lenet", LENET_RECORD, "torch", "sgd", "ab12", 0.5, ("0", "1"))
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoints.save(Path(folder), whole, keep=1)
        return {file.name: file.read_bytes() for file in path.iterdir()}


SAVED = saved_files()
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(shards, "SHARD_BYTES", 16)
    DIVIDED = saved_files()
    """The same weights in several files."""
WEIGHTS, MOMENTA, STATE = checkpoints.FILES


def tensors_like(file: bytes) -> st.SearchStrategy[bytes]:
    """A safetensors file with its bytes mutated, or with another header in front of the same values."""
    length = struct.unpack("<Q", file[:8])[0]
    header, values = json.loads(file[8 : 8 + length]), file[8 + length :]
    return mutated((file,)) | json_like(header).map(lambda text: struct.pack("<Q", len(text)) + text + values)


def is_position(position: Position) -> bool:
    numbers = [value for name, value in vars(position).items() if name not in ("best", "best_by")]
    is_counted = all(type(value) is int and value >= 0 for value in numbers)
    return is_counted and np.isfinite(float(position.best)) and isinstance(position.best_by, str)


def load(files: dict[str, bytes]) -> None:
    with folder_of(**files) as folder, rejects_cleanly():
        path, found = checkpoints.newest(folder)
        assert is_position(found.position)
        assert np.isfinite(float(found.score))
        assert all(isinstance(name, str) for name in found.classes)
        checkpoints.network(path, found)


def with_other_tensors(saved: dict[str, bytes]) -> st.SearchStrategy[dict[str, bytes]]:
    others = {name: tensors_like(data) for name, data in saved.items() if name.endswith(".safetensors")}
    return st.fixed_dictionaries(others).map(lambda tensors: {**saved, **tensors})


@FUZZ
@given(st.sampled_from((SAVED, DIVIDED)).flatmap(with_other_tensors))
def test_checkpoint_tensors(files: dict[str, bytes]) -> None:
    files = {name: data for name, data in files.items() if name != checkpoints.MANIFEST}
    load({**files, checkpoints.MANIFEST: manifest_of(files).encode()})


@FUZZ
@given(json_like(json.loads(SAVED[STATE])))
@example(TOO_DEEP)
@example(json.dumps({**json.loads(SAVED[STATE]), "model": []}).encode())
@example(json.dumps({**json.loads(SAVED[STATE]), "model": "vgg", "position": {"step": "x"}}).encode())
def test_checkpoint_state(state: bytes) -> None:
    files = {**{name: SAVED[name] for name in (WEIGHTS, MOMENTA)}, STATE: state}
    load({**files, checkpoints.MANIFEST: manifest_of(files).encode()})


@FUZZ
@given(
    st.sampled_from((SAVED, DIVIDED)).flatmap(
        lambda saved: st.tuples(st.just(saved), json_like(json.loads(saved[checkpoints.MANIFEST])))
    )
)
@example((SAVED, TOO_DEEP))
@example((SAVED, b'{"sha256": []}'))
def test_checkpoint_manifest(given_files: tuple[dict[str, bytes], bytes]) -> None:
    saved, manifest = given_files
    load({**saved, checkpoints.MANIFEST: manifest})


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
        hashes = metrics.MetricsReader(folder / "metrics.jsonl").read().hashes()
        assert all(step >= 0 and len(saved.parameters) == 16 for step, saved in hashes.items())
        history = Run(folder).history
        assert all(
            np.isfinite(point).all() for curve in (*history[:2], *history.metrics.values()) for point in curve.points
        )
        changes = Run(folder).changes
        assert all(type(change.step) is int and change.text.isprintable() for change in changes.changes)
        assert changes.summary.isprintable()
        assert all(rank.local <= rank.total for rank in history.ranks.values())


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
        report = Report([Run(folder).require()], [])
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
        segment = Segment.choose(folder)
        assert segment.first < segment.last.step
        trained, runtime = replay.options(segment)
        assert trained.max_steps == segment.last.step and not runtime.on_end and not runtime.auto_resume


@FUZZ
@given(json_like({"config": to_record(Config())}))
@example(TOO_DEEP)
@example(b'{"config": {"data": 5, "seed": 1.5}}')
def test_recorded_config(content: bytes) -> None:
    with folder_of(**{"config.json": content}) as folder, rejects_cleanly():
        config = recorded(folder)
        assert from_record(to_record(config)) == config
        assert all(type(getattr(config, name)) in (type(value), int) for name, value in vars(Config()).items())
