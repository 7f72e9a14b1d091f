"""What decides the bits besides options and data: held by --threads and --isa, recorded, and compared with --shards."""

import json

import pytest
from support.jobs import launcher, newest, run, train
from support.stack import FASTEST, FRAMEWORKS, cases
from support.untrusted import changed_state, rewrite

from hvdtrain.runs import checkpoints
from hvdtrain.system import arithmetic

SMALL = ("--device", "cpu", "--data", "synthetic", "--batch-size", "32")
SHARDED = (*SMALL, "--shards", "4")
LIMITS = {
    "torch": "ATEN_CPU_CAPABILITY=avx2",
    "mxnet": "DNNL_MAX_CPU_ISA=AVX2",
    "tensorflow": "ONEDNN_MAX_CPU_ISA=AVX2",
}
"""By framework, a limit that decides its bits where a processor has AVX-512."""
TWO = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}


def recorded(folder):
    return json.loads((folder / "config.json").read_text())["arithmetic"]


def with_limit_on_rank_1(framework, *options):
    """The command line of two ranks with --shards, of which rank 1 has another environment."""
    given = " ".join((*SHARDED, "--strategy", "ring", "--name", "run", "--max-steps", "2", *options))
    set_it = f'test "$HVDTRAIN_RANK" = 0 || export {LIMITS[framework]}'
    return [*launcher("local", 2), "sh", "-c", f"{set_it}; exec python -m hvdtrain.{framework}_lenet {given}"]


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, [FASTEST]))
def test_a_rank_with_another_instruction_set_is_refused_before_the_first_step(tmp_path, framework):
    status, output = run(with_limit_on_rank_1(framework), tmp_path)
    assert status == 2, output
    assert LIMITS[framework].partition("=")[0] in output
    assert "--isa" in output
    assert "Traceback" not in output
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


@pytest.mark.skipif("avx2" not in arithmetic.processor().flags, reason="needs a processor with AVX2")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, [FASTEST]))
def test_isa_makes_the_ranks_equal(tmp_path, framework):
    status, output = run(with_limit_on_rank_1(framework, "--isa", "avx2"), tmp_path)
    assert status == 0, output
    assert recorded(tmp_path / "runs" / "run")["instruction_set"] == "avx2"
    assert newest(tmp_path / "runs" / "run").arithmetic["variables"] == {}


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, [FASTEST]))
@pytest.mark.parametrize(
    ("options", "threads"),
    [(("--threads", "2"), 2), (("--shards", "4"), 1), pytest.param((), 2, marks=pytest.mark.matrix)],
    ids=["two", "shards", "none"],
)
def test_threads_are_recorded(tmp_path, framework, options, threads):
    """By default those of the environment, but one with --shards."""
    variables = {} if "--threads" in options else TWO
    folder = train(tmp_path, framework, *SMALL, "--strategy", "single", "--max-steps", "1", *options, **variables)
    assert recorded(folder)["threads"] == threads


def test_a_checkpoint_that_was_trained_on_other_hosts(tmp_path):
    """It is refused, also by itself; --shards 0 gives up the same bits."""
    folder = train(tmp_path, FASTEST, *SHARDED, "--strategy", "single", "--max-steps", "1")
    path = checkpoints.newest(folder)[0]
    record = {**newest(folder).arithmetic, "instruction_set": "avx1024"}
    rewrite(path, "state.json", changed_state(path, arithmetic=record))
    again = ["python", "-m", f"hvdtrain.{FASTEST}_lenet", "--resume", str(path), "--max-steps", "2"]
    status, output = run([*again, "--name", "refused"], tmp_path)
    assert status == 2, output
    assert "avx1024" in output and "--shards 0" in output
    status, output = run([*again, "--name", "new", "--shards", "0"], tmp_path)
    assert status == 0, output
    assert newest(tmp_path / "runs" / "new").position.step == 2
    assert f"{path} was trained with --shards 4" in (tmp_path / "runs" / "new" / "logs" / "rank-0.log").read_text()
