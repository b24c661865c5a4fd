"""The router process: real sockets, and servers that misbehave as real ones do."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import signal
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from ml.backends.local.serving import processes
from ml.backends.local.serving.router import process
from ml.backends.local.serving.router.front import MAX_BODY
from ml.backends.local.serving.router.records import EXPOSED
from ml.backends.traffic import ticket
from ml.core.errors import UserError
from tests.backends.serving.backends import (
    OK,
    POST,
    Backend,
    Routed,
    ask,
    raw,
    routed,
    scripted,
    tally,
)


def test_a_request_and_its_answer_pass_unchanged(both: Routed, blue: Backend) -> None:
    """Path, headers and body; status, headers and body, with the deployment that answered."""
    body = json.dumps({"q": "größer"}).encode()
    status, headers, content = ask(both, body, "/score?a=1", x_request_id="7")
    assert status == 200 and json.loads(content)["echo"].encode("latin-1") == body
    assert headers["azureml-model-deployment"] == "blue" and headers["x-own"] == "kept"
    path, given, arrived = blue.asked[0]
    assert (path, given["x-request-id"], arrived) == ("/score?a=1", "7", body)


def test_weights_split_and_change_under_traffic(
    both: Routed, blue: Backend, green: Backend
) -> None:
    """Every request is answered while the weights go up and down."""
    found: Counter[tuple[int, str]] = Counter()
    stop = threading.Event()

    def keep_asking() -> None:
        connection = http.client.HTTPConnection(processes.HOST, both.router.port, timeout=100)
        while not stop.is_set():
            connection.request("POST", "/score", b"{}")
            response = connection.getresponse()
            content = json.loads(response.read())
            found[response.status, content.get("by") or str(content)] += 1
        connection.close()

    threads = [threading.Thread(target=keep_asking) for _ in range(4)]
    for thread in threads:
        thread.start()
    two = {"green": green.port, "blue": blue.port}
    for share in (10, 50, 100, 0, 30, 100, 0) * 3:
        both.put(ports=two, traffic={"green": share, "blue": 100 - share}, timeout_ms=90_000)
        before = sum(found.values())
        while sum(found.values()) < before + 20 and any(map(threading.Thread.is_alive, threads)):
            time.sleep(0.001)
    both.put(ports={"green": green.port}, live="green", traffic={"green": 100})
    stop.set()
    for thread in threads:
        thread.join()
    assert {status for status, _ in found} == {200} and {by for _, by in found} == {"blue", "green"}
    assert both.router.state()["draining"] == []


def test_the_header_names_the_deployment(both: Routed) -> None:
    """Green answers at weight 0 when the header names it; an unknown name is 404."""
    status, headers, _ = ask(both, azureml_model_deployment="green")
    assert (status, headers["azureml-model-deployment"]) == (200, "green")
    status, _, content = ask(both, azureml_model_deployment="red")
    assert status == 404 and "green, blue" in json.loads(content)["error"]["message"]


def test_a_key_is_sticky(both: Routed, blue: Backend, green: Backend) -> None:
    """Each key always gets the same deployment, and both deployments get keys."""
    both.put(ports={"green": green.port, "blue": blue.port}, traffic={"green": 50, "blue": 50})
    found = {
        key: {json.loads(ask(both, x_routing_key=key)[2])["by"] for _ in range(3)}
        for key in (f"customer-{number}" for number in range(20))
    }
    assert all(len(by) == 1 for by in found.values())
    assert set.union(*found.values()) == {"blue", "green"}


def test_answers_to_mirrored_requests_are_counted_and_dropped(
    both: Routed, blue: Backend, green: Backend
) -> None:
    """Callers get only blue's answers, even if green fails."""
    green.status = 500
    both.put(ports={"green": green.port, "blue": blue.port}, mirror={"green": 50})
    answers = [ask(both) for _ in range(60)]
    assert {(status, json.loads(content)["by"]) for status, _, content in answers} == {
        (200, "blue")
    }
    shadow = tally(both, "green")
    assert 10 <= int(str(shadow["mirrored"])) <= 50
    assert tally(both, "blue")["requests"] == 60


def test_an_unreachable_green_counts_as_its_error(both: Routed, blue: Backend) -> None:
    """502 names it; the request is not sent to blue."""
    both.put(
        ports={"green": processes.free_port(), "blue": blue.port}, traffic={"green": 50, "blue": 50}
    )
    found = Counter(ask(both)[0] for _ in range(60))
    assert set(found) == {200, 502} and found[200] == len(blue.asked)
    status, headers, content = ask(both, azureml_model_deployment="green")
    assert (status, headers["azureml-model-deployment"]) == (502, "green")
    assert "no connection" in json.loads(content)["error"]["message"]
    assert tally(both, "green")["errors"] == found[502] and tally(both, "blue")["errors"] == 0


def test_a_request_on_a_stale_connection_is_sent_again(both: Routed, blue: Backend) -> None:
    """Only on a connection that was kept; a new connection that the server closes is 502."""
    assert ask(both)[0] == 200
    blue.drop = 1
    assert ask(both)[0] == 200 and len(blue.asked) == 3
    blue.drop = 2
    assert ask(both)[0] == 502 and len(blue.asked) == 5
    assert tally(both, "blue")["errors"] == 1


OK_WITH_COOKIE = OK.replace(b"\r\n", b"\r\nset-cookie: a=b; path=/\r\n", 1)


def test_early_hints_are_skipped(tmp_path: Path) -> None:
    """Even in one packet with the answer."""
    hints = b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n"
    with scripted(hints + OK % 1) as port, routed(tmp_path, ports={"blue": port}) as at:
        status, headers, content = ask(at)
    assert (status, content) == (200, b"1") and "link" not in headers


@pytest.mark.attack("A model sends two answers, the second for another caller")
def test_two_answers_to_one_request_do_not_reach_another_caller(tmp_path: Path) -> None:
    """The connection is closed, since the second answer has no request."""
    with scripted(OK % 1 + OK % 2, OK % 3) as port, routed(tmp_path, ports={"blue": port}) as at:
        assert [ask(at)[2] for _ in range(2)] == [b"1", b"3"]


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
    ],
)
@pytest.mark.attack("A model's answer is not HTTP")
def test_an_invalid_answer_is_502(tmp_path: Path, answer: bytes) -> None:
    """It counts as the deployment's error."""
    with scripted(answer) as port, routed(tmp_path, ports={"blue": port}) as at:
        assert ask(at)[0] == 502 and tally(at, "blue")["errors"] == 1


def test_an_answer_without_a_length_ends_with_the_connection(tmp_path: Path) -> None:
    """As HTTP/1.0 servers answer."""
    answer = b"HTTP/1.0 200 OK\r\n\r\nwhole"
    with scripted(answer, closing=True) as port, routed(tmp_path, ports={"blue": port}) as at:
        status, headers, content = ask(at)
    assert (status, content, headers["content-length"]) == (200, b"whole", "5")


def test_an_answer_without_a_length_that_is_cut_off_is_502(tmp_path: Path) -> None:
    """After a reset the answer may be incomplete."""
    answer = b"HTTP/1.0 200 OK\r\n\r\npart"
    with scripted(answer, reset=True) as port, routed(tmp_path, ports={"blue": port}) as at:
        assert ask(at)[0] == 502 and tally(at, "blue")["errors"] == 1


def test_a_connection_that_the_server_closed_is_not_used_again(tmp_path: Path) -> None:
    """Without an announcement; each request reaches the server once, on a new connection."""
    answers = [OK % number for number in range(5)]
    with scripted(*answers, closing=True) as port, routed(tmp_path, ports={"blue": port}) as at:
        assert [ask(at)[2] for _ in answers] == [b"%d" % number for number in range(5)]


def test_the_router_closes_a_connection_that_the_server_ends(tmp_path: Path) -> None:
    """A server of one request per connection may wait for that before the next request."""
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n%d"
    with (
        socket.create_server((processes.HOST, 0)) as alone,
        routed(tmp_path, ports={"blue": alone.getsockname()[1]}) as at,
    ):
        found: list[bytes] = []
        caller = threading.Thread(target=lambda: found.extend(ask(at)[2] for _ in range(3)))
        caller.start()
        for number in range(3):
            accepted, _ = alone.accept()
            with accepted:
                accepted.settimeout(20)
                assert accepted.recv(65536)
                accepted.sendall(answer % number)
                assert accepted.recv(1) == b""  # nothing was closed on this side
        caller.join()
    assert found == [b"0", b"1", b"2"]


def test_an_answer_to_an_unread_request_is_passed_on(tmp_path: Path) -> None:
    """A server may refuse five megabytes by their headers, and close; that is not a 502."""
    answer = b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"
    with scripted(answer, closing=True) as port, routed(tmp_path, ports={"blue": port}) as at:
        status, _, content = ask(at, b"x" * 5 * 2**20)
        assert (status, content) == (413, b"no") and tally(at, "blue")["refused"] == 1


def test_megabytes_pass_unchanged(both: Routed, blue: Backend) -> None:
    """More than a socket buffer, in both directions, on a new and on a kept connection. One is kept
    for a second only, which a busy machine may need between two of them.
    """
    bodies = [b"%d" % number * 5 * 2**20 for number in range(4)]
    answers = [ask(both, body)[2] for body in bodies]
    assert [json.loads(answer)["echo"].encode() for answer in answers] == bodies
    assert len(blue.connections) < len(bodies)


def test_a_head_request_has_no_body(both: Routed, blue: Backend) -> None:
    """The headers are those of GET, and the connection is kept."""
    connection = http.client.HTTPConnection(processes.HOST, both.router.port, timeout=20)
    for _ in range(2):
        connection.request("HEAD", "/")
        response = connection.getresponse()
        assert response.status == 200 and int(response.headers["content-length"]) > 0
        assert response.read() == b""
    connection.close()


def test_connections_are_kept_alive(both: Routed, blue: Backend) -> None:
    """Twenty sequential requests of a caller use one connection to blue."""
    connection = http.client.HTTPConnection(processes.HOST, both.router.port, timeout=20)
    for _ in range(20):
        connection.request("POST", "/score", b"{}")
        assert connection.getresponse().read()
    connection.close()
    assert len(blue.connections) == 1


def test_a_late_answer_is_408_and_counted(tmp_path: Path, blue: Backend) -> None:
    """The connection is not used for another request."""
    blue.hold = threading.Event()
    with routed(tmp_path, ports={"blue": blue.port}, timeout_ms=200) as at:
        status, headers, _ = ask(at)
        assert (status, headers["azureml-model-deployment"]) == (408, "blue")
        blue.hold.set()
        assert json.loads(ask(at, b"second")[2])["echo"] == "second"
        assert tally(at, "blue")["errors"] == 1 and at.router.state()["in_flight"]["blue"] == 0


def test_a_removed_deployment_answers_the_requests_in_flight(
    both: Routed, blue: Backend, green: Backend
) -> None:
    """Blue answers its request although all traffic goes to green by then."""
    blue.hold = threading.Event()
    found: list[tuple[int, dict[str, str], bytes]] = []
    slow = threading.Thread(target=lambda: found.append(ask(both)))
    slow.start()
    assert blue.arrived.wait(20)
    both.put(ports={"green": green.port}, live="green", traffic={"green": 100})
    assert both.router.state()["draining"] == [
        {"deployment": "blue", "port": blue.port, "in_flight": 1}
    ]
    assert json.loads(ask(both)[2])["by"] == "green"
    blue.hold.set()
    slow.join()
    assert json.loads(found[0][2])["by"] == "blue" and both.router.state()["draining"] == []


def test_a_canary_without_a_lease_loses_its_traffic(
    both: Routed, blue: Backend, green: Backend
) -> None:
    """The live deployment gets all; renewing the lease restores the weights."""
    both.put(
        ports={"green": green.port, "blue": blue.port},
        traffic={"green": 100, "blue": 0},
        lease_s=0.2,
    )
    while both.router.state()["leased"]:
        pass
    assert json.loads(ask(both)[2])["by"] == "blue"
    assert both.router.renew()["leased"] is True
    assert json.loads(ask(both)[2])["by"] == "green"


def test_invalid_routes_change_nothing(both: Routed) -> None:
    """The writer gets an error, and the router continues with the old routes."""
    with pytest.raises(UserError) as raised:
        both.put(traffic={"blue": 90})
    assert raised.value.problems[0].code == "invalid-routes"
    assert ask(both)[0] == 200


def test_the_router_notices_a_change_by_itself(both: Routed, green: Backend) -> None:
    """Its writer may have been killed before it could tell the router."""
    both.put(refresh=False, ports={"green": green.port}, live="green", traffic={"green": 100})
    while both.router.state()["routes"]["live"] != "green":
        pass
    assert json.loads(ask(both)[2])["by"] == "green"
    both.file.unlink()
    while both.router.state()["routes"] is not None:
        pass
    assert ask(both)[0] == 404


def test_recent_answers_can_be_read(both: Routed, blue: Backend, green: Backend) -> None:
    """After a number, with the deployment and the body."""
    ask(both, b"one")
    both.put(ports={"green": green.port, "blue": blue.port}, traffic={"green": 100, "blue": 0})
    ask(both, b"two")
    first, second = both.router.answers()
    assert (first["deployment"], json.loads(first["body"])["echo"]) == ("blue", "one")
    assert (second["deployment"], second["status"]) == ("green", 200)
    assert both.router.answers(first["number"]) == [second]


@pytest.mark.attack("Somebody else tells the router where requests go")
def test_the_control_port_requires_the_token(both: Routed) -> None:
    """The file with the token is readable by its owner alone."""
    assert (both.router.folder / "router.json").stat().st_mode & 0o077 == 0
    connection = http.client.HTTPConnection(processes.HOST, both.router.control, timeout=20)
    for headers in ({}, {"authorization": "Bearer guess"}):
        connection.request("GET", "/state", headers=headers)
        response = connection.getresponse()
        assert response.status == 401 and b"tallies" not in response.read()
    connection.close()


def test_it_listens_on_the_loopback_address(both: Routed) -> None:
    """Both ports; nobody else can reach them."""
    listening = [
        one
        for one in psutil.Process(both.router.pid).net_connections("inet")
        if one.status == "LISTEN"
    ]
    assert len(listening) == 2 and {one.laddr.ip for one in listening} == {"127.0.0.1"}


def test_pipelined_requests_are_answered_in_order(both: Routed) -> None:
    """Three in one packet, the last with `connection: close`."""
    one = b"POST /score HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n%b\r\n%d"
    found = raw(both, *(one % (b"connection: close\r\n" * (n == 3), n) for n in (1, 2, 3)))
    places = [found.index(b'"echo": "%d"' % number) for number in (1, 2, 3)]
    assert places == sorted(places) and found.count(b"200 OK") == 3


def test_chunked_bodies_are_forwarded_with_a_length(both: Routed, blue: Backend) -> None:
    """Requests and answers."""
    blue.chunked = True
    found = raw(
        both,
        b"POST /score HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n"
        b"connection: close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    )
    assert blue.asked[0][1]["content-length"] == "5" and blue.asked[0][2] == b"abcde"
    assert b"content-length: " in found.lower() and found.endswith(
        b'{"by": "blue", "echo": "abcde"}'
    )


def test_100_continue_is_sent_on_request(both: Routed) -> None:
    """`Expect: 100-continue`, as curl sends it with a large body."""
    found = raw(
        both,
        b"POST /score HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n"
        b"connection: close\r\n\r\n",
        b"ok",
    )
    assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"POST /score HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 400),
        (POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (POST + b"x: %b\r\n\r\n" % (b"y" * 70_000), 431),
        (POST + b"content-length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"CONNECT h:1 HTTP/1.1\r\nhost: h\r\n\r\n", 501),
        (b"OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n", 501),
    ],
)
@pytest.mark.attack("A request is smuggled past the router")
def test_an_invalid_request_is_refused(
    both: Routed, blue: Backend, request_: bytes, status: int
) -> None:
    """With a status and a message; the connection is closed, and no deployment is called."""
    answer = raw(both, request_)
    assert re.match(rb"HTTP/1\.[01] %d " % status, answer) and b'"message"' in answer
    assert not blue.asked
    assert tally(both, "blue")["requests"] == 0


def test_a_compressed_body_passes_unchanged(both: Routed, blue: Backend) -> None:
    """The router does not decompress: the length and the encoding stay those of the caller."""
    body = gzip.compress(b'{"q": 1}')
    assert ask(both, body, content_encoding="gzip")[0] == 200
    _, headers, arrived = blue.asked[0]
    assert (arrived, headers["content-encoding"]) == (body, "gzip")


def test_nothing_is_added_to_a_request(both: Routed, blue: Backend) -> None:
    """No header of the router, no header about the caller's connection, no cookie of an answer."""
    answer = OK_WITH_COOKIE % 1
    with scripted(answer, answer) as port:
        both.put(ports={"blue": port, "green": port})
        assert "set-cookie" in ask(both)[1]
    both.put(ports={"blue": blue.port, "green": blue.port})
    own = b"x-own: 1\r\nx-hop: 1\r\nconnection: close, x-hop\r\n"
    raw(both, POST + own + b"content-length: 2\r\n\r\n{}")
    assert blue.asked[0][1].keys() == {"host", "content-length", "x-own"}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_key_is_text_in_either_encoding(both: Routed, encoding: str) -> None:
    """The ticket is that of the text, so that `ml ab` finds the caller again."""
    routes = json.loads(both.file.read_text())["routes"]
    both.put(**{**routes, "experiment": "keys", "salt": "s"})
    key = "müller".encode(encoding)
    raw(both, POST + b"x-routing-key: %b\r\nconnection: close\r\n\r\n" % key)
    exposed = (both.file.parent / EXPOSED / "keys.jsonl").read_text()
    assert json.loads(exposed)["id"] == ticket("müller", "s")


@pytest.mark.attack("A request has no end")
def test_a_chunked_body_over_the_limit_is_refused(both: Routed, blue: Backend) -> None:
    """Chunks announce no length."""
    chunk = b"%x\r\n%b\r\n" % (2**20, b"z" * 2**20)
    head = b"POST /score HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    assert b"413" in raw(both, head, *[chunk] * 10, b"1\r\nz\r\n", until=b"413")
    assert not blue.asked


def test_a_caller_that_sends_a_body_over_the_limit_gets_one_answer(both: Routed) -> None:
    """The rest of the body is no head of another request: the connection would be reset with it."""
    head = b"POST /score HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY + 1)
    answer = raw(both, head, *[b"x" * 2**16] * 16)
    assert answer.count(b"HTTP/1.1") == 1 and b" 413 " in answer


@pytest.mark.parametrize("body", [b"content-length: 100", b"transfer-encoding: chunked"])
@pytest.mark.parametrize("resets", [False, True])
def test_a_caller_who_disconnects_is_not_an_error_of_the_router(
    both: Routed, blue: Backend, body: bytes, resets: bool
) -> None:
    """In the middle of a body: no deployment is called, and the log stays empty."""
    with socket.create_connection((processes.HOST, both.router.port)) as stream:
        if resets:
            linger = struct.pack("ii", 1, 0)  # close() resets the connection
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        stream.sendall(POST + body + b"\r\nexpect: 100-continue\r\n\r\n")
        assert stream.recv(100).startswith(b"HTTP/1.1 100")
        stream.sendall(b"5\r\nab")
    assert ask(both)[0] == 200 and len(blue.asked) == 1
    os.kill(both.router.pid, signal.SIGTERM)
    psutil.wait_procs([psutil.Process(both.router.pid)], timeout=20)
    assert processes.log(both.router.folder).read_text() == ""


def test_it_answers_the_requests_in_flight_before_it_ends(both: Routed, blue: Backend) -> None:
    """After SIGTERM the answer still comes; then the process ends."""
    blue.hold = threading.Event()
    found: list[int] = []
    slow = threading.Thread(target=lambda: found.append(ask(both)[0]))
    slow.start()
    assert blue.arrived.wait(20)
    os.kill(both.router.pid, signal.SIGTERM)
    while not processes.port_is_free(both.router.port):
        pass
    blue.hold.set()
    slow.join()
    assert found == [200] and processes.stop(both.router.folder) in (True, False)
    assert process.find(both.router.folder) is None


def test_a_port_that_is_in_use_is_an_error(tmp_path: Path) -> None:
    """The error names the process that holds it."""
    with socket.socket() as taken:
        taken.bind((processes.HOST, 0))
        taken.listen()
        with pytest.raises(UserError) as raised:
            process.start(tmp_path / "router", tmp_path / "none", taken.getsockname()[1])
    problem = raised.value.problems[0]
    assert problem.code == "port-in-use" and f"process {os.getpid()}" in problem.actual
