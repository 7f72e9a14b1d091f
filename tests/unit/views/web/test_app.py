"""The server of the page: what it answers, and to whom. Its connections and signals need a process of its own."""

import contextlib
import http.client
import json
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.in_process import command
from support.jobs import wait_for
from support.live_runs import RunningRanks, make_run, records
from support.strangers import is_closed, strangers
from support.web import serving

from hvdtrain.errors import UserError
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.views.web import app, listing
from hvdtrain.views.web.access import Access, read_token
from hvdtrain.views.web.listing import MAX_POINTS, read_curves

FINISHED = RunEnd("finished", time=1.0)
HOSTILE = "<script>window.hacked=1</script>\"'&\x1b[31m\x07\u202egnp"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs in every state, one with hostile content, and links that lead out."""
    folder = tmp_path_factory.mktemp("served") / "runs"
    make_run(folder / "finished", 50, FINISHED)
    failure = Failure(f"out of memory {HOSTILE}", rank=1, host="node2", stands_alone=True)
    make_run(folder / "failed", 20, RunEnd("failed", 1, failure, 5.0))
    RunningRanks(make_run(folder / "live", 80, ranks=4, slow=2), 4, slow=2).write()
    hostile = folder / HOSTILE.replace("/", "∕")
    make_run(hostile, 3, strategy=HOSTILE, model="x" * 9000, framework="\ud800")
    with open(hostile / "metrics.jsonl", "a") as file:
        file.write('{"kind":"train","step":1,"epoch":NaN,"loss":1e999}\n')
        file.write('{"kind":"train","step":9,"epoch":1e308,"loss":-1e308}\n')
        huge = '"epoch":2e308,"loss":1,"compute_s":[1e308,1],"data_s":[1e308,1]}\n'
        file.write(f'{{"kind":"train","step":{"9" * 4000},{huge}')
        file.write("[" * 100_000 + "\n" + '{"kind":"test","step":4,"epoch"')
    (hostile / "heartbeats").mkdir()
    beat = '{"step":5,"host":["x"],"rows":1e400,"compute_s":"a","memory":-1}'
    (hostile / "heartbeats" / "rank-0.json").write_text(beat)
    secret = folder.parent / "secret"
    make_run(secret / "elsewhere", 3, FINISHED)
    (secret / "text").write_text("hidden")
    (folder / "link-out").symlink_to(secret / "elsewhere")
    (folder / "link-in").symlink_to(folder / "finished")
    (make_run(folder / "linked-log", 3, FINISHED) / "logs" / "rank-7.log").symlink_to(secret / "text")
    return folder


@pytest.fixture(scope="module")
def server(runs):
    with serving(runs.parent) as found:
        yield found


def names(listing):
    return {run["name"] for run in listing["runs"]}


def test_lists_runs_as_they_come_change_and_go(server, runs):
    RunningRanks(runs / "live", 4, slow=2).write()  # other tests may have taken longer than a job is silent
    first = server.json("runs")
    states = {run["name"]: run["state"] for run in first["runs"]}
    assert states["finished"] == states["link-in"] == "finished" and states["failed"] == "failed"
    assert states["live"] in ("training", "waiting")
    assert first["left_out"] == ["link-out", "linked-log"]
    make_run(runs / "new", 3, FINISHED)
    replace(FINISHED, status="stopped", failure=Failure("asked to")).write(runs / "finished")
    wait_for(lambda: "new" in names(server.json("runs")), 20)
    found = {run["name"]: run for run in server.json("runs")["runs"]}
    assert found["new"]["state"] == "finished" and found["finished"]["reason"] == "asked to"
    os.rename(runs / "new", runs.parent / "gone")
    wait_for(lambda: "new" not in names(server.json("runs")), 20)


def test_the_classes_of_a_run_with_a_result(server, runs):
    assert server.json("options", run="live")["test accuracy of classes"] == []
    rates = {
        "per_class_accuracy": {"a": 1.0, "b": 0.5},
        "per_class_rows": {"a": 3, "b": 4},
        "confusion": [[3, 0], [2, 2]],
    }
    (runs / "failed" / "result.json").write_text(json.dumps(rates))
    classes = server.json("options", run="failed")["test accuracy of classes"]
    assert classes == [["b", "0.500 of 4 rows, 2 taken for a"], ["a", "1.000 of 3 rows"]]
    (runs / "failed" / "result.json").unlink()


def test_one_run_with_its_ranks_options_curves_and_log(server):
    found = server.json("run", run="live")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2, 3]
    assert found["ranks"][2]["compute"] > 0.9 > found["ranks"][1]["compute"]
    assert found["logs"] == [0, 1, 2, 3] and found["stacks"] == [] and found["end"] is None
    assert {(message["ranks"][:1], message["level"]) for message in found["messages"]} == {("0", "INFO")}
    assert ["--framework", "torch"] in server.json("options", run="live")["options"]
    curves = server.json("curves", run="live")
    assert len(curves["curves"]["train loss"]["values"]) == 80 == len(curves["curves"]["train loss"]["steps"])
    assert server.json("log", run="live", rank=3)["lines"][0].endswith("INFO step 10: loss 2.0000")
    assert server.json("run", run="failed")["end"]["rank"] == 1


@pytest.mark.parametrize(
    "target",
    [
        "/api/run", "/api/run?run=", "/api/run?run=nothing", "/api/run?run=../secret/elsewhere", "/api/run?run=.",
        "/api/run?run=link-out", "/api/curves?run=linked-log", "/api/log?run=linked-log&rank=7",
        "/api/log?run=finished&rank=../../secret/text", "/api/log?run=finished&rank=-1", "/api/log?run=finished&rank=9",
        "/api/log?run=finished&rank=%C2%B2", "/api/stacks?run=finished&rank=0", "/static/../app.py",
        "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/", "/api/", "/console", "/%00",
    ],
)  # fmt: skip
def test_what_is_not_served_is_404(server, target):
    status, headers, body = server.get(target)
    assert status == 404, body
    assert headers["content-type"] == "application/json" and set(json.loads(body)) == {"error"}
    assert b"hidden" not in body and str(Path.cwd()).encode() not in body


def test_pages_may_use_nothing_but_this_server(server):
    for target in ("/", "/static/main.js", "/static/style.css", "/api/runs", "/nothing"):
        _, headers, body = server.get(target)
        policy = headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(policy)
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
        assert b"//" not in body.replace(b"http://www.w3.org/2000/svg", b"") or target.endswith((".js", "runs"))
        assert b"http" not in body.replace(b"http://www.w3.org/2000/svg", b"")


def test_methods_hosts_and_answers_that_are_known(server):
    """Forwarded ports of loopback are served, other names of this machine are not."""
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"):
        status, headers, _ = server.get("/api/runs", method)
        assert (status, headers["allow"]) == (405, "GET, HEAD"), method
    for target in ("/", "/api/runs", "/static/main.js"):
        assert server.get(target, "HEAD")[::2] == (200, b"")
    for host in ("localhost", "LOCALHOST:9999", "127.0.0.1:1", "[::1]:80"):
        assert server.get("/api/runs", Host=host)[0] == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", ""):
        status, _, body = server.get("/api/runs", Host=host)
        assert status in (400, 403) and b"finished" not in body, host
    _, headers, body = server.get("/api/curves?run=live", Accept_Encoding="gzip")
    assert headers["content-encoding"] == "gzip" and body[:2] == b"\x1f\x8b"
    assert server.get("/api/curves?run=live", If_None_Match=headers["etag"])[::2] == (304, b"")


def client(runs, token, port=80):
    """Answers to requests in this process."""
    return app.make_app([runs], Access(token, port)).test_client(use_cookies=False)


def test_away_from_loopback_a_token_is_needed(runs, tmp_path):
    with serving(runs.parent, address="0.0.0.0:0") as server:
        assert len(server.token) >= 32 and server.get("/")[0] == 403
        cookie = server.get(f"/?token={server.token}")[1]["set-cookie"].partition(";")[0]
        assert cookie.startswith(f"hvdtrain-{server.port}=") and server.get("/api/runs", Cookie=cookie)[0] == 200
    token, served = "x" * 32, client(runs, "x" * 32)
    for target in ("/", "/api/runs", "/static/main.js", "/?token=", "/?token=wrong", f"/api/runs?token={token}"):
        answer = served.get(target, headers={"Host": "node1.example"})
        assert answer.status_code == 403 and "Set-Cookie" not in answer.headers and b"finished" not in answer.data
    answer = served.get(f"/?token={token}", headers={"Host": "node1.example"})
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert answer.status_code == 200 and {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    for known, status in ((cookie, 200), (cookie[:-1], 403), (cookie.replace("-80=", "-1="), 403)):
        assert served.get("/api/runs", headers={"Cookie": known}).status_code == status, known


def test_token_from_a_file(runs, tmp_path):
    file = tmp_path / "token"
    for mode, content, reason in (
        (0o600, "0123456789abcdef", ""), (0o644, "0123456789abcdef", "other users"), (0o600, "short", "no token"),
    ):  # fmt: skip
        file.write_text(f"{content}\n")
        file.chmod(mode)
        with pytest.raises(UserError, match=reason) if reason else contextlib.nullcontext():
            assert read_token(file) == content
    file.write_text(token := "fedcba9876543210")
    with serving(runs.parent, "--token-file", str(file)) as server:
        assert server.token == token and server.get("/")[0] == 403, "loopback needs it, too"
        assert server.get(f"/?token={token}")[0] == 200


def test_addresses_that_cannot_be_used(runs):
    with socket.create_server(("127.0.0.1", 0)) as other:
        cases = {
            f"127.0.0.1:{other.getsockname()[1]}": "Address already in use; give an address",
            "no-such-host.invalid:0": "--serve no-such-host.invalid:0: ",
            "8080": "no address",
            "127.0.0.1:99999": "no address",
            "203.0.113.7:0": "Cannot assign requested address",
        }
        for address, reason in cases.items():
            status, error = command(runs, "watch", ".", "--serve", address)
            assert (status, error.count("\n")) == (2, 1) and reason in error, error


def test_an_error_of_the_server_is_told_to_its_terminal_only(runs, monkeypatch, caplog):
    monkeypatch.setattr(app, "newest_messages", lambda _: 1 / 0)
    answer = client(runs, "").get("/api/run?run=finished", headers={"Host": "localhost"})
    assert answer.status_code == 500 and b"Zero" not in answer.data and b"Traceback" not in answer.data
    assert "ZeroDivisionError" in caplog.text and answer.headers["Content-Security-Policy"]


@pytest.mark.guarantee("strangers")
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc"], ids=["idle", "partial"])
def test_connections_without_a_request_keep_nobody_out(server, sent):
    """More than the server keeps open, on each of its limits."""
    with contextlib.ExitStack() as strangers:
        for _ in range(3 * app.MAX_CONNECTIONS):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
            stranger.sendall(sent)
        assert server.get("/")[0] == 200
        assert server.json("runs")["runs"]


@pytest.mark.guarantee("strangers")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_clients_that_pipeline_requests_and_read_nothing_hold_no_thread(server, runs, method):
    """Their answers are more than the server buffers for a connection. The first one comes, whole, and the last."""
    (runs / "finished" / "logs" / "rank-0.log").write_text(("é" * 999 + "\n") * 200)
    request = f"{method} /api/log?run=finished&rank=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with strangers(("127.0.0.1", server.port), 3 * app.THREADS, request * (8192 // len(request))) as connections:
        asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for _ in range(2):
            asking.request("GET", "/style.css")
            assert asking.getresponse().read() and asking.sock, "the connection stays open"
        asking.close()
        with connections[0].makefile("rb") as answer:
            connections[0].settimeout(30)
            head, _, body = answer.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"\r\nConnection: close" in head
    length = int(head.partition(b"Content-Length: ")[2].split()[0])
    assert length > 1 << 18 and len(body) == (length if method == "GET" else 0)


HEADER = b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n"
SLOW = {
    "idle": (b"", b""),
    "slow header": (HEADER, b"a"),
    "slow body": (HEADER + b"Content-Length: 1000\r\n\r\n", b"a"),
    "idle after an answer": (HEADER + b"\r\n", b""),
    "half closed": (HEADER + b"\r\n", None),
}
"""What clients send at first, then again and again; None closes this direction."""


@pytest.mark.guarantee("strangers")
def test_a_slow_client_is_disconnected_however_active_it_is(runs):
    """A server with a shorter limit."""
    program = "from hvdtrain.views.web import app; from hvdtrain.__main__ import main; app.MAX_WAIT = 1; main()"
    with serving(runs.parent, command=["python", "-c", program]) as server, contextlib.ExitStack() as stack:
        slow = {}
        for name, (first, more) in SLOW.items():
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
            client.sendall(first)
            slow[name] = client, more
        while slow:
            time.sleep(0.05)
            for name, (client, more) in list(slow.items()):
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_WR) if more is None else client.sendall(more)
                if is_closed(client):
                    del slow[name]


def test_several_folders(runs, tmp_path):
    make_run(tmp_path / "other" / "runs" / "finished", 3, FINISHED)
    with serving(runs.parent, str(runs), str(tmp_path / "other" / "runs"), str(runs / "failed")) as server:
        found = names(server.json("runs"))
        mine, other = f"{runs.parent.name}/runs", "other/runs"
        assert {f"{mine}/finished", f"{other}/finished", "failed/failed"} <= found
        assert server.json("run", run=f"{other}/finished")["run"]["name"] == f"{other}/finished"
        assert server.json("run", run="live")["run"]["name"] == f"{mine}/live"
        assert server.get("/api/run?run=finished")[0] == 404
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0, "Ctrl-C ends it"


def make_old(folder):
    """Let all files look as if they were written an hour ago."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (time.time() - 3600,) * 2)


def test_runs_that_are_over_are_read_once(tmp_path, monkeypatch):
    for name in ("one", "other"):
        make_old(make_run(tmp_path / name, 3, FINISHED))
    make_run(tmp_path / "recent", 3, FINISHED)
    looks, look = [], listing.RunFollower.look
    monkeypatch.setattr(listing.RunFollower, "look", lambda self: (looks.append(self.folder.name), look(self))[1])
    monkeypatch.setattr(listing, "READ_EVERY_S", 0)
    monkeypatch.setattr(listing, "SHARE", 1)
    found = listing.Listing([tmp_path])
    for _ in range(3):
        found.values()
    assert sorted(looks) == ["one", "other", "recent", "recent", "recent"]
    RunEnd("failed", 1, Failure("again")).write(tmp_path / "one")
    assert [run["reason"] for run in found.values()["runs"]] == ["again", "", ""]


def test_a_slow_folder_is_read_for_a_fifth_of_the_time(tmp_path, monkeypatch):
    make_run(tmp_path / "run", 3)
    looks, look = [], listing.RunFollower.look

    def slow_look(self):
        looks.append(time.monotonic())
        time.sleep(0.2)
        return look(self)

    monkeypatch.setattr(listing.RunFollower, "look", slow_look)
    monkeypatch.setattr(listing, "READ_EVERY_S", 0)
    found = listing.Listing([tmp_path])
    while len(looks) < 2:
        found.values()
    assert looks[1] - looks[0] >= 5 * 0.2


def test_curves_are_thinned_without_losing_peaks_and_grow_with_the_file(tmp_path):
    folder, lines = make_run(tmp_path / "run", 3), records(3000)
    metrics = folder / "metrics.jsonl"
    metrics.write_text("\n".join(lines[:2000]) + "\n" + '{"kind":"train","step":1,"epoch":99,"loss":77.5}\n')
    loss = read_curves(folder)["curves"]["train loss"]
    assert len(loss["values"]) <= MAX_POINTS + 2 and max(loss["values"]) == 77.5
    with open(metrics, "a") as file:
        file.write('{"kind":"train","step":1,"epoch":99.5,"loss":88.5}\n{"kind":"train","step":2,"epoch"')
    assert read_curves(folder)["curves"]["train loss"]["values"][-1] == 88.5
    metrics.unlink()
    nothing = {"summary": "", "last": []}
    assert read_curves(folder) == {"curves": {}, "changes": nothing}
