"""`python -m hvdtrain scale`, from records to files, and what it says of inputs that it cannot use."""

import dataclasses
import json
import re

import pytest
from support.jobs import ROOT
from support.report import make_run

from hvdtrain.__main__ import main
from hvdtrain.measure.scale import output
from hvdtrain.measure.scale.communication import read_table, to_table
from hvdtrain.measure.scale.inputs import ScaleOptions

BY_HAND = ("--latency-us", "50", "--bandwidth-gb-s", "1")
EVEN = {"compute_s": [0.5, 0.5], "communicate_s": [0.4, 0.4], "data_s": [0.1, 0.1]}
COMPARE = ("--compare-compression", "--ranks", "4", *BY_HAND)


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_of(folder, speeds=(), log_every=4, times=None, **given):
    """A run whose logging intervals had these images/s, or one interval in which ranks took these times."""
    make_run(folder, **given)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "runtime": {"log_every": log_every}}))
    lines = [{"kind": "train", "step": step, "images_per_s": speed} for step, speed in enumerate(speeds)]
    lines += [{"kind": "train", "step": 1, **times}] if times else []
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def predicted(*arguments):
    main(["scale", *map(str, arguments)])
    with open("runs/scale/scale.json") as file:
        return json.load(file)


def test_a_record_becomes_table_plot_and_json(in_folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run_of(in_folder / "run", [500, *[1000, 1010, 990, 1005] * 5], batch_size=64, images_per_s=1000.0)
    made = predicted("run", *BY_HAND, "--price-per-host-hour", "3", "--host-mtbf-hours", "1000")
    by_ranks = {one["ranks"]: one for one in made["predictions"]}
    assert sorted(by_ranks) == [2**power for power in range(9)]
    assert by_ranks[1]["images_per_s"]["value"] == pytest.approx(1000)
    assert by_ranks[1]["hours"] == pytest.approx(2.0 * 1000 * 12 / 1000 / 3600, rel=0.02)  # 2 s an epoch, 12 epochs
    assert made["workload"]["gradient_bytes"] == 4 * 129_068
    assert 0.005 < made["workload"]["spread"] < 0.03
    assert (in_folder / "runs" / "scale" / "scale.png").stat().st_size > 10_000
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("images/s", "limited by", "cost", "checkpoint", "lost to", "written to runs/scale"):
        assert text in shown
    for line in made["findings"]:
        assert line in shown
        assert line in (in_folder / "runs" / "scale" / "scale.md").read_text()


def test_two_batch_sizes_tell_what_is_fixed(in_folder):
    """Steps of 10 ms and 1 ms an image: strong scaling pays for the 10 ms on every rank."""
    for batch in (16, 64):
        run_of(in_folder / f"run{batch}", batch_size=batch, images_per_s=batch / (0.010 + 0.001 * batch))
    made = predicted("run16", "run64", *BY_HAND, "--scaling", "strong", "--ranks", "8")
    assert made["workload"]["fixed_s"] == pytest.approx(0.010)
    assert made["predictions"][0]["step"]["compute"] == pytest.approx(0.010 + 0.001 * 8)


def test_of_several_machines_the_slowest_counts(in_folder):
    run_of(in_folder / "fast", images_per_s=2000.0)
    run_of(in_folder / "slow", images_per_s=500.0, host={"processor": "old"})
    made = predicted("fast", "slow", *BY_HAND, "--ranks", "1")
    assert made["predictions"][0]["images_per_s"]["value"] == pytest.approx(500)
    assert any("2 kinds of machines: all wait for the slowest, old" in note for note in made["assumed"])


def test_a_run_of_several_ranks_counts_only_its_computation(in_folder):
    times = {"compute_s": [0.6, 0.4], "communicate_s": [0.3, 0.5], "data_s": [0.1, 0.1]}
    run_of(in_folder / "run", ranks=2, strategy="ring", images_per_s=1000.0, batch_size=64, times=times)
    made = predicted("run", *BY_HAND, "--ranks", "1", "4")
    step = made["predictions"][0]["step"]
    assert (step["compute"], step["input"]) == pytest.approx((0.032, 0.0064))
    assert made["communication"]["algorithm"] == "ring"
    assert made["overlap"] == 0


def write_table(path, *content):
    path.write_text(json.dumps(to_table(*content)))


def test_tables_of_several_sizes_join(in_folder):
    for ranks in (2, 4):
        seconds = {size: 1e-3 + 2 * (ranks - 1) * 1e-4 + 2 * (ranks - 1) / ranks * size * 1e-8 for size in (8, 1 << 20)}
        write_table(in_folder / f"{ranks}.json", ranks, ranks, {"ring": [seconds, seconds]})
    assert read_table(in_folder / "2.json").libraries["ring"][0].ranks == 2
    run_of(in_folder / "run")
    made = predicted("run", "--allreduce", "2.json", "4.json", "--library", "ring")
    network = made["communication"]["network"]
    assert network["link"]["latency_s"] == pytest.approx(1e-4)
    assert network["call_s"] == pytest.approx(1e-3)


def test_assumptions_are_said(in_folder):
    write_table(in_folder / "small.json", 2, 1, {"horovod over Gloo": [{8: 1e-3, 1024: 1.1e-3}]})
    run_of(in_folder / "run")
    assumed = "\n".join(predicted("run", "--allreduce", "small.json")["assumed"])
    assert "the table has allreduces of 8 to 1,024 bytes, and the gradients have 516,272: extrapolated" in assumed
    assert "links between hosts are taken to be as fast as those measured in one host" in assumed
    assert "one batch size was measured" in assumed
    assert "too few to know the spread of step times" in assumed


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "no run is given"),
        (("run",), "nothing tells how fast the network is"),
        (("run", *BY_HAND, "--local-latency-us", "5"), "only one of --local-latency-us"),
        (("run", "--latency-us", "nan", "--bandwidth-gb-s", "1"), "--latency-us nan is not valid"),
        (("run", "--allreduce", "text.json"), "text.json: not JSON"),
        (("run", "--allreduce", "run/config.json"), "run/config.json: not a table of allreduces"),
        (("run", "--allreduce", "ring.json", "--library", "mpi"), "the table has no mpi, only ring"),
        (("run", "--allreduce", "ring.json", "--library", "ring"), "ring was measured with 8 to 8 bytes"),
        (("ranks2", *BY_HAND), "ranks2: 2 replicas, and its record does not tell how much of a step is communication"),
        (("short", *BY_HAND), "short: its result.json has no images_per_s"),
        (("run", "cifar", *BY_HAND), "the runs are of 2 different networks or frameworks"),
        (("damaged", *BY_HAND), "damaged/config.json: no valid compression and sync_every"),
        (COMPARE, "--compare-compression needs one network, but is given none of them"),
        ((*COMPARE, "--model", "lenet", "--parameters", "5"), "but is given model and parameters"),
        (("--compare-compression", "--model", "lenet", *BY_HAND), "needs the number of ranks"),
        ((*COMPARE, "--model", "lenot"), "--model lenot: no such network"),
        ((*COMPARE, "--model", "lenet", "--input-shape", "3", "32", "32"), "takes images of 1x28x28"),
        ((*COMPARE, "--model", "mlp", "--input-shape", "3"), "--input-shape has not three numbers"),
        ((*COMPARE, "--model", "lenet", "--compression", "auto"), "--compression auto: not a method of compression"),
        ((*COMPARE, "--model", "lenet", "--sync-every", "0"), "--sync-every 0: must be 1 or more"),
        (("run", "--compression", "int8", "bf16", *BY_HAND), "several methods are given"),
        (("run", "--compression", "fp16", "--library", "ring", *BY_HAND), "--compression fp16: Horovod's own"),
    ],
)
def test_invalid_input_is_one_line(in_folder, capsys, arguments, error):
    run_of(in_folder / "run")
    run_of(in_folder / "ranks2", ranks=2)
    run_of(in_folder / "short", images_per_s=0.0)
    run_of(in_folder / "cifar", model="cifar_lenet", data="cifar10")
    config = run_of(in_folder / "damaged", strategy="ring", ranks=2, times=EVEN) / "config.json"
    config.write_text(config.read_text().replace('"compression": "none"', '"compression": "zip"'))
    (in_folder / "text.json").write_text("text")
    write_table(in_folder / "ring.json", 2, 1, {"ring": [{8: 1e-3}]})
    with pytest.raises(SystemExit) as ended:
        main(["scale", *arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line


ROW = {"library": "ring", "bytes": 8, "runs": [1e-3]}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, ""),
        ({"ranks": 1}, "a table of 1 rank(s) on 1 host(s) has no allreduce"),
        ({"hosts": 3}, "a table of 2 rank(s) on 3 host(s)"),
        ({"ranks": 4, "hosts": 2}, "a table of 4 ranks on 2 hosts; measure the ranks of one host, or one on each"),
        ({"rows": []}, "has no allreduce"),
        ({"rows": [{**ROW, "runs": [0]}]}, "0 is not a time in seconds"),
        ({"rows": [{**ROW, "bytes": "x"}]}, "'x' is not a positive integer"),
        ({"rows": [{"bytes": 8, "runs": [1]}]}, "KeyError: 'library'"),
    ],
    ids=str,
)
def test_invalid_tables_are_named(in_folder, capsys, change, error):
    value = {"ranks": 2, "hosts": 1, "rows": [ROW, {**ROW, "bytes": 1 << 20}], **change}
    (in_folder / "table.json").write_text(json.dumps(value))
    status = status_of(run_of(in_folder / "run"), "--allreduce", "table.json", "--library", "ring")
    message = capsys.readouterr().err
    assert status == 2 * bool(change)  # nothing else is wrong with it
    assert message.startswith("hvdtrain: table.json: " * bool(change)) and error in message


def test_the_documented_table_is_read(in_folder):
    page = (ROOT / "docs" / "scaling.md").read_text()
    (shown,) = re.findall(r"^    (\{.*\n(?:    .*\n)*)", page, re.MULTILINE)
    (in_folder / "table.json").write_text(shown)
    run_of(in_folder / "run")
    made = predicted("run", "--allreduce", "table.json", "--library", "ring")
    assert made["communication"]["network"]["most_ranks"] == 8


def test_the_library_is_that_of_the_runs(in_folder, capsys):
    for name, strategy, batch in (("one", "single", 64), ("ring", "ring", 64), ("ddp", "ddp", 32)):
        ranks = 1 if strategy == "single" else 2
        given = {} if strategy == "single" else {"times": EVEN}
        run_of(in_folder / name, strategy=strategy, ranks=ranks, batch_size=batch, **given)
    assert any("hvdtrain's ring, as in the run" in note for note in predicted("one", "ring", *BY_HAND)["assumed"])
    assert any("Horovod over Gloo, which the run did not use" in note for note in predicted("one", *BY_HAND)["assumed"])
    with pytest.raises(SystemExit):
        main(["scale", "ring", "ddp", *BY_HAND])
    assert "the runs used Gloo, hvdtrain's ring; choose one with --library" in capsys.readouterr().err


NUMBERS = [field.name for field in dataclasses.fields(ScaleOptions) if "float" in str(field.type)]
EXTREME = ["1e-320", "1e-9", "1e15", "1e300"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NUMBERS)
def test_any_number_of_an_option_is_predicted_with_or_refused(in_folder, capsys, monkeypatch, name):
    monkeypatch.setattr(output, "_plot", lambda _: b"")
    run_of(in_folder / "run", [500, *[1000, 1010, 990, 1005] * 5], batch_size=64, images_per_s=1000.0)
    common = {"latency_us": "50", "bandwidth_gb_s": "1", "local_latency_us": "5", "local_bandwidth_gb_s": "9"}
    common |= {"price_per_host_hour": "3", "host_mtbf_hours": "1000"}
    statuses = []
    for value in EXTREME:
        given = {**common, name: value}
        words = [word for option, text in given.items() for word in (f"--{option.replace('_', '-')}", text)]
        statuses.append(status_of("run", *words, "--ranks", "1", "8", "100000"))
        assert capsys.readouterr().err.count("\n") == (statuses[-1] == 2)
    assert statuses[0] == statuses[-1] == 2 and 0 in statuses


def status_of(*arguments):
    """The exit status of a prediction."""
    try:
        predicted(*arguments)
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [float(text) for text in EXTREME])
def test_any_number_in_a_file_is_used_or_refused(in_folder, monkeypatch, value):
    monkeypatch.setattr(output, "_plot", lambda _: b"")
    times = {"compute_s": [value, 0.4], "communicate_s": [0.3, value], "data_s": [0.1, value]}
    run_of(in_folder / "speed", [value] * 20, images_per_s=value)
    run_of(in_folder / "speeds", [1000.0] * 5 + [value] * 5 + [10.0] * 9)
    run_of(in_folder / "times", ranks=2, strategy="ring", times=times)
    for name in ("speed", "speeds", "times"):
        assert status_of(name, *BY_HAND) in (0, 2)
    tables = [{8: value, 1 << 20: 1e-3}, {8: 1e-5, 1 << 20: value}, {8: value, 1 << 20: value}]
    for number, seconds in enumerate(tables):
        write_table(in_folder / f"{number}.json", 2, 2, {"ring": [seconds]})
        assert status_of("speeds", "--allreduce", f"{number}.json", "--library", "ring") in (0, 2)
