"""launch --survive: ranks are lost and replaced, and the job ends with the bits and records of one process.

`make chaos ARGS='--kills 1000'` kills ranks at random moments.
"""

import signal

import pytest
from faults.surviving_job import SurvivingJob
from support.jobs import wait_for
from support.stack import FASTEST

MATRIX = pytest.mark.matrix
JOIN_S = 60


@pytest.fixture
def job(tmp_path):
    """Starts a job of these ranks, whose steps take STEP_S until it may hurry; by default it survives."""
    started = []

    def start(framework, training, strategy, ranks=2, *options, steps=96):
        folder = tmp_path / str(len(started))
        words = [] if strategy == "single" else ["--survive", *options]
        started.append(
            SurvivingJob(
                *(folder, "local", framework),
                launch_options=words,
                ranks=ranks,
                strategy=strategy,
                training=training,
                max_steps=steps,
                options=["--checkpoint-every", "5"],
                step_s=0.0 if strategy == "single" else 0.4,
            )
        )
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
            one.process.wait(60)


def lose_and_replace(job, phase, rank):
    """Kill a rank when it begins a phase, and wait until its replacement trains."""
    job.wait_for_step(3)
    job.order_kill(f"{phase}-{rank}")
    wait_for(lambda: job.changes("joined"), JOIN_S, lambda: job.output)
    (job.folder / "hurry").touch()


CASES = [
    ("mxnet", "rows", "ring", "gradients", 1),
    ("torch", "loop of torch", "horovod", "checkpoint", 0),
    ("tensorflow", "task", "horovod", "evaluation", 1),
    *(
        pytest.param(framework, training, strategy, phase, rank, marks=MATRIX)
        for framework, training, strategy, phase, rank in [
            ("torch", "network", "horovod", "gradients", 0),
            ("torch", "task", "ring", "update", 1),
            ("torch", "own optimizer", "horovod", "update", 0),
            ("torch", "rows", "horovod", "data", 1),
            ("mxnet", "loop of mxnet", "horovod", "update", 0),
            ("mxnet", "task", "horovod", "evaluation", 1),
            ("mxnet", "network", "ring", "checkpoint", 0),
            ("tensorflow", "network", "ring", "gradients", 0),
            ("tensorflow", "rows", "horovod", "logging", 1),
        ]
    ),
]


@pytest.mark.guarantee("survive-lost-ranks")
@pytest.mark.parametrize(("framework", "training", "strategy", "phase", "rank"), CASES)
def test_a_lost_rank_is_replaced(job, framework, training, strategy, phase, rank):
    """Of two; rank 0 writes checkpoints, and another rank does so from then on."""
    alone = job(framework, training, "single", 1)
    surviving = job(framework, training, strategy)
    lose_and_replace(surviving, phase, rank)
    for one in (alone, surviving):
        one.end(0)
    surviving.compare(alone)
    (lost,), (joined,) = surviving.changes("lost"), surviving.changes("joined")
    assert [one["rank"] for one in lost["lost"]] == joined["joined"] == [rank]
    assert (lost["ranks"], joined["ranks"]) == ([1 - rank], [1 - rank, rank])
    assert "was killed by SIGKILL; 1 rank continues" in surviving.output
    assert f"rank {rank} on {joined['hosts'][1]} joins; 2 ranks" in surviving.output


def test_too_few_ranks_end_the_job(job):
    started = job(FASTEST, "rows", "ring", 2, "--min-np", "2")
    started.wait_for_step(3)
    started.kill(1)
    started.end(128 + signal.SIGKILL)
    assert "rank 1 on " in started.output
    assert "was killed by SIGKILL" in started.output
    assert "continue" not in started.output


@MATRIX
@pytest.mark.parametrize("strategy", ["horovod", "ring"])
def test_a_stopped_rank_is_lost(job, strategy):
    """The watchdog of the others notices, and the launcher ends it."""
    started = job(FASTEST, "network", strategy, 3, steps=60)
    started.wait_for_step(3)
    started.kill(2, signal.SIGSTOP)
    wait_for(lambda: started.changes("joined"), JOIN_S, lambda: started.output)
    (started.folder / "hurry").touch()
    started.end(0)
    assert started.changes("lost")[0]["lost"][0]["rank"] == 2
