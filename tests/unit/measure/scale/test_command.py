"""`python -m hvdtrain scale`, from records to files, and what it says of inputs that it cannot use."""

import json
from pathlib import Path

import pytest
from support.in_process import command
from support.report import make_run

from hvdtrain.__main__ import main
from hvdtrain.measure.scale import step
from hvdtrain.measure.scale.measured import read_runs

BY_HAND = ("--link", "50/1")
EVEN = {"compute_s": [0.5, 0.5], "communicate_s": [0.4, 0.4], "data_s": [0.1, 0.1]}


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(step, "packing_s", lambda method, shapes, ranks: 1e-4 * (method.name != "none" and ranks > 1))
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


def write_table(path, ranks, hosts, *repeats, library="ring"):
    """repeats: seconds by number of bytes."""
    rows = [{"library": library, "bytes": size, "runs": [run[size] for run in repeats]} for size in repeats[0]]
    path.write_text(json.dumps({"ranks": ranks, "hosts": hosts, "rows": rows}))


def predicted(*arguments):
    main(["scale", *map(str, arguments)])
    with open("runs/scale/scale.json") as file:
        return json.load(file)


def by_ranks(made):
    return {one["ranks"]: one for one in made["predictions"]}


def status_of(*arguments):
    """The exit status of a prediction, and what it prints."""
    return command(Path.cwd(), "scale", *map(str, arguments))


def test_a_record_becomes_table_and_json(in_folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run_of(in_folder / "run", [500, *[1000, 1010, 990, 1005] * 5], batch_size=64, images_per_s=1000.0)
    made = predicted("run", *BY_HAND)
    assert sorted(by_ranks(made)) == [2**power for power in range(9)]
    one, many = by_ranks(made)[1], by_ranks(made)[64]
    assert (one["images_per_s"], one["efficiency"], one["seconds"]) == pytest.approx((1000, 1, 0.064))
    assert many["images_per_s"] == pytest.approx(64 * 64 / many["seconds"])
    assert many["efficiency"] == pytest.approx(many["images_per_s"] / 64 / 1000)
    assert many["seconds"] == pytest.approx(sum(many["step"].values()))
    assert 0.005 < read_runs([in_folder / "run"]).spread < 0.03 and many["step"]["stragglers"] > 0
    shown = " ".join(capsys.readouterr().out.split())
    page = (in_folder / "runs" / "scale" / "scale.md").read_text()
    for text in ("images/s", "efficiency", "communication", f"{many['images_per_s']:,.0f}", *made["assumed"]):
        assert text in shown and text in page
    assert "written to runs/scale: scale.md, scale.json" in shown


def test_two_batch_sizes_tell_what_is_fixed(in_folder):
    """Steps of 10 ms and 1 ms an image: strong scaling pays for the 10 ms on every rank."""
    for batch in (16, 64):
        run_of(in_folder / f"run{batch}", batch_size=batch, images_per_s=batch / (0.010 + 0.001 * batch))
    made = by_ranks(predicted("run16", "run64", *BY_HAND, "--scaling", "strong", "--ranks", "8", "128"))
    assert made[8]["step"]["compute"] == pytest.approx(0.010 + 0.001 * 8)
    assert made[8]["images_per_s"] == pytest.approx(64 / made[8]["seconds"])
    assert made[128]["rows"] == 1  # the fullest rank


def test_a_run_of_several_ranks_counts_only_its_computation(in_folder):
    times = {"compute_s": [0.6, 0.4], "communicate_s": [0.3, 0.5], "data_s": [0.1, 0.1]}
    run_of(in_folder / "run", ranks=2, strategy="ring", images_per_s=1000.0, batch_size=64, times=times)
    made = by_ranks(predicted("run", *BY_HAND, "--ranks", "1", "4"))
    assert (made[1]["step"]["compute"], made[1]["step"]["input"]) == pytest.approx((0.032, 0.0064))
    # hvdtrain's ring sends after backward: 6 latencies, and 1.5 times the gradients.
    assert made[4]["step"]["communication"] == pytest.approx(6 * 50e-6 + 1.5 * 4 * 129_068 * 1e-9)


def test_documented_steps_on_throttled_links(in_folder):
    """Of docs/scaling.md, at 94 % of 10 Mbit/s, where a step is nearly all communication."""
    gb_s = 10e6 / 8 * 1448 / (1514 + 33) / 1e9
    for strategy, steps_ms in (("horovod", {2: 444, 4: 668, 8: 784}), ("ring", {2: 444, 4: 667, 8: 783})):
        run_of(in_folder / strategy, ranks=1, strategy=strategy, controller="Gloo", batch_size=8, images_per_s=2500.0)
        made = by_ranks(predicted(strategy, "--link", f"100/{gb_s}", "--ranks", *steps_ms))
        assert {ranks: made[ranks]["seconds"] * 1e3 for ranks in steps_ms} == pytest.approx(steps_ms, rel=0.02)


def test_tables_of_several_sizes_join(in_folder):
    """The cost of a call does not grow with the ranks, as latency does."""
    for ranks in (2, 4):
        seconds = {size: 1e-3 + 2 * (ranks - 1) * 1e-4 + 2 * (ranks - 1) / ranks * size * 1e-8 for size in (8, 1 << 20)}
        write_table(in_folder / f"{ranks}.json", ranks, ranks, seconds, seconds)
    run_of(in_folder / "run", strategy="ring", ranks=1)
    made = by_ranks(predicted("run", "--allreduce", "2.json", "4.json"))
    expected = 1e-3 + 2 * 63 * 1e-4 + 2 * 63 / 64 * 4 * 129_068 * 1e-8
    assert made[64]["step"]["communication"] == pytest.approx(expected)


def test_assumptions_are_said(in_folder):
    write_table(in_folder / "small.json", 2, 1, {8: 1e-3, 1024: 1.1e-3}, library="horovod over Gloo")
    run_of(in_folder / "run")
    assumed = "\n".join(predicted("run", "--allreduce", "small.json")["assumed"])
    assert "the allreduce is that of horovod over Gloo" in assumed and "as in the run" not in assumed
    assert "an allreduce of all gradients, 516,272 bytes, is extrapolated" in assumed
    assert "links between hosts are as fast as those measured in one host" in assumed
    assert "computation is proportional to the images" in assumed
    assert "too few logging intervals" in assumed
    run_of(in_folder / "ring", strategy="ring", ranks=2, times=EVEN)
    assert "the allreduce is that of ring, as in the run" in predicted("run", "ring", *BY_HAND)["assumed"]


def test_a_run_is_predicted_with_its_method_and_local_steps(in_folder):
    for name, given in {"plain": {}, "int8": {"compression": "int8"}, "local": {"sync_every": 4}}.items():
        run_of(in_folder / name, strategy="ring", ranks=2, times=EVEN, **given)
    plain, int8, local = (by_ranks(predicted(name, *BY_HAND, "--ranks", 8))[8] for name in ("plain", "int8", "local"))
    assert int8["compression"] == "int8" and int8["step"]["communication"] < plain["step"]["communication"]
    assert local["step"]["communication"] == pytest.approx(plain["step"]["communication"] / 4)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "the following arguments are required: RUNS"),
        (("nowhere", *BY_HAND), "nowhere"),
        (("run",), "nothing tells how fast the network is"),
        *((("run", f"--link={text}"), f"--link {text}: not a link") for text in ("5", "a/1", "5/0", "nan/1", "-5/1")),
        (("run", *BY_HAND, "--ranks", "0"), "--ranks 0: must be 1 or more"),
        (("run", *BY_HAND, "--ranks"), "--ranks: no number is given"),
        (("run", *BY_HAND, "--compression", "zip"), "--compression zip: not a method of compression"),
        (("run", "--allreduce", "text.json"), "text.json: is not what hvdtrain writes"),
        (("run", "--allreduce", "run/config.json"), "run/config.json: is not what hvdtrain writes"),
        (("run", "--allreduce", "ring.json"), "no small and large allreduces by horovod over Gloo"),
        (("ring", "--allreduce", "ring.json"), "no small and large allreduces by ring"),
        (("ranks2", *BY_HAND), "ranks2: 2 replicas, and its record does not tell how much of a step is communication"),
        (("short", *BY_HAND), "short: its result.json has no images_per_s"),
        (("run", "cifar", *BY_HAND), "the runs differ in network, framework or machine"),
        (("run", "old", *BY_HAND), "the runs differ in network, framework or machine"),
        (("ring", "int8", *BY_HAND), "the runs differ in strategy, compression or sync_every"),
        (("ring", "--compression", "fp16", *BY_HAND), "--compression fp16: Horovod's own"),
    ],
)
def test_invalid_input_is_one_line(in_folder, arguments, error):
    run_of(in_folder / "run")
    run_of(in_folder / "ranks2", ranks=2)
    run_of(in_folder / "short", images_per_s=0.0)
    run_of(in_folder / "cifar", model="cifar_lenet", data="cifar10")
    run_of(in_folder / "old", host={"processor": "old"})
    run_of(in_folder / "ring", strategy="ring", ranks=1)
    run_of(in_folder / "int8", strategy="ring", ranks=1, compression="int8")
    (in_folder / "text.json").write_text("text")
    write_table(in_folder / "ring.json", 2, 1, {8: 1e-3})
    status, output = status_of(*arguments)
    assert (status, output.count("\n")) == (2, 1) and error in output


ROW = {"library": "ring", "bytes": 8, "runs": [1e-3]}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, ""),
        ({"ranks": 1}, "Expected `int` >= 2 - at `$.ranks`"),
        ({"ranks": 4, "hosts": 2}, "4 ranks on 2 hosts"),
        ({"rows": []}, "no small and large allreduces by ring"),
        ({"rows": [{**ROW, "runs": [0]}]}, "at `$.rows[0].runs[0]`"),
        ({"rows": [{**ROW, "bytes": "x"}]}, "Expected `int`, got `str`"),
        ({"rows": [{"bytes": 8, "runs": [1]}]}, "missing required field `library`"),
    ],
    ids=str,
)
def test_invalid_tables_are_named(in_folder, change, error):
    value = {"ranks": 2, "hosts": 1, "rows": [ROW, {**ROW, "bytes": 1 << 20}], **change}
    (in_folder / "table.json").write_text(json.dumps(value))
    run = run_of(in_folder / "run", strategy="ring", ranks=1)
    status, output = status_of(run, "--allreduce", "table.json")
    assert status == 2 * bool(change) and error in output  # nothing else is wrong with it


EXTREME = ["1e-320", "1e-9", "1e15", "1e300"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", EXTREME)
def test_any_number_is_used_or_refused(in_folder, value):
    times = {"compute_s": [float(value), 0.4], "communicate_s": [0.3, float(value)], "data_s": [0.1, float(value)]}
    run_of(in_folder / "speed", [float(value)] * 20, images_per_s=float(value))
    run_of(in_folder / "speeds", [1000.0] * 5 + [float(value)] * 5 + [10.0] * 9, strategy="ring", ranks=1)
    run_of(in_folder / "times", ranks=2, strategy="ring", times=times)
    for name in ("speed", "speeds", "times"):
        assert status_of(name, *BY_HAND)[0] in (0, 2)
    for link in (f"{value}/1", f"50/{value}", f"{value}/{value}"):
        assert status_of("speeds", "--link", link)[0] == (0 if value in ("1e-9", "1e15") else 2)
    number = float(value)
    tables = [{8: number, 1 << 20: 1e-3}, {8: 1e-5, 1 << 20: number}, {8: number, 1 << 20: number}]
    for table in tables:
        write_table(in_folder / "table.json", 2, 2, table)
        assert status_of("speeds", "--allreduce", "table.json")[0] in (0, 2)
