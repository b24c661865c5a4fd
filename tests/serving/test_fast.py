"""ml.serving.fast: the same score.py, the same answers as Azure ML's server, in a container."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from benchmarks.load import Crowd
from benchmarks.serving import fast, fixture, request, rows
from ml.backends.endpoints import ModelDeployment
from ml.backends.local.serving import processes, server
from ml.core.errors import UserError
from ml.serving.fast import MAX_BODY, MAX_HEADERS, App
from ml.specs.check.check import check
from ml.specs.sdk.load import load
from tests.backends.serving.servers import CRASH, deployment
from tests.shared import bring

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ml" / "environments" / "fast"


CHUNKED = (
    b"transfer-encoding: chunked\r\n\r\n12\r\n"
    b'{"question":"how"}\r\n0\r\nx-ms-request-id: trailer\r\n\r\n'
)


def call(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(processes.HOST, port, timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        response = connection.getresponse()
        content = response.read()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, content
    finally:
        connection.close()


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The echo script on the fast server."""
    with fast(deployment(tmp_path_factory.mktemp("echo"))) as port:
        yield port


def test_it_answers_the_routes_of_the_environment(echo: int) -> None:
    """The routes of inference_config, and no other."""
    routes = yaml.safe_load((FOLDER / "environment.yml").read_text())["inference_config"]
    for probe in ("liveness_route", "readiness_route"):
        assert call(echo, "GET", routes[probe]["path"])[0] == 200
    assert call(echo, "POST", routes["scoring_route"]["path"], b'{"question": "how?"}')[0] == 200
    assert call(echo, "GET", "/score")[0] == 405 and call(echo, "GET", "/other")[0] == 404


def test_it_passes_on_the_results_of_score_py(echo: int) -> None:
    """A refusal is 400 with its message, an exception 500 with Azure ML's header; ids return."""
    status, headers, content = call(
        echo, "POST", "/score", b'{"question": "how?"}', x_ms_request_id="7"
    )
    assert (status, json.loads(content)["echo"]) == (200, "how?")
    assert headers["x-ms-request-id"] == "7" and headers["content-type"] == "application/json"
    assert len(headers["x-request-id"]) == 36  # as Azure ML's server makes one
    _, headers, _ = call(echo, "POST", "/score", b'{"question": ""}', x_request_id="order-17")
    assert headers["x-request-id"] == headers["x-ms-request-id"] == "order-17"
    status, headers, _ = call(echo, "POST", "/score", b"{}", x_request_id="7" * 101)
    assert status == 431 and "x-request-id" not in headers
    # Azure ML's server escapes a lone surrogate.
    status, _, content = call(echo, "POST", "/score", b'{"question": "\\ud800"}')
    assert status == 200 and b'"\\ud800"' in content
    status, _, content = call(echo, "POST", "/score", b"{}")
    assert status == 400 and json.loads(content)["error"]["field"] == "question"
    status, headers, content = call(echo, "POST", "/score", b'{"question": "break"}')
    assert status == 500 and headers["x-ms-run-function-failed"] == "True"
    assert b"on purpose" not in content
    assert call(echo, "POST", "/score", b'{"question": "how?"}')[0] == 200


@pytest.mark.attack("a request with a body asks for another protocol, a trailer or a coding")
@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (b"connection: upgrade\r\nupgrade: h2c\r\n", b"content-length: 2\r\n\r\n{}", 501),
        (b"connection: upgrade\r\nupgrade: h2c\r\n", CHUNKED, 501),
        (b"connection: upgrade\r\nupgrade: h2c\r\n", b"content-length: 0\r\n\r\n", 400),
        (b"upgrade: h2c\r\n", b'content-length: 18\r\n\r\n{"question":"how"}', 200),
        (b"", b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"", b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"", CHUNKED, 200),
        (b"", CHUNKED.replace(b"chunked", b"Chunked"), 200),
    ],
)
def test_a_body_is_read_or_refused(echo: int, headers: bytes, body: bytes, status: int) -> None:
    """Never lost: without a question the script would answer 400. A trailer changes no status."""
    with socket.create_connection((processes.HOST, echo), timeout=20) as one:
        one.sendall(b"POST /score HTTP/1.1\r\nHost: h\r\nX-Own: 1\r\n" + headers + body)
        assert one.recv(65536).startswith(b"HTTP/1.1 %d " % status)


ODD = """
import math
import sys
import types

def init():
    pass

def run(body):
    case = body.decode()
    if case == "text":
        return '{"score": NaN}'
    if case == "array":
        return {"scores": sys.modules["numpy"].array([1.0, math.inf])}
    if case == "response":
        content = lambda: b'{"score": -Infinity}'
        return types.SimpleNamespace(status_code=200, get_data=content)
    if case == "surrogate":
        return {"text": "\\ud800", "scores": [float("nan")]}
    if case == "sound":
        return {"missing": None, "text": "NaN", "array": sys.modules["numpy"].array([1e300])}
    return [1.0, float(case)]
"""


@pytest.mark.attack("a scoring script answers NaN or an infinite number")
def test_an_answer_without_a_number_is_an_error(tmp_path: Path) -> None:
    """500, as a script's error: JSON has no such number, and orjson would write null."""
    odd = deployment(tmp_path, "import numpy\n" + ODD)
    with fast(odd) as port:
        for case in ("nan", "inf", "-inf", "text", "array", "response", "surrogate"):
            status, headers, _ = call(port, "POST", "/score", case.encode())
            assert (status, headers.get("x-ms-run-function-failed")) == (500, "True"), case
        status, _, content = call(port, "POST", "/score", b"sound")
        assert status == 200 and json.loads(content)["array"] == [1e300]


@pytest.mark.attack("a request is larger than a server should hold, or arrives for ever")
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"content-length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"transfer-encoding: chunked\r\n\r\n%x\r\n%b" % (MAX_BODY + 1, bytes(MAX_BODY + 1)), 413),
        (b"x: %b\r\n\r\n" % (b"y" * (MAX_HEADERS + 1)), 431),
        (b"x: y\r\n" * 10 + b"content-length: 2\r\n\r\n{}", 400),
    ],
)
def test_a_request_has_a_largest_size(echo: int, head: bytes, status: int) -> None:
    """Of its headers and of its body, also where the body comes in chunks."""
    with socket.create_connection((processes.HOST, echo), timeout=20) as one:
        with suppress(ConnectionError):  # the answer comes before the end of the request
            one.sendall(b"POST /score HTTP/1.1\r\nHost: h\r\n" + head)
        assert one.recv(65536).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.attack("a body arrives slowly, or its caller leaves")
@pytest.mark.parametrize(
    ("messages", "status"),
    [([b"{}"], 200), ([b"{", b"}"], 200), ([b"{", None], 400), ([b"{"], 408)],
)
def test_a_body_arrives_in_time_or_is_not_scored(
    monkeypatch: pytest.MonkeyPatch, messages: list[bytes | None], status: int
) -> None:
    """408 once SLOW_S is over, and the script never runs with a part of a body."""
    monkeypatch.setattr("ml.serving.fast.SLOW_S", 0.05)
    parts, sent, scored = iter(messages), list[MutableMapping[str, Any]](), list[bytes]()

    async def receive() -> MutableMapping[str, Any]:
        part = next(parts, b"")
        if part == b"":
            await asyncio.Event().wait()
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": not part.endswith(b"}")}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"method": "POST", "path": "/score", "headers": []}
    asyncio.run(App(scored.append)(scope, receive, send))
    assert sent[0]["status"] == status and scored == ([b"{}"] if status == 200 else [])


@pytest.mark.attack("a caller sends requests and reads no answer")
def test_a_caller_who_does_not_read_is_not_served(tmp_path: Path) -> None:
    """Its requests wait unanswered, and its memory is bounded; once it reads, it gets them all."""
    with (
        fast(deployment(tmp_path, LONG)) as port,
        socket.create_connection((processes.HOST, port), timeout=20) as one,
    ):
        (server,) = [
            each for each in psutil.Process().children() if processes.listens(each.pid, port)
        ]
        before = server.memory_info().rss
        request = b"POST /score HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\naaaa"
        one.sendall(request * 250)  # of 200 megabytes of answers
        assert call(port, "GET", "/")[0] == 200
        assert server.memory_info().rss - before < 100 * 2**20
        stream = one.makefile("rb")
        for _ in range(250):
            assert stream.readline().startswith(b"HTTP/1.1 200")
            list(iter(stream.readline, b"\r\n"))
            assert len(stream.read(800_002)) == 800_002


LONG = """
def init():
    pass


def run(body):
    return body.decode() * 200_000
"""


def test_a_caller_who_never_pauses_does_not_block_others(echo: int) -> None:
    """The event loop accepts others between two requests of one connection."""
    body = b'{"question": "how?"}'
    crowd = Crowd(echo, body, 1)
    try:
        for _ in range(20):
            assert call(echo, "POST", "/score", body)[0] == 200
    finally:
        crowd.stop()
    assert set(crowd.found) == {"200"}


def test_answers_longer_than_the_buffer_arrive_complete_and_in_order(tmp_path: Path) -> None:
    """The rest of an answer is written as the caller reads; then the next answer."""
    with (
        fast(deployment(tmp_path, LONG)) as port,
        socket.create_connection((processes.HOST, port)) as one,
    ):
        asked = [
            b"POST /score HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n" + word
            for word in (b"aaaa", b"bbbb", b"cccc")
        ]
        one.sendall(asked[0])
        one.sendall(asked[1] + asked[2])
        stream = one.makefile("rb")
        for letter in (b"a", b"b", b"c"):
            head = list(iter(stream.readline, b"\r\n"))
            length = next(int(line.split()[1]) for line in head if line.startswith(b"content-l"))
            assert head[0].startswith(b"HTTP/1.1 200") and length == 800_002
            assert stream.read(length) == b'"' + letter * 800_000 + b'"'


def test_a_caller_who_disconnects_does_not_harm_others(echo: int) -> None:
    """After half a request, or before the answer; the next caller is served."""
    for content in (b"POST /score HTTP/1.1\r\nContent-Le", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"):
        with socket.create_connection((processes.HOST, echo)) as one:
            reset = struct.pack("ii", 1, 0)  # close() resets the connection
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            one.sendall(content)
        assert call(echo, "GET", "/")[0] == 200


def test_a_script_that_cannot_start_never_listens(tmp_path: Path) -> None:
    """The container ends with the script's own exception, so that its probes fail."""
    made = deployment(tmp_path, CRASH)
    command = [sys.executable, "-m", "ml.serving.fast", "--entry-script"]
    done = subprocess.run(
        [*command, str(made.code / "score.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "no weights, no answer" in done.stderr
    done = subprocess.run(command[:-1], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--entry-script" in done.stderr


OTHER = """
from ml.serving.scoring.other import ANSWER


def init():
    pass


def run(body):
    return ANSWER
"""


@pytest.mark.attack("An older copy of the scoring code in an image answers for what was released")
def test_the_code_that_answers_is_the_deployments(tmp_path: Path) -> None:
    """Of the image the server alone is imported, and nothing else is copied into it."""
    image, made = tmp_path / "image", deployment(tmp_path)
    scoring = image / "ml/serving/scoring"
    scoring.mkdir(parents=True)
    (scoring / "__init__.py").touch()
    (scoring / "messages.py").write_text("raise ImportError('the copy in the image')")
    shutil.copy(ROOT / "ml/serving/fast.py", image / "ml/serving/fast.py")
    (made.code / "score.py").write_text(OTHER)
    (made.code / "ml/serving/scoring/other.py").write_text("ANSWER = 'what was released'")
    with fast(made, image) as port:
        assert json.loads(call(port, "POST", "/score", b"{}")[2]) == "what was released"
    text = (FOLDER / "Dockerfile").read_text()
    assert re.findall(r"^COPY (\S+)", text, re.M) == ["ml/serving/fast.py"]


@pytest.mark.slow
def test_it_serves_a_slot_of_this_machine(tmp_path: Path) -> None:
    """A deployment with its environment is started with it, on the loopback address; one whose
    script fails is told by its own exception.
    """
    slot, made = tmp_path / "slot", replace(deployment(tmp_path), server="ml.serving.fast")
    bring(made.code, "ml/serving")
    try:
        started = server.start(slot, made)
        assert server.score(started.port, {"question": "how?"}).status == 200
        assert "listening on 127.0.0.1" in processes.log(slot).read_text()
        (made.code / "score.py").write_text(CRASH)
        with pytest.raises(UserError, match="RuntimeError: no weights, no answer"):
            server.start(slot, made)
    finally:
        processes.stop(slot)


@pytest.mark.slow
def test_both_servers_give_the_same_answers(tmp_path: Path) -> None:
    """300 trees, 30 columns, missing values and unknown texts; and a request that is refused."""
    made: ModelDeployment = fixture(tmp_path)
    slot = tmp_path / "slot"
    bodies = [*(request(row) for row in rows(40, seed=5)), b"{}", request([1])]
    try:
        standard = server.start(slot, made)
        with fast(made) as port:
            for body in bodies:
                one, other = (call(at, "POST", "/score", body) for at in (standard.port, port))
                assert one[0] == other[0] and json.loads(one[2]) == json.loads(other[2])
    finally:
        processes.stop(slot)


def test_the_environment_is_one_that_azure_accepts() -> None:
    """The SDK loads it, the checks find no problem, and its Dockerfile exists."""
    spec = load(FOLDER / "environment.yml")
    assert not check(spec)
    build = spec.entity.build
    context = (FOLDER / build.path).resolve()
    assert context == ROOT and (context / build.dockerfile_path) == FOLDER / "Dockerfile"


def test_the_image_has_the_locked_versions() -> None:
    """Each pin of the Dockerfile is in requirements/main.lock, and the port is the spec's."""
    text = (FOLDER / "Dockerfile").read_text()
    pins = re.findall(r"^\s+(\S+==\S+)", text, re.MULTILINE)
    locked = (ROOT / "requirements" / "main.lock").read_text()
    assert len(pins) >= 6 and all(f"\n{pin} \\" in locked for pin in pins)
    routes = yaml.safe_load((FOLDER / "environment.yml").read_text())["inference_config"]
    assert {str(route["port"]) for route in routes.values()} == {"5001"}
    assert "EXPOSE 5001" in text and '"--port", "5001"' in text
