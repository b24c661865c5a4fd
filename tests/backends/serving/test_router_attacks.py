"""Attacks of callers and of other processes on the router, each beside a harmless case."""

from __future__ import annotations

import gzip
import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ml.backends.local.serving import processes
from ml.backends.local.serving.router.front import MAX_HELD
from ml.backends.local.serving.router.process import RouterProcess
from ml.backends.local.serving.router.proxy import MAX_IN_FLIGHT
from ml.backends.local.serving.router.records import Keys
from ml.backends.local.serving.router.routes import SAMPLE_HEADER
from ml.backends.traffic import ticket
from tests.backends.serving.backends import (
    POST,
    Backend,
    Routed,
    ask,
    backend,
    raw,
    routed,
    scripted,
    tally,
)

END = b"connection: close\r\ncontent-length: 6\r\n\r\nsecond"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n"


def canary(blue: Backend, green: Backend, twin: Backend, share: int = 50) -> dict[str, Any]:
    """The routes of a canary: green and its baseline have the same share."""
    return {
        "ports": {"green": green.port, "baseline": twin.port, "blue": blue.port},
        "traffic": {"green": share, "baseline": share, "blue": 100 - 2 * share},
        "lease_s": 60.0,
        "salt": "a secret",
    }


@pytest.mark.attack("a trailer after the last chunk names the deployment of the next request")
def test_a_trailer_does_not_steer(both: Routed, blue: Backend, green: Backend) -> None:
    """The connection ends after a chunked request, which is answered, with and without one."""
    for trailer in (b"", b"azureml-model-deployment: green\r\n"):
        answers = raw(both, CHUNKED + trailer + b"\r\n" + POST + END)
        assert answers.count(b"200 OK") == 1 and b"Connection: close" in answers
    assert [body for _, _, body in blue.asked] == [b"first"] * 2 and not green.asked


@pytest.mark.attack("a request for another protocol takes the next request for that protocol's")
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("length", [b"content-length: 5\r\n\r\n", b""])
def test_another_protocol_is_not_entered(
    both: Routed, blue: Backend, protocol: bytes, length: bytes
) -> None:
    """The request is answered with its body, in HTTP/1.1, and is the connection's last."""
    upgrade = POST + b"connection: upgrade\r\nupgrade: " + protocol + b"\r\n"
    body = length + b"first" if length else CHUNKED.removeprefix(POST) + b"\r\n"
    answers = raw(both, upgrade + body + POST + END)
    assert [body for _, _, body in blue.asked] == [b"first"]
    assert answers.count(b"200 OK") == 1 and b"Connection: close" in answers


@pytest.mark.attack("a body has a second coding, which would be lost on the way")
@pytest.mark.parametrize("coding", [b"gzip, chunked", b"deflate,chunked", b"GZIP , Chunked"])
def test_a_second_transfer_coding_is_refused(tmp_path: Path, blue: Backend, coding: bytes) -> None:
    """501 for a request, 502 for an answer; `Chunked` alone is passed on."""
    with routed(tmp_path / "1", ports={"blue": blue.port}) as at:
        other = CHUNKED.replace(b"chunked", coding) + b"\r\n"
        assert b" 501 " in raw(at, other) and not blue.asked
        assert b" 200 " in raw(at, CHUNKED.replace(b"chunked", b"Chunked") + b"\r\n")
    chunks = b"HTTP/1.1 200 OK\r\ntransfer-encoding: %b\r\n\r\n5\r\nfirst\r\n0\r\n\r\n"
    with (
        scripted(chunks % coding, chunks % b"chunked") as port,
        routed(tmp_path / "2", ports={"blue": port}) as at,
    ):
        assert [ask(at)[0] for _ in range(2)] == [502, 200]
        assert tally(at, "blue")["errors"] == 1


@pytest.mark.attack("a header that steers comes twice")
@pytest.mark.parametrize("header", [b"azureml-model-deployment", b"X-Routing-Key"])
def test_a_header_that_comes_twice_is_refused(both: Routed, header: bytes) -> None:
    """Whoever looks at the other one would see another deployment."""
    once, twice = (POST + (header + b": blue\r\n") * times + END for times in (1, 2))
    assert b" 200 " in raw(both, once) and b" 400 " in raw(both, twice)


@pytest.mark.attack("a caller names the deployment of many bad requests")
@pytest.mark.parametrize("header", ["azureml_model_deployment", "AzureML_Model_Deployment"])
def test_what_callers_address_is_counted_apart(both: Routed, green: Backend, header: str) -> None:
    """It is in no figure that a canary judges; requests that the router splits are."""
    green.status = 400
    for _ in range(5):
        assert ask(both, b"{}", **{header: "green"})[0] == 400
    assert ask(both)[0] == 200
    state = both.router.state()["tallies"]
    assert state["green"]["client"]["requests"] == 0 == state["green"]["sample"]["requests"]
    assert (state["green"]["excluded"]["requests"], state["green"]["excluded"]["refused"]) == (5, 5)
    assert state["blue"]["client"]["requests"] == 1
    assert [answer["deployment"] for answer in both.router.answers()] == ["blue"]


@pytest.mark.attack("a caller looks where a routing key leads, and sends it again and again")
def test_a_routing_key_counts_once(tmp_path: Path, blue: Backend, green: Backend) -> None:
    """The first request of each key is split at random; that its others are not is the caller's
    choice. Another canary has another secret."""
    with backend("baseline") as twin:
        split = canary(blue, green, twin, 30)
        with routed(tmp_path, **split) as at:
            leads = {}
            for key in ("a", "b", "c", "d", "e", "f"):
                leads[key] = {json.loads(ask(at, x_routing_key=key)[2])["by"] for _ in range(4)}
            assert all(len(by) == 1 for by in leads.values())
            found = at.router.state()["tallies"].values()
            assert sum(each["client"]["requests"] for each in found) == len(leads)
            at.put(**{**split, "salt": "another secret"})
            ask(at, x_routing_key="a")
            found = at.router.state()["tallies"].values()
            assert sum(each["client"]["requests"] for each in found) == len(leads) + 1


@pytest.mark.attack("a caller sends more routing keys than the router remembers")
def test_many_keys_of_one_caller_do_not_silence_the_others() -> None:
    """Those of the others are new to the router still, the first time and no other."""
    keys = Keys()
    for number in range(300_000):
        keys.add(ticket(f"flood-{number}", "secret"))
    others = [ticket(f"customer-{number}", "secret") for number in range(1000)]
    assert sum(keys.add(each) for each in others) > 980
    assert not any(keys.add(each) for each in others)


@pytest.mark.attack("a caller sends its load to green alone, which makes green slow")
@pytest.mark.parametrize("to", ["green", "baseline"])
def test_green_and_its_baseline_are_under_the_same_load(
    tmp_path: Path, blue: Backend, green: Backend, to: str
) -> None:
    """Each gets a copy of what callers address to the other; blue, which is not compared, none."""
    with backend("baseline") as twin, routed(tmp_path, **canary(blue, green, twin)) as at:
        for number in range(5):
            body = b"%d" % number
            assert json.loads(ask(at, body, azureml_model_deployment=to)[2])["by"] == to
        ask(at, b"none", azureml_model_deployment="blue")
        while len(green.asked) < 5 or len(twin.asked) < 5:
            time.sleep(0.01)
        assert {body for _, _, body in green.asked} == {body for _, _, body in twin.asked}
        assert len(blue.asked) == 1
        for each in at.router.state()["tallies"].values():
            assert each["client"]["requests"] == 0


@pytest.mark.attack("a caller asks green by another path or method, or with few large requests")
def test_no_load_reaches_green_alone(tmp_path: Path, blue: Backend, green: Backend) -> None:
    """What leads to the script is counted; all that is addressed, and all that is large, is copied.
    Small requests that the router splits are not."""
    with backend("baseline") as twin, routed(tmp_path, **canary(blue, green, twin)) as at:
        for path in ("/%73core", "/health", "/swagger.json"):
            assert ask(at, path=path, azureml_model_deployment="green")[0] == 200
        for number in range(2):
            assert ask(at, b"%d" % number * 100_000)[0] == 200
        assert ask(at, b"small", path="/sc%6fre")[0] == 200
        while len(green.asked) + len(twin.asked) < 11:
            time.sleep(0.01)
        without = [
            [(path, body) for path, _, body in each.asked if body != b"small"]
            for each in (green, twin)
        ]
        assert sorted(without[0]) == sorted(without[1]) and len(without[0]) == 5
        counted = at.router.state()["tallies"].values()
        assert sum(each["client"]["requests"] for each in counted) == 3
        assert sum(each["excluded"]["requests"] for each in counted) == 2 + 2


@pytest.mark.attack("a caller passes its requests off as the project's samples")
def test_samples_have_a_secret(both: Routed, blue: Backend) -> None:
    """They are counted by themselves, and no server can tell them from others."""
    secret = both.router.sample
    for value in ("", "guess", secret[:-1], secret.upper(), secret):
        assert ask(both, b"{}", **{SAMPLE_HEADER: value})[0] == 200
    found = both.router.state()["tallies"]["blue"]
    assert (found["client"]["requests"], found["sample"]["requests"]) == (4, 1)
    assert all(SAMPLE_HEADER not in headers for _, headers, _ in blue.asked)
    assert secret not in repr(blue.asked)


LISTEN = "import socket,sys,time; s=socket.create_server(('127.0.0.1',0)); " + (
    "print(s.getsockname()[1], flush=True); time.sleep(600)"
)


@pytest.mark.attack("another process takes the port of a server that has died")
def test_a_stranger_on_a_servers_port_gets_no_request(tmp_path: Path, green: Backend) -> None:
    """502 and an error of the deployment; a server that the routes name is asked."""
    own = psutil.Process().pid
    with subprocess.Popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        ports = {"blue": green.port, "green": port}
        pids = {"blue": own, "green": server.pid}
        with routed(tmp_path, ports=ports, pids=pids, traffic={"green": 100, "blue": 0}) as at:
            server.send_signal(signal.SIGKILL)
            server.wait()
            asked = []
            with socket.create_server((processes.HOST, port)) as stranger:
                stranger.settimeout(0.5)
                assert ask(at)[0] == 502 and tally(at, "green")["errors"] == 1
                assert ask(at, azureml_model_deployment="green")[0] == 502
                with pytest.raises(TimeoutError):
                    asked.append(stranger.accept())
            assert ask(at, azureml_model_deployment="blue")[0] == 200 and not asked
            # Nor does the stranger become the server when the routes are read again.
            at.put(ports=ports, pids={**pids, "blue": server.pid}, traffic={"blue": 100})
            assert ask(at)[0] == 502


@pytest.mark.attack("callers send large requests and never their last byte")
def test_the_memory_of_the_router_is_bounded(both: Routed) -> None:
    """While 250 megabytes wait, small requests are answered; later, large ones too."""
    router = psutil.Process(both.router.pid)
    before, size = router.memory_info().rss, 9 * 2**20
    head = POST + b"content-length: %d\r\n\r\n" % size
    held = []
    for _ in range(28):
        held.append(socket.create_connection((processes.HOST, both.router.port), timeout=20))
        with suppress(ConnectionError):  # refused
            held[-1].sendall(head + b"x" * (size - 1))
    assert router.memory_info().rss - before < 1.5 * MAX_HELD
    assert ask(both)[0] == 200
    assert ask(both, b"x" * 2**20)[0] == 503
    for each in held:
        each.close()
    while (found := ask(both, b"x" * 2**20)[0]) == 503:
        time.sleep(0.05)
    assert found == 200


def pipelined(router: RouterProcess, body: bytes, times: int) -> None:
    """Send the request again and again for a second, and read no answer."""
    address = processes.HOST, router.port
    with socket.create_connection(address, timeout=1) as stream, suppress(TimeoutError):
        for _ in range(times):
            stream.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body)


@pytest.mark.attack("a caller sends requests and reads no answer")
@pytest.mark.parametrize("size", [10, 2**20])
def test_a_caller_who_does_not_read_is_not_served(both: Routed, blue: Backend, size: int) -> None:
    """Its requests stay in its sockets: the router takes few of them."""
    router = psutil.Process(both.router.pid)
    before = router.memory_info().rss
    pipelined(both.router, b"x" * size, 300_000_000 // (size + 200) // 4)
    assert len(blue.asked) * size < 20 * 2**20
    assert router.memory_info().rss - before < 40 * 2**20


JSON_NAN, JSON_TEXT = '{"score": NaN}', '{"score": 1, "text": "NaN"}'
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


@pytest.mark.attack("a deployment answers NaN or an infinite number with 200")
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b'{"score": NaN}', 502),
        (b'{"score": [1, -Infinity]}', 502),
        (b"[1e999]", 502),
        (b'"{\\"score\\": NaN}"', 502),
        (b"NaN", 502),
        (b'{"NaN": "Infinity 1e999"}', 200),
        (b'{"score": 1e300, "small": 1e-999}', 200),
        (b"", 200),
        (b"NaN is a bread", 200),
        *((JSON_NAN.encode(coding), 502) for coding in ENCODINGS),
        *((JSON_TEXT.encode(coding), 200) for coding in ENCODINGS),
        (b"\xef\xbb\xbf\xef\xbb\xbf" + JSON_NAN.encode(), 502),
    ],
)
def test_an_answer_without_a_number_is_an_error(tmp_path: Path, answer: bytes, status: int) -> None:
    """502, and an error of the deployment; texts may hold anything."""
    answered(tmp_path, b"", answer, status)


@pytest.mark.attack("a deployment answers NaN in a coding that its callers decode")
@pytest.mark.parametrize(
    ("headers", "answer", "status"),
    [
        (b"content-encoding: gzip", gzip.compress(JSON_NAN.encode()), 502),
        (b"content-encoding: gzip", gzip.compress(JSON_TEXT.encode()), 200),
        (b"content-encoding: x-GZip", gzip.compress(JSON_NAN.encode("utf-8-sig")), 502),
        (b"content-encoding: gzip", gzip.compress(b" ") + gzip.compress(JSON_NAN.encode()), 502),
        (b"content-encoding: gzip, gzip", gzip.compress(gzip.compress(JSON_NAN.encode())), 502),
        (b"content-encoding: gzip", gzip.compress(b"[0]")[:-9], 502),
        (b"content-encoding: gzip", gzip.compress(b" " * 2**27), 502),
        (b"content-encoding: deflate", zlib.compress(JSON_NAN.encode()), 502),
        (b"content-encoding: deflate", zlib.compress(JSON_TEXT.encode()), 200),
        (b"content-encoding: deflate", zlib.compress(JSON_NAN.encode(), wbits=-15), 502),
        (b"content-encoding: br", b"\x0b\x02\x80[NaN]\x03", 502),
        (b"content-encoding: identity", JSON_TEXT.encode(), 200),
        (b"content-type: application/json; charset=cp037", JSON_NAN.encode("cp037"), 502),
        (b"content-type: application/json; charset=utf-7", b'{"score": +AE4-aN}', 502),
        (b"content-type: application/json; charset=nothing", JSON_TEXT.encode(), 502),
        (b'content-type: application/json; charset="UTF-8"', JSON_TEXT.encode(), 200),
        (b"content-type: text/plain; charset=ISO-8859-1", JSON_TEXT.encode(), 200),
    ],
)
def test_an_answer_is_decoded_as_its_caller_does(
    tmp_path: Path, headers: bytes, answer: bytes, status: int
) -> None:
    """What cannot be decoded is refused; what can be passes as it came."""
    answered(tmp_path, headers + b"\r\n", answer, status)


def answered(tmp_path: Path, headers: bytes, answer: bytes, status: int) -> None:
    """A deployment's 200 with those headers reaches the caller with that status."""
    length = b"content-length: %d\r\n\r\n" % len(answer)
    with (
        scripted(b"HTTP/1.1 200 OK\r\n" + headers + length + answer) as port,
        routed(tmp_path, ports={"blue": port}) as at,
    ):
        found, _, content = ask(at)
        assert found == status and (status == 502 or content == answer)
        assert tally(at, "blue")["errors"] == (status == 502)


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as this process may have, for both ends of many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.attack("callers make the router too busy for one deployment alone")
def test_what_the_router_turns_away_is_not_judged(
    tmp_path: Path, blue: Backend, many_files: None
) -> None:
    """429 is counted apart, since callers bring it about."""
    blue.hold = threading.Event()
    with routed(tmp_path, ports={"blue": blue.port}, timeout_ms=60_000) as at:
        waiting = []
        for _ in range(MAX_IN_FLIGHT):
            stream = http.client.HTTPConnection(processes.HOST, at.router.port, timeout=60)
            stream.request("POST", "/score", b"{}")
            waiting.append(stream)
        while at.router.state()["in_flight"]["blue"] < MAX_IN_FLIGHT:
            time.sleep(0.05)
        assert ask(at)[0] == 429 and tally(at, "blue")["errors"] == 0
        assert at.router.state()["tallies"]["blue"]["excluded"]["errors"] == 1
        blue.hold.set()
        assert {stream.getresponse().status for stream in waiting} == {200}
        for stream in waiting:
            stream.close()
        assert tally(at, "blue")["errors"] == 0
