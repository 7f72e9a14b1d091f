"""The ring: correct sums, and reports of lost ranks. `unit/jobs/test_ports.py` has callers that are no ranks."""

import socket
import threading
import time

import numpy as np
import pytest

from hvdtrain.collectives import ring
from hvdtrain.collectives.mean import BFloat16, Int8
from hvdtrain.collectives.ring import CHUNK_BYTES, RingGroup
from hvdtrain.errors import TrainingError
from hvdtrain.system import processes
from hvdtrain.system.network import free_port
from hvdtrain.system.rank_info import RankInfo


def on_every_rank(size, job, token="secret", **options):
    """What `job(ring)` returns, or the exception that it raises, on each of `size` ranks in threads."""
    address, results = ("127.0.0.1", free_port()), [None] * size

    def run(rank):
        try:
            results[rank] = job(RingGroup(RankInfo("test", rank, size, rank), address, token, 20, **options))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "bf16", "int8", "normal"])
def test_every_rank_has_the_same_sum(size, kind):
    """Exact for whole numbers; of packed values within their rounding, and the same bits on all ranks."""
    lengths = [0, 1, size - 1, 7, 1000, 3 * CHUNK_BYTES // 8 + 5]
    packing = {"bf16": lambda rank: BFloat16(), "int8": lambda rank: Int8(np.random.SFC64(rank))}.get(kind)

    def drawn(rank, length):
        draw = np.random.default_rng([rank, length])
        if packing:
            return draw.random(length, np.float32)
        return (
            draw.normal(size=length).astype("f4") if kind == "normal" else draw.integers(-999, 999, length).astype(kind)
        )

    def job(ring):
        sums = [drawn(ring.rank, length) for length in lengths]
        for values in sums:
            if packing:
                ring.sum_packed(values, packing(ring.rank))
            else:
                ring.allreduce(values)
        ring.close()
        return sums

    results = on_every_rank(size, job)
    for i, length in enumerate(lengths):
        expected = sum(drawn(rank, length) for rank in range(size))
        close = {"normal": 1e-5}.get(kind, size * size / 100 if packing else 0)
        np.testing.assert_allclose(results[0][i], expected, rtol=0, atol=close)
        assert all(got[i].tobytes() == results[0][i].tobytes() for got in results[1:])


def exchanged(ring, length):
    """What a rank gets if each sends so many numbers to each."""
    return ring.exchange("parts", np.full(length * ring.size, -1e30), *[[length] * ring.size] * 2)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_each_rank_gets_what_each_other_one_sends(size):
    """Of any lengths, also none, several times; from the fourth rank on, some are no neighbors."""

    def vector(rank, to, turn):
        draw = np.random.default_rng([rank, to, turn])
        return draw.random(int(draw.choice([0, 1, 1000, 3 * CHUNK_BYTES // 8 + 5])))

    def job(ring):
        for turn in range(3):
            messages = [vector(ring.rank, rank, turn) for rank in range(size)]
            expected = [vector(rank, ring.rank, turn) for rank in range(size)]
            counts, lengths = ([*map(len, sent)] for sent in (messages, expected))
            received = ring.exchange("numbers", np.concatenate(messages), counts, lengths)
            assert received.tobytes() == np.concatenate(expected).tobytes()
            assert ring.sum(np.ones(2)).tolist() == [size, size]
        ring.close()
        return "done"

    assert on_every_rank(size, job) == ["done"] * size


OPERATIONS = {
    "gradients": lambda ring: ring.allreduce(np.full(1000, -1e30, np.float32)),
    "other gradients": lambda ring: ring.allreduce(np.full(1001, -1e30, np.float32)),
    "sum": lambda ring: ring.sum(np.ones(500)),
    "gather": lambda ring: ring.gather("a" * 100),
    "weights": lambda ring: ring.broadcast_bytes(np.zeros(4000, np.uint8), 0),
    "parts": lambda ring: exchanged(ring, 300),
    "other parts": lambda ring: exchanged(ring, 301),
    "the end": lambda ring: ring.close(),
}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("some", OPERATIONS)
@pytest.mark.parametrize("other", OPERATIONS)
def test_a_rank_that_is_elsewhere_in_its_script_ends_the_job(some, other, size):
    """Such as one that left its loop: gradients were read as the length of a message, or added to other numbers."""

    def job(ring):
        ring.sum(np.ones(3))
        try:
            OPERATIONS[some if ring.rank else other](ring)
            ring.close()
        finally:  # as the end of the process
            ring.disconnect()
        return "done"

    ends = on_every_rank(size, job, timeout_s=5)
    if some == other:
        assert ends == ["done"] * size
    elif {some, other} != {"gather", "the end"}:  # the end also is an exchange of values
        errors = [end for end in ends if isinstance(end, TrainingError)]
        assert "not at the same place of their program" in str(errors)


@pytest.mark.parametrize(("is_lost", "size"), [(True, 3), (False, 2)], ids=["lost", "silent"])
def test_a_rank_that_is_lost_or_silent_is_reported(is_lost, size):
    reported = threading.Event()

    def job(ring):
        if ring.rank == 1:
            if is_lost:
                ring.disconnect()
            return reported.wait(0 if is_lost else 20)
        try:
            return ring.allreduce(np.ones(1_000_000, np.float32))
        finally:
            reported.set()

    first, _, *last = on_every_rank(size, job, timeout_s=1)
    assert isinstance(first, TrainingError)
    if is_lost:
        assert isinstance(last[0], TrainingError) and "rank 1 on 127.0.0.1" in str(last[0])
    else:
        assert "rank 1" in str(first) and "no data for 1 s" in str(first)


def test_time_in_which_the_job_is_suspended_is_no_silence(monkeypatch):
    """A rank is resumed after much longer than the limit, and another one sends a moment later."""
    passed, monotonic = [0.0], time.monotonic
    monkeypatch.setattr(processes.time, "monotonic", lambda: monotonic() + passed[0])

    def job(ring):
        if ring.rank == 1:
            time.sleep(0.3)
            passed[0] = 7200.0
            time.sleep(0.7)
        total = ring.sum(np.ones(1))[0]
        ring.close()
        return total

    assert on_every_rank(2, job, timeout_s=5) == [2.0, 2.0]


def test_a_rank_that_never_connects():
    with pytest.raises(TrainingError, match=r"rank 1 did not connect.*check that all ranks were started"):
        RingGroup(RankInfo("test", 0, 2, 0), ("127.0.0.1", free_port()), start_timeout_s=1)
    with pytest.raises(TrainingError, match="cannot join the ring of 2"):
        RingGroup(RankInfo("test", 1, 2, 1), ("127.0.0.1", free_port()), start_timeout_s=1)


@pytest.mark.parametrize(("hang_timeout_s", "silence_s"), [(0, 1800), (20, 1800), (7200, 7260)])
def test_the_ring_outlasts_hang_timeout_and_start_timeout(monkeypatch, hang_timeout_s, silence_s):
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    for name, value in {**variables, "HVDTRAIN_TOKEN": "secret", "HVDTRAIN_START_TIMEOUT": "600"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ring, "RingGroup", lambda *arguments: arguments)
    assert ring.start(hang_timeout_s)[1:] == (("127.0.0.1", 10), "secret", 600, silence_s)


def test_a_port_in_use_fails_the_attempt_but_not_the_job():
    """Exit status 1: --restarts tries another port."""
    in_use = pytest.raises(TrainingError, match=r"cannot join the ring of 2 .*Address already in use")
    with socket.create_server(("127.0.0.1", 0)) as other, in_use:
        RingGroup(RankInfo("test", 0, 2, 0), other.getsockname(), start_timeout_s=1)
