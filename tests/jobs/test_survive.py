"""launch --survive: ranks are lost and replaced, and the job ends with the bits and records of one process.

Needs processes: ranks that are killed in a phase of their step. test_survive_launch.py has the launcher alone, and
`make chaos ARGS='--kills 1000'` kills ranks at random moments.
"""

import contextlib
import signal

import pytest
from faults.surviving_job import SurvivingJob
from faults.watched_job import NUMPY
from support.jobs import wait_for

MATRIX = pytest.mark.matrix
JOIN_S = 60


@pytest.fixture
def job(tmp_path):
    """Starts a job of these ranks that survives, whose steps take 0.4 s until it may hurry; `single` does neither."""
    with contextlib.ExitStack() as stack:

        def start(framework, training, strategy, ranks=2, steps=96):
            alone = strategy == "single"
            folder = tmp_path / (strategy if alone else "surviving")
            started = SurvivingJob(
                *(folder, "local", framework),
                launch_options=[] if alone else ["--survive"],
                ranks=1 if alone else ranks,
                strategy=strategy,
                training=training,
                max_steps=steps,
                options=["--checkpoint-every", "5"],
                step_s=0.0 if alone else 0.4,
            )
            stack.callback(started.process.wait)
            stack.callback(started.process.terminate)
            return started

        yield start


CASES = [
    (NUMPY, "network", "ring", "gradients", 1),
    (NUMPY, "network", "ring", "update", 1),  # the others have made a logging step, which is recorded after the change
    ("torch", "loop of torch", "horovod", "checkpoint", 0),
    *(
        pytest.param(*case, marks=MATRIX)
        for case in [
            ("torch", "network", "horovod", "gradients", 0),
            ("torch", "task", "ring", "update", 1),
            ("torch", "own optimizer", "horovod", "update", 0),
            ("torch", "rows", "horovod", "data", 1),
            ("mxnet", "rows", "ring", "gradients", 1),
            ("mxnet", "loop of mxnet", "horovod", "update", 0),
            ("mxnet", "task", "horovod", "evaluation", 1),
            ("mxnet", "network", "ring", "checkpoint", 0),
            ("tensorflow", "task", "horovod", "evaluation", 1),
            ("tensorflow", "network", "ring", "gradients", 0),
            ("tensorflow", "rows", "horovod", "logging", 1),
        ]
    ),
]


@pytest.mark.guarantee("survive-lost-ranks")
@pytest.mark.parametrize(("framework", "training", "strategy", "phase", "rank"), CASES)
def test_a_lost_rank_is_replaced(job, framework, training, strategy, phase, rank):
    """Of two; rank 0 writes checkpoints, and another rank does so from then on."""
    alone = job(framework, training, "single")
    surviving = job(framework, training, strategy)
    surviving.wait_for_step(3)
    surviving.order_kill(f"{phase}-{rank}")
    wait_for(lambda: surviving.changes("joined"), JOIN_S, lambda: surviving.output)
    (surviving.folder / "hurry").touch()
    for one in (alone, surviving):
        one.end(0)
    surviving.compare(alone)
    (lost,), (joined,) = surviving.changes("lost"), surviving.changes("joined")
    assert [one["rank"] for one in lost["lost"]] == joined["joined"] == [rank]
    assert (lost["ranks"], joined["ranks"]) == ([1 - rank], [1 - rank, rank])
    assert "was killed by SIGKILL; 1 rank continues" in surviving.output
    assert f"rank {rank} on {joined['hosts'][1]} joins; 2 ranks" in surviving.output


@MATRIX
@pytest.mark.parametrize(
    ("framework", "training", "strategy", "ranks"),
    [
        (NUMPY, "network", "ring", 2),
        (NUMPY, "network", "ring", 3),
        ("torch", "network", "horovod", 2),
        ("torch", "loop of torch", "ring", 2),
        ("mxnet", "task", "horovod", 3),
        ("tensorflow", "network", "horovod", 2),
    ],
)
def test_all_that_have_the_state_are_stopped_while_another_joins(job, framework, training, strategy, ranks):
    """It goes on from the newest checkpoint; no rank trains then that could notice it."""
    alone = job(framework, training, "single")
    started = job(framework, training, strategy, ranks)
    started.wait_for_step(7)
    last = ranks - 1
    started.kill(last)
    wait_for(lambda: f"rank {last} on" in started.output and last in started.starting, JOIN_S, lambda: started.output)
    for rank in range(last):
        started.kill(rank, signal.SIGSTOP)
    (started.folder / "hurry").touch()
    for one in (alone, started):
        one.end(0)
    started.compare(alone)
