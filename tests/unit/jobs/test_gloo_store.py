"""The rendezvous server of Gloo's ranks."""

import socket

import pytest
from support.jobs import wait_for
from support.strangers import SENT, is_closed, strangers

from hvdtrain.jobs.gloo import MAX_CONNECTIONS, Store

RANKS = 256


def test_all_ranks_may_ask_at_the_same_time():
    """All connections are opened before the first request is sent; none may be lost."""
    store = Store("127.0.0.1")
    clients = [socket.create_connection(("127.0.0.1", store.port), timeout=20) for _ in range(RANKS)]
    for rank, client in enumerate(clients):
        client.sendall(b"GET /global/%d HTTP/1.1\r\nHost: x\r\n\r\n" % rank)
    for client in clients:
        with client:
            assert client.recv(100).startswith(b"HTTP/1.0 404")


@pytest.mark.guarantee("strangers")
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_strangers_keep_no_rank_out(sent):
    store = Store("127.0.0.1")
    with strangers(("127.0.0.1", store.port), MAX_CONNECTIONS + 20, sent) as made:
        with socket.create_connection(("127.0.0.1", store.port), timeout=20) as client:
            client.sendall(b"GET /global/0 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.0 404")
        wait_for(lambda: all(map(is_closed, made[:20])), 5)


def test_the_port_of_an_ended_job_can_be_opened_at_once():
    """The server has closed a connection, which stays in TIME_WAIT for a minute."""
    store = Store("127.0.0.1")
    with socket.create_connection(("127.0.0.1", store.port), timeout=20) as client:
        client.sendall(b"GET /global/0 HTTP/1.1\r\nHost: x\r\n\r\n")
        while client.recv(100):
            pass
    store._server.shutdown()
    store._thread.join()
    assert Store("127.0.0.1", store.port).port == store.port
