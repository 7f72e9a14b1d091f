"""Trackers of real jobs. They need a process: one hangs for ever, one kills it, and all go on in the next attempt."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from support import trackers
from support.environment import importing
from support.jobs import PROGRAMS, finish, launch, run, start, succeed, wait_for
from support.stack import FASTEST

OPTIONS = ("--strategy", "ring", "--device", "cpu", "--max-steps", "12", "--log-every", "2", "--name", "run")
STEPS = [2, 4, 6, 8, 10, 12]
"""Those of the records."""
ENVIRONMENT = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "", "HVDTRAIN_TEST_STEP_S": "0.3"}
READ_WANDB = """
import json, sys
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore
store = DataStore()
store.open_for_scan(sys.argv[1])
while data := store.scan_data():
    record = Record.FromString(data)
    if record.WhichOneof("record_type") == "run":
        print(json.dumps(["run", record.run.run_id, [one.key for one in record.run.config.update]]))
    elif record.WhichOneof("record_type") == "history":
        values = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
        print(json.dumps(["history", values]))
"""


def chosen(*names):
    return [word for name in names for word in ("--tracker", name)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """PYTHONPATH with a package that has trackers."""
    folder = tmp_path_factory.mktemp("package")
    return importing(trackers.install(folder))


def test_trackers_that_hang_or_raise_do_not_stop_a_run(tmp_path, installed):
    told = "env | grep ^HVDTRAIN_ | sort > told; exit 3"
    given = [*chosen("recorder", "hanging", "raising"), "--on-end", told]
    command = ["python", "-m", f"hvdtrain.{FASTEST}_lenet", *OPTIONS[2:], "--strategy", "single", *given]
    output = succeed(command, tmp_path, **installed)
    raised = "tracker raising: log raised SystemExit: no \\x1b[31m record (that record is lost); training continues"
    assert output.count(raised) == output.count("tracker raising: ") == 1
    assert output.count("record(s) of this run: it does not respond") == 1
    assert "the command of --on-end ended with exit status 3" in output
    written = [json.loads(line) for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()]
    first, *logged, last = trackers.calls(tmp_path)
    run_id = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())["id"]
    assert first[:3] == ["start", run_id, {"folder": str(tmp_path / "runs" / "run"), "step": 0, "ranks": 1}]
    assert logged == [["log", {**record, "repeated": False}] for record in written]
    assert last == ["end", "finished"]
    environment = dict(line.split("=", 1) for line in (tmp_path / "told").read_text().splitlines())
    assert environment["HVDTRAIN_STATUS"] == "finished" and environment["HVDTRAIN_RUN_ID"] == run_id
    assert environment["HVDTRAIN_RUN"] == str(tmp_path / "runs" / "run")


@pytest.mark.matrix
def test_all_trackers_continue_a_run_whose_rank_0_was_killed(tmp_path, installed):
    """MLflow and W&B have one run, and each step once, in order; TensorBoard shows the run that was resumed."""
    libraries = [name for name in ("mlflow", "wandb") if importlib.util.find_spec(name)]
    given = [*chosen("recorder", "killing", "tensorboard", *libraries), "--checkpoint-every", "6"]
    told = "env | grep ^HVDTRAIN_ > told-$HVDTRAIN_STATUS"
    restarted = launch("local", 2, "--restarts", "1", "--on-end", told)
    command = [*restarted, "python", str(PROGRAMS), "slowly", FASTEST, *OPTIONS, "--resume", "auto", *given]
    output = succeed(command, tmp_path, **installed, **ENVIRONMENT)
    assert "rank 0 on " in output and "was killed by SIGKILL" in output
    folder = tmp_path / "runs" / "run"
    run_id = json.loads((folder / "config.json").read_text())["id"]
    told = trackers.calls(tmp_path)
    starts = [one for one in told if one[0] == "start"]
    assert [one[1] for one in starts] == [run_id, run_id] and [one[2]["step"] for one in starts] == [0, 6]
    assert told[-1] == ["end", "finished"] and [one[0] for one in told].count("end") == 1
    trained = [(one[1]["step"], one[1]["repeated"]) for one in told if one[0] == "log" and one[1]["kind"] == "train"]
    assert [step for step, _ in trained[:4]] == [2, 4, 6, 8] and [step for step, _ in trained[-3:]] == [8, 10, 12]
    assert trained[-3] == (8, True) and trained[-1] == (12, False)
    assert [path.name for path in tmp_path.glob("told-*")] == ["told-finished"]
    assert f"HVDTRAIN_RUN_ID={run_id}\n" in (tmp_path / "told-finished").read_text()
    assert len(list((folder / "tensorboard").iterdir())) == 2
    for library in libraries:
        steps = {"mlflow": steps_in_mlflow, "wandb": steps_in_wandb}[library](folder, run_id)
        assert steps == STEPS, library
    if len(libraries) < 2:
        pytest.skip(f"without mlflow and wandb, only of {libraries}: needs hvdtrain[mlflow,wandb]")


def steps_in_mlflow(folder, run_id):
    code = (
        "import sys; from mlflow.tracking import MlflowClient; client = MlflowClient(tracking_uri=sys.argv[1]); "
        "(run,) = client.search_runs([one.experiment_id for one in client.search_experiments()]); "
        "history = client.get_metric_history(run.info.run_id, 'train/loss'); "
        "print(run.info.status, run.data.tags['hvdtrain.run_id'], *(one.step for one in history))"
    )
    command = [sys.executable, "-c", code, (folder.parent / "mlruns").as_uri()]
    environment = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    status, tag, *steps = output.split()
    assert (status, tag) == ("FINISHED", run_id)
    return list(map(int, steps))


def steps_in_wandb(folder, run_id):
    _, file = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    command = [sys.executable, "-c", READ_WANDB, str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert {one[1] for one in records if one[0] == "run"} == {run_id}
    return [one[1]["_step"] for one in records if one[0] == "history" and "train/loss" in one[1]]


def test_a_run_that_is_stopped_tells_trackers_and_the_command(tmp_path, installed):
    told = "echo $HVDTRAIN_STATUS $HVDTRAIN_EXIT_STATUS > told"
    options = ["--strategy", "single", "--epochs", "500", "--log-every", "1", "--name", "run", "--on-end", told]
    process = start(["python", "-m", f"hvdtrain.{FASTEST}_lenet", *options, *chosen("recorder")], tmp_path, **installed)
    wait_for(lambda: (tmp_path / "calls.jsonl").exists() or process.poll() is not None, 90)
    (tmp_path / "runs" / "run" / "STOP").touch()
    status, output = finish(process)
    assert status == 75, output
    assert (tmp_path / "told").read_text() == "stopped 75\n"
    assert trackers.calls(tmp_path)[-1] == ["end", "stopped"]


def test_an_unusable_tracker_is_an_error_before_anything_else(tmp_path):
    """Which trackers are unusable, and why, is in `tests/unit/runs/trackers/test_tracking.py`."""
    options = ("--strategy", "single", "--tracker", "recordr", "--on-end", "touch told-$HVDTRAIN_STATUS")
    status, output = run(["python", "-m", f"hvdtrain.{FASTEST}_lenet", *options], tmp_path)
    assert status == 2 and "--tracker recordr: no such tracker" in output
    assert [path.name for path in tmp_path.iterdir()] == ["told-failed"]
