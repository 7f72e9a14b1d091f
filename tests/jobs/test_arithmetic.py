"""What decides the bits besides options and data: held by --threads and --isa, recorded, and compared with --shards.

Libraries read the environment when a process starts, and ranks need environments of their own.
"""

import json

import pytest
from support.jobs import ROOT, launcher, newest, run, succeed, train
from support.stack import FASTEST, FRAMEWORKS, cases
from support.untrusted import changed_state, rewrite

from hvdtrain.runs import checkpoints
from hvdtrain.system import arithmetic

SMALL = ("--device", "cpu", "--data", "synthetic", "--batch-size", "32", "--max-steps", "1", "--name", "run")
LIMITS = {
    "torch": "ATEN_CPU_CAPABILITY=avx2",
    "mxnet": "DNNL_MAX_CPU_ISA=AVX2",
    "tensorflow": "ONEDNN_MAX_CPU_ISA=AVX2",
}
"""By framework, a limit that decides its bits where a processor has AVX-512."""
TASK = f"-m hvdtrain train {ROOT}/tests/support/tasks/of_mxnet.py:Classifier --framework mxnet"
TWO = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}


def recorded(folder):
    return json.loads((folder / "config.json").read_text())["arithmetic"]


def with_limit_on_rank_1(framework, *options):
    """The command line of two ranks with --shards, of which rank 1 has another environment."""
    given = " ".join((*SMALL, "--shards", "4", "--strategy", "ring", *options))
    name = LIMITS[framework].partition("=")[0]  # that the tests may have for all ranks
    limit_it = f'if [ "$HVDTRAIN_RANK" = 0 ]; then unset {name}; else export {LIMITS[framework]}; fi'
    return [*launcher("local", 2), "sh", "-c", f"{limit_it}; exec python -m hvdtrain.{framework}_lenet {given}"]


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, [FASTEST]))
def test_a_rank_with_another_instruction_set_is_refused_before_the_first_step(tmp_path, framework):
    status, output = run(with_limit_on_rank_1(framework), tmp_path)
    assert status == 2, output
    assert LIMITS[framework].partition("=")[0] in output and "--isa" in output
    assert "Traceback" not in output
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


@pytest.mark.needs("mxnet")
@pytest.mark.parametrize("what", ["-m hvdtrain.mxnet_lenet", pytest.param(TASK, marks=pytest.mark.matrix)])
def test_a_rank_that_does_not_compute_in_a_precision_is_one_line_before_the_first_step(tmp_path, what):
    """No rank waits for it. Other ranks may have a processor that does."""
    limit_it = "test $HVDTRAIN_RANK = 0 || export DNNL_MAX_CPU_ISA=AVX2"
    program = f"{limit_it}; exec python {what} --precision bf16 --device cpu --max-steps 1 --name run"
    status, output = run([*launcher("local", 2), "sh", "-c", program], tmp_path)
    assert status == 2, output
    assert "--precision bf16: mxnet does not compute in it on this processor (MXNetError" in output
    assert "use --precision fp32" in output and "Traceback" not in output
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


@pytest.mark.skipif("avx2" not in arithmetic.processor().flags, reason="needs a processor with AVX2")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, [FASTEST]))
def test_isa_makes_the_ranks_equal(tmp_path, framework):
    """With --shards, each has one thread as well, whatever the environment says."""
    succeed(with_limit_on_rank_1(framework, "--isa", "avx2"), tmp_path, **TWO)
    folder = tmp_path / "runs" / "run"
    assert (recorded(folder)["instruction_set"], recorded(folder)["threads"]) == ("avx2", 1)
    assert newest(folder).arithmetic["variables"] == {}


def test_a_checkpoint_that_was_trained_on_other_hosts(tmp_path):
    """--shards 0 gives up the same bits, also for other --threads."""
    folder = train(tmp_path, FASTEST, *SMALL, "--shards", "4", "--strategy", "single")
    path = checkpoints.newest(folder)[0]
    record = {**newest(folder).arithmetic, "instruction_set": "avx1024"}
    rewrite(path, "state.json", changed_state(path, arithmetic=record))
    again = ("--resume", str(path), "--max-steps", "2", "--name", "new", "--shards", "0", "--threads", "2")
    new = train(tmp_path, FASTEST, *again)
    assert newest(new).position.step == 2 and recorded(new)["threads"] == 2
    assert f"{path} was trained with --shards 4" in (new / "logs" / "rank-0.log").read_text()
