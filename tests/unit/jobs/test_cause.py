"""Which rank's failure was the first, from what the ranks printed, and whether a failure may end differently again."""

from __future__ import annotations

import pytest

from hvdtrain.jobs.cause import RankEnd, exception, first_cause, lost_peer, may_follow
from hvdtrain.jobs.result import Failure
from hvdtrain.system import agent_pipe
from hvdtrain.system.agent_pipe import RankError

FRAMES = ("Traceback (most recent call last):", '  File "train.py", line 5, in <module>', "    step()")
OWN = (*FRAMES, "ValueError: the label is not known")
LOST = [
    (*FRAMES, "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."),
    (*FRAMES, "mxnet.base.MXNetError: Traceback (most recent call last):", '  File "a.cc", line 1',
     "MXNetError: Horovod has been shut down. This was caused by an exception on one of the ranks"),
    (*FRAMES, "tensorflow.python.framework.errors_impl.UnknownError: Graph execution error:", "Detected at node x",
     "Horovod has been shut down. This was caused by an exception on one of the ranks"),
    (*(f"[rank0]: {line}" for line in FRAMES),
     "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"),
    (*FRAMES, "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970"),
    (*FRAMES, "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: peer down"),
    ("terminate called after throwing an instance of 'gloo::IoException'", "Fatal Python error: Aborted"),
    (*FRAMES, "hvdtrain.errors.TrainingError: lost the ring neighbor, rank 1 on 127.0.0.1 (it closed the connection)"),
    (*FRAMES, "ConnectionResetError: [Errno 104] Connection reset by peer"),
    # The root of a chain counts: this program only says in its own words that a collective failed.
    (*FRAMES, "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.",
     "The above exception was the direct cause of the following exception:", *FRAMES, "RuntimeError: training failed"),
]  # fmt: skip
CAUSES = [
    OWN,
    (*OWN, "During handling of the above exception, another exception occurred:", *FRAMES,
     "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."),
    (*OWN, "[E] Horovod background loop uncaught exception: Connection reset by peer"),
    (*LOST[0], "the job continues", *OWN),
    ("no labels here",),
]  # fmt: skip


def end(rank: int, tail=(), status: int | None = 1, error: RankError | None = None) -> RankEnd:
    return RankEnd(rank, "node1", status, tuple(tail), error)


@pytest.mark.parametrize("lost", LOST, ids=[lines[-1][:40] for lines in LOST])
def test_a_lost_peer_is_no_cause(lost):
    assert lost_peer(end(0, lost))
    assert may_follow(end(0, lost))
    assert first_cause([end(0, lost), end(1, OWN)]).rank == 1
    assert first_cause([end(0, lost), end(1, (), None)]).rank == 1, "a lost host"
    assert first_cause([end(0, lost), end(1, LOST[0], -9)]).rank == 1, "a killed rank"
    assert first_cause([end(0, lost), end(1, LOST[0])]).rank == 0, "there is no better one"
    assert first_cause([end(0, lost), end(1, ())]).rank == 1, "a rank that ended without a message"


@pytest.mark.parametrize("lines", CAUSES, ids=[lines[-1][:40] for lines in CAUSES])
def test_an_own_cause_is_reported_at_once(lines):
    assert not lost_peer(end(1, lines)), exception(lines)
    assert not may_follow(end(1, lines))
    assert first_cause([end(1, lines), end(0, OWN)]).rank == 1, "the first of two"


def test_an_error_that_the_rank_handed_over_comes_before_what_it_printed():
    ring = end(0, error=RankError("lost the ring neighbor, rank 1 on node1 (it closed the connection)", retry=True))
    own = end(1, LOST[0], error=RankError("--data x: not found", "choose another"))
    assert first_cause([ring, own]).rank == 1
    assert str(Failure.of_rank(own, True)) == "rank 1 on node1: --data x: not found; choose another; ending the others"
    named = end(0, error=RankError("rank 1: loss is not finite", retry=False))
    assert str(Failure.of_rank(named, False)) == "rank 1: loss is not finite"


def test_failures_that_chance_has_no_part_in_have_a_signature():
    assert Failure.of_rank(end(1, OWN), True).signature == Failure.of_rank(end(1, OWN), False).signature != ""
    assert Failure.of_rank(end(1, error=RankError("KeyError: 'x'")), True).signature
    disk = end(0, error=RankError("No space left on device", retry=True))
    for other in (end(1, OWN, -9), end(1, (), None), end(1, LOST[0]), end(1, ()), disk):
        assert not Failure.of_rank(other, True).signature
        assert Failure.of_rank(other, True).retry
    assert not Failure.of_rank(end(0, error=RankError("loss is not finite", retry=False)), True).retry


def test_the_line_of_a_failure_holds_the_last_line_that_was_printed():
    failure = Failure.of_rank(end(1, OWN), True)
    assert failure.line == "rank 1 on node1 ended with exit status 1 (ValueError: the label is not known)"


def test_the_pipe_between_a_rank_and_its_agent(monkeypatch):
    error = RankError("x" * 20000, "y")
    assert not agent_pipe.send(error), "there is no agent"
    reading, _, value = agent_pipe.new_pipe()
    monkeypatch.setenv(agent_pipe.VARIABLE, value)
    assert agent_pipe.send(error)
    assert agent_pipe.receive(reading) == RankError("x" * agent_pipe.LONGEST, "y")
    assert agent_pipe.receive(reading) is None
    for other in ("", "0", "999:1", f"{value}0", "a:b", f"{reading}"):
        monkeypatch.setenv(agent_pipe.VARIABLE, other)
        assert not agent_pipe.send(error), other
    for invalid in (None, [], {"reason": 1}, {"reason": "a", "remedy": "b", "retry": "no"}):
        with pytest.raises(ValueError, match="not the error"):
            agent_pipe.parse(invalid)


def test_an_error_that_does_not_fit_into_the_pipe_does_not_block_the_rank(monkeypatch):
    """Its escapes in JSON take more than the pipe's 64 KiB; the rank prints it itself."""
    reading, _, value = agent_pipe.new_pipe()
    monkeypatch.setenv(agent_pipe.VARIABLE, value)
    assert not agent_pipe.send(RankError("\N{GRINNING FACE}" * agent_pipe.LONGEST))
    assert agent_pipe.receive(reading) is None
