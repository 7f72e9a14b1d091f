"""A rank of somebody's own program raises: the job names it, although the other ranks' collectives fail first."""

from __future__ import annotations

import pytest
from support.jobs import run

START = {
    "torch": "import horovod.torch as hvd, torch; hvd.init(); ones = torch.ones(1000)",
    "mxnet": "import horovod.mxnet as hvd, mxnet; hvd.init(); ones = mxnet.nd.ones(1000)",
    "tensorflow": "import horovod.tensorflow as hvd, tensorflow; hvd.init(); ones = tensorflow.ones(1000)",
    "torch.distributed": (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo'); ones = torch.ones(1000)"
    ),
}
REDUCE = {"mxnet": "hvd.allreduce(ones).wait_to_read()", "torch.distributed": "dist.all_reduce(ones)"}
OTHERS = [(kind, "local") for kind in ("torch", "mxnet", "tensorflow")]
OTHERS += [("torch", by) for by in ("horovodrun", "mpirun")]


@pytest.mark.parametrize(
    ("kind", "by"),
    [("torch.distributed", "local"), *(pytest.param(*other, marks=pytest.mark.matrix) for other in OTHERS)],
)
def test_the_rank_that_raises_is_named(tmp_path, kind, by):
    rank = "dist.get_rank()" if kind == "torch.distributed" else "hvd.rank()"
    reduce = REDUCE.get(kind, "hvd.allreduce(ones, name='ones')")
    raising = f"    if step == 3 and {rank} == 1: raise ValueError('no such label')"
    code = "\n".join([START[kind], "for step in range(10**9):", raising, f"    {reduce}"])
    status, output = run(["python", "-m", "hvdtrain", "launch", by, "-n", "2", "--", "python", "-c", code], tmp_path)
    assert status != 0
    report = output.partition("hvdtrain: rank ")[2]
    assert report.startswith("1 on "), output
    assert "  ValueError: no such label\n" in report.replace("[rank1]: ", "")
