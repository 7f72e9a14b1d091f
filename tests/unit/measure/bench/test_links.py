"""`bench links` without measuring: rows, the plan, statistics, tables, and the switch that delays."""

import json
import math
import socket
import statistics
import time

import numpy as np
import pytest

from hvdtrain.config.options import from_recipe
from hvdtrain.errors import UserError
from hvdtrain.measure.bench import hosts
from hvdtrain.measure.bench.delay import HEADER, Switch
from hvdtrain.measure.bench.hosts import PAYLOAD, Speed
from hvdtrain.measure.bench.links import LinksOptions, Results, plan, run
from hvdtrain.measure.bench.links_jobs import steps_of_interval
from hvdtrain.measure.bench.links_report import Interval, Report, t_quantile
from hvdtrain.measure.bench.links_rows import ROWS, TASKS, as_peer, choose

LENET = TASKS["lenet"]
NAMES = [row.name for row in ROWS]


def row(name):
    return ROWS[NAMES.index(name)]


def test_a_row_is_chosen_by_its_name_or_the_beginning_and_brings_its_base():
    assert [row.name for row in choose(ROWS, ["torch/horovod/int8"])] == ["torch/horovod", "torch/horovod/int8"]
    assert [row.name for row in choose(ROWS, ["torch/horovod"])] == ["torch/horovod"]
    assert [row.name for row in choose(ROWS, ["mxnet"])] == [name for name in NAMES if name.startswith("mxnet/")]
    assert choose(ROWS, []) == list(ROWS)
    with pytest.raises(UserError, match=r"--rows torch/horvod: no such row \(did you mean torch/horovod"):
        choose(ROWS, ["torch/horvod"])


@pytest.mark.parametrize(
    ("text", "speed"),
    [("100", Speed(100)), ("0.5", Speed(0.5)), ("100/10ms", Speed(100, 10)), ("1/2.5ms", Speed(1, 2.5))],
)
def test_speeds_are_read_as_they_are_written(text, speed):
    assert Speed.parse(text) == speed
    assert Speed.parse(str(speed)) == speed
    assert 8 / speed.byte_s / 1e6 == pytest.approx(speed.mbit_s * PAYLOAD)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"tasks": ("lent",)}, r"--tasks lent: no such network; choose from lenet, resnet20"),
        ({"links": ()}, r"--links: none is given"),
        ({"part": "whole"}, r"--part whole .* choose --rows"),
        *(
            ({"links": (text,)}, r"--links: .* is not a speed")
            for text in ("", "0.01", "-1", "fast", "100/", "100/10", "1e9", "100ms", "1/99999ms")
        ),
    ],
)
def test_options_that_fit_nothing_are_errors(given, error):
    with pytest.raises(UserError, match=error):
        LinksOptions(**given)


def test_hosts_without_root_or_programs_are_one_line(monkeypatch):
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match=r"namespaces, which only root may create; run this as root"):
        hosts.require()
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts.shutil, "which", lambda name: None if name == "tc" else name)
    with pytest.raises(UserError, match=r"tc: not found, with which links are made; apt-get install iproute2"):
        hosts.require()


def test_peers_get_the_options_of_the_recipe(tmp_path):
    options = as_peer(row("torch/bare-ddp/powersgd-2-hook"), LENET, 3, tmp_path)
    config = from_recipe("fashion", **LENET.options, seed=3, data=str(tmp_path))
    assert (options["lr"], options["momentum"], options["seed"]) == (config.lr, config.momentum, 3)
    assert (options["hook"], options["rank"]) == ("powersgd", 2)
    assert "compression" not in options
    json.dumps(options)


def test_intervals_are_whole_exchanges():
    assert steps_of_interval(row("torch/horovod"), 0.05) == 8
    assert steps_of_interval(row("torch/horovod"), 0.6) == 4
    assert steps_of_interval(row("torch/horovod/sync8"), 0.6) == 8
    assert steps_of_interval(row("torch/bare-ddp/powersgd-2-hook"), 0.05) >= 10


def test_evaluations_come_when_an_exchange_is_due():
    """Else local steps would be combined in addition at the end of each epoch, on fewer steps than others."""
    for task, of_task in ((task, row) for task in TASKS.values() for row in ROWS):
        assert task.rows % task.batch == 0
        assert task.rows // task.batch % of_task.sync_every == 0


def test_finished_cells_are_not_measured_again(tmp_path):
    options = LinksOptions(rows=("torch/horovod",), tasks=("lenet",), links=("100", "10"), seeds=2, output=tmp_path)
    cells = list(plan(choose(ROWS, options.rows), options))
    assert [(cell.part, cell.seed, str(cell.speed)) for cell in cells] == [
        ("curves", 0, "no limit"), ("curves", 1, "no limit"), ("speed", 0, "100"), ("speed", 0, "10"),
    ]  # fmt: skip
    results = Results(tmp_path / "results.jsonl")
    results.add({**cells[1].key(options), "evaluations": [[64, 0.5]]})
    results.add({**cells[2].key(options), "measured_ms": 1.0})
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"part": "speed", "ta')  # of a benchmark that was killed
    again = Results(tmp_path / "results.jsonl")
    assert [bool(again.find(cell.key(options))) for cell in cells] == [False, True, True, False]
    other = LinksOptions(rows=("torch/horovod",), tasks=("lenet",), links=("100", "10"), seeds=2, np=2, output=tmp_path)
    assert not any(again.find(cell.key(other)) for cell in cells)


def test_peers_without_their_programs_are_left_out(tmp_path):
    options = LinksOptions(tasks=("lenet",), peers=tmp_path)
    assert not [cell for cell in plan(ROWS, options) if cell.row.program]
    assert "bare-ddp" in (listed := run(LinksOptions(show=True, peers=tmp_path)))
    assert f"{tmp_path} has no links_torch.py (--peers)" in listed


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (4, 2.776), (20, 2.086), (100, 1.984)])
def test_intervals_are_by_students_distribution(freedom, value):
    assert t_quantile(freedom) == pytest.approx(value, abs=0.003)
    values = [0.80, 0.82] + [0.81] * (freedom - 1)
    interval = Interval.of(values)
    expected = value * statistics.stdev(values) / len(values) ** 0.5
    assert (interval.mean, interval.half) == (pytest.approx(0.81), pytest.approx(expected, rel=2e-3))
    assert math.isnan(Interval.of([0.5]).half) and Interval.of([0.5]).text() == "0.5000"


def curve(name, seed, *accuracies):
    evaluations = [[64 * (place + 1), accuracy] for place, accuracy in enumerate(accuracies)]
    return {"part": "curves", "task": "lenet", "row": name, "np": 4, "seed": seed, "evaluations": evaluations}


def speed(name, link, measured, **more):
    ends = {"measured_ms": measured, "sent_kb": 800.0, **more}
    return {"part": "speed", "task": "lenet", "row": name, "np": 4, "link": link, **ends}


RECORDS = [
    {"part": "latency", "library": "horovod-gloo", "latency_s": 1e-4},
    *(curve("torch/horovod", seed, 0.6, 0.78, 0.82 + 0.01 * seed) for seed in range(3)),
    *(curve("torch/horovod/int8", seed, 0.7, 0.78, 0.84) for seed in range(3)),
    *(curve("torch/horovod/powersgd:2", seed, 0.6, 0.7, 0.71 + 0.04 * seed) for seed in range(3)),
    speed("torch/horovod", "100", 100.0, predicted_ms=110.0),
    speed("torch/horovod/int8", "100", 25.0, predicted_ms=24.0),
    speed("torch/horovod/powersgd:2", "100", 10.0, predicted_ms=10.0),
    {**speed("torch/horovod", "10", 1.0, predicted_ms=1.0), "np": 2},
    {"part": "whole", "task": "lenet", "row": "torch/horovod/int8", "np": 4, "link": "100", "seed": 0,
     "evaluations": [[64, 0.7], [128, 0.78]], "times": [2.0, 4.0]},
]  # fmt: skip


def cells(table):
    return {line[0]: list(line[1:]) for line in table.sections[0].rows}


def test_the_tables_sentences_and_picture_of_a_report():
    rows = [row for row in ROWS if row.framework == "torch"]
    report = Report(rows, [LENET], [Speed(100), Speed(10)], 4, RECORDS)
    assert report.seconds(LENET, "torch/horovod", Speed(100)) == pytest.approx([12.8] * 3)
    assert report.seconds(LENET, "torch/horovod", Speed(10)) == [], "of another number of ranks"
    assert report.ratio(LENET, row("torch/horovod/int8"), Speed(100)) == pytest.approx(4)
    table = cells(report.accuracies(LENET))
    assert table["torch/horovod"][:4] == ["128 (128 to 128)", "12.8 (12.8 to 12.8)", "–", "0.8300 ± 0.0248"]
    assert table["torch/horovod/int8"][1] == "3.2 (3.2 to 3.2), 4.00x"
    assert table["torch/horovod/int8"][4] == "+0.0100 ± 0.0248"
    assert table["torch/horovod/powersgd:2"][0].startswith("reached by 1 of 3 seeds")
    assert not report.ratio(LENET, row("torch/horovod/powersgd:2"), Speed(100))
    assert cells(report.step_times(LENET))["torch/horovod"] == ["800", "100.0 / 110.0", "–"]
    sentences = report.sentences()
    assert sentences[0] == "Predictions of 3 steps: median error 4.0%."
    (best,) = [line for line in sentences if "times as fast" in line]
    assert best.startswith("lenet at 100 Mbit/s: torch/horovod/int8 is 4.0 times as fast as torch/horovod")
    (line,) = report.whole().sections[0].rows
    assert line == ["lenet", "torch/horovod/int8", "100", "3.2", "4.0", "-20.0%", "0.7800"]
    assert "| torch/horovod/int8 | 128 (128 to 128) | 3.2 (3.2 to 3.2), 4.00x |" in report.markdown()
    for one in (report, Report(ROWS, list(TASKS.values()), [Speed(10)], 4, [])):
        assert one.plot().startswith(b"\x89PNG")


def frame(to, sender, content=b""):
    return bytes(HEADER) + bytes([to]) * 6 + bytes([sender]) * 6 + content


@pytest.fixture
def ports():
    """Three ports of a switch, and what is connected to them."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    for one in (one for pair in pairs for one in pair):
        one.setblocking(False)
    yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for one in (one for pair in pairs for one in pair):
        one.close()


def received(host):
    try:
        return host.recv(1 << 17)
    except BlockingIOError:
        return None


def test_the_switch_holds_frames_in_their_order_and_learns_addresses(ports):
    of_switch, host = ports
    switch = Switch(of_switch, 10.0)
    now = time.monotonic()
    host[0].send(frame(2, 1, b"first"))
    host[0].send(frame(2, 1, b"second"))
    switch.take(of_switch[0], now)
    switch.send(now + 9.9)
    assert [received(one) for one in host] == [None] * 3
    switch.send(now + 10)
    for other in (host[1], host[2]):  # as it does not know yet where 2 is
        assert [received(other), received(other)] == [frame(2, 1, b"first"), frame(2, 1, b"second")]
    assert received(host[0]) is None
    host[2].send(frame(1, 2, np.arange(2000).tobytes()))
    switch.take(of_switch[2], now)
    switch.send(now + 10)
    assert received(host[0]) == frame(1, 2, np.arange(2000).tobytes())
    assert received(host[1]) is None, "it knows where 1 is"
