"""hvdtrain runs: which runs are listed, in which order, and how in narrow terminals."""

import json
import re

import pytest
from rich.console import Console
from support.in_process import command
from support.run_folders import write_beat, write_finished, write_log, write_records, write_run, write_task_run

from hvdtrain.__main__ import main
from hvdtrain.runs.search import find_runs
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views.listing import run_lines
from hvdtrain.views.run_view import read_runs
from hvdtrain.views.table import Output

LONG = "fashion-mnist-torch-horovod-np2-20260502-101010"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    write_finished(folder / "best", accuracy=0.9375, started="2026-05-01T10:00:00+0000")
    write_finished(folder / "worse", accuracy=0.5, started="2026-05-03T10:00:00+0000", strategy="single")
    write_records(write_run(folder / LONG, started="2026-05-02T10:00:00+0000", strategy="horovod"), 90)
    failure = Failure("rank 1 on node1 was killed by SIGKILL", rank=1, host="node1", stands_alone=True)
    RunEnd("failed", 137, failure).write(folder / LONG)
    write_run(folder / "early", started="2026-05-02T11:00:00+0000")
    return folder


def listed(folder, *options):
    return [run["name"] for run in json.loads(command(folder, "runs", "--json", *options)[1])]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["worse", "early", LONG, "best"]),
        (["--sort", "-accuracy"], ["best", "worse", "early", LONG]),
        (["--sort", "score"], ["best", "worse", "early", LONG]),
        (["--sort", "-score"], ["worse", "best", "early", LONG]),
        (["--sort", "when"], ["best", LONG, "early", "worse"]),
        (["--sort", "images/s"], [LONG, "best", "worse", "early"]),
        (["--sort", "images/s", "--filter", "state=finished"], ["best", "worse"]),
        (["--filter", "accuracy>=0.5", "--filter", "strategy!=single"], ["best"]),
        (["--filter", "strategy=Horovod"], [LONG]),
        (["--filter", "reason~sigkill"], [LONG]),
        (["--filter", "started<2026-05-02"], ["best"]),
        (["--filter", "accuracy=", "--filter", "loss!="], [LONG]),
        (["--filter", "rank=1"], [LONG]),
    ],
)
def test_filters_and_order(runs, options, names):
    assert listed(runs.parent, *options) == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sort", "-los"], "no column 'los' (did you mean loss?)"),
        (["--filter", "acuracy>0.9"], "no column 'acuracy' (did you mean accuracy?)"),
        (["--filter", "accuracy"], "--filter accuracy: no comparison; filters are COLUMN=VALUE"),
        (["--filter", "accuracy>nan"], "--filter accuracy>nan: accuracy is a number"),
        (["--filter", "ranks~2"], "--filter ranks~2: ranks is a number"),
        *((["--filter", f"name{sign}"], f"name{sign}: no comparison") for sign in ("<", "<=", ">", ">=", "~")),
        (["elsewhere"], "elsewhere: no such folder; give a run's folder"),
    ],
)
def test_invalid_requests(runs, options, message):
    status, output = command(runs.parent, "runs", *options)
    assert status == 2 and message in output


@pytest.mark.parametrize(("width", "last"), [(60, "accuracy"), (80, "images/s"), (120, "images/s"), (200, "data")])
def test_table_fits_the_terminal_without_its_less_important_columns(runs, width, last):
    header, *lines = [line.plain for line in run_lines(read_runs(find_runs(runs)), width)]
    assert header.split()[0] == "name" and header.split()[-1] == last
    assert max(map(len, [header, *lines])) <= width
    assert [word in header for word in ("state", "accuracy", "loss")] == [True] * 3
    assert any("best" in line and "finished" in line and "0.9375" in line for line in lines)
    at = next(number for number, line in enumerate(lines) if line.startswith("fashion"))
    assert LONG in "".join(line[: max(26, header.index("state") - 2)].split(" ")[0] for line in lines[at : at + 2])


def test_lines_in_a_file_are_whole(runs):
    header, *lines = command(runs.parent, "runs")[1].splitlines()
    names = "name when state framework strategy ranks step train loss accuracy images/s epoch time left best checkpoint"
    assert header.split() == [*names.split(), "model", "data"]
    assert len(lines) == 4
    assert any(LONG in line and "failed: rank 1 on node1 was killed by SIGKILL" in line for line in lines)
    (runs.parent / "empty").mkdir()
    assert command(runs.parent, "runs", "empty") == (0, "no runs in empty\n")
    assert listed(runs.parent, "empty") == []


def test_texts_of_a_run_are_printed_as_they_are(tmp_path):
    """No markup; that there are no control characters, tests/fuzz tests."""
    folder = write_run(tmp_path / "[red]x", data="[bold]z")
    write_log(folder, 0, "[link=http://x]here[/link]")
    write_beat(folder, 0, host="[blink]h", age_s=60)
    assert "[red]x" in command(tmp_path, "runs", ".")[1]
    page = command(tmp_path, "show", folder.name)[1]
    assert all(text in page for text in ("[red]x", "[bold]z", "[link=http://x]here[/link]", "[blink]h"))


def test_runs_of_tasks_have_their_metrics_and_no_data_set(tmp_path):
    """Sorted by the test loss or by --score, the best first."""
    for name, perplexity in (("large", 12.5), ("small", 31.0)):
        write_task_run(tmp_path / name, {"perplexity": perplexity, "tokens": 7.0}, score="min:perplexity")
    write_task_run(tmp_path / "plain", {}, loss=0.75)
    pruned = write_task_run(tmp_path / "pruned", {"perplexity": 3.0})
    (pruned / "result.json").unlink()
    RunEnd("pruned", 75, Failure("after evaluation 2: perplexity 9", stands_alone=True)).write(pruned)
    header, *lines = command(tmp_path, "runs", str(tmp_path))[1].splitlines()
    assert {"perplexity", "tokens", "rows/s"} <= set(header.split()) and "accuracy" not in header
    assert "test loss" in header and any("12.5000" in line for line in lines)
    for options, names in (
        (["--sort", "perplexity", "--filter", "state=finished"], ["large", "small", "plain"]),
        (["--sort", "score", "--filter", "tokens>1"], ["large", "small"]),
        (["--sort", "-score", "--filter", "perplexity<20", "--filter", "state!=pruned"], ["large"]),
        (["--filter", "scored_by=loss", "--filter", "state=finished"], ["plain"]),
        (["--filter", "state=pruned"], ["pruned"]),
    ):
        assert listed(tmp_path, ".", *options) == names, options
    assert "(did you mean perplexity?)" in command(tmp_path, "runs", str(tmp_path), "--sort", "perplexty")[1]
    values = {one["name"]: one for one in json.loads(command(tmp_path, "runs", "--json", str(tmp_path))[1])}
    expected = {"model": "lm.py:Task", "data": "", "unit": "rows", "score": 12.5, "scored_by": "perplexity"}
    assert values["large"].items() >= {**expected, "metrics": {"perplexity": 12.5, "tokens": 7.0}}.items()
    assert (values["plain"]["score"], values["plain"]["scored_by"]) == (0.75, "loss")
    page = command(tmp_path, "show", "large")[1]
    assert "lm.py:Task" in page and "digits" not in page and "perplexity  test" in page


@pytest.mark.parametrize(("lines", "shown"), [(10, 6), (4, 1), (100, 20)])
def test_of_many_runs_a_terminal_shows_the_first(tmp_path, monkeypatch, capsys, lines, shown):
    for number in range(20):
        write_run(tmp_path / f"run-{number:02}", started=f"2026-05-01T10:00:{number:02}+0000")
    terminal = Console(force_terminal=True, color_system=None, width=80, height=lines)
    monkeypatch.setattr(Output, "is_terminal", True)
    monkeypatch.setattr(Output, "console", terminal, raising=False)
    monkeypatch.setattr(Output, "__init__", lambda self: None)
    main(["runs", str(tmp_path)])
    output = capsys.readouterr().out
    names = [line.split()[0] for line in output.splitlines() if line.startswith("run-")]
    assert names == [f"run-{number:02}" for number in range(19, 19 - shown, -1)]
    assert (f"{20 - shown} more in a pipe" in output) == (shown < 20)


def test_the_losses_are_called_train_loss_and_test_loss(runs):
    """In the table, as columns that are sorted by, by `watch` and `diff`."""
    assert listed(runs.parent, "--sort", "train loss") == listed(runs.parent, "--sort", "loss")
    assert "train loss" in command(runs.parent, "runs")[1]
    pages = [command(runs.parent, *words)[1] for words in (("show", "best"), ("diff", "best", LONG))]
    for page in pages:
        assert "train loss" in page and "test loss" in page and "training loss" not in page


def test_options_in_which_runs_differ_are_columns(tmp_path):
    """First those in which most runs differ, seeds last; the arguments of tasks are options, as in a sweep."""
    for name, options, arguments in (
        ("a", {"lr": 0.05, "momentum": 0.5}, {"width": 8}),
        ("b", {"lr": 0.1, "seed": 1}, {"width": 16}),
        ("c", {"lr": 1.0, "seed": 2}, {"width": 16, "mix": "even"}),
        ("d", {"lr": 2.0, "nesterov": True, "seed": 3}, {"width": 128}),
    ):
        path = write_run(tmp_path / name, **options) / "config.json"
        recorded = json.loads(path.read_text())
        path.write_text(json.dumps({**recorded, "network": {"task": "lm.py:Task", "options": arguments}}))
    header, *lines = command(tmp_path, "runs", ".", "--sort", "name")[1].splitlines()
    columns = ["lr", "arg.width", "momentum", "nesterov", "arg.mix", "seed"]
    assert header.split()[6:12] == columns
    assert re.search(r" 0\.1 +16 +0\.9 +no +1 ", lines[1])
    narrow = run_lines(read_runs(find_runs(tmp_path)), 80)[0].plain
    assert "lr  arg.width" in narrow and "strategy" not in narrow
    for options, names in (
        (["--sort", "lr"], ["a", "b", "c", "d"]),
        (["--sort", "-arg.width"], ["d", "b", "c", "a"]),
        (["--filter", "lr=0.1"], ["b"]),
        (["--filter", "arg.width>8", "--filter", "batch_size=64", "--sort", "name"], ["b", "c", "d"]),
        (["--filter", "nesterov=yes"], ["d"]),
        (["--filter", "arg.mix~EV"], ["c"]),
        (["--filter", "arg.mix>1"], []),
        (["--filter", "arg.mix=", "--filter", "seed!=0", "--sort", "name"], ["b", "d"]),
    ):
        assert listed(tmp_path, ".", *options) == names, options
    assert "no column 'arg.with' (did you mean arg.width?)" in command(tmp_path, "runs", ".", "--sort", "arg.with")[1]


def test_runs_of_a_script_do_not_differ_in_options_that_they_do_not_have(tmp_path):
    write_run(tmp_path / "recipe", strategy="single", lr=0.1)
    path = write_run(tmp_path / "script", strategy="single") / "config.json"
    recorded = json.loads(path.read_text())
    del recorded["config"]["lr"]
    path.write_text(json.dumps({**recorded, "network": {"task": "train.py", "options": {}}}))
    assert "lr" not in command(tmp_path, "runs", ".")[1].splitlines()[0].split()
