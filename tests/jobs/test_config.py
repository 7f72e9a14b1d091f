"""Options from a file in real jobs. Processes: each rank reads it, and --print-config imports nothing."""

import json
import subprocess
import sys

from support.jobs import launcher, run, succeed
from support.stack import FASTEST

LOCAL = launcher("local", 2)
TRAIN = ("python", "-m", f"hvdtrain.{FASTEST}_lenet", "--config", "run.toml")


def test_ranks_train_with_the_options_of_the_file(tmp_path):
    (tmp_path / "run.toml").write_text('name = "run"\nmax-steps = 2\nlr = 0.25\nstrategy = "ring"\nruns = "all"\n')
    succeed([*LOCAL, *TRAIN, "--max-steps", "3"], tmp_path)
    record = json.loads((tmp_path / "all" / "run" / "config.json").read_text())
    assert (record["config"]["lr"], record["config"]["strategy"]) == (0.25, "ring")
    assert record["runtime"]["name"] == "run"
    assert json.loads((tmp_path / "all" / "run" / "result.json").read_text())["steps"] == 3


def test_a_rank_that_cannot_read_the_file_ends_the_job(tmp_path):
    (tmp_path / "run.toml").write_text('name = "run"\n')
    (tmp_path / "elsewhere").mkdir()
    script = f'test "$HVDTRAIN_RANK" = 0 || cd elsewhere; exec {" ".join(TRAIN)}'
    status, output = run([*LOCAL, "sh", "-c", script], tmp_path)
    assert status == 2, output
    assert "rank 1 on " in output
    assert "--config run.toml: cannot be read (No such file or directory); give a TOML file" in output
    assert "Traceback" not in output


def test_rank_0_prints_the_options(tmp_path):
    (tmp_path / "run.toml").write_text("lr = 0.25\n")
    output = succeed([*LOCAL, *TRAIN, "--print-config"], tmp_path)
    assert output.count("# file run.toml") == 1
    assert output.count("max-steps = 0") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_printing_imports_no_framework():
    command = [sys.executable, "-X", "importtime", "-m", "hvdtrain", "train", "--print-config"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "hvdtrain.config.sources" in imported
    assert not {"torch", "mxnet", "tensorflow", "horovod", "numpy"} & imported
    assert "lr = 0.05" in done.stdout
