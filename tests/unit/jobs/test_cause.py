"""Which rank's failure was the first, from what the ranks printed, and whether a failure may end differently again."""

from __future__ import annotations

import os
import resource
import socket
from dataclasses import replace

import pytest

from hvdtrain.errors import NotFiniteError, PeerLost, TrainingError, UserError
from hvdtrain.jobs import protocol
from hvdtrain.jobs.cause import exception, first_cause, lost_peer, may_follow, signature
from hvdtrain.system import agent_pipe
from hvdtrain.system.agent_pipe import OpenedRun
from hvdtrain.system.run_end import Failure

FRAMES = ("Traceback (most recent call last):", '  File "train.py", line 5, in <module>', "    step()")
USERS = (*FRAMES, "ValueError: the label is not known")
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
    (*FRAMES, "hvdtrain.errors.PeerLost: lost rank 1 on 127.0.0.1 (it closed the connection)"),
    (*FRAMES, "ConnectionResetError: [Errno 104] Connection reset by peer"),
    # The root of a chain counts: this program only says in its own words that a collective failed.
    (*FRAMES, "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.",
     "The above exception was the direct cause of the following exception:", *FRAMES, "RuntimeError: training failed"),
]  # fmt: skip
CAUSES = [
    USERS,
    (*USERS, "During handling of the above exception, another exception occurred:", *FRAMES,
     "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."),
    (*USERS, "[E] Horovod background loop uncaught exception: Connection reset by peer"),
    (*LOST[0], "the job continues", *USERS),
    ("no labels here",),
]  # fmt: skip


def end(rank: int, tail=(), status: int | None = 1, error: Exception | None = None) -> Failure:
    """As the supervisor knows it. error: what the rank said."""
    said = Failure.of_exception(error) if error else Failure(last_lines=tuple(tail))
    return replace(said.of_rank(rank, "node1"), status=status)


@pytest.mark.parametrize("lost", LOST, ids=[lines[-1][:40] for lines in LOST])
def test_a_lost_peer_is_no_cause(lost):
    assert lost_peer(end(0, lost))
    assert may_follow(end(0, lost))
    assert first_cause([end(0, lost), end(1, USERS)]).rank == 1
    assert first_cause([end(0, lost), end(1, (), None)]).rank == 1, "a lost host"
    assert first_cause([end(0, lost), end(1, LOST[0], -9)]).rank == 1, "a killed rank"
    assert first_cause([end(0, lost), end(1, LOST[0])]).rank == 0, "there is no better one"
    assert first_cause([end(0, lost), end(1, ())]).rank == 1, "a rank that ended without a message"


@pytest.mark.parametrize("lines", CAUSES, ids=[lines[-1][:40] for lines in CAUSES])
def test_an_own_cause_is_reported_at_once(lines):
    assert not lost_peer(end(1, lines)), exception(lines)
    assert not may_follow(end(1, lines))
    assert first_cause([end(1, lines), end(0, USERS)]).rank == 1, "the first of two"


def test_an_error_that_the_rank_handed_over_comes_before_what_it_printed():
    ring = end(0, error=PeerLost("lost rank 1 on node1 (it closed the connection)"))
    unknown = end(1, LOST[0], error=UserError("--data x: not found", "choose another", option="data"))
    assert first_cause([ring, unknown]).rank == 1
    message = "rank 1 on node1: --data x: not found; choose another; ending the others"
    assert (unknown.option, unknown.message(ends_others=True)) == ("data", message)
    named = end(0, error=NotFiniteError("rank 1: loss is not finite", rank=1, step=3))
    assert (named.rank, named.step, named.retry, str(named)) == (1, 3, False, "rank 1: loss is not finite")


def test_failures_that_chance_has_no_part_in_have_a_signature():
    assert signature(end(1, USERS)) == signature(end(1, USERS)) != ()
    assert signature(end(1, error=KeyError("x")))
    disk = end(0, error=TrainingError("No space left on device"))
    for other in (end(1, USERS, -9), end(1, (), None), end(1, LOST[0]), end(1, ()), disk):
        assert not signature(other)
        assert other.retry is not False
    assert end(0, error=NotFiniteError("loss is not finite")).retry is False


def test_the_pipe_between_a_rank_and_its_agent(monkeypatch):
    failure = Failure("x" * 20000, "y", option="lr", rank=3, step=7, retry=False, resumable=False, stands_alone=True)
    assert not agent_pipe.send(failure), "there is no agent"
    pipe = agent_pipe.AgentPipe()
    monkeypatch.setenv(agent_pipe.VARIABLE, pipe.variable)
    opened = OpenedRun("/runs/run", True)
    assert agent_pipe.send(opened) and agent_pipe.send(failure)
    received = [protocol.parse(message) for message in pipe.receive()]
    assert received == [opened, replace(failure, reason="x" * agent_pipe.MAX_TEXT)]
    for other in (b"[1]", b'{"failure": {}}', b"no JSON", b'{"incompl'):
        os.write(pipe.rank_end.fileno(), other)
    assert pipe.receive() == [{"failure": {}}] and not pipe.ended
    pipe.send(b"a membership")
    with agent_pipe.rank_end() as rank:
        assert rank.recv(100) == b"a membership"
    pipe.send(b"one that is not read")
    assert agent_pipe.send(opened) and agent_pipe.send(failure)
    pipe.rank_end.close()
    assert len(pipe.receive()) == 2 and pipe.ended, "what a rank said before it ended"
    assert pipe.receive() == [] and pipe.ended
    pipe.send(b"one for nobody")
    for other in ("", "0", "999:1", f"{pipe.variable}0", "a:b", f"{pipe.fileno()}"):
        monkeypatch.setenv(agent_pipe.VARIABLE, other)
        assert not agent_pipe.send(failure), other


def test_a_rank_gets_all_memberships_however_long_it_reads_none(monkeypatch):
    pipe = agent_pipe.AgentPipe()
    monkeypatch.setenv(agent_pipe.VARIABLE, pipe.variable)
    sent = [b"%d" % number + b" " * 500 for number in range(2000)]
    for message in sent:
        pipe.send(message)
    received = []
    with agent_pipe.rank_end() as rank:
        while len(received) < len(sent):
            pipe.send_rest()
            received.append(rank.recv(1000, socket.MSG_DONTWAIT))
    assert received == sent


def test_a_rank_without_a_free_file_descriptor_says_why_it_fails(monkeypatch):
    pipe = agent_pipe.AgentPipe()
    monkeypatch.setenv(agent_pipe.VARIABLE, pipe.variable)
    failure = Failure("Too many open files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (pipe.fileno(), hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        assert agent_pipe.send(failure) and agent_pipe.send(failure)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [protocol.parse(message) for message in pipe.receive()] == [failure, failure] and not pipe.ended


@pytest.mark.parametrize(
    "message",
    [{}, {"Failure": None}, {"Failure": {"reason": 1}}, {"Failure": {"reason": "a", "rank": True}},
     {"Failure": {"reason": "a", "retry": "no"}}, {"OpenedRun": {"folder": "a", "resumable": 1, "checkpoint": ""}}],
)  # fmt: skip
def test_what_is_no_message_of_a_rank(message):
    assert protocol.parse(message) is None


def test_an_error_that_does_not_fit_into_the_pipe_does_not_block_the_rank(monkeypatch):
    """Its escapes in JSON take more than the kernel's buffer; the rank prints it itself."""
    pipe = agent_pipe.AgentPipe()
    monkeypatch.setenv(agent_pipe.VARIABLE, pipe.variable)
    large = "\N{GRINNING FACE}" * agent_pipe.MAX_TEXT
    assert not agent_pipe.send(Failure(large, large, large))
    assert pipe.receive() == []
