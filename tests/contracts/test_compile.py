"""`--compile` trains to the weights of the uncompiled network, and training works where nothing can be compiled.

It starts processes because ranks compile at once into one cache, and a resumed process finds it.
"""

import pytest
from support.jobs import distance, newest, result, train, train_several
from support.parity import EVERY_STEP, PLAIN, assert_same_training, reference
from support.stack import require_precision

COMPILE = ("--compile", *PLAIN, *EVERY_STEP)


@pytest.mark.matrix
@pytest.mark.trains(reference())
def test_training_continues_without_a_compiler_and_a_cache(tmp_path, shared_jobs):
    folder = train(tmp_path, "torch", *COMPILE, by="gloo", np=2, CXX="no-such-compiler", XDG_CACHE_HOME="/proc")
    assert_same_training(folder, shared_jobs.folder(reference()), ranks=2)
    assert result(folder)["compile_s"] == 0
    said = "training continues uncompiled: there is no C++ compiler (no-such-compiler)"
    assert said in (folder / "logs" / "rank-0.log").read_text()


@pytest.mark.matrix
@pytest.mark.trains(reference())
@pytest.mark.parametrize(
    ("strategy", "by"), [("horovod", "gloo"), ("ddp", "local"), ("ring", "local"), ("mpi", "mpirun")]
)
def test_weights_equal_those_of_the_uncompiled_network(tmp_path, shared_jobs, strategy, by):
    cache = tmp_path.parent / "compiled"  # of all cases, as they compile the same network
    folder = train(tmp_path, "torch", *COMPILE, "--strategy", strategy, by=by, np=2, XDG_CACHE_HOME=str(cache))
    assert_same_training(folder, shared_jobs.folder(reference()), ranks=2)
    assert result(folder)["compile_s"] > 0
    assert any(cache.glob("hvdtrain/inductor/*/fxgraph"))


@pytest.mark.matrix
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resumes_bit_for_bit_with_partial_batches(tmp_path, precision):
    """Batches of 100 images in two passes, and a last one of 37; the second run finds the first one's graphs."""
    require_precision("torch", precision)
    options = ("--compile", "--strategy", "single", "--batch-size", "100", "--remainder", "exact", "--accumulate", "2")
    options += ("--precision", precision, "--epochs", "2", "--hang-timeout", "20")
    runs = {
        "whole": options,
        "part": (*options, "--max-steps", "18"),
        "resumed": ("--resume", "runs/part", "--max-steps", "0"),
    }
    folder = train_several(tmp_path, "torch", runs, by="alone", np=1)
    assert distance(newest(folder / "resumed").weights, newest(folder / "whole").weights) == 0
    assert result(folder / "whole")["compile_s"] > 0
