"""Ports of the ranks: callers without the job's token learn and change nothing."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from support.jobs import wait_for
from support.strangers import SENT, strangers
from support.untrusted import PASSWORD, Harm

from hvdtrain.collectives.encoding import decode
from hvdtrain.collectives.ring import RingGroup, start
from hvdtrain.collectives.ring_rendezvous import MAX_STRANGERS
from hvdtrain.errors import TrainingError, UserError
from hvdtrain.jobs.gloo import Store
from hvdtrain.system import credentials, rank_info
from hvdtrain.system.network import free_port


def test_a_pickle_is_not_a_value_that_ranks_send(tmp_path):
    with pytest.raises(TrainingError, match="sent what ranks never send"):
        decode(pickle.dumps(Harm(tmp_path / "harm")))
    assert not (tmp_path / "harm").exists()


def test_a_man_in_the_middle_does_not_learn_the_token():
    """A process between the ranks, which forwards everything, sees only challenges and responses."""
    inside, outside = ("127.0.0.1", free_port()), socket.create_server(("127.0.0.1", 0))
    seen = bytearray()

    def forward_connections():
        caller, _ = outside.accept()
        while True:
            try:
                host = socket.create_connection(inside)
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        for source, sink in ((host, caller), (caller, host)):
            threading.Thread(target=forward, args=(source, sink), daemon=True).start()

    def forward(source, sink):
        while data := source.recv(1 << 16):
            seen.extend(data)
            sink.sendall(data)

    sums = []

    def rank(number, address):
        ring = RingGroup(rank_info.RankInfo("test", number, 2, number), address, PASSWORD, start_timeout_s=10)
        sums.append(ring.sum(np.ones(1))[0])
        ring.close()

    threads = [
        threading.Thread(target=forward_connections),
        threading.Thread(target=rank, args=(0, inside)),
        threading.Thread(target=rank, args=(1, outside.getsockname())),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sums == [2, 2]
    assert len(seen) > 100 and PASSWORD.encode() not in seen


def test_an_impostor_as_rank_0_is_rejected():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            caller, _ = server.accept()
            caller.sendall(b'"00"\n')
            caller.makefile().readline()
            caller.sendall(json.dumps({"proof": "0" * 64, "addresses": [], "word": ""}).encode() + b"\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(TrainingError, match="does not know this job's token"):
            RingGroup(rank_info.RankInfo("test", 1, 2, 1), server.getsockname(), PASSWORD, start_timeout_s=5)


def test_a_slow_stranger_does_not_delay_the_ranks(monkeypatch):
    """It sends a byte now and then, and never completes a message."""
    monkeypatch.setattr("hvdtrain.collectives.ring_rendezvous.HELLO_TIMEOUT_S", 0.5)
    address, made = ("127.0.0.1", free_port()), []
    stranger = socket.socket()

    def rank(number):
        ring = RingGroup(rank_info.RankInfo("test", number, 2, number), address, PASSWORD, start_timeout_s=10)
        made.append(number)
        ring.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    threads[0].start()
    wait_for(lambda: stranger.connect_ex(address) == 0, 10)  # once rank 0 listens
    with stranger:
        threads[1].start()
        while len(made) < 2 and threads[0].is_alive():
            try:
                stranger.sendall(b"x")
            except OSError:
                break
            time.sleep(0.2)
        for thread in threads:
            thread.join(20)
    assert sorted(made) == [0, 1]


@pytest.mark.guarantee("strangers")
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_strangers_do_not_delay_the_ranks(monkeypatch, sent):
    """More than are kept, at the rendezvous before rank 1 connects; none is closed for its silence."""
    monkeypatch.setattr("hvdtrain.collectives.ring_rendezvous.HELLO_TIMEOUT_S", 60)
    address, made = ("127.0.0.1", free_port()), []

    def rank(number):
        ring = RingGroup(rank_info.RankInfo("test", number, 2, number), address, PASSWORD, start_timeout_s=20)
        made.append(float(ring.sum(np.ones(1))[0]))
        ring.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    threads[0].start()
    with socket.socket() as first:
        wait_for(lambda: first.connect_ex(address) == 0, 10)  # once rank 0 listens
        with strangers(address, 2 * MAX_STRANGERS, sent):
            threads[1].start()
            for thread in threads:
                thread.join(30)
            assert made == [2, 2]


@pytest.mark.matrix
def test_servers_of_mxnet_unpickle_nothing(tmp_path):
    """As a command with an optimizer, which any caller can send to their port."""
    from hvdtrain.frameworks.mxnet.strategies import SERVER

    command = pickle.dumps(Harm(tmp_path / "harm"))
    receive = f"from mxnet.kvstore.kvstore_server import KVStoreServer as S\nclass Store: handle = rank = 0\n\
S(Store())._controller()(0, {command!r}, None)"
    done = subprocess.run([sys.executable, "-c", SERVER + receive], capture_output=True, text=True)
    assert "a command holds a pickle, which workers of hvdtrain never send" in done.stderr
    assert not (tmp_path / "harm").exists()


def test_ranks_on_a_network_need_a_token(monkeypatch, tmp_path):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1"), ("MASTER_PORT", "9")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"set no HVDTRAIN_TOKEN, and 192.0.2.1 is not loopback.*set HVDTRAIN_TOKEN"):
        start()
    file = tmp_path / "token"
    file.write_text("a secret\n")
    file.chmod(0o644)
    monkeypatch.setenv("HVDTRAIN_TOKEN_FILE", str(file))
    with pytest.raises(UserError, match="users other than its owner can access it; chmod 600"):
        start()
    file.chmod(0o600)
    assert rank_info.token() == "a secret"
    file.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        start()


def test_ranks_on_one_host_make_their_token(monkeypatch, tmp_path):
    """Started by torchrun or by bare variables: from a key that other users of the host cannot read."""
    monkeypatch.setattr(credentials, "KEY_FOLDER", str(tmp_path))
    two = rank_info.RankInfo("torchrun", 1, 2, 1)
    token = credentials.token_of_one_host(two, ("127.0.0.1", 9), {})
    (key,) = tmp_path.glob("hvdtrain-*/*")
    assert [path.stat().st_mode & 0o777 for path in (key.parent, key)] == [0o700, 0o600]
    assert (
        token == credentials.token_of_one_host(two, ("127.0.0.1", 9), {})
        and len(token) == 64
        and token not in key.read_text()
    )
    assert token != credentials.token_of_one_host(two, ("127.0.0.1", 10), {})
    on_one_host = {"LOCAL_WORLD_SIZE": "2"}, {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    assert all(credentials.token_of_one_host(two, ("192.0.2.1", 9), variables) for variables in on_one_host)
    on_two_hosts = {"LOCAL_WORLD_SIZE": "1"}, {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "0"}, {}
    assert not any(credentials.token_of_one_host(two, ("192.0.2.1", 9), variables) for variables in on_two_hosts)


@pytest.mark.parametrize("what", ["open folder", "open key", "linked folder", "damaged key"])
def test_a_key_of_another_user_is_not_used(monkeypatch, tmp_path, what):
    monkeypatch.setattr(credentials, "KEY_FOLDER", str(tmp_path))
    two = rank_info.RankInfo("torchrun", 1, 2, 1)
    folder = tmp_path / f"hvdtrain-{os.geteuid()}"
    credentials.token_of_one_host(two, ("127.0.0.1", 9))
    if what == "open folder":
        folder.chmod(0o755)
    elif what == "open key":
        (folder / "key").chmod(0o640)
    elif what == "damaged key":
        (folder / "key").write_text("")
    else:
        folder.symlink_to(folder.rename(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match=r"other than its owner can access it|is damaged") as caught:
        credentials.token_of_one_host(two, ("127.0.0.1", 9))
    assert "HVDTRAIN_TOKEN_FILE" in caught.value.remedy


def test_the_rendezvous_server_listens_on_one_address_and_rejects_large_values():
    store = Store("127.0.0.1")
    with socket.create_connection(("127.0.0.1", store.port), 5) as caller:
        caller.sendall(b"PUT /scope/key HTTP/1.0\r\nContent-Length: 1000000000000\r\n\r\n")
        assert b" 400 " in caller.makefile("rb").readline()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", store.port), 5).close()
